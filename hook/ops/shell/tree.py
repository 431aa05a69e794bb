"""The commands of reassert as data, read from their parsers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """An option, or an operand, which has no `names`. `value`: what its value is called, "" for a flag.

    `required`: it must be given, or one of the options in its group.
    """

    names: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    meaning: str
    required: bool
    repeated: bool


@dataclass(frozen=True)
class Command:
    """A command. `words`: its name without the program's; empty for the program itself. `below`: its commands."""

    words: tuple[str, ...]
    meaning: str
    arguments: tuple[Argument, ...]
    below: tuple[Command, ...] = ()

    def each(self) -> list[Command]:
        """The command and all below it."""
        return [self, *(found for command in self.below for found in command.each())]


def tree(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), meaning: str = "") -> Command:
    """The command of a parser, with all below it."""
    arguments: list[Argument] = []
    below: list[Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below += [tree(each, (*words, word), helps.get(word, "")) for word, each in action.choices.items()]
        elif action.help != argparse.SUPPRESS:
            arguments.append(_argument(parser, action))
    return Command(words, meaning, tuple(arguments), tuple(below))


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Argument:
    choices = tuple(map(str, action.choices or ()))
    takes_none = action.nargs == 0
    value = "" if takes_none else str(action.metavar or "|".join(choices) or action.dest)
    meaning = (action.help or "").replace("%(default)s", str(action.default))
    operand_needed = not action.option_strings and action.nargs not in ("?", "*")
    return Argument(
        tuple(action.option_strings),
        value,
        choices,
        meaning,
        bool(action.required and action.option_strings) or operand_needed,
        action.nargs in ("*", "+"),
    )
