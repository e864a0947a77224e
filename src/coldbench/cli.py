"""The `coldbench` command: what is done by hand beside the workflow."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coldbench.common.errors import ColdbenchError, machine_fault
from coldbench.drivers.registry import check_study
from coldbench.publish.forecast import forecast
from coldbench.sources.header import describe, read_model
from coldbench.study.plan import Plan, find_study
from coldbench.study.schema import study_schema


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a user's error is one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(prog="coldbench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="print what a study will run, without running it")
    plan.add_argument("study", help="a study's name in config/studies, or its path")
    inspect = commands.add_parser("inspect", help="print a model's header map")
    inspect.add_argument("file", help="a GGUF file; of a split model, the first shard")
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
