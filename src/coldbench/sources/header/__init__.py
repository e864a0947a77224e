"""The GGUF header map: which file and which bytes hold which tensor."""

from coldbench.sources.header.model import (
    TABLE_TENSOR,
    FileSystem,
    ModelFile,
    ModelMap,
    Place,
    describe,
    find_table,
    first_shard,
    read_model,
    read_model_at,
)
from coldbench.sources.header.parse import Header, Skipped, Tensor, parse_header, read_header
from coldbench.sources.header.reading import ByteSource, StringArrays

__all__ = [
    "TABLE_TENSOR",
    "ByteSource",
    "FileSystem",
    "Header",
    "ModelFile",
    "ModelMap",
    "Place",
    "Skipped",
    "StringArrays",
    "Tensor",
    "describe",
    "find_table",
    "first_shard",
    "parse_header",
    "read_header",
    "read_model",
    "read_model_at",
]
