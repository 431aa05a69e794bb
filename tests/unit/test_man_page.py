"""reassert(8) names every command. What each one takes is on its own page (e2e/packaging/test_shell.py)."""

from __future__ import annotations

import re

from hook.cli import GROUPS, command_line
from unit.support import ROOT

PAGE = (ROOT / "packaging/deb/reassert.8").read_text()


def test_it_names_every_command() -> None:
    named = {word for line in re.findall(r"^\.It Cm (.+)", PAGE, re.MULTILINE) for word in line.split(" , ")}
    [commands] = [action.choices for action in command_line(())._actions if isinstance(action.choices, dict)]
    assert named == {*commands, "runtime", "hook"}
    assert GROUPS.keys() <= named
