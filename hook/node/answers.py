"""What engines' programs have printed, for as long as everything that it depends on is as it was.

To say its version and its configuration takes an engine's program half as long as all the rest of `status`. Both depend
on files alone: the program, and what the configuration is read from. `status --record` keeps the answers in node.json
with the state of each of these files, and who only looks at the node takes them from there in a block of `known`.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from hook.node.kept import Answer

_SETTLED = 2.0
"""Seconds. A file that changed so short before a program began may change again and look the same (`_state`)."""

_before: dict[str, Answer] = {}
_holding: dict[str, Answer] = {}
"""In a block of `known`: the answers of earlier, and those of them and of the block that hold."""


@contextmanager
def known(answers: dict[str, Answer]) -> Iterator[None]:
    """In the block, what holds of these answers is not asked again. After it they are those that hold, and new ones."""
    _before.update(answers)
    _holding.clear()
    try:
        yield
    finally:
        answers.clear()
        answers.update(_holding)
        _before.clear()


def ask(command: list[str], run: Callable[[], str], files: Callable[[str], Iterable[str] | None]) -> str:
    """What a command prints: what it printed earlier, if that holds, else by `run`, which may raise.

    `files`: of what it printed, all files on which that depends beside the program, and directories, for the names in
    them; None if they are not known for certain.
    """
    name, began = shlex.join(command), time.time()
    answer = _before.get(name)
    if answer is None or not _holds(answer, command[0]):
        text = run()
        answer = _certain(command[0], text, files(text), began)
        if answer is None:
            return text
    _holding[name] = answer
    return answer.text


def _holds(answer: Answer, program: str) -> bool:
    try:
        return program in answer.files and all(_state(path) == state for path, state in answer.files.items())
    except OSError:
        return False


def _certain(program: str, text: str, files: Iterable[str] | None, began: float) -> Answer | None:
    """The answer with the states of its files; None for a script, which may start anything, or if a file is too new."""
    if files is None:
        return None
    try:
        with open(program, "rb") as file:
            is_script = file.read(4) != b"\x7fELF"
        states = {path: _state(path) for path in (program, *files)}
    except OSError:
        return None
    is_settled = all(changed < (began - _SETTLED) * 1e9 for *_, changed in states.values())
    return Answer(text, states) if is_settled and not is_script else None


def _state(path: str) -> list[int]:
    """What is another one for another file, and once a file or a list of names is changed. Raises OSError."""
    status = os.stat(path)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
