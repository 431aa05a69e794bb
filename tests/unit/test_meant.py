"""A wrong command, option or value is answered with the one that was meant."""

from __future__ import annotations

import pytest

from unit.support import reassert


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("polcy", "check"), "invalid choice: 'polcy'; did you mean policy?"),
        (("policy", "chekc"), "invalid choice: 'chekc'; did you mean check?"),
        (("policy", "check", "--stict"), "unrecognized arguments: --stict; did you mean --strict?"),
        (("policy", "show", "--polcy=x"), "unrecognized arguments: --polcy=x; did you mean --policy?"),
        (("policy", "show", "-o", "jsn"), "invalid choice: 'jsn'; did you mean json?"),
        (("node", "verify", "--exept", "x"), "unrecognized arguments: --exept x; did you mean --except?"),
        (("qqqqq",), "invalid choice: 'qqqqq' (choose from "),
        (("policy", "check", "--qqqqq"), "unrecognized arguments: --qqqqq\n"),
    ],
)
def test_what_was_meant(arguments: tuple[str, ...], hint: str) -> None:
    done = reassert(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
