"""`reassert man`: a manual page for each command, in mdoc(7), made of the parsers."""

from __future__ import annotations

from hook import __version__
from hook.ops.shell.tree import Argument, Command

SECTION = 8

_DATE = "November 22, 2026"
"""When what the pages say in common was last changed."""


def name(command: Command) -> str:
    """The name of a command's page: `reassert-policy-check`."""
    return "-".join(("reassert", *command.words))


def pages(root: Command) -> list[Command]:
    """The commands that have a page: all but the program itself, whose page is written by hand."""
    return [command for command in root.each() if command.words]


def page(command: Command, root: Command) -> str:
    """The page of a command."""
    lines = [
        f'.Dd {_DATE}\n.Dt {name(command).upper()} {SECTION}\n.Os "reassert {__version__}"',
        f".Sh NAME\n.Nm {name(command)}\n.Nd {_text(command.meaning)}",
        f".Sh SYNOPSIS\n.Nm reassert\n.Cm {' '.join(command.words)}",
        *[_synopsis(argument) for argument in command.arguments if "-h" not in argument.names],
    ]
    if command.below:
        lines.append(".Ar command\n.Op Ar option ...")
    lines.append(f".Sh DESCRIPTION\n{_text(command.meaning[:1].upper() + command.meaning[1:])}.")
    if command.below:
        lines += [".Sh COMMANDS", *_list([(f".It Xr {name(each)} {SECTION}", each.meaning) for each in command.below])]
    if command.arguments:
        lines += [".Sh OPTIONS", *_list([(_item(argument), argument.meaning) for argument in command.arguments])]
    lines += [
        ".Sh EXIT STATUS\n0: success. 1: something is wrong. 2: the command line is wrong.\nSee\n.Xr reassert 8 .",
        f".Sh SEE ALSO\n{_see_also(command, root)}",
    ]
    return "\n".join(lines) + "\n"


def _synopsis(argument: Argument) -> str:
    if not argument.names:
        more = " ..." if argument.repeated else ""
        return f".{'' if argument.required else 'Op '}Ar {_text(argument.value)}{more}"
    spelled = f"Fl {_flag(argument.names[-1])}{f' Ar {_text(argument.value)}' if argument.value else ''}"
    return f".{spelled}" if argument.required else f".Op {spelled}"


def _item(argument: Argument) -> str:
    value = f" Ar {_text(argument.value)}" if argument.value else ""
    if not argument.names:
        return f".It Ar {_text(argument.value)}"
    return ".It " + " , ".join(f"Fl {_flag(each)}{value}" for each in argument.names)


def _flag(option: str) -> str:
    """An option as mdoc's Fl takes it, which writes the first dash itself."""
    return option[1:].replace("-", r"\-")


def _list(items: list[tuple[str, str]]) -> list[str]:
    return [".Bl -tag -width Ds", *[f"{item}\n{_text(meaning) or chr(92) + '&'}" for item, meaning in items], ".El"]


def _text(text: str) -> str:
    """Text in which nothing is a macro or an escape."""
    escaped = text.replace("\\", r"\e").replace("\n", " ")
    return r"\&" + escaped if escaped.startswith((".", "'")) else escaped


def _see_also(command: Command, root: Command) -> str:
    beside = [each for each in pages(root) if each.words[:-1] == command.words[:-1] and each != command]
    above = [f"{name(parent)}" for parent in pages(root) if parent.words == command.words[:-1] and parent.words]
    names = sorted({"reassert", *above, *(name(each) for each in beside if len(each.words) > 1)})
    return "\n".join(f".Xr {each} {SECTION}{' ,' if each != names[-1] else ''}" for each in names)
