import pytest
from pydantic import ValidationError

from coldbench.drivers.flags import known_flags
from coldbench.drivers.intent import Resolved, resolve_intent
from coldbench.drivers.requested import requested
from coldbench.study.treatment import Intent
from tests.unit.driver_outputs import REAL, workload

NEW = known_flags((REAL / "help_llama-batched-bench.txt").read_text(encoding="utf-8"))
NEW_BENCH = known_flags((REAL / "help_llama-bench.txt").read_text(encoding="utf-8"))
OLD = known_flags("""
-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path
--mlock                                 force system to keep model in RAM
--mmap, --no-mmap                       whether to memory-map model
-dio,  --direct-io, -ndio, --no-direct-io
                                        use DirectIO if available
--tensor-read-lazy MODE                 read certain tensors on demand
--repack, -nr, --no-repack              whether to enable weight repacking
""")
OLDER = known_flags("""
-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path
--mlock                                 force system to keep model in RAM
--no-mmap                               do not memory-map model
-nr,   --no-repack                      disable weight repacking
""")
OLD_BENCH = known_flags("""
  -h, --help
  -m, --model <filename>                    (default: models/7B/ggml-model-q4_0.gguf)
  -mmp, --mmap <0|1>                        (default: 1)
  -dio, --direct-io <0|1>                   (default: 0)
  --repack <0|1>                            (default: 1)
""")
BATCHED = workload("llama-batched-bench", "-npp", "1", "-ntg", "1", "-npl", "1")


def resolve(known, **settings):
    return resolve_intent(Intent(**settings), known)


@pytest.mark.parametrize(
    ("known", "settings", "args"),
    [
        (NEW, {"lazy": "off"}, ["--lazy-mode", "off"]),
        (NEW_BENCH, {"lazy": "on"}, ["--lazy-mode", "on"]),
        (OLD, {"lazy": "auto"}, ["--tensor-read-lazy", "auto"]),
        (NEW, {"load_mode": "mmap+mlock"}, ["--load-mode", "mmap+mlock"]),
        (NEW, {"mmap": "off"}, ["--load-mode", "none"]),
        (NEW, {"mmap": "on"}, ["--load-mode", "mmap"]),
        (NEW, {"mlock": "on"}, ["--load-mode", "mmap+mlock"]),
        (NEW, {"mmap": "off", "mlock": "on"}, ["--load-mode", "mlock"]),
        (NEW_BENCH, {"direct_io": "on"}, ["--load-mode", "dio"]),
        (OLD, {"mmap": "off"}, ["--no-mmap"]),
        (OLD, {"mmap": "on"}, ["--mmap"]),
        (OLD, {"load_mode": "none"}, ["--no-mmap"]),
        (OLD, {"load_mode": "mlock"}, ["--no-mmap", "--mlock"]),
        (OLD, {"load_mode": "mmap+mlock"}, ["--mmap", "--mlock"]),
        (OLD, {"load_mode": "dio"}, ["--direct-io"]),
        (OLD, {"direct_io": "off"}, ["--no-direct-io"]),
        (OLDER, {"load_mode": "none"}, ["--no-mmap"]),
        (OLDER, {"repack": "off"}, ["--no-repack"]),
        (NEW, {"repack": "off"}, ["--no-repack"]),
        (NEW_BENCH, {"repack": "off"}, ["--repack", "0"]),
        (OLD_BENCH, {"mmap": "off", "direct_io": "off"}, ["--mmap", "0", "--direct-io", "0"]),
        (OLD_BENCH, {"load_mode": "mmap"}, ["--mmap", "1"]),
    ],
)
def test_an_intent_is_put_in_the_build_s_own_flags(known, settings, args):
    assert resolve(known, **settings) == Resolved(args=args)


@pytest.mark.parametrize(
    ("known", "settings", "note"),
    [
        (OLDER, {"lazy": "off"}, "lazy: off needs no flag: the build reads nothing lazily"),
        (OLDER, {"load_mode": "mmap"}, "load_mode: mmap needs no flag: the build does so"),
        (OLDER, {"mmap": "on"}, "mmap: on needs no flag: the build does so"),
        (OLDER, {"direct_io": "off"}, "direct_io: off needs no flag: the build does so"),
        (OLD_BENCH, {"mlock": "off"}, "mlock: off needs no flag: the build does so"),
        (
            OLD,
            {"load_mode": "auto"},
            "load_mode: auto needs no flag: the build knows no load modes",
        ),
    ],
)
def test_what_the_build_does_anyhow_needs_no_flag_but_a_note(known, settings, note):
    assert resolve(known, **settings) == Resolved(notes=[note])


@pytest.mark.parametrize(
    ("known", "settings", "unknown"),
    [
        (OLDER, {"lazy": "on"}, ["lazy: on"]),
        (OLDER, {"lazy": "auto"}, ["lazy: auto"]),
        (OLDER, {"load_mode": "dio"}, ["load_mode: dio"]),
        (OLDER, {"repack": "on"}, ["repack: on"]),
        (OLD_BENCH, {"load_mode": "mlock"}, ["load_mode: mlock"]),
        (OLD_BENCH, {"mlock": "on", "lazy": "on"}, ["lazy: on", "mlock: on"]),
        ({}, {"lazy": "off", "mmap": "on"}, ["lazy: off", "mmap: on"]),
    ],
)
def test_what_the_build_cannot_do_is_named(known, settings, unknown):
    assert resolve(known, **settings).unknown == unknown


@pytest.mark.parametrize("known", [NEW, NEW_BENCH, OLD], ids=["new", "new bench", "old"])
@pytest.mark.parametrize("mode", ["none", "mmap", "mlock", "mmap+mlock", "dio"])
def test_what_was_meant_is_what_the_flags_are_read_as(known, mode):
    assert requested(resolve(known, load_mode=mode).args).load_mode == mode


@pytest.mark.parametrize(
    ("args", "mode"),
    [
        ([], None),
        (["--load-mode", "auto"], None),
        (["-lm", "mmap", "-lm", "none"], "none"),
        (["--no-mmap"], "none"),
        (["-mmp", "0"], "none"),
        (["--mmap", "1"], "mmap"),
        (["--mlock"], "mmap+mlock"),
        (["--no_mmap", "--mlock"], "mlock"),
        (["-dio"], "dio"),
        (["-dio", "0"], "mmap"),
        (["--mmap", "--no-mmap"], "none"),
    ],
)
def test_load_modes_of_all_versions_are_read(args, mode):
    assert requested(args).load_mode == mode


def test_the_last_flag_counts_and_overrides_are_taken_apart():
    asked = requested(
        ["-lzm", "on", "--lazy-mode", "off", "-t", "4", "-ngl", "all", "-ot", "a=CPU,b;c=RPC0"]
    )
    assert (asked.lazy, asked.threads, asked.layers) == ("off", 4, "all")
    assert asked.overrides == (("a", "CPU"), ("c", "RPC0"))
    assert requested(["--tensor-read-lazy", "on"]).lazy == "on"
    assert requested(["-t", "-1"]).threads is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"load_mode": "none", "mmap": "off"}, "load_mode and mmap say the same thing twice"),
        ({"direct_io": "on", "mlock": "on"}, "direct_io: on excludes"),
        ({"lazy": "yes"}, "'on', 'auto' or 'off'"),
        ({"lasy": "on"}, "Extra inputs"),
    ],
)
def test_an_intent_that_makes_no_sense_is_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        Intent(**settings)


def test_later_levels_win_unless_they_exclude_earlier_ones():
    assert Intent(lazy="on", mmap="on").merged(Intent(mmap="off")) == Intent(lazy="on", mmap="off")
    with pytest.raises(ValidationError, match="say the same thing twice"):
        Intent(mmap="on").merged(Intent(load_mode="none"))
