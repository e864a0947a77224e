"""`coldbench sizing` against a hub on this machine, and on local files."""

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from coldbench.cli import main
from coldbench.common.errors import ColdbenchError
from coldbench.publish.sizing import sizing
from coldbench.sources.header import read_model
from coldbench.sources.ranges import FIRST_BYTES, MOST_BYTES
from coldbench.sources.standin import size_of, write_standin
from coldbench.sources.standin.blocks import row_bytes
from coldbench.sources.survey import Survey, Surveyed, survey
from coldbench.study.models import StandIn
from tests.hub.server import HubServer
from tests.unit.gguf_files import DATA, gguf, key, number, text

REPO = "acme/toy-GGUF"
TABLE = "per_layer_token_embd.weight"
F32, F16, Q8_0, UNKNOWN = 0, 1, 8, 200
TIERS = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_NL")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            server.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("coldbench.sources.ranges.WAIT_S", 0.01)
        yield server


def found(survey_: Survey) -> dict[str, Surveyed]:
    return {entry.name: entry for entry in survey_.models}


def fault_of(server: HubServer, served: bytes, **how: Any) -> str:
    server.commit(REPO, {"toy.gguf": served})
    server.fault("toy.gguf", **how)
    with pytest.raises(ColdbenchError) as caught:
        survey([REPO], "*")
    (line,) = str(caught.value).splitlines()
    return line


def vocabulary(words: list[str]) -> list[bytes]:
    tokens = struct.pack("<IQ", 8, len(words)) + b"".join(map(text, words))
    kinds = struct.pack("<IQ", 5, len(words)) + bytes(4 * len(words))
    return [
        key("general.architecture", 8, text("gemma4")),
        key("tokenizer.ggml.tokens", 9, tokens),
        key("tokenizer.ggml.token_type", 9, kinds),
        number("after", 7),
    ]


# --- the table ----------------------------------------------------------------------------------


def rows_of(shown: str, heading: str) -> dict[str, list[str]]:
    """Return the lines of the printed table that has this heading, by their first cell."""
    (part,) = [
        part
        for part in shown.strip().split("\n\n")
        if heading in re.split("  +", part.splitlines()[0])
    ]
    _, rule, *lines = part.splitlines()
    spans = [match.span() for match in re.finditer("-+", rule)]
    rows = [[line[start:end].strip() for start, end in spans] for line in lines]
    return {row[0]: row for row in rows}


def test_six_quant_tiers_of_a_hub_to_the_byte(tmp_path: Path, hub: HubServer) -> None:
    specs = {
        tier: StandIn.model_validate(
            {
                "architecture": "gemma4",
                "body": "12MiB",
                "table": {"rows": 1024, "type": tier},
            }
        )
        for tier in TIERS
    }
    files = {}
    for tier, spec in specs.items():
        write_standin(spec, tmp_path / "m.gguf")
        files[f"toy-{tier}.gguf"] = (tmp_path / "m.gguf").read_bytes()
    commit = hub.commit(REPO, {**files, "README.md": b"# toy"})

    # As a user runs it: another process, which knows the hub by its environment only.
    done = subprocess.run(
        [sys.executable, "-c", "from coldbench.cli import main; main()", "sizing", REPO],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = done.stdout
    assert shown.startswith(f"{REPO} at {commit}: 6 model(s)")
    in_gb, in_bytes = rows_of(shown, "total GB"), rows_of(shown, "total bytes")
    fetched = 0
    for tier, spec in specs.items():
        total, table = size_of(spec), row_bytes(tier, 8 * 1024) * 1024
        assert total == len(files[f"toy-{tier}.gguf"])
        row = in_bytes[f"toy-{tier}.gguf"]
        assert row[1:5] == ["1", f"{total:,}", f"{table:,}", f"{total - table:,}"]
        fetched += int(row[5].replace(",", ""))
        assert int(row[5].replace(",", "")) <= FIRST_BYTES
        assert in_gb[tier] == [
            tier,
            *(f"{size / 1e9:.3f}" for size in (total, table, total - table)),
            tier,
            "1,024",
            "gemma4",
        ]
    assert [size_of(specs[tier]) for tier in in_gb] == sorted(map(size_of, specs.values()))
    assert f"fetched {fetched:,} bytes in 6 range requests for the headers of 6 file(s)" in shown
    bodies = hub.bodies()
    assert len(bodies) == 6
    assert hub.sent_bytes == fetched
    assert not hub.leaks


def test_a_pattern_chooses_and_a_revision_is_resolved(hub: HubServer) -> None:
    ok = (DATA / "ok_v3.gguf").read_bytes()
    old = hub.commit(REPO, {"toy-Q8_0.gguf": ok, "deep/toy-UD-Q4_K_XL.gguf": ok})
    hub.commit(REPO, {"other.gguf": ok})
    assert list(found(survey([REPO], "*"))) == ["other.gguf"]
    assert list(found(survey([f"{REPO}@{old}"], "*Q4*"))) == ["deep/toy-UD-Q4_K_XL.gguf"]
    with pytest.raises(ColdbenchError, match=r"no GGUF file's name matches \*Q2\*"):
        survey([REPO], "*Q2*")
    assert "UD-Q4_K_XL" in rows_of(sizing(survey([f"{REPO}@{old}"], "*Q4*")), "total GB")


def test_two_models_of_one_tier_are_told_apart_by_name(hub: HubServer) -> None:
    ok = (DATA / "ok_v3.gguf").read_bytes()
    hub.commit(REPO, {"toy-F16.gguf": ok, "mmproj-F16.gguf": ok})
    assert set(rows_of(sizing(survey([REPO], "*")), "total GB")) >= {"toy-F16", "mmproj-F16"}


# --- how it is read -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ok_v3", "big_vocab", "zero_dim", "zero_dim_2d", "resumed_badly"])
def test_a_header_by_ranges_is_the_same_as_from_the_disk(
    hub: HubServer, big_vocabulary: Path, name: str
) -> None:
    path = big_vocabulary if name == "big_vocab" else DATA / f"{name}.gguf"
    hub.commit(REPO, {path.name: path.read_bytes()})
    (entry,) = survey([REPO], "*").models
    local = read_model(path)
    assert entry.model is not None
    assert entry.model.tensors == local.tensors
    assert entry.model.metadata == local.metadata
    assert entry.model.notes == local.notes
    assert entry.model.size == local.size


def test_one_vocabulary_is_fetched_once_for_all_tiers(hub: HubServer) -> None:
    keys = vocabulary([f"token {n}" for n in range(150_000)])
    header = len(gguf(keys, [], b""))
    tiers = {
        f"toy-{kind}.gguf": gguf(
            keys, [(TABLE, (64, 65536), code, 0), ("b", (8,), F32, size)], bytes(size + 32)
        )
        for kind, code, size in (("F16", F16, 64 * 65536 * 2), ("Q8_0", Q8_0, 2 * 34 * 65536))
    }
    hub.commit(REPO, tiers)
    entries = found(survey([REPO], "*"))
    for name, content in tiers.items():
        model, traffic = entries[name].model, entries[name].traffic
        assert model is not None
        assert traffic is not None
        assert model.metadata["after"] == 7
        assert model.tensors["b"].offset == len(content) - 32
    first, second = (entries[name].traffic for name in sorted(tiers))
    assert first is not None
    assert second is not None
    assert header - 4 * 150_000 < first.bytes < header + MOST_BYTES  # numbers are stepped over
    assert second.bytes <= 3 * FIRST_BYTES
    assert hub.sent_bytes == first.bytes + second.bytes


def test_a_vocabulary_of_the_same_count_but_other_words_is_read_through(hub: HubServer) -> None:
    tiers = {
        f"toy-{name}.gguf": gguf(
            vocabulary([f"{word} {n}" for n in range(20_000)]), [("a", (8,), F32, 0)], bytes(32)
        )
        for name, word in (("a", "token"), ("b", "a longer token"))
    }
    hub.commit(REPO, tiers)
    entries = found(survey([REPO], "*"))
    for name, content in tiers.items():
        model = entries[name].model
        assert model is not None
        assert model.metadata["after"] == 7
        assert model.tensors["a"].offset == len(content) - 32


def test_a_header_under_2_mb_costs_under_2_mb(hub: HubServer) -> None:
    keys = vocabulary([f"token {n}" for n in range(70_000)])
    content = gguf(keys, [("a", (2**20,), F32, 0)], bytes(2**22))
    hub.commit(REPO, {"toy.gguf": content})
    (entry,) = survey([REPO], "*").models
    assert entry.traffic is not None
    assert entry.traffic.bytes < 2_000_000 < len(content)
    assert entry.traffic.requests <= 8


def shards(count: int) -> dict[str, bytes]:
    return {
        f"toy-Q8_0-{n + 1:05d}-of-{count:05d}.gguf": gguf(
            [number("split.no", n), number("split.count", count)],
            [(f"t{n}", (8,), F32, 0)],
            bytes(32),
        )
        for n in range(count)
    }


@pytest.mark.parametrize("pattern", ["*", "*-00002-of-*"])
def test_a_split_set_is_one_model(hub: HubServer, pattern: str) -> None:
    files = shards(3)
    hub.commit(REPO, files)
    (entry,) = survey([REPO], pattern).models
    assert entry.model is not None
    assert entry.model.size == sum(map(len, files.values()))
    assert [tensor.file for tensor in entry.model.tensors.values()] == [0, 1, 2]
    assert entry.traffic is not None
    assert entry.traffic.files == 3
    assert entry.traffic.bytes == entry.model.size  # each is smaller than a range
    row = rows_of(sizing(survey([REPO], pattern)), "total bytes")["toy-Q8_0-00001-of-00003.gguf"]
    assert row[1:3] == ["3", f"{entry.model.size:,}"]


def test_a_missing_shard_is_named_and_the_other_models_are_shown(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    files = shards(3)
    del files["toy-Q8_0-00002-of-00003.gguf"]
    hub.commit(REPO, {**files, "toy-F16.gguf": (DATA / "ok_v3.gguf").read_bytes()})
    with pytest.raises(SystemExit) as ended:
        main(["sizing", REPO])
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert f"not read: {REPO}/toy-Q8_0-00001-of-00003.gguf: shard" in shown
    assert "shard toy-Q8_0-00002-of-00003.gguf is missing" in shown
    assert "540,928" in shown


def test_an_unknown_type_is_sized_by_what_follows_it(hub: HubServer) -> None:
    keys = [key("general.architecture", 8, text("qwen4exp"))]
    tensors = [(TABLE, (7, 3), UNKNOWN, 0), ("b", (8,), F32, 96)]
    hub.commit(REPO, {"toy.gguf": gguf(keys, tensors, bytes(128))})
    shown = sizing(survey([REPO], "*"))
    row = rows_of(shown, "total bytes")["toy.gguf"]
    assert row[3] == "96?"
    assert rows_of(shown, "total GB")["toy"][4:6] == ["type 200", "3"]
    assert "note: toy.gguf: tensor per_layer_token_embd.weight has type 200, unknown here" in shown


# --- what servers do ----------------------------------------------------------------------------


def test_a_server_that_ignores_ranges_is_refused_without_a_download(hub: HubServer) -> None:
    size = 64 * 2**20
    content = gguf([], [("a", (size // 4,), F32, 0)], bytes(size))
    line = fault_of(hub, content, ignore_range=True, pause_s=0.001)
    assert line == (
        f"{REPO}/toy.gguf: the server ignores range requests and would send the whole file of "
        f"{len(content):,} bytes; fetch the file and name it on this machine"
    )
    assert hub.sent_bytes < size / 4


def test_a_small_file_sent_whole_is_what_was_asked_for(hub: HubServer) -> None:
    content = gguf([], [("a", (8,), F32, 0)], bytes(32))
    hub.commit(REPO, {"toy.gguf": content})
    hub.fault("toy.gguf", ignore_range=True)
    (entry,) = survey([REPO], "*").models
    assert entry.model is not None
    assert entry.model.size == len(content)


LARGE = gguf(
    vocabulary([f"token {n}" for n in range(10_000)]), [("a", (2**16,), F32, 0)], bytes(2**18)
)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"wrong_range": True}, "the server sends another range than asked for"),
        ({"statuses": [404]}, "answers 404; try again later"),
        ({"statuses": [500] * 9}, "answers 500; try again later"),
        ({"statuses": [429], "retry_after": "7"}, "limits your requests (429); try again in 7 s"),
        ({"content": LARGE[:-32]}, f"has {len(LARGE) - 32} bytes on the server, {len(LARGE)} are"),
        ({"cut_after": 0}, "cuts its answers off"),
    ],
)
def test_what_a_server_does_wrong_is_told_in_a_line(
    hub: HubServer, how: dict[str, Any], words: str
) -> None:
    assert words in fault_of(hub, LARGE, **how)


@pytest.mark.parametrize(
    "how", [{"statuses": [500, 503]}, {"cut_after": 100, "cuts": 2}, {"cut_after": 40_000}]
)
def test_what_passes_is_tried_again(hub: HubServer, how: dict[str, Any]) -> None:
    hub.commit(REPO, {"toy.gguf": LARGE})
    hub.fault("toy.gguf", **how)
    (entry,) = survey([REPO], "*").models
    assert entry.model is not None
    assert entry.model.tensors["a"].offset == len(LARGE) - 2**18


def test_a_gated_repository_needs_the_token_which_stays_with_the_hub(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(REPO, {"toy.gguf": LARGE})
    hub.repos[REPO].access = "gated"
    with pytest.raises(ColdbenchError, match="is gated"):
        survey([REPO], "*")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.tokens["hf_secret"] = {REPO}
    assert survey([REPO], "*").models[0].model is not None
    assert not hub.leaks


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("acme/none", "there is no such repository"),
        (f"{REPO}@none", "has no branch, tag or commit none"),
        ("acme", "is neither a file or folder here nor a repository"),
        ("acme/a/b", "is neither a file or folder here nor a repository"),
        (f"{REPO}@", "is neither a file or folder here nor a repository"),
        ("../acme/toy", "No such file"),
        ("absent.gguf", "No such file"),
    ],
)
def test_a_wrong_target_is_told_in_a_line(hub: HubServer, target: str, words: str) -> None:
    hub.commit(REPO, {"toy.gguf": LARGE})
    with pytest.raises(ColdbenchError) as caught:
        survey([target], "*")
    (line,) = str(caught.value).splitlines()
    assert words in line


def test_offline_mode_is_respected(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ColdbenchError, match="HF_HUB_OFFLINE is set"):
        survey([REPO], "*")
    assert hub.requests == []


# --- local files --------------------------------------------------------------------------------


def test_local_folders_files_and_split_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ok = (DATA / "ok_v3.gguf").read_bytes()
    (tmp_path / "sub").mkdir()
    (tmp_path / "toy-Q8_0.gguf").write_bytes(ok)
    for name, content in shards(3).items():
        (tmp_path / "sub" / name).write_bytes(content)
    both = found(survey([str(tmp_path)], "*"))
    assert set(both) == {"toy-Q8_0.gguf", "sub/toy-Q8_0-00001-of-00003.gguf"}
    assert all(entry.traffic is None for entry in both.values())
    names = [str(tmp_path / "sub" / name) for name in shards(3)]
    (entry,) = survey(names[1:], "*").models
    assert entry.model is not None
    assert len(entry.model.files) == 3
    main(["sizing", str(tmp_path / "toy-Q8_0.gguf")])
    shown = capsys.readouterr().out
    assert rows_of(shown, "total GB")["Q8_0"] == [
        *("Q8_0", "0.001", "0.000", "0.000", "Q8_0", "1,024", "gemma3n")
    ]
    assert "fetched" not in shown.split("\n\n")[-1]
