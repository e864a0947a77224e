"""Where a model's layers lie: the file that feeds the stream kernel."""

import hashlib
import struct
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.sources.header import read_model
from coldbench.sources.traces import prepare_layers, table_of, vocabulary_of
from coldbench.sources.traces.layers import layers_of, layers_text
from tests.unit.gguf_files import TABLE, gguf, heading, key, record

F32 = 0


def tensors_of(*names: str, size: int = 128) -> bytes:
    keys = heading("gemma4", 0)
    placed = [(name, (size // 4,), F32, number * size) for number, name in enumerate(names)]
    return gguf(keys, placed, bytes(size * len(names)))


def test_tensors_of_a_block_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "my model.gguf"
    names = ["token_embd.weight", "blk.0.a", "blk.0.b", "blk.10.a", "blk.2.a", "output"]
    path.write_bytes(tensors_of(*names, "blk.0.c", TABLE))
    model = read_model(path)
    at = {name: tensor.offset for name, tensor in model.tensors.items()}
    assert layers_of(model, None) == [
        [(path, at["blk.0.a"], 256), (path, at["blk.0.c"], 128)],
        [(path, at["blk.2.a"], 128)],
        [(path, at["blk.10.a"], 128)],
    ]
    assert layers_text(layers_of(model, None)) == (
        "CBLAYERS1 3 4\n"
        f"0 {at['blk.0.a']} 256 my model.gguf\n"
        f"0 {at['blk.0.c']} 128 my model.gguf\n"
        f"1 {at['blk.2.a']} 128 my model.gguf\n"
        f"2 {at['blk.10.a']} 128 my model.gguf\n"
    )


def test_padding_is_part_of_a_range(tmp_path: Path) -> None:
    path = tmp_path / "padded.gguf"
    tensors = [("blk.0.a", (5,), F32, 0), ("blk.0.b", (5,), F32, 32)]
    path.write_bytes(gguf(heading("llama", 0), tensors, bytes(64)))
    ((file_range,),) = layers_of(read_model(path), None)
    assert file_range[2] == 52


def test_the_table_is_of_no_layer(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tensors_of("blk.0.a", "blk.0.table", "blk.1.a"))
    found = prepare_layers(record(path, "blk.0.table"), tmp_path / "cache")
    assert (found["layers"], found["ranges"]) == (2, 2)
    assert (found["weight_bytes"], found["largest_layer_bytes"]) == (256, 128)
    assert found["kind"] == "layers"
    kept = Path(found["path"])
    assert found["sha256"] == hashlib.sha256(kept.read_bytes()).hexdigest()
    assert prepare_layers(record(path, "blk.0.table"), tmp_path / "cache") == found
    assert prepare_layers(record(path, None), tmp_path / "cache")["ranges"] == 2
    assert prepare_layers(record(path, None), tmp_path / "cache")["weight_bytes"] == 384


def test_no_layers(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tensors_of("token_embd.weight", TABLE))
    with pytest.raises(ColdbenchError, match=r"no tensors blk\.N"):
        prepare_layers(record(path), tmp_path / "cache")


def test_shards_go_by_their_names_beside_the_model(tmp_path: Path) -> None:
    blobs, named = tmp_path / "blobs", tmp_path / "named"
    blobs.mkdir()
    named.mkdir()
    for index, tensors in enumerate((["blk.0.a", TABLE], ["blk.0.b", "blk.1.a"])):
        keys = [*heading("gemma4", 32), key("split.no", 2, struct.pack("<H", index))]
        keys += [key("split.count", 2, struct.pack("<H", 2))]
        placed = [
            (name, (4, 32) if name == TABLE else (128,), F32, 512 * at)
            for at, name in enumerate(tensors)
        ]
        blob = blobs / f"m-0000{index + 1}-of-00002.gguf"
        blob.write_bytes(gguf(keys, placed, bytes(1024)))
        (named / f"model-0000{index + 1}-of-00002.gguf").symlink_to(blob)
    path = named / "model-00001-of-00002.gguf"
    layers = layers_of(read_model(path), None)
    assert [[file.name for file, _, _ in ranges] for ranges in layers] == [
        ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"],
        ["model-00002-of-00002.gguf"],
    ]
    assert table_of(read_model(path)).file == path
    short = tmp_path / "short.gguf"
    short.symlink_to(blobs / "m-00001-of-00002.gguf")
    assert vocabulary_of(read_model(short)) == 32
    with pytest.raises(ColdbenchError, match="is not in this folder"):
        layers_of(read_model(short), None)
