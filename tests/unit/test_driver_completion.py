import pytest

from coldbench.drivers.completion import CompletionDriver
from tests.unit.driver_outputs import REAL, output, stub, workload

DRIVER = CompletionDriver()
WORK = workload("llama-completion", prompt="Once upon a time", tokens=24)
STDOUT = (REAL / "completion.stdout").read_bytes()
STDERR = (REAL / "completion.stderr").read_text(encoding="utf-8")


def test_the_prompt_reaches_the_engine_as_written():
    work = workload("llama-completion", "-t", "2", prompt=r"-x \n it's {a}", tokens=8)
    argv = DRIVER.argv(work, "/b/p", "/m", ["-lzm", "on"])
    assert argv[argv.index("-p") + 1] == r"-x \n it's {a}"
    assert argv[argv.index("-n") + 1] == "8"
    assert "--no-escape" in argv
    assert argv[-4:] == ["-t", "2", "-lzm", "on"]


def test_a_real_run_gives_the_text_alone_and_the_number_of_tokens():
    result = DRIVER.read(WORK, output(STDOUT, STDERR))
    assert result.status == "ok"
    assert result.text + b"\n\n" == STDOUT
    assert result.tokens == 24
    assert result.effective["load_mode"] == "mmap"
    assert f"{result.metrics['generation_tps']:8.2f} tokens per second" in STDERR
    assert f"{result.metrics['prompt_tps']:8.2f} tokens per second" in STDERR


def test_only_the_engine_s_own_line_ends_are_taken_off_the_text():
    result = DRIVER.read(WORK, output(b"\n" + STDOUT + b"\n\n", STDERR))
    assert result.text == b"\n" + STDOUT


def test_empty_text_is_no_result():
    for stdout in (b"", b"\n\n", b" \n\n"):
        result = DRIVER.read(WORK, output(stdout, STDERR))
        assert result.status == "void"
        assert "no text" in result.reason
        assert result.text is None


def test_text_without_the_counts_after_it_may_be_cut_off():
    lost = STDERR[: STDERR.index("common_perf_print:    sampling")]
    result = DRIVER.read(WORK, output(STDOUT[:40], lost))
    assert result.status == "void"
    assert "may be cut off" in result.reason
    assert result.text is None


def test_another_number_of_tokens_is_invalid():
    result = DRIVER.read(WORK.model_copy(update={"tokens": 64}), output(STDOUT, STDERR))
    assert result.status == "invalid"
    assert result.reason == "24 tokens generated where 64 were asked for"
    assert result.tokens == 24


@pytest.mark.parametrize("text", [b"the the the the the\n\n", b"\xf0\x9f\x98\x80" * 24])
def test_a_handful_of_distinct_words_is_degenerate(text):
    result = DRIVER.read(WORK, output(text, STDERR))
    assert result.status == "invalid"
    assert "degenerate" in result.reason


def test_one_repeated_script_without_spaces_is_judged_by_characters():
    text = "".join(chr(0x4E00 + i) for i in range(24)).encode()
    assert DRIVER.read(WORK, output(text, STDERR)).status == "ok"


def chatty(tmp_path, banner, text, milliseconds):
    return stub(
        tmp_path,
        f"echo '{banner}'; printf '<<%s>>\\n' '{text}'; echo 'took {milliseconds} ms'; read answer",
    )


def test_text_is_cut_out_of_a_chatty_program_s_output(tmp_path):
    work = WORK.model_copy(update={"text": r"<<(.*)>>"})
    story = "a small story\n of several words"
    first = DRIVER.read(work, chatty(tmp_path, "build 1", story, 12.5))
    # the stub's `read` meets a closed stdin and so ends with status 1
    assert first.status == "failed"
    first, second, other = (
        DRIVER.read(work, output(chatty(tmp_path, *chat).stdout))
        for chat in (
            ("build 1", story, 12.5),
            ("a longer banner", story, 99.1),
            ("build 1", story + "!", 12.5),
        )
    )
    assert first.status == "ok"
    assert first.text == second.text == story.encode()
    assert other.text != first.text
    assert first.tokens is None
    assert first.notes == ["number of generated tokens unknown: the log does not tell"]


def test_a_text_pattern_that_does_not_match_is_no_result():
    work = WORK.model_copy(update={"text": r"<<(.*)>>"})
    result = DRIVER.read(work, output(STDOUT, STDERR))
    assert result.status == "void"
    assert "does not match stdout" in result.reason


def test_bytes_that_are_no_utf8_stay_as_they_are():
    work = WORK.model_copy(update={"text": r"<<(.*)>>"})
    text = b"caf\xe9 one two three four five six \xff"
    assert DRIVER.read(work, output(b"<<" + text + b">>", STDERR)).text == text
