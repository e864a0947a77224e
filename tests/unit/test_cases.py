"""Files and mistakes that users have reported, on the command they would use."""

from pathlib import Path

import pytest

from coldbench.analysis.notes import notes
from coldbench.cli import main
from coldbench.common.errors import ColdbenchError
from coldbench.common.folders import need_space

from .fabricated_runs import fabricated_run
from .gguf_files import DATA

BAD = {
    "align0.gguf": "has general.alignment 0, which is no power of two: damaged",
    "dup_name.gguf": "has two tensors called token_embd.weight: damaged",
    "empty.gguf": "is an empty file; fetch it again",
    "html_page.gguf": "this is an HTML page; use the raw/resolve link",
    "huge_count.gguf": "claims 1,099,511,627,776 tensors and 2 metadata keys in 128 bytes",
    "lfs_pointer.gguf": "this is a Git LFS pointer for a file of 2,063,597,568 bytes",
    "split_missing/toy-00001-of-00002.gguf": "shard toy-00002-of-00002.gguf is missing in",
    "split_ok/toy-00002-of-00002.gguf": "is shard 2 of 2; use shard 1: toy-00001-of-00002.gguf",
    "truncated_data.gguf": "needs 540,928 bytes, has 440,928: incomplete download? (the first "
    "tensor out of bounds is per_layer_token_embd.weight)",
    "truncated_header.gguf": "has a cut-off header (150 bytes): incomplete download?",
}
GOOD = {
    "ok_v3.gguf": ["2 tensors, 540,928 bytes in 1 file(s)", "per_layer_token_embd.weight <- table"],
    "resumed_badly.gguf": ["note: resumed_badly.gguf: 4,096 bytes follow the last tensor"],
    "split_ok/toy-00001-of-00002.gguf": ["2 tensors, 541,120 bytes in 2 file(s)"],
    "zero_dim.gguf": ["2 tensors, 262,368 bytes"],
    "zero_dim_2d.gguf": ["1 tensors, 96 bytes"],
}


def test_every_sample_is_told_good_or_bad() -> None:
    samples = {str(path.relative_to(DATA)) for path in DATA.rglob("*.gguf")}
    assert samples == BAD.keys() | GOOD.keys()


@pytest.mark.parametrize("name", BAD)
def test_inspect_tells_a_bad_model_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = DATA / name
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(path)])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"coldbench: error: {path}: {BAD[name]}")


@pytest.mark.parametrize("name", GOOD)
def test_inspect_describes_a_good_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", str(DATA / name)])
    printed = capsys.readouterr()
    assert printed.err == ""
    for words in GOOD[name]:
        assert words in printed.out


def test_inspect_finds_what_stands_after_a_large_vocabulary(
    big_vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["inspect", str(big_vocabulary)])
    printed = capsys.readouterr().out
    assert "(150,000 x string)" in printed
    assert "general.name           toy" in printed


def test_inspect_tells_shards_that_were_joined_with_cat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = tmp_path / "toy.gguf"
    shards = sorted((DATA / "split_ok").iterdir())
    joined.write_bytes(b"".join(shard.read_bytes() for shard in shards))
    with pytest.raises(SystemExit):
        main(["inspect", str(joined)])
    assert "do not join shards with cat" in capsys.readouterr().err


def test_flags_written_as_a_mapping_are_asked_for_as_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "models: {m: {source: {path: m.gguf}}}\n"
        "builds: {b: {source: {binaries: bin}}}\n"
        "workloads: {w: {driver: llama-bench}}\n"
        "blocks: {warm: 1}\n"
        "arms: [{name: a, build: b, args: {flash-attn: on, mmap: false}}]\n"
    )
    with pytest.raises(SystemExit):
        main(["plan", str(study)])
    assert capsys.readouterr().err == (
        f"coldbench: error: {study}:5: arms.0.args: needs a list, such as [one, two], "
        "not {'flash-attn': 'on', 'mmap': 'false'}\n"
    )


@pytest.mark.parametrize(
    ("need", "words"), [(2**60, "needs 1073741824.0 GiB of disk"), (2**62, "are free; free some")]
)
def test_too_little_space_is_told_with_folder_and_sizes(
    tmp_path: Path, need: int, words: str
) -> None:
    with pytest.raises(ColdbenchError, match=words) as caught:
        need_space(tmp_path / "not" / "there", need, "building the launcher")
    assert str(caught.value).startswith(f"{tmp_path / 'not' / 'there'}: building the launcher ")


def test_settings_in_force_are_told_in_words() -> None:
    one = fabricated_run("old", 0, build="old", argv=["b"], effective={"lazy": ["one", "two"]})
    two = fabricated_run("new", 0, build="new", argv=["b"], effective={"lazy": "off"})
    ((note,),) = notes([one, two]).values()
    assert note.endswith("their builds ran with other settings: lazy one, two against off")
