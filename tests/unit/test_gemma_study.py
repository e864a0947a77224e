"""What a study of gemma.cpp must say, and what its plan comes to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.gemma_cpp import GemmaCppDriver
from coldbench.drivers.registry import check_study
from coldbench.publish.forecast import forecast
from coldbench.study.plan import Plan
from tests.unit.driver_outputs import output, workload

STUDY = Path(__file__).parents[2] / "config" / "studies" / "gemma-cpp.yaml"
Change = Callable[[Any], None]


def changed(folder: Path, change: Change) -> Path:
    study = YAML().load(STUDY)
    change(study)
    path = folder / "study.yaml"
    YAML().dump(study, path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ColdbenchError) as caught:
        check_study(Plan(path))
    return str(caught.value)


@pytest.mark.parametrize(("scale", "tokens"), [("here", 64), ("published", 8)])
def test_the_committed_study_plans_at_both_scales(tmp_path: Path, scale: str, tokens: int) -> None:
    path = changed(tmp_path, lambda study: study.update(scale=scale))
    plan = Plan(path)
    check_study(plan)
    assert [arm.name for arm in plan.arms] == [
        *("baseline-map-read", "baseline-map-mapped", "patched-map-read", "patched-map-mapped"),
        "baseline-map-read-again",
    ]
    spec = plan.identity("weights")
    assert spec is not None
    assert (spec.repeats, spec.driven.tokens, spec.mutant.tokens) == (24, tokens, tokens)
    assert spec.driven.prompt != spec.mutant.prompt
    # the texts of measured runs are compared too
    assert list(plan.workloads) == ["request"]
    assert {"first_token_s", "generation_tps"} < {claim.metric for claim in plan.claims}
    assert "121 identity" in forecast(plan)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda study: study["identity"].pop("repeats"), "needs the key repeats: gemma.cpp"),
        (lambda study: study["identity"].update(repeats=4), "identity.repeats"),
        (lambda study: study["identity"].pop("mutant"), "needs the key mutant"),
        (
            lambda study: study["factors"]["map"].update(read=["--seq_len", "512"]),
            "with arm baseline-map-read: args: --map: must be 0 or 1",
        ),
        (
            lambda study: study["factors"]["map"].update(read=["--map", "0", "--stream", "1"]),
            "with arm baseline-map-read: arm args: --stream: is no flag of gemma.cpp",
        ),
    ],
)
def test_what_would_go_wrong_unseen_is_refused_before_anything_runs(
    tmp_path: Path, change: Change, reason: str
) -> None:
    assert reason in refused(changed(tmp_path, change))


@given(st.binary(max_size=300), st.text(max_size=300), st.sampled_from(["", "Generate: 9 ms for "]))
def test_reading_never_raises(stdout: bytes, stderr: str, head: str) -> None:
    work = workload("gemma-cpp", prompt="x")
    result = GemmaCppDriver().read(work, output(stdout, head + stderr))
    assert result.status in {"void", "invalid"}
