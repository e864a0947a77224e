"""The GGUF header map: which file and which bytes hold which tensor."""

from coldbench.sources.header.model import (
    TABLE_TENSOR,
    ModelFile,
    ModelMap,
    describe,
    find_table,
    read_model,
)
from coldbench.sources.header.parse import Header, Skipped, Tensor, read_header

__all__ = [
    "TABLE_TENSOR",
    "Header",
    "ModelFile",
    "ModelMap",
    "Skipped",
    "Tensor",
    "describe",
    "find_table",
    "read_header",
    "read_model",
]
