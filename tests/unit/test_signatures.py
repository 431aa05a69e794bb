"""A function of the start path, the compiler and the services takes at most four arguments by position."""

from __future__ import annotations

import ast

from unit.support import ROOT
from unit.test_layers import FILES

MOST = 4
BY_LINE = {
    "hook/core/policy/entries.py Mount.__init__",
    "hook/core/policy/model.py Rule.__init__",
    "hook/compile/last_good.py _env_of_0_3",
    "hook/core/base/logfile.py try_to_append",
}
"""They take the members of a line of the compiled policy, or its settings of the log."""


def signatures(tree: ast.AST, owner: str = "") -> dict[str, int]:
    """The number of arguments that each function and method takes by position, without `self`."""
    found: dict[str, int] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found |= signatures(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            own = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            found[owner + node.name] = len(own) - (bool(owner) and own[:1] in (["self"], ["cls"]))
    return found


def test_long_signatures_are_by_keyword() -> None:
    long = {
        f"{path.relative_to(ROOT)} {name}"
        for module, path in FILES.items()
        if module.startswith(("hook.core", "hook.entry", "hook.compile", "hook.resident", "hook.agent", "hook.nri"))
        for name, count in signatures(ast.parse(path.read_text())).items()
        if count > MOST
    }
    assert long == BY_LINE
