"""The start path's door: the two personalities that stand in the way of a container start.

Everything that is imported from here runs before PyInstaller's import machinery when frozen (packaging/reassert.spec),
and it is the same code that runs unfrozen and under test. Rules for all of it: import nothing but `sys`, `posix`,
`_json`, `_signal`, `errno`, `time` and this package's own start path; no enum, re, typing, dataclasses, os or json.
A test (tests/unit/test_import_budget.py) holds that; docs/performance.md says what each would cost.
"""

import posix
import sys

from hook.base.errors import describe
from hook.base.system import say

PERSONALITIES = ("runtime", "hook")
"""Each an adapter; only the one that is asked for is imported (and loaded at all, when frozen)."""


_BOOTLOADERS = (
    b"_PYI_ARCHIVE_FILE",
    b"_PYI_APPLICATION_HOME_DIR",
    b"_PYI_PARENT_PROCESS_LEVEL",
    b"_PYI_SPLASH_IPC",
    b"_PYI_LINUX_PROCESS_NAME",
)


def engine_environment() -> "dict[bytes, bytes]":
    """The environment as the engine gave it: what PyInstaller's bootloader put in is taken out again.

    It puts its directory before LD_LIBRARY_PATH, keeps the old one in LD_LIBRARY_PATH_ORIG, and talks to its own
    children (PyInstaller manual, "LD_LIBRARY_PATH / LIBPATH considerations"). What it leaves no trace of stays lost,
    and means nothing to a runtime: an empty LD_LIBRARY_PATH, PYINSTALLER_*, an engine's own variables of these names.
    """
    environment = dict(posix.environ)
    if hasattr(sys, "_MEIPASS"):
        for name in _BOOTLOADERS:
            environment.pop(name, None)
        original = environment.pop(b"LD_LIBRARY_PATH", b"").partition(b":")[2]
        if original:
            environment.pop(b"LD_LIBRARY_PATH_ORIG", None)
            environment[b"LD_LIBRARY_PATH"] = original
    return environment


def start(arguments: "list[str]") -> None:
    """Become the personality that the arguments ask for, and never return; return at once for any other."""
    if not arguments or arguments[0] not in PERSONALITIES:
        return
    status = 1
    try:
        if arguments[0] == "runtime":
            from hook.adapters import runtime

            status = runtime.main(arguments[1:], engine_environment())
        else:
            from hook.adapters import hook

            status = hook.main(arguments[1:])
    except BaseException as error:  # never a traceback at an engine
        say(describe(error))
    posix._exit(status)
