"""The stand-in of architecture qwen4exp: an n-gram hash table, sixteen rows a token.

Row of head h = (n - 2) * HEADS_PER_NGRAM + g at a position: XOR of the last n tokens, each times
its multiplier, modulo 2^64; that modulo the head's vocabulary size, plus the head's offset.
"""

import hashlib
import math
from functools import partial

from gguf.constants import GGUFValueType

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header import TABLE_TENSOR
from coldbench.sources.standin.blocks import block_values, check_type
from coldbench.sources.standin.design import CONTEXT_TOKENS, NORM_EPSILON, Design, fitted, unit
from coldbench.sources.standin.vocabulary import END_OF_TEXT, RESERVED
from coldbench.study.models import StandIn

VOCABULARY = 4096
LAYERS = 4
FULL_ATTENTION_EVERY = 4
TABLE_LAYER = 1
NGRAM = 3
HEADS_PER_NGRAM = 8
TABLE_HEADS = (NGRAM - 1) * HEADS_PER_NGRAM
MINIMUM_ROWS = 64 * TABLE_HEADS
MAXIMUM_ROWS = 2**31 - 1
ROW_VALUES = 64
STREAMS = 2
LOW_RANK = 32
EXPERTS = 8
EXPERTS_USED = 2
HEAD = 128
CONVOLUTION = 4


def design(spec: StandIn) -> Design:
    """Return the design whose body (all but the table) comes near `spec.body` bytes."""
    assert spec.table is not None
    check_type(spec.table.type)
    if not MINIMUM_ROWS <= spec.table.rows <= MAXIMUM_ROWS:
        raise ColdbenchError(
            f"stand-in qwen4exp: table rows {spec.table.rows:,}: "
            f"must be {MINIMUM_ROWS:,} to {MAXIMUM_ROWS:,}"
        )
    # Sixteen rows make up an embedding, so a type with long blocks needs a wide body.
    row = max(ROW_VALUES, block_values(spec.table.type))
    return fitted(
        partial(_design, spec),
        widths=[row * TABLE_HEADS],
        inner=lambda _: list(range(32, 16384 + 1, 32)),
        body_bytes=spec.body,
        body_of=lambda made: sum(t.size for t in made.tensors if t.name != TABLE_TENSOR),
    )


def head_sizes(rows: int) -> list[int]:
    """Return the vocabulary size of each head: different primes that share `rows` rows out."""
    sizes: list[int] = []
    candidate = rows // TABLE_HEADS
    while len(sizes) < TABLE_HEADS:
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            sizes.append(candidate)
        candidate -= 1
    return sizes


def _multipliers(seed: int) -> list[int]:
    digest = hashlib.sha256(f"qwen4exp multipliers {seed}".encode()).digest()
    return [int.from_bytes(digest[8 * n : 8 * n + 8], "little") | 1 for n in range(NGRAM)]


def _design(spec: StandIn, width: int, inner: int) -> Design:
    assert spec.table is not None
    made = Design("qwen4exp", VOCABULARY)
    heads, heads_kv = 4, 1
    made.integer("context_length", CONTEXT_TOKENS)
    made.integer("embedding_length", width)
    made.integer("block_count", LAYERS)
    made.integer("feed_forward_length", inner)
    made.integer("expert_feed_forward_length", inner)
    made.integer("expert_shared_feed_forward_length", inner)
    made.integer("expert_count", EXPERTS)
    made.integer("expert_used_count", EXPERTS_USED)
    made.integer("attention.head_count", heads)
    made.integer("attention.head_count_kv", heads_kv)
    made.integer("attention.key_length", HEAD)
    made.integer("attention.value_length", HEAD)
    made.real("attention.layer_norm_rms_epsilon", NORM_EPSILON)
    made.integer("full_attention_interval", FULL_ATTENTION_EVERY)
    made.integer("rope.dimension_count", HEAD // 2)
    made.array("rope.dimension_sections", [HEAD // 4, 0, 0, 0], GGUFValueType.INT32)
    key_heads, value_heads = 2, 4
    keys, value = key_heads * HEAD, value_heads * HEAD
    made.integer("ssm.conv_kernel", CONVOLUTION)
    made.integer("ssm.inner_size", value)
    made.integer("ssm.state_size", HEAD)
    made.integer("ssm.time_step_rank", value_heads)
    made.integer("ssm.group_count", key_heads)
    made.integer("hyper_connection.count", STREAMS)
    made.integer("hyper_connection.low_rank", LOW_RANK)
    made.integer("attention.indexer.head_count", heads)
    made.integer("attention.indexer.key_length", HEAD)
    made.integer("attention.indexer.top_k", 2048)
    made.array("ple.layers", [TABLE_LAYER], GGUFValueType.INT32)
    made.integer("ple.ngram_size", NGRAM)
    made.integer("ple.heads_per_ngram", HEADS_PER_NGRAM)
    made.integer("ple.conv_kernel", CONVOLUTION)
    made.integer("ple.eos_token_id", END_OF_TEXT)
    made.integer("embedding_length_per_layer_input", width // TABLE_HEADS)
    share = spec.table.rows // TABLE_HEADS
    offsets = [head * share for head in range(TABLE_HEADS)]
    made.array("ple.layer_multipliers", _multipliers(spec.seed), GGUFValueType.UINT64)
    made.array("ple.head_offsets", offsets, GGUFValueType.UINT64)
    made.array("ple.head_vocab_sizes", head_sizes(spec.table.rows), GGUFValueType.UINT64)

    wide = STREAMS * width
    # The table comes first: what the kernel reads ahead of the body must not end in it.
    made.table(TABLE_TENSOR, (width // TABLE_HEADS, spec.table.rows), 1.0, spec.table)
    made.random("token_embd", (width, VOCABULARY), 1.0)
    made.random("output", (width, VOCABULARY), unit(width), zero_rows=RESERVED)
    _mixer(made, "output_hc", width)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("hc_attn", "hc_ffn"):
            _mixer(made, f"{block}.{name}", width)
            made.matrix(f"{block}.{name}_inject", (wide, STREAMS))
        if (layer + 1) % FULL_ATTENTION_EVERY == 0:
            # Per head the query and then the gate.
            made.matrix(f"{block}.attn_q", (width, 2 * heads * HEAD))
            made.matrix(f"{block}.attn_k", (width, heads_kv * HEAD))
            made.matrix(f"{block}.attn_v", (width, heads_kv * HEAD))
            made.matrix(f"{block}.attn_output", (heads * HEAD, width), gain=4.0)
            made.norm(f"{block}.attn_q_norm", HEAD)
            made.norm(f"{block}.attn_k_norm", HEAD)
            made.matrix(f"{block}.indexer.q_proj", (width, heads * HEAD))
            made.matrix(f"{block}.indexer.k_proj", (width, HEAD))
            made.norm(f"{block}.indexer.q_norm", HEAD)
            made.norm(f"{block}.indexer.k_norm", HEAD)
        else:
            made.matrix(f"{block}.attn_qkv", (width, 2 * keys + value))
            made.matrix(f"{block}.attn_gate", (width, value))
            made.random(f"{block}.ssm_conv1d", (CONVOLUTION, 2 * keys + value), 0.5, "F32")
            made.constant(f"{block}.ssm_dt.bias", value_heads, 0.0)
            made.constant(f"{block}.ssm_a", value_heads, -1.0)
            made.matrix(f"{block}.ssm_alpha", (width, value_heads))
            made.matrix(f"{block}.ssm_beta", (width, value_heads))
            made.norm(f"{block}.ssm_norm", HEAD)
            made.matrix(f"{block}.ssm_out", (value, width), gain=4.0)
        if layer == TABLE_LAYER:
            made.matrix(f"{block}.ple_key", (width, wide))
            made.matrix(f"{block}.ple_value", (width, width))
            for name in ("ple_norm_key", "ple_norm_query", "ple_norm_conv"):
                made.norm(f"{block}.{name}", wide)
            made.random(f"{block}.ple_conv1d", (CONVOLUTION, wide), 0.5, "F32")
        made.random(f"{block}.ffn_gate_inp", (width, EXPERTS), unit(width), "F32")
        for name, shape in (
            ("ffn_gate", (width, inner)),
            ("ffn_up", (width, inner)),
            ("ffn_down", (inner, width)),
        ):
            gain = 4.0 if name == "ffn_down" else 2.0
            made.matrix(f"{block}.{name}_exps", (*shape, EXPERTS), gain)
            made.matrix(f"{block}.{name}_shexp", shape, gain)
        made.random(f"{block}.ffn_gate_inp_shexp", (width,), unit(width), "F32")
    return made


def _mixer(made: Design, name: str, width: int) -> None:
    """Add a hyper-connection's mixer, which is the layer's norm as well."""
    wide = STREAMS * width
    made.norm(f"{name}_norm", wide)
    made.matrix(f"{name}_down", (wide, LOW_RANK))
    made.matrix(f"{name}_up", (LOW_RANK, wide))
