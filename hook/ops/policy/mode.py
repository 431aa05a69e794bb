"""`reassert policy audit` and `policy enforce` set `spec.mode` of the policy file, and nothing else."""

from __future__ import annotations

import os
import re

from hook.compile.command import tell
from hook.compile.compiler import compile_bytes
from hook.compile.in_force import read_source, refresh
from hook.compile.source import Source, parse
from hook.core.base.errors import ReassertError
from hook.core.base.system import exists, replace_file
from hook.core.policy import store
from hook.core.policy.model import AUDIT
from hook.resident.terminal import columns, line

CHART = "/var/lib/reassert-kubernetes"
"""The directory of the chart's node pod, which writes the chart's policy back within 15 seconds."""
HOLD = "/etc/reassert/hold"
"""With this file the node pod changes nothing (docs/break-glass.md)."""

_SCALAR = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[\w.+-]+")
"""A plain or quoted value on one line."""


class ModeNotSetError(ReassertError):
    """The mode was not set; the message says what to do instead."""


def set_mode(path: str, store_directory: str, mode: str) -> int:
    """Set the mode, and say which policy is in force then. Returns 1 if it is not this file.

    Raises ModeNotSetError, PolicyInvalid, ReassertError or OSError, and leaves the file as it was.
    """
    path = os.path.abspath(path)
    if path == store.SOURCE and exists(CHART) and not exists(HOLD):
        value = "true" if mode == AUDIT else "false"
        raise ModeNotSetError(
            f"{path} belongs to the chart, whose pod would write it back: for every node `helm upgrade … "
            f"--reuse-values --set policy.audit={value} --set node.maxUnavailable=100%`, for this node alone "
            f"`touch {HOLD}` first"
        )
    content, _ = read_source(path, 5.0)
    old = parse(path, content)
    compile_bytes(path, content)  # what is invalid is named, and not edited
    text, number = edited(old, mode)
    if text != old.text:
        replace_file(os.path.realpath(path), text.encode(), mode=0o644)
    was = old.spec().get("mode")
    told = f"mode: {mode} stays" if text == old.text else f"mode: {was or 'not given'} becomes {mode}"
    width = columns()
    print(line(f"{path}:{number}: {told}", width, 2))
    status = tell(path, refresh(path, store_directory), "text")
    if status == 0:
        does = "corrects and refuses no container" if mode == AUDIT else "corrects containers, or refuses them"
        print(line(f"From the next start on, reassert {does}. Running containers stay as they are.", width))
    return status


def edited(source: Source, mode: str) -> tuple[str, int]:
    """The text with `spec.mode`, and its line. Every other byte stays. Raises ModeNotSetError.

    `source`: a valid policy.
    """
    lines = source.text.splitlines(keepends=True)
    spec = source.spec()
    if spec.get("mode") == mode:
        return source.text, source.place(["spec", "mode"])[0]
    if spec.get("mode") is not None:
        line, column = source.place(["spec", "mode"])
        row = lines[line - 1]
        found = _SCALAR.match(row, column - 1)
        if found:
            quote = found[0][0] if found[0][0] in "\"'" else ""
            lines[line - 1] = f"{row[: found.start()]}{quote}{mode}{quote}{row[found.end() :]}"
    else:
        line, column = source.place(["spec"])
        row = lines[line - 1]
        if row[column - 1 :].startswith("{"):
            name = '"mode": "' + mode + '"' if source.text.lstrip().startswith("{") else f"mode: {mode}"
            lines[line - 1] = f"{row[:column]}{name}, {row[column:]}"
        else:
            line, column = min(source.place(["spec", key], key=True) for key in spec)
            lines.insert(line - 1, f"{' ' * (column - 1)}mode: {mode}\n")
    text = "".join(lines)
    if _read(source.path, text) != {**source.data, "spec": {**spec, "mode": mode}}:
        raise ModeNotSetError(
            f"{source.path}:{line}: this cannot be edited: write `mode: {mode}` below `spec:` by hand"
        )
    return text, line


def _read(path: str, text: str) -> object:
    """The document, None if it is none."""
    try:
        data: object = parse(path, text.encode()).data
    except ReassertError:
        return None
    return data
