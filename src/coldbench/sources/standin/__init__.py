"""Stand-ins: GGUF models of random weights that a real engine loads and runs."""

from coldbench.sources.standin.write import WRITER_VERSION, size_of, write_standin

__all__ = ["WRITER_VERSION", "size_of", "write_standin"]
