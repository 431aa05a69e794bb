"""The differences between two runs, and what the list says about them: canned results, no runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from borrowed.compare import BadList, Difference, Verdict, differences, judge, read_list
from borrowed.tap import Results, parse

FAILED_AT = "# (in test file exec.bats, line {})\n"
ALONE = {
    "exec.bats": parse("1..3\nok 1 pipe\nok 2 env\nnot ok 3 broken\n" + FAILED_AT.format(5)),
    "tty.bats": parse("1..2\nok 1 tty\nok 2 size # skip no terminal\n"),
}
PIPE = Difference("exec.bats", "pipe", "ok", "not ok")
LINE = "exec.bats | pipe | ok -> not ok | the process file is a pipe\n"


def with_us(**changed: str) -> dict[str, Results]:
    return {**ALONE, **{f"{file}.bats": parse(text) for file, text in changed.items()}}


def test_the_same_results_do_not_differ() -> None:
    assert differences(ALONE, with_us()) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"exec": "1..3\nnot ok 1 pipe\nok 2 env\nnot ok 3 broken\n" + FAILED_AT.format(5)},
            [PIPE],
        ),
        (
            {"exec": "1..3\nok 1 pipe\nok 2 env # skip why\nnot ok 3 broken\n" + FAILED_AT.format(6)},
            [
                Difference("exec.bats", "env", "ok", "skip"),
                Difference("exec.bats", "broken", "not ok", "not ok elsewhere"),
            ],
        ),
        (
            {"tty": "1..2\nok 1 tty\nok 2 size\nok 3 more\n"},
            [Difference("tty.bats", "size", "skip", "ok"), Difference("tty.bats", "more", "absent", "ok")],
        ),
        (
            {"tty": "1..2\nok 1 tty\n"},
            [Difference("tty.bats", "size", "skip", "absent")],
        ),
    ],
    ids=["fails", "skipped and fails elsewhere", "more tests", "killed on the way"],
)
def test_what_differs_is_found(changed: dict[str, str], expected: list[Difference]) -> None:
    assert differences(ALONE, with_us(**changed)) == expected


def test_a_file_that_did_not_run_at_all_differs_in_all_its_tests() -> None:
    assert {one.with_us for one in differences(ALONE, {"exec.bats": ALONE["exec.bats"]})} == {"absent"}


def test_the_list_gives_a_reason_for_each_difference() -> None:
    assert read_list(f"# comment\n\n{LINE}") == {PIPE: "the process file is a pipe"}
    name = "a | b -> c"
    assert read_list(f"x.bats | {name} | ok -> skip | why\n") == {Difference("x.bats", name, "ok", "skip"): "why"}


@pytest.mark.parametrize(
    "line",
    [
        "exec.bats | pipe | ok -> not ok",
        "exec.bats | pipe | ok -> not ok | ",
        "exec.bats | pipe | not ok | why",
        LINE * 2,
    ],
)
def test_a_line_without_a_reason_or_states_is_refused(line: str) -> None:
    with pytest.raises(BadList, match=r"line [12]"):
        read_list(line)


def test_only_the_list_makes_a_difference_good() -> None:
    assert judge({PIPE}, set(), {PIPE: "why"}, ALONE) == Verdict(listed=[PIPE])
    unlisted = judge({PIPE}, set(), {}, ALONE)
    assert unlisted.unlisted == [PIPE]
    assert not unlisted.good


def test_another_difference_of_a_listed_test_is_not_listed() -> None:
    absent = Difference("exec.bats", "pipe", "ok", "absent")
    verdict = judge({absent}, set(), {PIPE: "why"}, ALONE)
    assert (verdict.unlisted, verdict.gone, verdict.good) == ([absent], [PIPE], False)


def test_a_line_that_no_longer_differs_has_to_go() -> None:
    verdict = judge(set(), set(), {PIPE: "why"}, ALONE)
    assert (verdict.gone, verdict.good) == ([PIPE], False)


def test_a_flaky_test_is_not_judged() -> None:
    assert judge(set(), {PIPE}, {PIPE: "why"}, ALONE).good
    assert judge(set(), {PIPE}, {}, ALONE).good


def test_a_line_about_another_version_of_the_suite_is_left_alone() -> None:
    newer = Difference("exec.bats", "since 1.5", "ok", "not ok")
    verdict = judge(set(), set(), {newer: "why"}, ALONE)
    assert (verdict.inapplicable, verdict.good) == ([newer], True)


@pytest.mark.parametrize("suite", ["runc", "crun"])
def test_the_lists_of_this_repository_can_be_read(suite: str) -> None:
    read_list((Path(__file__).parent / f"{suite}.differences").read_text())
