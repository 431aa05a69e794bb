"""`reassert policy compile`: by an operator, and by a container start that waits for it, so imports are late."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from typing import Any

from hook.compile.in_force import refresh
from hook.core.policy import store
from hook.resident.parser import add_policy_options
from hook.resident.terminal import columns, hashed, line


def add_compile(commands: Any) -> None:
    """Adds the command to those of `reassert policy`, whose help does not list it: container starts call it."""
    compiling: argparse.ArgumentParser = commands.add_parser(
        "compile", help="compile the policy file now; otherwise the next container start does it", is_listed=False
    )
    add_policy_options(compiling)
    compiling.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "store"),
        default="text",
        help="store: the compiled policy itself, as container starts read it",
    )
    compiling.set_defaults(run=_compile)


def add_only_compile(parser: argparse.ArgumentParser) -> None:
    """Adds the only command of `reassert policy` that a build without hook.ops has."""
    add_compile(parser.add_subparsers(title="commands", metavar="COMMAND"))


def _compile(options: argparse.Namespace) -> int:
    """Compile, and say what is in force now. A container start reads the store's new text from standard output."""
    gc.disable()  # this process ends soon: garbage collection would double its time
    source = os.path.abspath(options.policy)
    text = refresh(source, options.store)
    if options.output == "store":
        sys.stdout.write(text)
        return 0
    return tell(source, text, options.output)


def tell(source: str, text: str, output: str) -> int:
    """Print what is in force after a compilation. Returns 1 if it is not the policy file. `text`: the store's."""
    problem, key = store.source_key(source)
    policy = store.Stored(text).policy(source, key, problem)
    count = len(text.splitlines()) - 1
    wrong = policy.warning or (f"no policy is in force: {policy.missing}" if policy.missing else "")
    if output == "json":
        answer = {"source": source, "sha256": policy.fingerprint or None, "mode": policy.mode, "rules": count}
        print(json.dumps({**answer, "heldBack": policy.warning or None, "missing": policy.missing or None}, indent=2))
    elif wrong:
        print(line(f"reassert: {wrong}", columns("", sys.stderr), 2), file=sys.stderr)
    else:
        rules = "1 rule" if count == 1 else f"{count} rules"
        width = columns()
        shown = hashed(policy.fingerprint, width)
        print(line(f"{source}: in force, {rules}, {policy.mode}, sha256 {shown}", width, 2))
    return 1 if wrong else 0
