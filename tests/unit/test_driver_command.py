import pytest

from coldbench.common.errors import ColdbenchError
from coldbench.drivers.command import CommandDriver
from tests.unit.driver_outputs import output, workload

DRIVER = CommandDriver()
RATE = {"regex": r"rate: (\S+) t/s"}
DEEP = {"json_path": "$.timings.rate", "unit": "tokens/s"}


def command(metrics, *args, **keys):
    return workload("command", *args, program="engine", metrics=metrics, **keys)


def test_only_the_model_placeholder_is_replaced():
    work = command({"rate": RATE}, "--weights={model}", '{"a": 1}', "{models}", "{{model}}", "{")
    assert DRIVER.argv(work, "/b/engine", "/m{0}", ["{x}", "{model}"]) == [
        *("/b/engine", "--weights=/m{0}", '{"a": 1}', "{models}", "{/m{0}}", "{", "{x}", "/m{0}")
    ]


def test_figures_are_found_by_name_in_either_stream():
    work = command({"rate": RATE, "first_s": {"regex": r"^first ([\d.]+)$", "stream": "stderr"}})
    result = DRIVER.read(work, output("x\nrate: 12.5 t/s\n", "a\nfirst 0.25\nb"))
    assert result.status == "ok"
    assert result.metrics == {"rate": 12.5, "first_s": 0.25}


@pytest.mark.parametrize(
    "stdout",
    [
        '{"timings": {"rate": 7}}',
        'log [1]\n{\n "timings": {"rate": 7}\n}\ndone\n',
        '{"timings": {"rate": 7}}\n{"timings": {"rate": 9}}\n',
    ],
)
def test_a_json_path_reads_the_first_document(stdout):
    assert DRIVER.read(command({"rate": DEEP}), output(stdout)).metrics == {"rate": 7.0}


@pytest.mark.parametrize(
    ("metric", "stdout", "status", "reason"),
    [
        (RATE, "nothing", "void", "no result: exit 0 without rate"),
        (RATE, "rate: 1 t/s\nrate: 2 t/s", "invalid", "2 values for rate"),
        (RATE, "rate: nan t/s", "invalid", "rate is not a finite number"),
        (RATE, "rate: inf t/s", "invalid", "rate is not a finite number"),
        (RATE, "rate: 0.00 t/s", "invalid", "rate is 0"),
        (RATE, "rate: 1,234.5 t/s", "invalid", "rate is not a finite number: '1,234.5'"),
        (DEEP, '{"timings": {}}', "void", "without rate"),
        (DEEP, '{"timings": {"rate": "7"}}', "invalid", "not a finite number"),
        (DEEP, '{"timings": {"rate": true}}', "invalid", "not a finite number"),
        (DEEP, '{"timings": {"rate": nan}}', "invalid", "not a finite number"),
        (DEEP, '{"timings": {"rate": 7', "void", "without rate"),
        ({"json_path": "$..rate"}, '{"rate": 1, "b": {"rate": 2}}', "invalid", "2 values"),
    ],
)
def test_anything_but_one_finite_positive_figure_is_no_metric(metric, stdout, status, reason):
    result = DRIVER.read(command({"rate": metric}), output(stdout))
    assert result.status == status
    assert reason in result.reason
    assert result.metrics == {}


def test_one_of_two_metrics_is_not_enough():
    result = DRIVER.read(command({"rate": RATE, "deep": DEEP}), output("rate: 5 t/s"))
    assert result.status == "invalid"
    assert result.reason == "no value for deep"


def test_the_text_is_cut_out_over_line_ends():
    work = command({"rate": RATE}, text=r"begin\n(.*)\nend")
    result = DRIVER.read(work, output("rate: 1 t/s\nbegin\na\nb\nend\n"))
    assert result.text == b"a\nb"
    assert DRIVER.read(work, output("rate: 1 t/s")).status == "void"


def test_a_json_path_that_is_none_is_refused_at_plan_time():
    with pytest.raises(ColdbenchError, match=r"metrics\.rate\.json_path: '\$\[' is not"):
        DRIVER.check(command({"rate": {"json_path": "$["}}))
