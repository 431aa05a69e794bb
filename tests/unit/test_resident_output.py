"""The processes that stay say everything through the operation log: none of their code writes to standard error."""

from __future__ import annotations

import ast
from pathlib import Path

import marks
import pytest

from unit.support import ROOT

pytestmark = marks.promise(
    "No env value, secret or control character of a container, an image or a caller reaches the operation log"
)

RESIDENT = sorted(
    [
        *(ROOT / "hook" / "agent").rglob("*.py"),
        *(ROOT / "hook" / "nri").rglob("*.py"),
        *(ROOT / "hook" / "ops" / "metrics").rglob("*.py"),
        *{*(ROOT / "hook" / "resident").rglob("*.py")} - {ROOT / "hook" / "resident" / "oplog.py"},
    ]
)

WRITES = {
    "hook/agent/work.py": {"self.say", "caller.say"},  # lines for the caller's standard error, with front's answer
    "hook/agent/service.py": {"self._notifier.say", "notifier.say"},  # to systemd's socket
    "hook/nri/service.py": {"self._notifier.say"},
    "hook/resident/notifier.py": {"self.say"},
    "hook/resident/terminal.py": {"print", "sys.stderr", "sys.stdout"},  # what a person's commands print
    "hook/nri/report.py": {"sys.stdout"},  # events, which a log collector reads
}
"""What looks like it, and is not."""


def written(path: Path) -> set[str]:
    """What in a file prints, or has a standard stream."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if name in ("print", "sys.exit", "warnings.warn", "traceback.print_exc") or name.rpartition(".")[2] == "say":
            found.add(name)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stderr", "sys.stdout", "sys.__stderr__"):
            found.add(ast.unparse(node))
        if name == "os.write" and isinstance(node, ast.Call) and ast.unparse(node.args[0]) in ("1", "2"):
            found.add("os.write")
        if isinstance(node, ast.ImportFrom) and node.module == "hook.core.base.system":
            found |= {f"import {alias.name}" for alias in node.names if alias.name == "say"}
    return found


@pytest.mark.parametrize("path", RESIDENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_bypasses_the_operation_log(path: Path) -> None:
    allowed = WRITES.get(str(path.relative_to(ROOT)), set())
    assert written(path) - allowed == set()


@pytest.mark.parametrize(
    "code",
    [
        "print(1, file=sys.stderr)",
        "sys.stderr.write('a')",
        "os.write(2, b'a')",
        "from hook.core.base.system import say",
    ],
)
def test_the_search_finds_what_bypasses_it(code: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(code)
    assert written(tmp_path / "a.py")
