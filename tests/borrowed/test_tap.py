"""Reading TAP: canned streams, no bats."""

from __future__ import annotations

from borrowed.tap import Outcome, parse

STREAM = """\
1..6
ok 1 runc version
not ok 2 runc exec [exit codes]
# (from function `testcontainer' in file helpers.bash, line 480,
#  in test file exec.bats, line 27)
#   `[ "$status" -eq 42 ]' failed
# runc exec test_busybox (status=1):
ok 3 checkpoint # skip test requires criu
ok 4 swap # SKIP
not ok 5 someday # TODO not written
"""


def test_every_line_of_a_stream_is_read() -> None:
    results = parse(STREAM)
    assert {name: outcome.state for name, outcome in results.tests.items()} == {
        "runc version": "ok",
        "runc exec [exit codes]": "not ok",
        "checkpoint": "skip",
        "swap": "skip",
        "someday": "skip",
    }
    assert (results.planned, results.unfinished, results.bailed) == (6, 1, "")


def test_a_failure_knows_its_line_in_the_test_file_and_what_was_said() -> None:
    failed = parse(STREAM).of("runc exec [exit codes]")
    assert failed.where == "27"
    assert failed.said[-1] == "runc exec test_busybox (status=1):"


def test_comments_belong_to_the_test_above_them() -> None:
    results = parse("# of none\n1..2\nok 1 a\n# of a\nok 2 b\n# of b\n")
    assert (results.of("a").said, results.of("b").said) == (("of a",), ("of b",))


def test_a_plan_may_stand_at_the_end_and_say_that_there_is_none() -> None:
    assert parse("ok 1 a\n1..1\n").planned == 1
    assert parse("1..0 # skip nothing here\n").tests == {}


def test_a_stream_that_ends_early() -> None:
    results = parse("1..3\nok 1 a\nBail out! no runc\n")
    assert (results.bailed, results.unfinished) == ("no runc", 2)
    assert results.of("b") == Outcome("absent")
    assert parse("").planned == 0


def test_names_are_taken_whole() -> None:
    results = parse(
        "ok 1 - with a dash\nok 2 a # no directive\nok 3 skipping # of nothing\nok 4 escaped \\# skip it\n"
        "ok 5 timed in 3sec # skip slow\nok 6 twice\nnot ok 7 twice\nok\nokay, no test\n    ok 1 of a subtest\n"
    )
    assert {name: outcome.state for name, outcome in results.tests.items()} == {
        "with a dash": "ok",
        "a # no directive": "ok",
        "skipping # of nothing": "ok",
        "escaped # skip it": "ok",
        "timed": "skip",
        "twice": "ok",
        "twice (2)": "not ok",
        "": "ok",
    }


def test_outcomes_differ_by_state_and_by_the_line_that_failed() -> None:
    assert not Outcome("ok", said=("a",)).differs(Outcome("ok", said=("b",)))
    assert Outcome("ok").differs(Outcome("skip"))
    assert Outcome("not ok", "27").differs(Outcome("not ok", "30"))
