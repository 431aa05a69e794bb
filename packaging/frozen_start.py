"""Make the frozen program start fast. Called by reassert.spec.

docs/project/performance.md has the measurements of each step, and how to repeat them.
"""

from __future__ import annotations

import ast
import copy
import marshal
import sys
from collections.abc import Iterator
from encodings.aliases import aliases
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

Entry = tuple[str, str, str]
"""PyInstaller's: name in the frozen program, source file, type code."""

ROOT = Path(__file__).resolve().parent.parent
BUILTINS = {"sys", "posix", "_json", "errno", "time", "_signal", "_thread"}
RARE = {"_blake2", "_ctypes", "_sha2", "_sha256", "_socket", "binascii", "fcntl", "zlib"}
"""Files to load in some builds of Python. Few starts execute a module that imports one."""

USUAL = {
    *("hook.start", "hook.entry", "hook.entry.caller", "hook.entry.write_spec"),
    *("hook.core.decide", "hook.core.events", "hook.core.plan", "hook.core.verdict"),
    *("hook.core.base.compare", "hook.core.base.errors", "hook.core.base.jsontext", "hook.core.base.system"),
    "hook.core.base.text",
    *(f"hook.core.container.{name}" for name in ("identity", "oci", "spec", "start")),
    *("hook.core.facts", "hook.core.facts.gather"),
    *("hook.core.policy.entries", "hook.core.policy.model", "hook.core.policy.sources", "hook.core.policy.store"),
    *("hook.core.reserve.env", "hook.core.reserve.mounts", "hook.core.reserve.devices"),
    *("hook.core.reserve.edits", "hook.core.reserve.place_mount", "hook.core.reserve.reserved_env"),
    *("hook.core.reserve.listed_annotations", "hook.core.reserve.unsafe_annotations", "hook.core.reserve.plan"),
    *("hook.core.reserve.shared_processes", "hook.core.reserve.node_paths"),
}
"""Our modules that a usual create, exec and hook execute. Whether another one belongs here is for the review.

They are marshalled together: each string that several of them have is read and interned once.
"""

HEADER = 16
"""Bytes of a .pyc file before its marshalled code (PEP 552)."""


@cache
def start_path() -> dict[str, Path]:
    """Our modules that `hook.start` imports, they import, and so on, and their files. Raises SystemExit for another."""
    found: dict[str, Path] = {}
    pending = ["hook.start"]
    while pending:
        module = pending.pop()
        file = _file(module)
        if file is None or module in found:
            continue
        found[module] = file
        pending.append(module.rpartition(".")[0])
        for name in imports(module):
            if name.partition(".")[0] == "hook":
                pending.append(name)
            elif name not in BUILTINS | RARE:
                raise SystemExit(f"{file}: the start path must not import {name} (see hook/start.py)")
    return found


def imports(module: str) -> Iterator[str]:
    """What one of our modules imports when it runs; of a package, also the modules that are imported from it."""
    for node in ast.walk(run_time_tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (name for alias in node.names if _file(name := f"{node.module}.{alias.name}"))


def code(module: str) -> CodeType:
    """The code of one of our modules, without docstrings, assertions and the numbers of lines.

    A start shows no traceback (`hook.entry.usage.ended`), and the numbers are a quarter of the bytes.
    """
    tree, name = _Bound().visit(copy.deepcopy(run_time_tree(module))), f"{module.replace('.', '/')}.py"
    return _without_lines(compile(tree, name, "exec", dont_inherit=True, optimize=2))


class _Bound(ast.NodeTransformer):
    """Replaces an import of a module of ours by the module in `__modules__`: the statement costs ten times as much."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        if str(node.module).partition(".")[0] != "hook":
            return node
        bound = []
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            value = f"__modules__[{module!r}]" if _file(module) else f"__modules__[{node.module!r}].{alias.name}"
            bound += ast.parse(f"{alias.asname or alias.name} = {value}").body
        return bound


def _without_lines(code: CodeType) -> CodeType:
    inner = (_without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=tuple(inner))


def _file(module: str) -> Path | None:
    path = ROOT / Path(*module.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None) if module.partition(".")[0] == "hook" else None


@cache
def run_time_tree(module: str) -> ast.Module:
    """The syntax tree of one of our modules, as `at_run_time` returns it."""
    return at_run_time((_file(module) or Path()).read_text("utf-8"), module)


def at_run_time(text: str, module: str) -> ast.Module:
    """The syntax tree of a module without what only type checkers need, so that no start pays for it.

    That is: annotations, `X: TypeAlias = ...`, `T = TypeVar(...)`, `class P(Protocol)`, and imports of names that only
    these use. Raises SystemExit if something else uses the name of one of them.
    """
    annotations = _Annotations()
    tree: ast.Module = annotations.visit(ast.parse(text))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if annotations.names & used:
        raise SystemExit(f"{module}: {', '.join(annotations.names & used)}: an alias of types has no value at run time")
    tree = _Imports(used).visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.If) and not node.body:
            node.body = [ast.Pass()]
    return ast.fix_missing_locations(tree)


class _Annotations(ast.NodeTransformer):
    """Removes annotations, and what is for them alone. `names`: the names that had it."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if ast.unparse(node.annotation) == "TypeAlias":
            self.names.add(ast.unparse(node.target))
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else None

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | None:
        if "Protocol" in [ast.unparse(base) for base in node.bases]:
            self.names.add(node.name)
            return None
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar":
            self.names.add(ast.unparse(node.targets[0]))
            return None
        return self.generic_visit(node)


class _Imports(ast.NodeTransformer):
    """Removes imports of names that are not used."""

    def __init__(self, used: set[str]) -> None:
        self.used = used

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        node.names = [name for name in node.names if (name.asname or name.name.partition(".")[0]) in self.used]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        node.names = [name for name in node.names if (name.asname or name.name) in self.used]
        return node if node.names and node.module != "__future__" else None


# One entry of the executable's archive holds the whole start path. For each entry the bootloader opens the executable,
# seeks, inflates, closes, and calls importlib. sys.modules has a `Lazy` for each module, so no import looks for a file.
# A start executes a module when it first uses one of its names, and so pays for what it uses. meta_path[0] refuses in a
# container's mount namespace (hook/core/linux/mountns.py).
_START = """
import gc
import sys
if len(sys.argv) > 1 and sys.argv[1] in "COMMANDS":
    gc.disable()  # a start lives for milliseconds and leaves no cycles worth a search
    from marshal import loads
    root = "ROOT"
    if root is None:
        root = sys._MEIPASS
    usual, codes, modules, Module = loads("USUAL"), dict("CODES"), sys.modules, type(sys)
    class Lazy(Module):
        def __getattr__(self, attribute):
            name = self.__name__
            sys.meta_path[0].find_spec(name)
            self.__file__ = root + "/" + name.replace(".", "/") + ".pyc"
            self.__modules__ = modules
            exec(usual.get(name) or loads(codes[name]), self.__dict__)
            self.__class__ = Module
            return getattr(self, attribute)
    for name in "NAMES":
        modules[name] = Lazy(name)
    modules["hook.start"].start(sys.argv[1:])
"""


def start_code(root: str | None = None) -> CodeType:
    """What runs a command of the start path. `root`: the directory that has hook/; None: the frozen program's."""
    sys.path.insert(0, str(ROOT))
    from hook.entry import COMMANDS

    constants = {
        "COMMANDS": COMMANDS,
        "ROOT": root,
        "NAMES": tuple(sorted(start_path())),
        "USUAL": marshal.dumps({module: code(module) for module in sorted(USUAL)}),
        "CODES": tuple((module, marshal.dumps(code(module))) for module in sorted({*start_path()} - USUAL)),
    }
    return _with_constants("reassert_start.py", _START, constants)


def start_entry(workpath: Path) -> Entry:
    """The archive entry that is executed before PyInstaller's import machinery is loaded."""
    return "reassert_start", _written(workpath / "reassert_start.pyc", start_code()), "PYMODULE"


# Python imports `encodings` first, and base_library.zip is the first entry of sys.path. Here it is a directory that has
# only the files that starts need, so no zip file is read by Python code and no long directory is listed. The three
# modules of `encodings` that every start loads are in one file.
_FIRST = "base_library.zip"
_EARLY = {"_blake2", "_ctypes", "_json"}
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
    """Datas and binaries with `encodings` and _EARLY in the first entry of sys.path, and without unused codecs."""
    codecs = {Path(dest).stem: source for dest, source, _ in datas if dest.startswith("encodings/")}
    names = {alias: codec for alias, codec in aliases.items() if codec in _CODECS}
    constants = {
        "PARTS": (
            ("encodings.aliases", compile(f"aliases = {names}", "aliases.py", "exec")),
            ("encodings.utf_8", _code(codecs["utf_8"])),
        ),
        "PACKAGE": _code(codecs["__init__"]),
    }
    codecs["__init__"] = _written(workpath / "encodings.pyc", _with_constants("encodings.py", _ENCODINGS, constants))
    datas = [entry for entry in datas if not entry[0].startswith("encodings/")]
    datas += [(f"{_FIRST}/encodings/{name}.pyc", codecs[name], "DATA") for name in ("__init__", *_CODECS)]
    binaries = [
        (f"{_FIRST}/{Path(dest).name}" if Path(dest).name.partition(".")[0] in _EARLY else dest, source, kind)
        for dest, source, kind in binaries
        if not Path(dest).name.startswith(("_codecs_", "_multibytecodec"))
    ]
    return datas, binaries


def _code(pyc: str) -> CodeType:
    code: CodeType = marshal.loads(Path(pyc).read_bytes()[HEADER:])  # noqa: S302  # PyInstaller has just written it
    return code


def _with_constants(file: str, text: str, constants: dict[str, object]) -> CodeType:
    """The code of a text in which each string constant "NAME" is replaced by `constants[NAME]`.

    This is how a code object becomes a constant: Python has no literal for it.
    """
    code = compile(text, file, "exec", dont_inherit=True, optimize=2)
    replaced = tuple(
        constants.get(constant, constant) if isinstance(constant, str) else constant for constant in code.co_consts
    )
    return code.replace(co_consts=replaced)


def _written(path: Path, code: CodeType) -> str:
    """Write a .pyc file. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Flags: by hash, never checked (PEP 552).
    path.write_bytes(MAGIC_NUMBER + b"\1\0\0\0" + bytes(8) + marshal.dumps(code))
    return str(path)
