"""The parser of every command but those of a container start, with "did you mean" for commands, options and values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hook.core.policy import store
from hook.resident.oplog import LOG_FORMATS, LOG_LEVELS


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]  # generic for mypy alone
    """Sub-commands, each described in its own help as in the list of commands."""

    def add_parser(self, name: str, *, help: str, is_listed: bool = True, **options: Any) -> Any:  # type: ignore[override]  # noqa: A002  # argparse's
        """`is_listed`: whether help and completion show it."""
        if is_listed:
            options["help"] = help
        return super().add_parser(name, description=f"{help[0].upper()}{help[1:]}.", **options)


class Parser(argparse.ArgumentParser):
    """A parser of one command. Its sub-commands get parsers of the same class."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", "parsers", _Commands)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # its overloads say no more
        """See argparse. The error about an unknown option names the one that was meant."""
        given = list(sys.argv[1:] if args is None else args)
        found, extras = self.parse_known_args(given, namespace)
        if extras:
            at = self.of(given)
            at.error(f"unrecognized arguments: {' '.join(extras)}{meant(extras[0], at._option_string_actions)}")
        return found

    def of(self, arguments: list[str]) -> Parser:
        """The parser of the command that the arguments name."""
        at: Parser = self
        for word in arguments:
            below = next((a for a in at._actions if isinstance(a, argparse._SubParsersAction)), None)
            if below is not None and word in below.choices:
                at = below.choices[word]
        return at

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's, which hides that nothing can be written."""
        if message and file:
            file.write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        listed = getattr(action, "_choices_actions", None)  # of sub-commands: not those that help does not show
        names = [each.dest for each in listed] if listed else [str(choice) for choice in choices]
        hint = meant(str(value), names) or f" (choose from {', '.join(names)})"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")


def meant(given: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?`, if there is a name like the given one."""
    import difflib  # late: it takes long to load

    near = difflib.get_close_matches(given.partition("=")[0], list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def add_log_options(parser: argparse.ArgumentParser, resident: bool = False) -> None:
    """Adds --log-format and --log-level to the parser of a command with an operation log (hook.resident.oplog).

    `resident`: whether the command is a service, which always has the log.
    """
    form = "the operation log on standard error: json, logfmt or console"
    chosen = "logfmt; on a terminal console" if resident else "in the journal logfmt; elsewhere there is no such log"
    parser.add_argument("--log-format", choices=LOG_FORMATS, metavar="FORMAT", help=f"{form} (default: {chosen})")
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, metavar="LEVEL", help="debug, info, warning or error (default: info)"
    )
    parser.set_defaults(resident=resident)


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Adds --policy and --store to the parser."""
    parser.add_argument("--policy", metavar="FILE", default=store.SOURCE, help=f"policy file (default: {store.SOURCE})")
    parser.add_argument(
        "--store", metavar="DIR", default=store.STORE, help=f"compiled policies (default: {store.STORE})"
    )
