"""Options of all adapters."""

from __future__ import annotations

import marks
import pytest

from hook.core.base.errors import Usage
from hook.entry.caller import Options

pytestmark = marks.promise("Command lines are read as runc and crun read them")


def test_options_take_absolute_paths_in_both_spellings() -> None:
    options = Options(
        ["--policy=/p", "--store", "/s", "--real", "/r", "--mount-ca", "op", "--", "-x", "--", "y"],
        ("real",),
        ("mount-ca",),
    )
    assert (options.policy, options.store, options.real, options.flags) == ("/p", "/s", "/r", {"mount-ca"})
    assert (options.operands, options.rest) == (["op"], ["-x", "--", "y"])
    assert options.events == "/var/log/reassert/events.jsonl"
    assert Options([]).rest is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "p"], "--policy takes an absolute path, not 'p'"),
        (["--policy="], "--policy takes an absolute path, not ''"),
        (["--store"], "--store takes an absolute path, not ''"),
        (["--real", "/r"], "unknown option '--real'"),
        (["--mount-ca=yes"], "unknown option '--mount-ca=yes'"),
        (["--polic", "/p"], "unknown option '--polic'"),
    ],
)
def test_options_refuse_what_they_do_not_know(arguments: list[str], complaint: str) -> None:
    with pytest.raises(Usage) as caught:
        Options(arguments, flags=("mount-ca",))
    assert str(caught.value) == complaint
