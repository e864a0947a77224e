import pytest

from coldbench.analysis.wording import pattern, ranged


def test_texts_that_differ_in_quantities_are_told_as_one_with_ranges():
    texts = [
        f"killed: out of memory under a 64 MiB budget (peak RSS {rss} MiB, {read} MiB read)"
        for rss, read in ((61, 0), (63, 1_204), (62, 7))
    ]
    texts[1] = texts[1].replace("1204", "1,204")
    assert len({pattern(text) for text in texts}) == 1
    assert ranged(texts) == (
        "killed: out of memory under a 64 MiB budget (peak RSS 61–63 MiB, 0–1,204 MiB read)"
    )
    assert ranged(texts[:1]) == texts[0]


def test_fractions_and_process_ids_count_as_quantities():
    assert ranged(["load 3.10, pid 17", "load 0.5, pid 9"]) == "load 0.5–3.10, pid 9–17"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("exit status 3", "exit status 4"),
        ("killed by signal 9", "killed by signal 11"),
        ("arm lazy-1 failed", "arm lazy-2 failed"),
        ("texts differ: 12ab of a", "texts differ: 13ab of a"),
        ("2 rows where one was asked for", "3 rows where one was asked for"),
        ("build b10.2x does not know --x", "build b10.3x does not know --x"),
    ],
)
def test_what_says_something_else_stays_apart(one, other):
    assert pattern(one) != pattern(other)
