"""The stand-in of architecture gemma4: a per-layer embedding table with one row a token."""

from functools import partial

from gguf.constants import GGUFValueType

from coldbench.sources.header import TABLE_TENSOR
from coldbench.sources.standin.blocks import check_type
from coldbench.sources.standin.design import CONTEXT_TOKENS, NORM_EPSILON, Design, fitted, unit
from coldbench.sources.standin.vocabulary import RESERVED, check_size
from coldbench.study.models import StandIn, Table

LAYERS = 8
PER_LAYER = 1024
"""Values a layer takes from a token's row: a row is LAYERS * PER_LAYER values."""

HEAD = 128
WINDOW_TOKENS = 512
GLOBAL_EVERY = 4


def design(spec: StandIn) -> Design:
    """Return the design whose body (all but the table) comes near `spec.body` bytes."""
    assert spec.table is not None
    check_type(spec.table.type)
    check_size(spec.table.rows, "stand-in gemma4: table rows")
    return fitted(
        partial(_design, spec.table),
        widths=list(range(256, 8192 + 1, 128)),
        inner=lambda width: list(range(2 * width, 8 * width + 1, 32)),
        body_bytes=spec.body,
        body_of=lambda made: sum(t.size for t in made.tensors if t.name != TABLE_TENSOR),
    )


def _design(table: Table, width: int, inner: int) -> Design:
    made = Design("gemma4", table.rows)
    heads, heads_kv = width // HEAD, max(1, width // HEAD // 4)
    made.integer("context_length", CONTEXT_TOKENS)
    made.integer("embedding_length", width)
    made.integer("block_count", LAYERS)
    made.integer("feed_forward_length", inner)
    made.integer("attention.head_count", heads)
    made.integer("attention.head_count_kv", heads_kv)
    for key in ("key_length", "value_length", "key_length_swa", "value_length_swa"):
        made.integer(f"attention.{key}", HEAD)
    made.real("attention.layer_norm_rms_epsilon", NORM_EPSILON)
    made.integer("attention.sliding_window", WINDOW_TOKENS)
    windowed = [(layer + 1) % GLOBAL_EVERY != 0 for layer in range(LAYERS)]
    made.array("attention.sliding_window_pattern", windowed, GGUFValueType.BOOL)
    made.integer("attention.shared_kv_layers", 0)
    made.integer("embedding_length_per_layer_input", PER_LAYER)
    made.real("final_logit_softcapping", 30.0)
    made.integer("rope.dimension_count", HEAD)
    made.integer("rope.dimension_count_swa", HEAD)
    made.real("rope.freq_base", 1e6)
    made.real("rope.freq_base_swa", 1e4)

    # The table comes first: what the kernel reads ahead of the body must not end in it.
    row = LAYERS * PER_LAYER
    made.table(TABLE_TENSOR, (row, table.rows), unit(PER_LAYER), table)
    # The output matrix is the embedding, so a strong embedding would make each token its own
    # successor: it is kept weak beside what the layers add.
    made.random("token_embd", (width, table.rows), unit(width) / 8, zero_rows=RESERVED)
    made.matrix("per_layer_model_proj", (width, row))
    made.norm("per_layer_proj_norm", PER_LAYER)
    made.norm("output_norm", width)
    made.norm("rope_freqs", HEAD // 2)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        made.norm(f"{block}.attn_norm", width)
        made.matrix(f"{block}.attn_q", (width, heads * HEAD))
        made.matrix(f"{block}.attn_k", (width, heads_kv * HEAD))
        made.matrix(f"{block}.attn_v", (width, heads_kv * HEAD))
        made.matrix(f"{block}.attn_output", (heads * HEAD, width))
        # Attention is not scaled by the head's length in this architecture.
        made.norm(f"{block}.attn_q_norm", HEAD, unit(HEAD) * 2)
        made.norm(f"{block}.attn_k_norm", HEAD)
        made.norm(f"{block}.post_attention_norm", width)
        made.norm(f"{block}.ffn_norm", width)
        made.matrix(f"{block}.ffn_gate", (width, inner))
        made.matrix(f"{block}.ffn_up", (width, inner))
        made.matrix(f"{block}.ffn_down", (inner, width))
        made.norm(f"{block}.post_ffw_norm", width)
        made.matrix(f"{block}.inp_gate", (width, PER_LAYER))
        made.matrix(f"{block}.proj", (PER_LAYER, width))
        made.norm(f"{block}.post_norm", width)
    return made
