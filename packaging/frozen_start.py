"""Make the frozen program start fast. Called by reassert.spec.

docs/performance.md has the measurements of each step, and how to repeat them.
"""

from __future__ import annotations

import ast
import marshal
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

from PyInstaller.building.utils import compile_pymodule

Entry = tuple[str, str, str]
"""PyInstaller's: name in the frozen program, source file, type code."""

ROOT = Path(__file__).resolve().parent.parent
BUILTINS = {"sys", "posix", "_json", "errno", "time", "_signal"}
HEADER = 16
"""Bytes of a .pyc file before its marshalled code (PEP 552)."""


def start_path(module: str, files: dict[str, Path]) -> dict[str, Path]:
    """Add a module and all that it imports at its top level to `files`, each after its imports. Returns `files`."""
    if module in files:
        return files
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    parent = module.rpartition(".")[0]
    if parent:
        start_path(parent, files)
    for node in ast.parse(file.read_text("utf-8")).body:
        for name in _imported(node):
            if name.partition(".")[0] == "hook":
                start_path(name, files)
            elif name not in BUILTINS:
                raise SystemExit(f"{file}: the start path must not import {name} (see hook/start.py)")
    files[module] = file
    return files


def late(files: dict[str, Path]) -> dict[str, Path]:
    """The modules that functions of these modules import, and in turn theirs, as far as they need builtins only."""
    found: dict[str, Path] = {}
    pending = list(files.values())
    while pending:
        for function in ast.walk(ast.parse(pending.pop().read_text("utf-8"))):
            for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
                for name in _imported(node):
                    if name.partition(".")[0] != "hook" or name in files or name in found:
                        continue
                    try:
                        needed = start_path(name, dict(files))
                    except SystemExit:  # hook.core.linux needs ctypes: from a file, as ctypes itself
                        continue
                    new = {module: file for module, file in needed.items() if module not in files | found}
                    found |= new
                    pending += new.values()
    return found


def _imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        place = ROOT / Path(*node.module.split("."))
        inside = {path.stem for path in place.iterdir()} if place.is_dir() else set()
        return [f"{node.module}.{alias.name}" if alias.name in inside else node.module for alias in node.names]
    return []


# One entry of the executable's archive holds the whole start path. For each entry the bootloader opens the executable,
# seeks, inflates, closes, and calls importlib; and in one entry a string constant of many modules is stored once. Only
# the modules of the given command are executed. They are registered in sys.modules, packages with a __path__, so that a
# later import (ctypes) finds its file. What a function of them imports is in the entry as bytes, which cost next to
# nothing until they are needed: no file is looked for then, and none can be missing after an update.
_START = """
import gc
import sys
order = "ORDERS".get(sys.argv[1] if len(sys.argv) > 1 else "")
if order:
    gc.disable()  # a start lives for milliseconds and leaves no cycles worth a search
    from marshal import loads
    codes = dict("CODES")
    late = dict("LATE")
    packages = "PACKAGES"
    class Late:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name not in late:
                return None
            spec = type(sys.__spec__)(name, Late, is_package=name in packages)
            if name in packages:  # some of its modules may be files
                spec.submodule_search_locations.append(sys._MEIPASS + "/" + name.replace(".", "/"))
            return spec
        @staticmethod
        def create_module(spec):
            return None
        @staticmethod
        def exec_module(module):
            exec(loads(late[module.__name__]), module.__dict__)
    sys.meta_path.insert(0, Late)
    for name in order:
        module = sys.modules[name] = type(sys)(name)
        module.__file__ = sys._MEIPASS + "/" + name.replace(".", "/") + ".pyc"
        if name in packages:
            module.__path__ = [module.__file__[:-4]]
        exec(codes[name], module.__dict__)
    sys.modules["hook.start"].start(sys.argv[1:])
"""


def start_entry(workpath: Path) -> Entry:
    """The archive entry that is executed before PyInstaller's import machinery is loaded."""
    sys.path.insert(0, str(ROOT))
    from hook.start import COMMANDS

    orders = {name: start_path(f"hook.entry.{name}", start_path("hook.start", {})) for name in COMMANDS}
    files = {module: file for order in orders.values() for module, file in order.items()}
    code = {
        name: _code(compile_pymodule(name, str(file), str(workpath), 2)) for name, file in (files | late(files)).items()
    }
    constants = {
        "PACKAGES": tuple(module for module, file in (files | late(files)).items() if file.name == "__init__.py"),
        "CODES": tuple((module, code[module]) for module in files),
        "LATE": tuple((module, marshal.dumps(code[module])) for module in late(files)),
    }
    text = _START.replace('"ORDERS"', repr({name: tuple(order) for name, order in orders.items()}))
    return "reassert_start", _compiled(workpath / "reassert_start.pyc", text, constants), "PYMODULE"


# Python imports `encodings` first, and base_library.zip is the first entry of sys.path. Here it is a directory that has
# only the files that every start needs, so no zip file is read by Python code and no long directory is listed. The
# three modules of `encodings` that every start loads are in one file.
_FIRST = "base_library.zip"
_ENCODINGS = """
import sys
for name, code in "PARTS":
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
exec("PACKAGE")
"""
_CODECS = (
    *("aliases", "ascii", "charmap", "cp437", "idna", "latin_1", "punycode", "raw_unicode_escape", "undefined"),
    *("unicode_escape", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_8", "utf_8_sig"),
)


def first_on_path(datas: list[Entry], binaries: list[Entry], workpath: Path) -> tuple[list[Entry], list[Entry]]:
    """Datas and binaries with `encodings` and `_json` in the first entry of sys.path, and without unused codecs."""
    codecs = {Path(dest).stem: source for dest, source, _ in datas if dest.startswith("encodings/")}
    constants = {
        "PARTS": tuple((f"encodings.{name}", _code(codecs[name])) for name in ("aliases", "utf_8")),
        "PACKAGE": _code(codecs["__init__"]),
    }
    codecs["__init__"] = _compiled(workpath / "encodings.pyc", _ENCODINGS, constants)
    datas = [entry for entry in datas if not entry[0].startswith("encodings/")]
    datas += [(f"{_FIRST}/encodings/{name}.pyc", codecs[name], "DATA") for name in ("__init__", *_CODECS)]
    binaries = [
        (f"{_FIRST}/{Path(dest).name}" if Path(dest).name.startswith("_json.") else dest, source, kind)
        for dest, source, kind in binaries
        if not Path(dest).name.startswith(("_codecs_", "_multibytecodec"))
    ]
    return datas, binaries


def _code(pyc: str) -> CodeType:
    code: CodeType = marshal.loads(Path(pyc).read_bytes()[HEADER:])  # noqa: S302  # PyInstaller has just written it
    return code


def _compiled(path: Path, text: str, constants: dict[str, object]) -> str:
    """Write a .pyc file in which each string constant "NAME" is replaced by `constants[NAME]`; returns its path.

    This is how a code object becomes a constant: Python has no literal for it.
    """
    code = compile(text, path.stem + ".py", "exec", dont_inherit=True, optimize=2)
    replaced = tuple(
        constants.get(constant, constant) if isinstance(constant, str) else constant for constant in code.co_consts
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Flags: by hash, never checked (PEP 552).
    path.write_bytes(MAGIC_NUMBER + b"\1\0\0\0" + bytes(8) + marshal.dumps(code.replace(co_consts=replaced)))
    return str(path)
