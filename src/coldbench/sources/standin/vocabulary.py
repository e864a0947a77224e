"""A vocabulary of single characters, so that any sequence of its tokens can be written as text.

Tokens 0-2 are <unk>, <s> and </s>, 3-258 the bytes, then printable ASCII, then one token for each
East Asian character; past those, further code points up to the last.
"""

from gguf.constants import Keys
from gguf.gguf_writer import GGUFWriter

from coldbench.common.errors import ColdbenchError

END_OF_TEXT = 2
RESERVED = 3 + 256
"""Control and byte tokens: the first ids. Their output rows are 0, so they are never generated."""

MINIMUM = 512
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_RANGES = (
    (0x21, 0x7E),  # printable ASCII without the space
    (0x4E00, 0x9FFC),  # CJK unified ideographs
    (0xAC00, 0xD7A3),  # Hangul syllables
    (0x3400, 0x4DBF),  # CJK extensions A to G
    (0x20000, 0x2A6DD),
    (0x2A700, 0x2B734),
    (0x2B740, 0x2B81D),
    (0x2B820, 0x2CEA1),
    (0x2CEB0, 0x2EBE0),
    (0x30000, 0x3134A),
    (0x40000, 0x10FFFD),  # valid in UTF-8, but nothing that a font shows
)
MAXIMUM = RESERVED + 1 + sum(last - first + 1 for first, last in _RANGES)


def check_size(size: int, key: str) -> None:
    """Raise ColdbenchError, naming `key`, unless a vocabulary can have `size` tokens."""
    if not MINIMUM <= size <= MAXIMUM:
        raise ColdbenchError(f"{key} {size:,}: a vocabulary has {MINIMUM:,} to {MAXIMUM:,} tokens")


def tokens(size: int) -> list[str]:
    """Return the vocabulary's first `size` tokens, as the tokenizer spells them."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    for first, last in _RANGES:
        texts.extend(map(chr, range(first, min(last, first + size - len(texts) - 1) + 1)))
    return texts[:size]


def add_tokenizer(writer: GGUFWriter, size: int) -> None:
    """Add the tokenizer's keys: SentencePiece, and the text of a prompt is exactly its tokens."""
    kinds = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256 + [_NORMAL] * (size - RESERVED)
    writer.add_tokenizer_model("llama")
    writer.add_array(Keys.Tokenizer.LIST, tokens(size))
    writer.add_array(Keys.Tokenizer.SCORES, [0.0] * size)
    writer.add_array(Keys.Tokenizer.TOKEN_TYPE, kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
