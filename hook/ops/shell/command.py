"""`reassert completion` and `reassert man`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hook.core.base.errors import Usage
from hook.ops.shell import completion, man
from hook.ops.shell.tree import tree


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `reassert completion`."""
    parser.add_argument("shell", choices=completion.SHELLS, metavar="SHELL", help=", ".join(completion.SHELLS))
    parser.set_defaults(run=_completion)


def add_man(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `reassert man`."""
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="print this command's page")
    parser.add_argument("--directory", metavar="DIR", help="write the page of each command into this directory")
    parser.set_defaults(run=_man)


def _completion(options: argparse.Namespace) -> int:
    sys.stdout.write(completion.script(options.shell, tree(options.all_commands())))
    return 0


def _man(options: argparse.Namespace) -> int:
    found = tree(options.all_commands())
    if bool(options.command) == bool(options.directory):
        raise Usage("give a command, or --directory")
    if options.directory:
        for command in man.pages(found):
            path = Path(options.directory) / f"{man.name(command)}.{man.SECTION}"
            path.write_text(man.page(command, found))
        return 0
    for command in man.pages(found):
        if command.words == tuple(options.command):
            sys.stdout.write(man.page(command, found))
            return 0
    raise Usage(f"there is no command {' '.join(options.command)}")
