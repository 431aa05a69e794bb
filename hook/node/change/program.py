"""The program itself on this node: its tree with front, the command, a first policy."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from hook.core.base.system import trusted
from hook.core.policy import store
from hook.core.policy.compiler import compile_bytes, read_source
from hook.core.policy.model import Policy
from hook.node.artifacts.dispatcher import START, stable_path, start_text
from hook.node.artifacts.front import FRONT
from hook.node.change import tree
from hook.node.change.files import TREE, Change, State, link
from hook.node.errors import NodeError

_SEED = Path(__file__).with_name("policy.yaml")
"""config/policy.yaml; the frozen program has it beside this module."""

_PACKAGED = "/usr/(?!local/)"
"""A program below such a path belongs to a package manager and is used where it is."""


@dataclass(frozen=True)
class Program:
    """The program as it will be installed. `path`: the executable that engines call. `changes`: the files to write."""

    path: str
    changes: list[Change]


def program(prepare: bool = True) -> Program:
    """Returns how the running program is installed. Changes nothing but the staging directory.

    `prepare`: stage a copy of the program; without it the change can be shown, not made. Raises NodeError if the
    running program is not frozen, or if others than root can write to PLACE.
    """
    here = _own_tree()
    changes: list[Change] = []
    if not re.match(_PACKAGED, here):
        _only_roots(tree.PLACE)
        content = tree.fingerprint(here, laid_out=True)
        directory = tree.directory_of(content)
        if prepare and not os.path.isdir(directory):
            tree.prepare(here)
        executable = f"{directory}/reassert"
        changes += [
            (directory, State(content.encode(), TREE)),
            (f"{tree.PLACE}/{START}", State(start_text(executable).encode())),
            *([(f"{tree.PLACE}/{FRONT}", link(f"{os.path.basename(directory)}/{FRONT}"))] if front_in_use() else []),
            (f"{tree.PLACE}/reassert", link(os.path.relpath(executable, tree.PLACE))),
            (tree.COMMAND, link(f"{tree.PLACE}/reassert")),
        ]
    return Program(path_in_use(), changes)


def _only_roots(path: str) -> None:
    if os.path.lexists(path):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            raise NodeError(f"{path} is not a directory that only root can write to; fix or remove it")


def lay_out(directory: str, place: str) -> None:
    """Writes the running program into a package's directory, to be at `place` on a node. Raises NodeError, OSError."""
    tree.lay_out(_own_tree(), directory, place)


def installed(path: str) -> bool:
    """Whether an executable is the one that `program` installs."""
    return path == f"{tree.PLACE}/reassert"


def seed() -> list[Change]:
    """The default policy file, unless the node has one, or a deleted one is still in force from the compiled store."""
    there = os.path.lexists(store.SOURCE) or _is_compiled()
    return [] if there else [(store.SOURCE, State(_seed_text()))]


def policy(seeded: bool = True) -> Policy:
    """Returns the policy that will be in force once the node is wired. Raises ReassertError if there will be none.

    `seeded`: whether a node without a policy gets the default one.
    """
    if not _is_compiled():  # compile in memory: status and plan write nothing
        if not os.path.lexists(store.SOURCE):
            if not seeded:
                raise NodeError(f"every container is refused: there is no {store.SOURCE}; run `reassert node install`")
            return compile_bytes(store.SOURCE, _seed_text()).policy()
        trusted(store.SOURCE)
        return compile_bytes(store.SOURCE, read_source(store.SOURCE)[0]).policy()
    found = store.load()
    if found.missing:
        raise NodeError(f"every container would be refused: {found.missing}; see `reassert policy check`")
    return found


def _is_compiled() -> bool:
    return os.path.exists(store.store_path(store.SOURCE, store.STORE))


def path_in_use() -> str:
    """The executable that a wired engine calls."""
    here = _own_tree()
    return stable_path(f"{here}/reassert") if re.match(_PACKAGED, here) else f"{tree.PLACE}/reassert"


def front_in_use() -> str:
    """The path of front that a wired engine's files name, as it lasts over upgrades; "" where it was not built."""
    return f"{os.path.dirname(path_in_use())}/{FRONT}" if os.access(f"{_own_tree()}/{FRONT}", os.X_OK) else ""


def _own_tree() -> str:
    if not hasattr(sys, "_MEIPASS"):
        raise NodeError("only the frozen program can be installed: packaging/build.sh, then dist/reassert/reassert")
    return os.path.dirname(os.path.realpath(sys.executable))


def _seed_text() -> bytes:
    source = _SEED if _SEED.exists() else _SEED.parents[3] / "config" / _SEED.name
    return source.read_bytes()
