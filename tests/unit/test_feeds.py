"""What a workload is fed: made from the study's words, part of a cell, checked before a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.common.files import read_json
from coldbench.common.hashing import file_sha256, text_md5
from coldbench.measure.bench import Bench
from coldbench.measure.block import Prepared, check_identity, measure_block
from coldbench.sources.binaries import ready_build
from coldbench.sources.models import prepare_model
from coldbench.sources.traces.prepared import check_feed, prepare_feed, read_feed, trace_of
from coldbench.study.builds import BinariesSource
from coldbench.study.models import Model
from coldbench.study.quiet import QuietSettings
from coldbench.study.specs import Arm, BlockSpec, FeedSpec, IdentitySpec

from .driver_outputs import workload
from .gguf_files import TABLE, gguf, heading, record
from .test_traces import VOCABULARY, written

MIB = 2**20
TOY = Path(__file__).parent.parent / "data" / "gguf" / "ok_v3.gguf"
# A kernel that prints how much it was fed as its checksum.
KERNEL = """\
#!/bin/sh
[ "$1 $3" = "--model --feed" ] || exit 2
for word; do [ "$word" = --mutant ] && mutant=9; done
cat "$2" > /dev/null
sum=$(cksum < "$4")
echo "{\\"ns_per_gather\\": 2.5, \\"hints\\": 0, \\"checksum\\": \\"$mutant${sum%% *}\\"}"
"""
WARN = QuietSettings.model_validate(
    {
        "quiet": "warn",
        "quiet_limits": {
            "other_cpu": "99%",
            "stolen": "99%",
            "other_disk": "1TiB",
            "swapped_in": "1TiB",
            "throttled": "1000000",
        },
    }
)
DRIVEN = workload("gather", "--batch", "4", trace={"zipf": {"exponent": 1, "count": 2}})


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDBENCH_LOCK", str(tmp_path / "machine.lock"))


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "toy.gguf"
    path.write_bytes(TOY.read_bytes())
    return prepare_model(Model.model_validate({"source": {"path": str(path)}}), tmp_path / "cache")


@pytest.fixture
def kernel(tmp_path: Path) -> dict[str, Any]:
    program = tmp_path / "bin" / "gather"
    program.parent.mkdir()
    program.write_text(KERNEL)
    program.chmod(0o755)
    return ready_build("k", BinariesSource(binaries=str(program.parent)), tmp_path / "cache")


def feed_of(folder: Path, content: bytes) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    path = folder / f"trace-{len(content)}"
    path.write_bytes(content)
    sha256 = file_sha256(path)
    return {"path": str(path), "sha256": sha256, "content": sha256, "bytes": len(content)}


# --- part of a cell -------------------------------------------------------------------------------


def planned(folder: Path, model: Any, kernel: Any, feed: Any, arm: Arm | None = None) -> Any:
    bench = Bench(
        study="s",
        model_name="m",
        workload_name="w",
        model=model,
        builds={"k": kernel},
        launcher=folder / "launcher",
        home=folder / "home",
        results=folder,
        logs=folder / "logs",
        feed=feed,
    )
    arm = arm or Arm(name="a", build="k", args=("--strategy", "plain"))
    return bench.plan(arm, DRIVEN, "cold", block=1, pass_=1, position=1)


def test_a_command_line_has_the_feed_s_path_and_the_cell_its_content(
    tmp_path: Path, model: dict[str, Any], kernel: dict[str, Any]
) -> None:
    one, other = feed_of(tmp_path / "f", b"one"), feed_of(tmp_path / "f", b"other")
    run = planned(tmp_path, model, kernel, one)
    assert run.argv == [
        kernel["programs"]["gather"]["path"],
        *("--model", model["path"], "--feed", one["path"]),
        *("--batch", "4", "--strategy", "plain"),
    ]
    assert run.hashes["feed"] == one["content"]
    changed = planned(tmp_path, model, kernel, other)
    assert changed.argv[4] == other["path"]
    assert changed.cell != run.cell
    # the place of the same content decides nothing
    moved = planned(tmp_path, model, kernel, one | {"path": "/elsewhere/trace"})
    assert moved.cell == run.cell
    assert moved.argv[4] == "/elsewhere/trace"
    without = planned(tmp_path, model, kernel, None)
    assert "feed" not in without.hashes
    assert without.cell not in {run.cell, changed.cell}


def test_what_a_user_writes_in_braces_is_no_mark_of_ours(
    tmp_path: Path, model: dict[str, Any], kernel: dict[str, Any]
) -> None:
    words = ("{out}", "{feed}", "x{out}")
    run = planned(
        tmp_path,
        model,
        kernel,
        feed_of(tmp_path / "f", b"one"),
        Arm(name="a", build="k", args=words),
    )
    assert run.argv[-3:] == [*words]


def test_a_share_that_comes_to_other_bytes_is_another_cell(
    tmp_path: Path, model: dict[str, Any], kernel: dict[str, Any]
) -> None:
    feed = feed_of(tmp_path / "f", b"one")
    half = Arm(name="a", build="k", budget=0.5)
    cells = {
        size: planned(tmp_path, model, kernel, feed, half.with_model(size)).cell
        for size in (2**22, 2**23)
    }
    assert cells[2**22] != cells[2**23]
    written_out = Arm(name="other name", build="k", budget=2**21)
    assert planned(tmp_path, model, kernel, feed, written_out).cell == cells[2**22]


# --- checked before anything is measured ----------------------------------------------------------


def test_a_feed_that_is_as_recorded_passes(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, b"rows")
    check_feed(feed)
    record = tmp_path / "feed.json"
    record.write_text(json.dumps(feed))
    assert read_feed([str(record)]) == feed
    assert read_feed([]) is None
    record.write_text(json.dumps({"path": "x"}))
    with pytest.raises(ColdbenchError, match=r"feed\.json: unreadable"):
        read_feed([str(record)])


def test_a_changed_or_missing_feed_is_named_with_the_mend(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, b"rows")
    Path(feed["path"]).write_bytes(b"rovs")
    with pytest.raises(ColdbenchError) as caught:
        check_feed(feed)
    assert str(caught.value) == (
        f"{feed['path']}: has sha256 {file_sha256(Path(feed['path']))}, was written with "
        f"{feed['sha256']}; the cache was changed: run the workflow again with --forcerun feed"
    )
    Path(feed["path"]).unlink()
    with pytest.raises(ColdbenchError) as caught:
        check_feed(feed)
    assert str(caught.value) == (
        f"{feed['path']}: No such file or directory; the cache was changed: run the workflow again "
        "with --forcerun feed"
    )


def block(*arms: Arm) -> BlockSpec:
    return BlockSpec(
        study="s",
        model="m",
        workload="w",
        driven=DRIVEN,
        arms=arms,
        block=1,
        states=("cold",),
        seed=1,
    )


def records(results: Path, receipt: Path) -> list[dict[str, Any]]:
    journal = results / read_json(receipt)["journal"]
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_a_block_is_fed_and_its_shares_of_the_model_are_limits_in_bytes(
    tmp_path: Path, model: dict[str, Any], kernel: dict[str, Any], real: None
) -> None:
    # Of a model of 70 KiB or so: large enough for a shell.
    share = 64 * MIB / model["bytes"]
    arms = (Arm(name="limited", build="k", budget=share), Arm(name="free", build="k"))
    results, feed = tmp_path / "results", feed_of(tmp_path / "f", b"rows")
    prepared = Prepared(model, {"k": kernel}, tmp_path / "cache", results, feed)
    receipt = tmp_path / "receipt.json"
    measure_block(block(*arms), prepared, receipt, WARN)
    runs = {run["arm"]: run for run in records(results, receipt)}
    assert {name: (run["status"], run["reason"]) for name, run in runs.items()} == {
        "limited": ("ok", ""),
        "free": ("ok", ""),
    }
    assert runs["limited"]["memory"]["budget_bytes"] == 64 * MIB
    assert runs["free"]["memory"]["budget_bytes"] is None
    # cksum(1) of "rows": that of the file itself is what the kernel printed.
    assert len({run["digest"] for run in runs.values()}) == 1
    assert runs["free"]["argv"][3:5] == ["--feed", feed["path"]]
    assert runs["free"]["metrics"] == {"ns_per_gather": 2.5, "hints": 0.0}

    Path(feed["path"]).write_bytes(b"worse")
    with pytest.raises(ColdbenchError, match="run the workflow again with --forcerun feed"):
        measure_block(block(*arms), prepared, tmp_path / "second.json", WARN)
    assert not (tmp_path / "second.json").exists()


def test_the_check_of_a_kernel_is_fed_too_and_its_mutant_errs(
    tmp_path: Path, model: dict[str, Any], kernel: dict[str, Any]
) -> None:
    results, feed = tmp_path / "results", feed_of(tmp_path / "f", b"rows")
    prepared = Prepared(model, {"k": kernel}, tmp_path / "cache", results, feed)
    spec = IdentitySpec(
        study="s",
        model="m",
        workload="w",
        driven=DRIVEN,
        mutant=DRIVEN.mutated(None),
        arms=(Arm(name="a", build="k"), Arm(name="b", build="k", args=("--x",))),
        group_by=(),
    )
    receipt = tmp_path / "identity.json"
    check_identity(spec, prepared, receipt)
    runs = {entry["cell"]: entry for entry in read_json(receipt)["cells"]}
    digests: dict[tuple[str, str], str] = {}
    for run in records(results, receipt):
        assert (run["status"], run["state"]) == ("ok", "unmeasured")
        digests[run["arm"], runs[run["cell"]]["variant"]] = run["digest"]
    assert set(digests) == {("a", ""), ("a", "repeat"), ("a", "mutant"), ("b", "")}
    assert digests["a", ""] == digests["a", "repeat"] == digests["b", ""]
    assert digests["a", "mutant"] != digests["a", ""]
    (printed,) = {
        json.loads((results / run["output"]["stdout"]).read_text())["checksum"]
        for run in records(results, receipt)
        if runs[run["cell"]]["variant"] == "repeat"
    }
    assert digests["a", "repeat"] == text_md5(printed.encode())


# --- made from the study's words ------------------------------------------------------------------


def test_words_become_the_feed_of_their_kind(tmp_path: Path) -> None:
    path = written(tmp_path / "gemma4.gguf", heading("gemma4"), VOCABULARY)
    made = record(path)
    ids = tmp_path / "ids.txt"
    ids.write_text("3 1 4 1 5")
    cache = tmp_path / "cache"
    recorded = FeedSpec.model_validate({"trace": {"recorded": str(ids)}})
    found = prepare_feed(recorded, made, {}, cache)
    assert (found["gathers"], found["per_token"], found["rows_unique"]) == (5, 1, 4)
    assert found["table"]["tensor"] == TABLE
    check_feed(found)
    assert trace_of(recorded, made, {}).rows.tolist() == [3, 1, 4, 1, 5]
    drawn = FeedSpec.model_validate({"trace": {"zipf": {"exponent": "1.5", "count": "7"}}})
    assert prepare_feed(drawn, made, {}, cache)["gathers"] == 7
    assert len(trace_of(drawn, made, {}).rows) == 7
    ids.write_text("3 1 4 1 6")
    assert prepare_feed(recorded, made, {}, cache)["content"] != found["content"]
    layers = tmp_path / "layers.gguf"
    layers.write_bytes(gguf(heading("llama"), [("blk.0.a", (32,), 0, 0)], bytes(128)))
    fed = prepare_feed(FeedSpec(), record(layers, None), {}, cache)
    assert (fed["kind"], fed["layers"], fed["weight_bytes"]) == ("layers", 1, 128)


def text_spec(folder: Path) -> FeedSpec:
    (folder / "t.txt").write_text("some words\n")
    return FeedSpec.model_validate(
        {"trace": {"text": str(folder / "t.txt"), "tokenizer": "engine"}}
    )


def test_a_build_without_a_tokenizer_is_named_with_the_mend(
    tmp_path: Path, model: dict[str, Any], kernel: dict[str, Any]
) -> None:
    expected = "build engine: has no llama-tokenize; add it to the build's targets"
    for make in (
        lambda spec, builds: prepare_feed(spec, model, builds, tmp_path / "cache"),
        lambda spec, builds: trace_of(spec, model, builds),
    ):
        with pytest.raises(ColdbenchError) as caught:
            make(text_spec(tmp_path), {"engine": kernel})
        assert str(caught.value) == expected
    assert not (tmp_path / "cache" / "feeds").exists()
