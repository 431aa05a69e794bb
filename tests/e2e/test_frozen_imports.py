"""The modules that a start of the frozen program has loaded, read from the process: only those of the start path.

tests/unit/test_import_budget.py checks the unfrozen program with the same rule.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

from unit.test_import_budget import start_path

from e2e.support import REASSERT, Bundle, Node, need, run

# fmt: off
INTERPRETER = {
    "sys", "builtins", "_frozen_importlib", "_frozen_importlib_external", "_imp", "_thread",
    "_warnings", "_weakref", "_io", "marshal", "posix", "time", "zipimport", "encodings",
    "encodings.aliases", "encodings.utf_8", "_codecs", "codecs", "_signal", "_abc", "abc", "io",
    "__main__",
}
# fmt: on
"""What CPython loads before any code of ours runs."""

BESIDE = {"_json", "errno", "gc", "reassert_start"}
"""The start path's builtins, and the archive entry that holds it (packaging/frozen_start.py)."""


def loaded(directory: Path, call: str, arguments: list[str], text: str = "") -> set[str]:
    """Names in sys.modules when the frozen program makes a system call, by gdb."""
    need(run("gdb", "--version", check=False).returncode == 0, "gdb")
    found, stdin = directory / "modules", directory / "stdin"
    stdin.write_text(text)
    code = f'import sys, posix; posix.write(posix.open(\\"{found}\\", 577), \\" \\".join(sys.modules).encode())'
    script = (
        f"set args {shlex.join(arguments)} < {stdin}",
        "starti",
        f"catch syscall {call}",
        "continue",
        f'call (int)PyRun_SimpleString("{code}")',
        "kill",
    )
    # As the dispatcher starts it: otherwise the bootloader's own execve would come first.
    environment = {"_PYI_ARCHIVE_FILE": str(REASSERT), "_PYI_PARENT_PROCESS_LEVEL": "0", "PATH": "/usr/bin:/bin"}
    environment["LD_LIBRARY_PATH"] = str(REASSERT.parent / "lib")
    commands = [part for command in script for part in ("-ex", command)]
    gdb = ["gdb", "-batch", "-nx", *commands, str(REASSERT)]
    done = subprocess.run(gdb, env=environment, text=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    assert found.exists(), done.stdout + done.stderr
    return set(found.read_text().split())


def runtime(node: Node, *arguments: str) -> list[str]:
    return ["runtime", "--real", "/bin/true", *node.options(), "--", *arguments]


def test_a_create_loads_the_start_path_only(compiled_node: Node, bundle: Bundle) -> None:
    bundle.pod()
    bundle.save()
    create = runtime(compiled_node, "create", "--bundle", str(bundle.directory), "x")
    modules = loaded(bundle.directory, "execve", create)
    assert "hook.entry.runtime" in modules
    assert modules <= INTERPRETER | BESIDE | start_path()
    assert "reassert/decision" in bundle.saved()["annotations"], "it did its work before"


def test_a_hook_loads_the_start_path_only(compiled_node: Node, bundle: Bundle) -> None:
    """As second line behind the wrapper: it verifies and has nothing to mount."""
    bundle.pod(namespace="kube-system")
    bundle.save()
    state = {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": str(bundle.directory)}
    arguments = ["hook", *compiled_node.options(), "createRuntime"]
    modules = loaded(bundle.directory, "exit_group", arguments, json.dumps(state))
    assert "hook.entry.hook" in modules
    assert modules <= INTERPRETER | BESIDE | start_path()
