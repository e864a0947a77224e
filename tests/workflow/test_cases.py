"""What users of benchmark scripts have reported, repeated on the whole workflow."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import ROOT, Checkout, program

DATA = ROOT / "tests" / "data" / "bench"


def from_file(name: str, then: str = "exit 0") -> str:
    return f"#!/bin/sh\ncat <<'END'\n{(DATA / name).read_text()}\nEND\n{then}\n"


def test_outputs_of_old_new_and_broken_versions_stand_in_one_report(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    engines = {
        "old": from_file("bench_old.json"),
        "new": from_file("bench_new.json"),
        "without-rate": from_file("bench_new.json").replace('"avg_ts"', '"other"'),
        "extra-key": from_file("bench_new.json").replace('"n_depth"', '"blas": true, "n_depth"'),
        "log-first": from_file("bench_log_first.json"),
        "lines": from_file("bench.jsonl"),
        "cut": from_file("bench_cut.json"),
        "cut-lines": from_file("bench_cut.jsonl"),
        "header-only": from_file("bench_header_only.md"),
        "empty-list": from_file("bench_empty_list.json"),
        "crashed-after": from_file("bench_old.json", "exit 139"),
        "other-cpu": "#!/bin/sh\nkill -ILL $$\n",
        "no-program": None,
        "primes-not": from_file("bench_old.json").replace(
            "\n",
            # The first run that is not the verbose probe is the one that primes.
            '\ncase "$*" in *-v) exit 0 ;; esac\n[ -e $FLAG ] || { : > $FLAG; exit 3; }\n',
            1,
        ),
    }
    for name, script in engines.items():
        program(checkout.folder / name / "llama-bench", script or "")
    (checkout.folder / "no-program" / "llama-bench").rename(checkout.folder / "no-program" / "cli")
    toy["builds"] = {name: {"source": {"binaries": name}} for name in engines}
    toy["workloads"] = {
        "tg16": {"driver": "llama-bench", "args": ["-p", "0", "-n", "16", "-r", "3"]}
    }
    flag = {"FLAG": str(checkout.folder / "flag")}
    toy["arms"] = [{"name": name, "build": name, "environment": flag} for name in engines]
    toy["blocks"] = {"warm": 1}
    del toy["identity"], toy["comparisons"]
    study = checkout.study(toy)
    output = checkout.run("--config", study, fails=True)
    assert "Traceback" not in output
    rows = checkout.table()
    last = {record["arm"]: record for record in checkout.records()}
    told = {name: f"{record['status']}: {record['reason']}" for name, record in last.items()}
    figures = {name: row["warm_generation_tps_median"] for name, row in rows.items()}

    good = ["old", "new", "extra-key"]
    assert {name: float(figures[name]) for name in good} == dict.fromkeys(good, 4)
    assert all(last[name]["effective"]["load_mode"] == "mmap" for name in good)
    assert last["extra-key"]["rows"][0]["blas"] is True
    assert told["log-first"] == "ok: "
    for stream in last["cut"]["output"].values():
        assert f"results/toy/{stream}" in output
    for name, words in {
        "without-rate": "invalid: missing key avg_ts",
        "cut": "invalid: partial: JSON cut off after",
        "cut-lines": "invalid: partial: JSON cut off after",
        "header-only": "void: no rows for tg16: exit 0 without JSON rows; stdout begins: | model",
        "empty-list": "void: no rows for tg16: exit 0 without JSON rows; stdout begins: [",
        "crashed-after": "failed: killed by SIGSEGV (segmentation fault) (exit status 139)",
        "other-cpu": "failed: SIGILL: illegal instruction: binary built for another CPU?",
        "primes-not": "not warm: its priming run: exit status 3",
        "no-program": "refused: build no-program has no program llama-bench",
    }.items():
        assert told[name].startswith(words), (name, told[name])
        assert figures[name] == "", name
        assert any(f"{name}, warm: " in note for note in checkout.notes()), name
    assert {record["build"] for record in last.values()} == set(engines)
    assert len({record["hashes"]["build"] for record in last.values()}) == len(engines)


CHATTY = """\
#!/bin/sh
for word; do
    [ "$previous" = -p ] && prompt=$word
    previous=$word
done
echo "build $$ of $(date +%N), no end of text: type /exit to leave"
printf 'assistant> %s and so on: %s\\n' "$prompt" "$(printf %s "$prompt" | cksum)"
echo "[ Prompt: $$ t/s ]"
case "$STUB_TEXT" in
    reads) while :; do read -r line || break; done ;;
    waits) sleep 600 ;;
    endless) while :; do printf '\\n> '; done ;;
esac
"""


def test_a_chatty_program_in_an_odd_folder_is_compared_by_its_text_alone(
    checkout_called: Callable[[str], Checkout], toy: dict[str, Any]
) -> None:
    checkout = checkout_called("it's a $dir")
    cache = checkout.folder / "cache of 'mine'"
    checkout.environment["COLDBENCH_CACHE"] = str(cache)
    program(checkout.folder / "chatty build" / "llama-cli", CHATTY)
    shutil.copy2(
        checkout.folder / "engine" / "llama-batched-bench", checkout.folder / "chatty build"
    )
    toy["builds"] = {"chatty": {"source": {"binaries": "chatty build"}}}
    toy["workloads"]["text"] |= {
        "program": "llama-cli",
        "text": r"assistant> (.*?)\n\[ Prompt:",
        "time_limit": "2s",
        "output_limit": "1MiB",
    }
    toy["arms"] = [
        {"name": name, "build": "chatty", "environment": {"STUB_TEXT": name}}
        for name in ("plain", "reads", "waits", "endless")
    ]
    toy["blocks"] = {"cold": 1}
    del toy["comparisons"]
    output = checkout.run("--config", checkout.study(toy), fails=True)
    assert "Traceback" not in output
    rows = checkout.table()
    assert rows["plain"]["identity"] == rows["reads"]["identity"] == "ok"
    assert rows["plain"]["md5"] == rows["reads"]["md5"] != ""
    texts = [r for r in checkout.records() if r["workload"] == "text" and r["status"] == "ok"]
    streams = {(checkout.results / "toy" / r["output"]["stdout"]).read_bytes() for r in texts}
    assert len(streams) == len(texts) == 5  # two arms and a twin, a repeat and a mutant
    for name, limit in (("waits", "time limit 2 s"), ("endless", "output limit 1 MiB")):
        assert rows[name]["identity"] == "failed"
        assert f"did not exit: {limit}" in rows[name]["identity_reason"]
        assert rows[name]["cold_prompt_tps_median"] == ""
    assert [path.name for path in (cache / "scratch").iterdir()] == [".lock"]


CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.14)
project(toy C CXX)
add_executable(llama-batched-bench main.c)
"""
MAIN_C = """\
#include <stdio.h>
#define RATE 512
int main(void) {
    double rate = RATE;
    printf("{\\"pp\\": 512, \\"tg\\": 128, \\"pl\\": 1, ");
    printf("\\"t_pp\\": %f, \\"speed_pp\\": %f, ", 512 / rate, rate);
    printf("\\"t_tg\\": 1.0, \\"speed_tg\\": 128.0}\\n");
    return 0;
}
"""


def rate_patch(before: str, after: str) -> str:
    return f"""\
diff --git a/main.c b/main.c
--- a/main.c
+++ b/main.c
@@ -1,3 +1,3 @@
 #include <stdio.h>
-#define RATE {before}
+#define RATE {after}
 int main(void) {{
"""


def test_a_stack_of_patches_lands_inside_another_repository_or_stops_its_build_alone(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    subprocess.run(["git", "init", "-q", str(checkout.folder)], check=True)
    source = checkout.folder / "engine source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(CMAKE_LISTS)
    (source / "main.c").write_text(MAIN_C)
    stack = [f"patches/000{number}.patch" for number in (1, 2, 3)]
    rates = ["512", "1024", "2048", "4096"]
    for path, before, after in zip(stack, rates, rates[1:], strict=False):
        (checkout.folder / path).write_text(rate_patch(before, after))
    (checkout.folder / stack[1]).write_text(rate_patch("77", "2048"))
    toy["builds"] = {
        "baseline": {"source": {"folder": "engine source"}, "targets": ["llama-batched-bench"]},
        "patched": {"like": "baseline", "patches": stack},
        "reversed": {"like": "baseline", "patches": [stack[2], stack[0]]},
    }
    toy["arms"] = [{"name": name, "build": name} for name in toy["builds"]]
    toy["blocks"] = {"cold": 1}
    del toy["identity"], toy["workloads"]["text"], toy["comparisons"]
    study = checkout.study(toy)
    output = checkout.run("--config", study, fails=True)
    assert "Traceback" not in output
    records = checkout.results / "toy" / "builds"
    errors = [line for line in output.splitlines() if " error: build " in line]
    base = json.loads((records / "baseline.json").read_text())["base_tree"]
    for number, path, build in ((2, stack[1], "patched"), (1, stack[2], "reversed")):
        beginning = f"error: build {build}: patch {number} ({path}) does not apply to {source}"
        (line,) = (line for line in errors if beginning in line)
        assert f"(tree {base})" in line
        assert "main.c" in line
    assert sorted(path.name for path in records.iterdir()) == ["baseline.json"]

    (checkout.folder / stack[1]).write_text(rate_patch("1024", "2048"))
    toy["builds"]["reversed"]["patches"].reverse()
    (checkout.folder / stack[2]).write_text(rate_patch("2048", "4096"))
    toy["builds"]["reversed"]["patches"] = [stack[0], stack[1]]
    checkout.study(toy)
    checkout.run("--config", study)
    speeds = {arm: float(row["cold_prompt_tps_median"]) for arm, row in checkout.table().items()}
    again = {"baseline-again": 512}
    assert speeds == {"baseline": 512, "patched": 4096, "reversed": 2048, **again}
    built = {path.stem: json.loads(path.read_text()) for path in records.iterdir()}
    assert len({record["tree"] for record in built.values()}) == 3
    assert built["baseline"]["tree"] == base
    assert all(record["base_tree"] == base for record in built.values())
    assert all(record["cpu"]["features"] for record in built.values())
    assert (source / "main.c").read_text() == MAIN_C


def test_each_bad_model_is_told_by_its_name_and_fault_and_the_good_ones_run(
    checkout: Checkout, toy: dict[str, Any]
) -> None:
    models = ROOT / "tests" / "data" / "gguf"
    split = "toy-00001-of-00002.gguf"
    (checkout.folder / "folder.gguf").mkdir()
    (checkout.folder / "link.gguf").symlink_to("absent.gguf")
    bad = {
        models / "html_page.gguf": "this is an HTML page; use the raw/resolve link",
        models / "lfs_pointer.gguf": "a Git LFS pointer for a file of 2,063,597,568 bytes",
        models / "empty.gguf": "is an empty file",
        models / "truncated_data.gguf": "needs 540,928 bytes, has 440,928: incomplete download?",
        models / "split_missing" / split: "shard toy-00002-of-00002.gguf is missing",
        models / "split_ok" / "toy-00002-of-00002.gguf": f"is shard 2 of 2; use shard 1: {split}",
        checkout.folder / "folder.gguf": "is a folder",
        checkout.folder / "link.gguf": f"is a link to {checkout.folder / 'absent.gguf'}, which",
    }
    good = {"toy": Path("toy.gguf"), "long": models / "resumed_badly.gguf"}
    good["split"] = models / "split_ok" / split
    paths = good | {f"bad-{number}": path for number, path in enumerate(bad)}
    toy["models"] = {name: {"source": {"path": str(path)}} for name, path in paths.items()}
    toy["blocks"] = {"cold": 1}
    del toy["identity"], toy["workloads"]["text"]
    output = checkout.run("--config", checkout.study(toy), fails=True)
    assert "Traceback" not in output
    for path, words in bad.items():
        (line,) = (line for line in output.splitlines() if f"error: {path}: " in line)
        assert words in line
    assert "resumed_badly.gguf: 4,096 bytes follow the last tensor" in output
    assert {record["model"] for record in checkout.records()} == set(good)
    assert {record["status"] for record in checkout.records()} == {"ok"}
    shards = {"toy-00001-of-00002.gguf": 0, "toy-00002-of-00002.gguf": 0}
    cold = [record for record in checkout.records() if record["model"] == "split"]
    assert all(record["before"]["files"] == shards for record in cold)
    for name in [name for name in paths if name not in good]:
        del toy["models"][name]
    checkout.run("--config", checkout.study(toy))
    assert len(checkout.records()) == 9
    assert (checkout.results / "toy" / "matrix.md").is_file()


def test_what_the_machine_lacks_is_one_line(
    checkout: Checkout, toy: dict[str, Any], tmp_path: Path
) -> None:
    study = checkout.study(toy)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "env", "git"):
        (programs / name).symlink_to(shutil.which(name) or "/nonexistent")
    bare = {key: value for key, value in checkout.environment.items() if key not in {"CC", "CXX"}}
    checkout.environment = bare | {
        "PATH": str(programs),
        "COLDBENCH_CACHE": str(tmp_path / "new cache"),
    }
    output = checkout.run("--config", study, fails=True)
    assert "Traceback" not in output
    (line,) = (line for line in output.splitlines() if " error: " in line)
    assert "no C compiler (cc, gcc, clang) on the PATH; install one" in line
    assert checkout.records() == []
