"""The `coldbench` command: what is done by hand beside the workflow."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldbench.analysis.access import access_pattern
from coldbench.common.errors import ColdbenchError, machine_fault
from coldbench.common.folders import cache_folder
from coldbench.drivers.registry import check_study
from coldbench.measure.certificate import make_cold
from coldbench.measure.doctor import examine
from coldbench.measure.residency import model_files, resident_files, resident_tensors
from coldbench.publish import accesstext, cachetext, pinstext
from coldbench.publish.difference import difference
from coldbench.publish.forecast import forecast
from coldbench.publish.gate import FORBIDDEN, STATUSES, gate
from coldbench.publish.sizing import sizing
from coldbench.publish.stocktext import stocktaking
from coldbench.sources.header import describe, read_model
from coldbench.sources.inventory import take_stock
from coldbench.sources.pincheck import check_study_pins
from coldbench.sources.survey import survey
from coldbench.sources.traces import make_trace, write_feed
from coldbench.study.find import find_study
from coldbench.study.plan import Plan
from coldbench.study.schema import study_schema


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a user's error is one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(prog="coldbench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="print what a study will run, without running it")
    plan.add_argument("study", help="a study's name in config/studies, or its path")
    inspect = commands.add_parser("inspect", help="print a model's header map")
    inspect.add_argument("file", help="a GGUF file; of a split model, the first shard")
    checked = commands.add_parser("gate", help="exit 1 where a comparison got a forbidden verdict")
    checked.add_argument("results", help="a study's results folder, such as results/demo")
    checked.add_argument(
        "--forbid",
        nargs="+",
        choices=STATUSES,
        default=FORBIDDEN,
        metavar="VERDICT",
        help=f"any of {', '.join(STATUSES)} (default: {', '.join(FORBIDDEN)})",
    )
    sized = commands.add_parser("sizing", help="print models' sizes, tables and lazy tensors")
    sized.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="a hub's repository OWNER/NAME[@REVISION], whose headers are read without a download; "
        "or files and folders",
    )
    sized.add_argument("--pattern", default="*", help="a glob on names of GGUF files (default: *)")
    stock = commands.add_parser("models", help="list which of a study's models are here")
    stock.add_argument("study", help="a study's name in config/studies, or its path")
    evict = commands.add_parser("evict", help="put files out of the page cache, with proof")
    evict.add_argument("files", nargs="+", metavar="FILE", help="of a split model, the first shard")
    residency = commands.add_parser("residency", help="print what of a file is in the page cache")
    residency.add_argument("file", help="any file; of a split model, the first shard")
    residency.add_argument("--tensors", action="store_true", help="by tensor (GGUF only)")
    doctor = commands.add_parser("doctor", help="tell what can be certified; exit 1 if not cold")
    doctor.add_argument("place", nargs="?", default=".", help="a model or its folder (default: .)")
    pins = commands.add_parser("pins", help="tell all that is wrong with pins; exit 1 if any is")
    pins.add_argument("study", help="a study's name in config/studies, or its path")
    pins.add_argument("--build", action="store_true", help="also compile what merges")
    differ = commands.add_parser("diff", help="tell how two provenances differ; exit 1 if they do")
    differ.add_argument("first", metavar="A", help="a results folder, or its provenance.json")
    differ.add_argument("second", metavar="B", help="another one")
    _add_trace(commands.add_parser("trace", help="report how a token stream uses a table's pages"))
    commands.add_parser("schema", help="print the JSON schema of study files, for editors")
    given = parser.parse_args(arguments)
    try:
        match given.command:
            case "plan":
                study = Plan(find_study(given.study, Path.cwd()))
                check_study(study)
                print(forecast(study))
            case "inspect":
                print(describe(read_model(Path(given.file))))
            case "gate":
                if offending := gate(Path(given.results), given.forbid):
                    print("\n".join(offending), flush=True)
                    sys.exit(1)
            case "sizing":
                found_models = survey(given.targets, given.pattern)
                print(sizing(found_models), flush=True)
                if any(model.fault for model in found_models.models):
                    sys.exit(1)
            case "models":
                study = Plan(find_study(given.study, Path.cwd()))
                print(stocktaking(take_stock(study, cache_folder())))
            case "evict":
                for name in given.files:
                    print(cachetext.evicted(make_cold(model_files(Path(name)))))
            case "residency":
                asked = resident_tensors if given.tensors else resident_files
                kind = "tensor" if given.tensors else "file"
                print(cachetext.resident(asked(Path(given.file)), kind))
            case "doctor":
                found = examine(Path(given.place))
                print(cachetext.checkup(found), flush=True)
                if not found.cold:
                    sys.exit(1)
            case "pins":
                study = Plan(find_study(given.study, Path.cwd()))
                stacks = check_study_pins(study, cache_folder(), compiling=given.build)
                print("\n\n".join(map(pinstext.preflight, stacks)) or "No build has pins.")
                if any(one.findings for one in stacks):
                    sys.exit(1)
            case "diff":
                if told := difference(Path(given.first), Path(given.second)):
                    print("\n".join(told), flush=True)
                    sys.exit(1)
                print("No difference.")
            case "trace":
                _trace(given)
            case "schema":
                print(json.dumps(study_schema(), indent=2))
        print(end="", flush=True)
    except BrokenPipeError:
        # Whoever read has enough; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ColdbenchError, OSError) as caught:
        error = caught if isinstance(caught, ColdbenchError) else machine_fault(caught)
        if error is None:
            raise
        for line in str(error).splitlines():
            print(f"coldbench: error: {line}", file=sys.stderr)
        sys.exit(2)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a GGUF model (its first shard); with --raw, any file")
    stream = parser.add_mutually_exclusive_group(required=True)
    stream.add_argument("--tokens-file", metavar="FILE", help="token ids: text or .npy of integers")
    stream.add_argument("--text", metavar="FILE", help="a text for the model's own tokenizer")
    stream.add_argument("--zipf", metavar="S", type=float, help="tokens by Zipf's law, exponent S")
    parser.add_argument("--tokenizer", metavar="PROGRAM", help="an engine's llama-tokenize")
    parser.add_argument(
        "--count", type=int, default=100_000, help="tokens that --zipf draws (default: 100000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="what --zipf draws by (default: 1)")
    parser.add_argument(
        "--raw",
        metavar="ROW_BYTES:OFFSET",
        type=_raw_table,
        help="take the file from OFFSET on as rows of ROW_BYTES, and tokens as row numbers",
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="also draw it: .png or .svg")
    parser.add_argument("--save", metavar="FILE", type=Path, help="also write gather's feed")


def _raw_table(text: str) -> tuple[int, int]:
    row_bytes, colon, offset = text.partition(":")
    if not (colon and row_bytes.isdecimal() and offset.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text}: write ROW_BYTES:OFFSET, two numbers")
    return int(row_bytes), int(offset)


def _trace(given: argparse.Namespace) -> None:
    if (given.text is None) != (given.tokenizer is None):
        raise ColdbenchError("--text and --tokenizer go together: a text needs its model's own")
    if given.plot is not None:
        accesstext.check_plot(given.plot)
    stream: dict[str, Any]
    if given.text is not None:
        stream = {"text": given.text, "tokenizer": given.tokenizer}
    elif given.tokens_file is not None:
        stream = {"recorded": given.tokens_file}
    else:
        stream = {"zipf": {"exponent": given.zipf, "count": given.count, "seed": given.seed}}
    trace = make_trace(Path(given.model), stream, raw=given.raw)
    if given.save is not None:
        write_feed(trace, given.save)
    pattern = access_pattern(trace)
    if given.plot is not None:
        accesstext.plot(pattern, given.plot)
    print(accesstext.report(pattern))
