"""The modules that a start of the frozen program has executed, read from the process: only those that it needs.

tests/unit/test_import_budget.py checks the unfrozen program with the same rule.
"""

from __future__ import annotations

import json
from pathlib import Path

import marks
from harness.bundle import Bundle
from harness.node import Node
from harness.paths import REASSERT
from harness.tools import need, run
from unit.test_import_budget import CONCEALED, CREATE, EVENT, LOOKED_AT, MOUNTED, USUAL

pytestmark = marks.promise("A start loads the start path's modules only")

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


INSTEAD = r"""
void *dlopen(const char *, int);
void *dlsym(void *, const char *);
#define RTLD_NOW 2
#define RTLD_NOLOAD 4
#define RTLD_NEXT ((void *)-1)

static void tell(void) {
  int (*run)(const char *) = dlsym(dlopen(LIBPYTHON, RTLD_NOW | RTLD_NOLOAD), "PyRun_SimpleString");
  run("import sys, posix; executed = [k for k, m in sys.modules.items() if type(m).__name__ != 'Lazy']");
  run("posix.write(posix.open('" FOUND "', 577), ' '.join(executed).encode())");
}

int execve(const char *path, char *const *arguments, char *const *environment) {
  tell();
  int (*real)(const char *, char *const *, char *const *) = dlsym(RTLD_NEXT, "execve");
  return real(path, arguments, environment);
}

void _exit(int status) {
  tell();
  void (*real)(int) = dlsym(RTLD_NEXT, "_exit");
  real(status);
  __builtin_unreachable();
}
"""
"""A library that writes the names of the modules to a file when the process ends or becomes another program."""


def loaded(directory: Path, arguments: list[str], text: str = "") -> set[str]:
    """Names of the executed modules when the frozen program calls execve(2) or _exit(2), by a library in LD_PRELOAD."""
    need(run("gcc", "--version", check=False).returncode == 0, "gcc")
    found, source, library = directory / "modules", directory / "tell.c", directory / "tell.so"
    source.write_text(INSTEAD)
    [libpython] = (REASSERT.parent / "lib").glob("libpython*.so*")
    defined = [f'-D{name}="{value}"' for name, value in (("FOUND", found), ("LIBPYTHON", libpython.name))]
    run("gcc", "-shared", "-fPIC", "-nostdlib", *defined, "-o", str(library), str(source))
    # As the dispatcher starts it: otherwise the bootloader's own execve would come first.
    environment = {"_PYI_ARCHIVE_FILE": str(REASSERT), "_PYI_PARENT_PROCESS_LEVEL": "0", "PATH": "/usr/bin:/bin"}
    environment |= {"LD_LIBRARY_PATH": str(REASSERT.parent / "lib"), "LD_PRELOAD": str(library)}
    done = run(str(REASSERT), *arguments, env=environment, input=text, check=False)
    assert found.exists(), done.stdout + done.stderr
    return set(found.read_text().split())


def runtime(node: Node, *arguments: str) -> list[str]:
    return ["runtime", "--real", "/bin/true", *node.options(), "--", *arguments]


def test_a_create_executes_what_it_needs_only(compiled_node: Node, bundle: Bundle) -> None:
    bundle.pod()
    bundle.save()
    create = runtime(compiled_node, "create", "--bundle", str(bundle.directory), "x")
    modules = loaded(bundle.directory, create)
    assert "hook.entry.runtime" in modules
    assert modules <= INTERPRETER | BESIDE | USUAL | CREATE | EVENT | CONCEALED | MOUNTED
    assert "reassert/decision" in bundle.saved()["annotations"], "it did its work before"


def test_a_hook_executes_what_it_needs_only(compiled_node: Node, bundle: Bundle) -> None:
    """As second line behind the wrapper: it verifies and has nothing to mount."""
    bundle.pod(namespace="kube-system")
    bundle.save()
    state = {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": str(bundle.directory)}
    arguments = ["hook", *compiled_node.options(), "createRuntime"]
    modules = loaded(bundle.directory, arguments, json.dumps(state))
    assert modules <= INTERPRETER | BESIDE | USUAL | EVENT | LOOKED_AT | {"hook.entry.hook"}
