"""`reassert completion`: scripts that complete commands, options and values, for bash, zsh and fish."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from hook.ops.shell.tree import Argument, Command

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, root: Command) -> str:
    """The script for a shell."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](root)


def _words(command: Command) -> list[str]:
    """What can come next: commands, or options."""
    options = [name for argument in command.arguments for name in argument.names]
    return [*(each.words[-1] for each in command.below), *options]


def _valued(command: Command) -> list[Argument]:
    return [argument for argument in command.arguments if argument.names and argument.value]


def _paths(root: Command) -> list[Command]:
    return [command for command in root.each() if command.words]


def _bash(root: Command) -> str:
    words, values = [], []
    for command in root.each():
        path = "_".join(command.words)
        words.append(f"    {shlex.quote(path)}) words={shlex.quote(' '.join(_words(command)))} ;;")
        for argument in _valued(command):
            case = "|".join(shlex.quote(f"{path} {name}") for name in argument.names)
            values.append(f"    {case}) values={shlex.quote(' '.join(argument.choices))}; takes=1 ;;")
    known = "|".join(shlex.quote("_".join(command.words)) for command in _paths(root))
    return f"""# bash completion for reassert, made by `reassert completion bash`.
_reassert() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path='' next words='' values='' takes='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    next=${{path:+${{path}}_}}${{COMP_WORDS[i]}}
    case $next in
    {known}) path=$next ;;
    esac
  done
  case $path in
{_lines(words)}
  esac
  case "$path $prev" in
{_lines(values)}
  esac
  if [ -n "$takes" ]; then
    words=$values
  fi
  if [ -n "$words" ] && {{ [ -n "$takes" ] || [ "${{cur:0:1}}" = - ] || [ "${{words:0:1}}" != - ]; }}; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    compopt -o filenames 2> /dev/null
  fi
}}
complete -F _reassert reassert
"""


def _lines(cases: list[str]) -> str:
    return "\n".join(cases)


def _zsh(root: Command) -> str:
    cases, values = [], []
    for command in root.each():
        path = " ".join(command.words)
        commands = _described((each.words[-1], each.meaning) for each in command.below)
        options = _described((name, argument.meaning) for argument in command.arguments for name in argument.names)
        cases.append(f"    {shlex.quote(path)}) commands=({commands}) options=({options}) ;;")
        for argument in _valued(command):
            case = "|".join(shlex.quote(f"{path} {name}") for name in argument.names)
            choices = " ".join(map(shlex.quote, argument.choices))
            values.append(f"    {case}) {f'compadd -- {choices}' if choices else '_files'}; return ;;")
    known = "|".join(shlex.quote(" ".join(command.words)) for command in _paths(root))
    return f"""#compdef reassert
# zsh completion for reassert, made by `reassert completion zsh`.
_reassert() {{
  local at='' next word
  local -a commands options
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    next="${{at:+$at }}$word"
    case $next in
    {known}) at=$next ;;
    esac
  done
  case "$at ${{words[CURRENT-1]}}" in
{_lines(values)}
  esac
  case $at in
{_lines(cases)}
  esac
  if (( $#commands )); then
    _describe command commands
  elif [[ $PREFIX != -* ]]; then
    _files
  fi
  _describe -o option options
}}
if [ "$funcstack[1]" = _reassert ]; then
  _reassert "$@"
else
  compdef _reassert reassert
fi
"""


def _described(words: Iterable[tuple[str, str]]) -> str:
    """Words with their meanings as zsh's _describe takes them: `NAME:MEANING`, a colon in the meaning escaped."""
    return " ".join(shlex.quote(f"{name}:{meaning.replace(':', chr(92) + ':')}") for name, meaning in words)


def _fish(root: Command) -> str:
    lines = ["# fish completion for reassert, made by `reassert completion fish`."]
    for command in root.each():
        seen = [f"__fish_seen_subcommand_from {word}" for word in command.words]
        if command.below:
            words = " ".join(each.words[-1] for each in command.below)
            here = "; and ".join([*seen, f"not __fish_seen_subcommand_from {words}"])
            lines += [
                f"complete -c reassert -f -n {_quoted(here)} -a {each.words[-1]} -d {_quoted(each.meaning)}"
                for each in command.below
            ]
        condition = f" -n {_quoted('; and '.join(seen))}" if seen else ""
        for argument in command.arguments:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in argument.names)
            if not names:
                continue
            takes = (
                f" -x -a {_quoted(' '.join(argument.choices))}" if argument.choices else " -r" if argument.value else ""
            )
            lines.append(f"complete -c reassert{condition} {names}{takes} -d {_quoted(argument.meaning)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
