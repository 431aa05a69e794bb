"""`reassert completion` and `reassert man` print files that packaging/shellfiles.py makes when the program is built."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hook.core.base.errors import ReassertError, Usage

SHELLS = ("bash", "zsh", "fish")
SECTION = 8
MADE = "shellfiles"
"""The directory of these files, beside this module in the frozen program."""


def page_name(words: tuple[str, ...]) -> str:
    """The file of a command's page: `reassert-policy-check.8`."""
    return f"{'-'.join(('reassert', *words))}.{SECTION}"


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `reassert completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=lambda options: _print(f"completion.{options.shell}"))


def add_man(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `reassert man`."""
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="print this command's page")
    parser.add_argument("--directory", metavar="DIR", help="write the page of each command into this directory")
    parser.set_defaults(run=_man)


def _man(options: argparse.Namespace) -> int:
    if bool(options.command) == bool(options.directory):
        raise Usage("give a command, or --directory")
    if not options.directory:
        name = page_name(tuple(options.command))
        if _made().is_dir() and name not in {page.name for page in _made().iterdir()}:
            raise Usage(f"there is no command {' '.join(options.command)}")
        return _print(name)
    for page in _made().glob(f"*.{SECTION}"):
        (Path(options.directory) / page.name).write_bytes(page.read_bytes())
    return 0


def _print(name: str) -> int:
    try:
        sys.stdout.write((_made() / name).read_text())
    except FileNotFoundError:
        raise ReassertError("this program was not built by packaging/build.sh, which makes that file") from None
    return 0


def _made() -> Path:
    return Path(__file__).parent / MADE
