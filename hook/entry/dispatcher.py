"""The dispatcher: the sh script `reassert-runc`, which an engine runs as its OCI runtime.

It runs the real runtime for the verbs that change nothing, and `reassert runtime` for all other command lines. Where
there is an agent, the script and the hook entry have front as interpreter (packaging/front/front.c). Front reads the
lines at the top, which are comments for sh, and asks the agent. The rest is the sh script of a cold start. Its first
argument, before the engine's, is the reason: in the environment the real runtime would see it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from hook.core.base.errors import ReassertError
from hook.entry import SENTRY
from hook.entry.cmdline import BOTH_WAYS, EDITING_VERBS, GLOBAL_FLAGS, GLOBAL_VALUES, VERBS

DISPATCHER_MARK = "# written by reassert"

HEAD = 512
"""Bytes at the start of a file in which the mark is looked for. Linux reads a first line of at most 255 (execve(2))."""

PASSED = tuple(verb for verb, change in VERBS.items() if not change)
"""Verbs for which the real runtime is executed at once, if only options of VALUES and FLAGS are before them."""

VALUES = tuple(f"--{name}" for name in GLOBAL_VALUES if name != BOTH_WAYS)
FLAGS = tuple(f"--{name}" for name in GLOBAL_FLAGS if name not in ("help", "version"))
"""Global options as engines write them, with the value in the next argument and without one. All runtimes agree."""

PRINTING = ("--help", "--version", "-h", "-v")
"""Global options with which every runtime prints something, or complains, and exits."""

_SCRIPT = """#!/bin/sh
{mark}: runs the real runtime for verbs that change nothing, reassert for others
{front}reassert_next=passed
[ $# = 0 ] || reassert_next=option
for argument; do
  case $reassert_next:$argument in
  {decided}) reassert_next=; break ;;
  value:*) reassert_next=option ;;
  {values}) reassert_next=value ;;
  {flags} | option:--*=*) ;;
  {passed}) reassert_next=passed ;;
  passed:*) ;;
  *) reassert_next=; break ;;
  esac
done
{passes} || {{
{launch}
exec "$reassert" runtime{cold} --real {real}{extra} -- "$@"
}}
exec {real} "$@"
"""
"""The last line takes reassert out (docs/break-glass.md)."""

COLD_CASE = "case $1 in --cold=*) reassert_cold=$1; shift ;; *) reassert_cold=--cold=unknown ;; esac"
"""Line of sh that takes away the argument that front puts before the engine's: why the start is cold."""

START = "start"
"""Name of a file beside the installed link `reassert`: the `start_text` of the installed version. One rename of this
file switches dispatchers to another version (hook.node.change.tree)."""

NOT_ROOTS = 'read -r _ outside _ < /proc/self/uid_map; [ "${outside:-0}" != 0 ]'
"""Condition in sh: whether uid 0 is another user of the node (user_namespaces(7)), as with rootless podman."""

FRONT = "front"
"""The file name of front, in the directory of the frozen program."""

HEADER = 4096
"""The most bytes that front reads of the file: front's limit."""

_INTERPRETER = 255
"""The most bytes that Linux reads of the first line (execve(2))."""


def dispatcher(
    real: str,
    reassert: str,
    *,
    extra: list[str],
    installed: bool = False,
    rootless: bool = False,
    front: bool = False,
    gvisor: bool | None = None,
) -> str:
    """The dispatcher script, in POSIX sh, for a real runtime. `extra`: more options for `reassert runtime`.

    `installed`: as in `launch_lines`. `rootless`: ordinary users get the real runtime, since they can neither read the
    policy nor be forced to use the dispatcher. `front`: front runs the script, see hook.entry.dispatcher. `gvisor`:
    whether `real` is gVisor's, for a caller that has looked at it; else it is looked at, and asked, here.

    A command line that the script does not know only costs time: `reassert runtime` parses it. Raises ReassertError
    if `real` is not an executable file or is a dispatcher.
    """
    gvisor = _looked_at(real) if gvisor is None else gvisor
    passed = '[ "$reassert_next" = passed ]'
    if "--hook" not in extra and gvisor:
        extra = [*extra, "--hook", SENTRY]
    return _SCRIPT.format(
        mark=DISPATCHER_MARK,
        front=f"{COLD_CASE}\n" if front else "",
        cold=' "$reassert_cold"' if front else "",
        passes=f"{{ {passed} || {{ {NOT_ROOTS}; }}; }}" if rootless else passed,
        decided=_alternatives("*", EDITING_VERBS),
        values=_alternatives("option", VALUES),
        flags=_alternatives("option", FLAGS),
        passed=_alternatives("option", _passed(SENTRY in extra)),
        launch=launch_lines(reassert, installed),
        real=shlex.quote(real),
        extra="".join(f" {shlex.quote(part)}" for part in extra),
    )


def _looked_at(real: str) -> bool:
    """Whether a runtime is gVisor's. Raises ReassertError if it is not an executable file or is a dispatcher."""
    if not os.access(real, os.X_OK) or os.path.isdir(real):
        raise ReassertError(
            f"{real} is not an executable file; --real takes the path of the OCI runtime, for example /usr/sbin/runc"
        )
    with open(real, "rb") as file:
        if DISPATCHER_MARK.encode() in file.read(HEAD):
            raise ReassertError(f"{real} is a dispatcher of reassert: it would call itself endlessly")
    return is_gvisor(real)


def _passed(is_gvisor: bool) -> tuple[str, ...]:
    """Arguments in the verb's place with which the real runtime is executed at once. gVisor's `start` makes a gofer."""
    return PRINTING + tuple(verb for verb in PASSED if verb != "start" or not is_gvisor)


def is_gvisor(real: str) -> bool:
    """Whether a runtime is gVisor's runsc, by what it says itself: it may be called by another name, or by a script."""
    try:
        command = [real, "--version"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)  # noqa: S603  # the node's own runtime
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.startswith(b"runsc version ")


def _alternatives(state: str, words: tuple[str, ...]) -> str:
    return " | ".join(f"{state}:{word}" for word in words)


def launch_lines(program: str, installed: bool = False) -> str:
    """Lines of sh that a script needs before `exec "$reassert"`: they set this variable and the program's environment.

    `program`: the path of reassert. If a file `start` is beside it, the script sources that file. `installed`: the file
    will be there.
    """
    start = os.path.dirname(program) + "/" + START
    if installed or os.path.isfile(start):
        return f". {shlex.quote(start)}"
    if hasattr(sys, "_MEIPASS") and program == os.path.realpath(program):  # this program, or a copy of it
        return _launch_frozen(program)
    return f"reassert={shlex.quote(program)}\n{_ZONE}"


def start_text(program: str) -> str:
    """The content of the file `start` for a frozen program. `program`: its executable's real path."""
    head = "# Sourced by dispatchers: the installed version, and the environment that its bootloader would set."
    return f"{head}\n{_launch_frozen(program)}\n"


_ZONE = 'export TZ="UTC0:${TZ-}"'
"""UTC: Python opens /etc/localtime else, and would wait for a container that has a lease on it (fcntl(2)). `hook.start`
undoes it."""


def _launch_frozen(program: str) -> str:
    # PyInstaller's bootloader would set these variables and then execute itself again, so that the dynamic linker sees
    # them (project/performance.md). Other versions of the bootloader ignore them and still do so. `hook.start` undoes
    # them.
    library = shlex.quote(os.path.dirname(program) + "/lib")  # contents_directory in packaging/reassert.spec
    return (
        f"reassert={shlex.quote(program)}\n"
        'export _PYI_ARCHIVE_FILE="$reassert" _PYI_PARENT_PROCESS_LEVEL=0\n'
        f'export LD_LIBRARY_PATH={library}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n{_ZONE}'
    )


def stable_path(program: str) -> str:
    """A path of a program that stays valid after upgrades: the package's symbolic link in the directory above.

    `program`: a real path. Without such a link, the result is `program` itself.
    """
    directory, name = os.path.split(program)
    link = os.path.join(os.path.dirname(directory), name)
    return link if os.path.islink(link) and os.path.realpath(link) == program else program


def warm_dispatcher(
    real: str,
    reassert: str,
    *,
    front: str,
    where: dict[str, str],
    extra: list[str],
    installed: bool = False,
    rootless: bool = False,
    gvisor: bool | None = None,
) -> str:
    """Returns the file that the engine calls instead of the runtime.

    `where`: socket, policy, store, events, and hook: what containers' hook entries call, "" for the program.
    `extra`, `installed`, `rootless`, `gvisor`: as `dispatcher` takes them; with `installed`, front will be there too.
    Raises ReassertError.
    """
    gvisor = _looked_at(real) if gvisor is None else gvisor
    where = {**where, "hook": SENTRY} if gvisor else where
    more = ["--hook", where["hook"]] if where.get("hook") else []
    script = dispatcher(
        real, reassert, extra=extra + more, installed=installed, rootless=rootless, front=True, gvisor=gvisor
    )
    words = {"decided": EDITING_VERBS, "passed": _passed(SENTRY in more), "values": VALUES, "flags": FLAGS}
    lines = {"real": real, **{name: " ".join(listed) for name, listed in words.items()}, **where}
    return _file(front, lines, script, installed)


def warm_hook(reassert: str, front: str, *, where: dict[str, str], extra: list[str], installed: bool = False) -> str:
    """The file that a hook entry names: its arguments are a hook's flags and stage.

    `installed`: as `warm_dispatcher` takes it. Raises ReassertError.
    """
    from shlex import quote

    words = "".join(f" {quote(part)}" for part in extra)
    script = (
        f"#!/bin/sh\n{DISPATCHER_MARK}: a hook entry calls this\n{COLD_CASE}\n{launch_lines(reassert, installed)}\n"
        f'exec "$reassert" hook "$reassert_cold"{words} "$@"\n'
    )
    return _file(front, where, script, installed)


def _file(front: str, where: dict[str, str], script: str, installed: bool) -> str:
    first = f"#!{front}\n"
    if not installed and not os.access(front, os.X_OK):
        raise ReassertError(f"{front} is not an executable file; packaging/build.sh builds it where musl-gcc is")
    _, mark, rest = script.split("\n", 2)
    lines = "".join(f"# {name}: {value}\n" for name, value in where.items() if value)
    text = f"{first}{mark}\n{lines}\n{rest}"
    if len(os.fsencode(first)) > _INTERPRETER or any(letter in front for letter in " \t\n"):
        raise ReassertError(
            f"{front} cannot be the interpreter of a file: its path is too long or contains white space"
        )
    if any("\n" in value for value in where.values()) or text.index("\n\n") > HEADER - 2:
        raise ReassertError("a path is too long for front or contains a line break")
    return text
