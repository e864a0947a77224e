"""A group that systemd makes where we may not: a stand-in makes real ones, since none runs here."""

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.measure import hierarchy
from coldbench.measure.cgroup import (
    own_group,
)
from coldbench.measure.launcher import environment_for

from .test_cgroup import HERE, MIB, RunIn

STAND_IN = """#!/bin/sh
echo "$*" >> {log}
unit=run-$$.scope limit=
while [ "$1" != -- ]; do
    case $1 in
    --unit=*) unit=${{1#*=}} ;;
    MemoryMax=*) limit=${{1#*=}} ;;
    esac
    shift
done
shift
mkdir {parent}/$unit
[ -z "$limit" ] || echo $limit > {parent}/$unit/memory.limit_in_bytes
echo $$ > {parent}/$unit/cgroup.procs
exec "$@"
"""


@pytest.fixture
def systemd_run(real: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Refuse groups of our own, and yield the log of the stand-in that is first on the PATH."""
    machine = hierarchy.find_hierarchy()
    if machine is None or machine.version != 1 or os.geteuid() != 0:
        pytest.skip("the stand-in needs cgroup v1 and root")

    def refuse(group: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(group))

    monkeypatch.setattr(hierarchy, "_make", refuse)
    parent = machine.own / "coldbench-stand-in"
    parent.mkdir()
    program, record = tmp_path / "bin/systemd-run", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(log=record, parent=parent))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    yield record
    for scope in [*parent.iterdir(), parent]:
        if scope.is_dir():
            hierarchy._removed(scope)
    assert not parent.exists()


def test_systemd_makes_the_group_where_we_may_not(
    systemd_run: Path, run_in: RunIn, tmp_path: Path
) -> None:
    told = {"TOLD": "two\nlines, 'quoted'"}
    with own_group(64 * MIB, "scope", HERE) as group:
        script = (
            "import os\nprint(open('/proc/self/cgroup').read(), *os.environ.items(), sep='\\n')\n"
        )
        within = run_in(group, sys.executable, "-c", script, environment=told)
        said = (tmp_path / "out").read_text()
        assert group.in_force() is True
        over = run_in(group, sys.executable, "-c", "held = bytearray(200 << 20)")
        kills = group.oom_kills()
    unit = f"coldbench-{os.getpid()}-scope.scope"
    assert within.exit.code == 0
    assert f"/{unit}\n" in said
    assert str(("TOLD", "two\nlines, 'quoted'")) in said
    expected = environment_for(told, tmp_path)
    assert said.count("('") == len(expected)
    assert (over.exit.ended, over.exit.signal) == ("signal", 9)
    assert kills == 1
    holder, *launchers = systemd_run.read_text().splitlines()
    limits = f"-p MemoryMax={64 * MIB} -p MemorySwapMax=0 -p IOAccounting=yes"
    assert holder == f"--scope --quiet --collect --unit={unit} {limits} -- cat"
    assert sum(line.startswith("--scope --quiet --collect -- ") for line in launchers) == 2


@pytest.mark.usefixtures("systemd_run")
def test_a_systemd_that_refuses_is_a_refusal_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/systemd-run"
    program.write_text("#!/bin/sh\necho Failed to connect to bus >&2\nexit 1\n")
    expected = r"^budget: no .*: Permission denied; systemd-run: Failed to connect to bus\); run as"
    with pytest.raises(ColdbenchError, match=expected), own_group(64 * MIB, "x", HERE):
        pytest.fail("the body of a budget that does not hold was entered")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = pytest.raises(ColdbenchError, match=r"no systemd-run on the PATH\); run as root")
    with refused, own_group(64 * MIB, "x", HERE):
        pytest.fail("the body of a budget that does not hold was entered")
