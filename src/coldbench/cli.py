"""The `coldbench` command: what is done by hand beside the workflow."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coldbench.common.errors import ColdbenchError, machine_fault
from coldbench.drivers.registry import check_study
from coldbench.measure.certificate import make_cold
from coldbench.measure.doctor import examine
from coldbench.measure.residency import model_files, resident_files, resident_tensors
from coldbench.publish import cachetext
from coldbench.publish.forecast import forecast
from coldbench.publish.gate import FORBIDDEN, STATUSES, gate
from coldbench.sources.header import describe, read_model
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
    evict = commands.add_parser("evict", help="put files out of the page cache, with proof")
    evict.add_argument("files", nargs="+", metavar="FILE", help="of a split model, the first shard")
    residency = commands.add_parser("residency", help="print what of a file is in the page cache")
    residency.add_argument("file", help="any file; of a split model, the first shard")
    residency.add_argument("--tensors", action="store_true", help="by tensor (GGUF only)")
    doctor = commands.add_parser("doctor", help="tell what can be certified; exit 1 if not cold")
    doctor.add_argument("place", nargs="?", default=".", help="a model or its folder (default: .)")
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
