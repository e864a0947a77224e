"""What the kernels are fed with: which rows are gathered in order, and where the layers lie."""

from coldbench.sources.traces.feed import prepare_trace, write_feed
from coldbench.sources.traces.layers import prepare_layers
from coldbench.sources.traces.rows import Table, Trace, make_trace, rows_of_tokens, table_of
from coldbench.sources.traces.tokens import Tokens, batched_bench_tokens, vocabulary_of

__all__ = [
    "Table",
    "Tokens",
    "Trace",
    "batched_bench_tokens",
    "make_trace",
    "prepare_layers",
    "prepare_trace",
    "rows_of_tokens",
    "table_of",
    "vocabulary_of",
    "write_feed",
]
