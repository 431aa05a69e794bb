"""Entry point of the start path: `reassert runtime` and `reassert hook`, which run during a container start.

The start path is this module and all modules that it imports. The frozen program runs them before PyInstaller's import
machinery (packaging/frozen_start.py), and executes each of them when it first uses one of its names. They may import
only each other, `sys`, `posix`, `_json`, `_signal`, `_thread`, `errno`, `time`, and what few starts need: _ctypes and
some modules in C. No enum, re, dataclasses, os or json; `typing` and `collections.abc` for annotations alone, which the
frozen program has not. The build refuses others. tests/unit/test_import_budget.py lists what a usual start executes.
"""

from __future__ import annotations

import posix
import sys

from hook.core.base import system
from hook.entry import hook, runtime, usage

_SET_BY_THE_BOOTLOADER = (
    b"_PYI_ARCHIVE_FILE _PYI_APPLICATION_HOME_DIR _PYI_PARENT_PROCESS_LEVEL _PYI_SPLASH_IPC _PYI_LINUX_PROCESS_NAME"
)


def engine_environment() -> dict[bytes, bytes]:
    """The engine's environment, without the changes of PyInstaller's bootloader.

    It prepends its directory to LD_LIBRARY_PATH, saves the old value in LD_LIBRARY_PATH_ORIG, and sets variables for
    child processes (PyInstaller manual, "LD_LIBRARY_PATH / LIBPATH considerations"). The dispatcher prepends UTC to TZ.
    What cannot be undone has no effect on what a runtime starts: an empty LD_LIBRARY_PATH or TZ, a TZ from elsewhere
    than the dispatcher, PYINSTALLER_*, and the engine's own variables of the names above.
    """
    environment = dict(posix.environ)
    if hasattr(sys, "_MEIPASS"):
        for name in _SET_BY_THE_BOOTLOADER.split():
            environment.pop(name, None)
        for name in (b"LD_LIBRARY_PATH", b"TZ"):
            original = environment.pop(name, b"").partition(b":")[2]
            if original:
                environment.pop(name + b"_ORIG", None)
                environment[name] = original
    return environment


def start(arguments: list[str]) -> None:
    """Run a command of the start path (`hook.entry.COMMANDS`) and exit. It is the first argument."""
    try:
        system.wait_for_leases()
        if arguments[0] == "runtime":
            status = runtime.main(arguments[1:], engine_environment())
        else:
            status = hook.main(arguments[1:])
    except BaseException as error:
        status = usage.ended(error, arguments)
    posix._exit(status)
