"""The program itself on this node: its tree with front, the command, a first policy.

It is a package's, below /usr/lib, or a copy that `install` makes, below /opt. A node has one of them.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

from hook import __version__
from hook.core.base.system import trusted
from hook.core.policy import store
from hook.core.policy.model import Policy
from hook.entry.dispatcher import FRONT, START, stable_path, start_text
from hook.node import systemd
from hook.node.change import tree
from hook.node.change.files import TREE, Change, State, link
from hook.node.change.record import Record
from hook.node.errors import NodeError

PRESETS = {
    "": "policy.yaml",
    "gpu": "examples/gpu-lockdown.yaml",
    "ca": "examples/company-ca.yaml",
    "sandbox": "examples/egress-proxy.yaml",
    "loader": "examples/loader.yaml",
}
"""First policies below config, by the name of `install --preset`; "": the default. Each is written in Audit mode."""

_PACKAGED = "/usr/(?!local/)"
"""A program below such a path belongs to a package manager and is used where it is."""


CALLED = "program"
"""A key in an engine's notes: the path of the program that the engine's files call."""

_PREFIX = "prefix"
"""A key in the notes of reassert 0.3: the value of its option --prefix, if it was given."""

_PACKAGE = "/usr/lib/reassert/reassert"
"""The program of a package, which engines call where one is installed."""


def program(prepare: bool = True) -> list[Change]:
    """Returns the changes that install the running program. Changes nothing itself but the staging directory.

    `prepare`: stage a copy of the program; without it the change can be shown, not made. Raises NodeError if the
    running program is not frozen, or if others than root can write to PLACE.
    """
    here = own_tree()
    _only_roots(tree.PLACE)  # it has the dispatchers of a package's program too
    if re.match(_PACKAGED, here):
        return []
    content = tree.fingerprint(here, laid_out=True)
    directory = tree.directory_of(content)
    if prepare and not os.path.isdir(directory):
        tree.prepare(here)
    executable = f"{directory}/reassert"
    return [
        (directory, State(content.encode(), TREE)),
        (f"{tree.PLACE}/{START}", State(start_text(executable).encode())),
        *([(f"{tree.PLACE}/{FRONT}", link(f"{os.path.basename(directory)}/{FRONT}"))] if front_in_use() else []),
        (f"{tree.PLACE}/reassert", link(os.path.relpath(executable, tree.PLACE))),
        *([] if command_is_left_out() else [(tree.COMMAND, link(f"{tree.PLACE}/reassert"))]),
    ]


def command_is_left_out() -> bool:
    """Whether the directory of the command is on a read-only file system, and the program is a copy."""
    there = os.path.dirname(tree.COMMAND)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    return bool(os.statvfs(there).f_flag & os.ST_RDONLY) and not re.match(_PACKAGED, own_tree())


def _only_roots(path: str) -> None:
    if os.path.lexists(path):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            raise NodeError(f"{path} is not a directory that only root can write to; fix or remove it")


def seed(preset: str = "") -> list[Change]:
    """The first policy file, unless the node has one, or a deleted one is still in force from the compiled store.

    `preset`: of PRESETS. Raises NodeError if the node has another policy than this preset.
    """
    there = os.path.lexists(store.SOURCE) or _is_compiled()
    text = preset_text(preset)
    if there and preset and not (os.path.exists(store.SOURCE) and Path(store.SOURCE).read_bytes() == text):
        raise NodeError(
            f"--preset writes a first policy only, and this node has one; `reassert policy preset {preset}` prints the "
            f"preset, for {store.SOURCE}"
        )
    return [] if there else [(store.SOURCE, State(text))]


def policy(seeded: bool = True, preset: str = "") -> Policy:
    """Returns the policy that will be in force once the node is wired. Raises ReassertError if there will be none.

    `seeded`: whether a node without a policy gets `preset`.
    """
    if not _is_compiled():  # compile in memory: status and a dry run write nothing
        from hook.compile.compiler import compile_bytes  # late: most nodes have a compiled policy
        from hook.compile.in_force import read_source

        if not os.path.lexists(store.SOURCE):
            if not seeded:
                raise NodeError(f"every container is refused: there is no {store.SOURCE}; run `reassert install`")
            return compile_bytes(store.SOURCE, preset_text(preset)).policy()
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
    here = own_tree()
    return stable_path(f"{here}/reassert") if re.match(_PACKAGED, here) else f"{tree.PLACE}/reassert"


def front_in_use() -> str:
    """The path of front that a wired engine's files name, as it lasts over upgrades; "" where it was not built."""
    return f"{os.path.dirname(path_in_use())}/{FRONT}" if os.access(f"{own_tree()}/{FRONT}", os.X_OK) else ""


def own_tree() -> str:
    """Returns the directory of the running program. Raises NodeError if it is not frozen."""
    if not hasattr(sys, "_MEIPASS"):
        raise NodeError("only the frozen program can be installed: packaging/build.sh, then dist/reassert/reassert")
    return os.path.dirname(os.path.realpath(sys.executable))


def preset_text(name: str) -> bytes:
    """A first policy, of PRESETS, in Audit mode."""
    frozen = Path(__file__).with_name("config")  # the frozen program has the files there
    directory = frozen if frozen.exists() else Path(__file__).parents[3] / "config"
    text = (directory / PRESETS[name]).read_bytes()
    return text.replace(b"\n  mode: Enforce\n", b"\n  mode: Audit # later: reassert policy enforce\n", 1)


# -- whether there is another one


def called(record: Record) -> str:
    """Returns the program that wired engines call; "" if none is wired."""
    notes = [record.parts[name].notes for name in record.engines()]
    return next((str(note[CALLED]) for note in notes if CALLED in note), path_in_use() if notes else "")


def refuse_another(record: Record, installs: bool) -> None:
    """A node has one installation. Raises NodeError where engines call another program than this one.

    `installs`: raise NodeError too where a package is installed and this program is not its own.
    """
    for part in record.parts.values():
        if installs and _PREFIX in part.notes:
            raise NodeError(
                f"this node is wired with --prefix {part.notes[_PREFIX]}, which is removed: run `reassert uninstall` "
                "first"
            )
    wired = called(record)
    if wired and not is_there(wired):  # it was removed, so this program replaces it
        wired = ""
    if wired and wired != path_in_use():
        raise NodeError(
            f"this node is wired with {wired}, and a node has one installation; to move to another one, run "
            f"`{wired} node uninstall` first"
        )
    if installs and is_there(_PACKAGE) and path_in_use() != _PACKAGE:
        first = f"`{wired} node uninstall`, then " if wired else ""
        raise NodeError(
            f"the package of reassert is installed on this node, and a node has one installation; run {first}"
            f"`{_PACKAGE} node install`, or remove the package"
        )


def is_there(path: str) -> bool:
    """Whether a program that engines call is installed: a removed package may leave a file in the program's place."""
    return os.path.exists(f"{os.path.dirname(path)}/{START}")


def change_of_version(before: str, path: str) -> str:
    """Returns a sentence about another version that engines call now; "" if it is the same. `before`: the version."""
    if before in ("", __version__):
        return ""
    return f"reassert {before} was replaced by {__version__} ({os.path.dirname(path)})."


def version_of(path: str) -> str:
    """Returns the version that a program prints; "" if it cannot be called. This program need not be."""
    if os.path.realpath(path) == os.path.realpath(sys.executable):
        return __version__
    try:
        done = systemd.command([path, "--version"])
    except (NodeError, OSError):
        return ""
    return done.stdout.strip().removeprefix("reassert ") if done.returncode == 0 else ""
