"""The stand-in of architecture llama: a dense transformer without a table."""

from coldbench.sources.standin.design import CONTEXT_TOKENS, NORM_EPSILON, Design, fitted, unit
from coldbench.sources.standin.vocabulary import RESERVED
from coldbench.study.models import StandIn

VOCABULARY = 8192
LAYERS = 8
HEAD = 64


def design(spec: StandIn) -> Design:
    """Return the design whose file comes near `spec.body` bytes."""
    return fitted(
        _design,
        widths=list(range(256, 8192 + 1, 256)),
        inner=lambda width: list(range(2 * width, 8 * width + 1, 32)),
        body_bytes=spec.body,
        body_of=lambda made: sum(tensor.size for tensor in made.tensors),
    )


def _design(width: int, inner: int) -> Design:
    made = Design("llama", VOCABULARY)
    heads, heads_kv = width // HEAD, width // HEAD // 4
    made.integer("vocab_size", VOCABULARY)
    made.integer("context_length", CONTEXT_TOKENS)
    made.integer("embedding_length", width)
    made.integer("block_count", LAYERS)
    made.integer("feed_forward_length", inner)
    made.integer("attention.head_count", heads)
    made.integer("attention.head_count_kv", heads_kv)
    made.real("attention.layer_norm_rms_epsilon", NORM_EPSILON)
    made.integer("rope.dimension_count", HEAD)

    made.random("token_embd", (width, VOCABULARY), 1.0)
    made.random("output", (width, VOCABULARY), unit(width), zero_rows=RESERVED)
    made.norm("output_norm", width)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        made.norm(f"{block}.attn_norm", width)
        made.matrix(f"{block}.attn_q", (width, width), gain=2.0)
        made.matrix(f"{block}.attn_k", (width, heads_kv * HEAD), gain=2.0)
        made.matrix(f"{block}.attn_v", (width, heads_kv * HEAD), gain=2.0)
        made.matrix(f"{block}.attn_output", (width, width))
        made.norm(f"{block}.ffn_norm", width)
        made.matrix(f"{block}.ffn_gate", (width, inner), gain=2.0)
        made.matrix(f"{block}.ffn_up", (width, inner))
        made.matrix(f"{block}.ffn_down", (inner, width))
    return made
