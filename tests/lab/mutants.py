"""Whether the tests notice a broken product: random mutants of the code, one at a time, in a copy of the tree.

tests/lab/mutants.sh starts it, and says how. libcst parses Python, mutmut has the operators, coverage says which tests
run a line. A mutant is text that replaces text of a file, so that a result can be tried again after a test was mended.
"""

from __future__ import annotations

import argparse
import ast
import json
import marshal
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

PATHS = ["hook/core", "hook/entry", "hook/compile", "hook/resident", "hook/nri", "hook/agent"]
PATHS += ["hook/*.py", "packaging/front/front.c"]
"""What is mutated: directories, and patterns of files."""
LEFT_OUT = ("hook/cli.py", "hook/resident/parser.py", "hook/__init__.py")
"""Of these paths, what is not: commands for people."""
ENGINE_TESTS = {"hook/agent": "agent", "packaging/front": "agent", "hook/nri": "nri", "": "test_*.py"}
"""Engine tests of a line of which coverage does not know: the longest beginning of its path counts."""
NEVER = ("tests/unit/test_import_budget.py", "tests/unit/test_growth.py")
"""Tests that a mutant fails for other reasons than what it does, or that are slow and run every line."""
MOST = {"unit": 60, "engine": 40}
"""How many tests of a line are run, at most, and those of as many files as possible."""
FACTOR, STALLED = 4.0, 90.0
"""How many times the CPU time that the tests take without the mutant; how many seconds without any CPU time."""
ALIVE = ("alive", "untested")
"""What a survivor is: tests passed, or none ran."""


@dataclass(frozen=True)
class Mutant:
    """`line` is the first that differs; `before` and `after` are what the lines that differ were and are."""

    path: str
    line: int
    before: str
    after: str

    def applied(self, source: str) -> str:
        """Raises ValueError if the file has changed since."""
        lines, old = source.split("\n"), self.before.split("\n") if self.before else []
        near = sorted(range(len(lines) + 1), key=lambda number: abs(number - self.line + 1))
        at = next((number for number in near if lines[number : number + len(old)] == old), None)
        if at is None:
            raise ValueError(f"{self.path}:{self.line} is no longer {self.before.strip()!r}")
        return "\n".join(lines[:at] + (self.after.split("\n") if self.after else []) + lines[at + len(old) :])

    def key(self) -> tuple[str, str, str]:
        """Without what a move of the file or of its lines changes."""
        return Path(self.path).name, " ".join(self.before.split()), " ".join(self.after.split())


def difference(path: str, old: str, new: str) -> Mutant:
    a, b = old.split("\n"), new.split("\n")
    start = next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    shorter = min(len(a), len(b)) - start
    end = next((i for i in range(shorter) if a[-1 - i] != b[-1 - i]), shorter)
    return Mutant(path, start + 1, "\n".join(a[start : len(a) - end]), "\n".join(b[start : len(b) - end]))


def mutated_files(root: Path) -> list[str]:
    found = chain.from_iterable(root.glob(f"{path}/**/*.py" if "." not in path else path) for path in PATHS)
    return sorted({str(path.relative_to(root)) for path in found} - set(LEFT_OUT))


def python_mutants(path: str, source: str, chosen: random.Random) -> Iterator[Mutant]:
    """Mutants of a module in random order, none of which compiles to the same bytecode."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper
    from mutmut.mutation.mutators import mutation_operators, operator_dict_arguments, operator_string

    places: list[tuple[Any, Any]] = []

    class Visitor(cst.CSTVisitor):  # type: ignore[misc]  # libcst is in the lab's environment alone
        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
                return False
            if isinstance(node, cst.Assign) and module.code_for_node(node).startswith("TYPE_CHECKING ="):
                return False
            if isinstance(node, cst.If):
                if isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING":
                    return False
                negated = cst.UnaryOperation(
                    cst.Not(), node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
                )
                places.append((node.test, negated))
            if (isinstance(node, cst.Expr) and isinstance(node.value, cst.Call)) or isinstance(node, cst.Raise):
                places.append((node, cst.Pass()))
            for kind, operator in mutation_operators:
                # The words of messages are no promise.
                if isinstance(node, kind) and operator not in (operator_string, operator_dict_arguments):
                    places.extend((node, new) for new in operator(node))
            return True

    module = MetadataWrapper(cst.parse_module(source)).module
    module.visit(Visitor())
    chosen.shuffle(places)
    before = marshal.dumps(compile(source, path, "exec", optimize=2))
    for node, new in places:
        code = module.deep_replace(node, new).code
        try:
            if marshal.dumps(compile(code, path, "exec", optimize=2)) != before and ast.parse(code):
                yield difference(path, source, code)
        except SyntaxError:
            continue


SWAPPED = "< <=,<= <,> >=,>= >,== !=,!= ==,&& ||,|| &&,+ -,- +,+= -=,-= +="
C_OPERATORS = [
    *((f" {re.escape(old)} ", f" {new} ") for old, new in map(str.split, SWAPPED.split(","))),
    (r" \| [A-Z_]+", ""),
    (r"\b0\b", "1"),
    (r"\b1\b", "0"),
    (r"\b([2-9]|[1-9]\d+)\b", r"(\1 + 1)"),
    (r"(?<=if \()(.+)(?=\)( \{)?$)", r"!(\1)"),
    (r"!(?=[a-z(*])", ""),
    (r"^(\t+)(?!return|struct|static|const|char|int|size_t|ssize_t|enum)[^{}]*;$", r"\1;"),
]
"""What is done to a line of C: a pattern, and what stands in its place."""


def c_mutants(path: str, source: str, chosen: random.Random) -> Iterator[Mutant]:
    found, lines = [], source.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("static const"))
    for number, line in enumerate(lines[first:], first + 1):
        code = re.sub(r'"[^"]*"', lambda text: "_" * len(text[0]), line.split(" /*")[0])
        for pattern, new in C_OPERATORS if not line.startswith(("/*", " *", "#")) else ():
            for match in re.finditer(pattern, code):
                kept = line[match.start(1) : match.end(1)] if match.re.groups else ""
                after = line[: match.start()] + new.replace("\\1", kept) + line[match.end() :]
                found += [Mutant(path, number, line, after)] if after != line else []
    chosen.shuffle(found)
    yield from found


def random_mutants(root: Path, files: list[str], chosen: random.Random) -> Iterator[Mutant]:
    """A file by the number of its lines, then one of its mutants; none twice."""
    sources = {path: (root / path).read_text() for path in files}
    makers: dict[str, Iterator[Mutant]] = {}
    seen = set()
    while sources:
        path = chosen.choices(list(sources), [source.count("\n") for source in sources.values()])[0]
        make = c_mutants if path.endswith(".c") else python_mutants
        mutant = next(makers.setdefault(path, make(path, sources[path], chosen)), None)
        if mutant is None:
            del sources[path]
        elif mutant not in seen:
            seen.add(mutant)
            yield mutant


class Tests:
    """Which tests run a line, by the data of `tests/lab/mutants.sh --record`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data: dict[str, Any] = {}
        for tier in MOST:
            if (file := root / f"build/mutants/{tier}.coverage").exists():
                from coverage import CoverageData

                self.data[tier] = CoverageData(str(file))
                self.data[tier].read()

    def of(self, mutant: Mutant, tier: str) -> list[str]:
        """Those that run its lines; else those that run its function, else its module."""
        if mutant.path.endswith(".c") and tier == "unit":
            return ["tests/unit/agent/test_front.py"]
        data = self.data.get(tier)
        lines = data.contexts_by_lineno(str(self.root / mutant.path)) if data else {}
        wide = mutant.before.count("\n") + 1
        for start, end in ((mutant.line, mutant.line + wide), self._function(mutant), (0, sys.maxsize)):
            files: dict[str, dict[str, None]] = defaultdict(dict)
            for context in chain.from_iterable(found for line, found in lines.items() if start <= line < end):
                name = re.sub(r" \((setup|call|teardown)\)$", "", re.sub(r"^\||\|(run|setup|teardown)$", "", context))
                name = name.partition("[")[0] if tier == "unit" else name
                if name.startswith("tests/" + ("unit" if tier == "unit" else "e2e")) and not name.startswith(NEVER):
                    files[name.partition("::")[0]][name] = None
            if files:
                near = [names for file, names in sorted(files.items()) if is_near(file, mutant.path)]
                far = [names for file, names in sorted(files.items()) if not is_near(file, mutant.path)]
                rounds = (zip_longest(*map(sorted, some)) for some in (near, far))
                return list(islice((name for turn in chain(*rounds) for name in turn if name), MOST[tier]))
        if tier == "unit":
            return []
        known = max((start for start in ENGINE_TESTS if mutant.path.startswith(start)), key=len)
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob(f"tests/e2e/{ENGINE_TESTS[known]}"))

    def beside(self, mutant: Mutant) -> list[str]:
        """All unit tests of the module's directory: coverage knows nothing of a process that a test starts bare."""
        directory = Path("tests/unit") / Path(mutant.path).parent.relative_to("hook")
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob(f"{directory}/test_*.py"))

    def _function(self, mutant: Mutant) -> tuple[int, int]:
        if mutant.path.endswith(".c"):
            return 0, 0
        nodes = ast.walk(ast.parse((self.root / mutant.path).read_text()))
        spans = [(n.lineno, (n.end_lineno or 0) + 1) for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        return max((span for span in spans if span[0] <= mutant.line < span[1]), default=(0, 0))


def is_near(test: str, path: str) -> bool:
    """Whether a test is in the directory of tests/unit that has the name of a module's."""
    return str(Path(test.partition("::")[0]).parent) == str(Path("tests/unit") / Path(path).parent.relative_to("hook"))


class Runner:
    """Runs mutants, each in a new copy of the tree."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.root, self.tests = options, options.root, Tests(options.root)
        listed = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=self.root, text=True)
        self.files = [name for name in listed.split("\0") if name and (self.root / name).is_file()]
        venv = self.root / "build/venv-mutants/bin/python"
        self.python = str(venv) if venv.exists() else sys.executable
        self.green: set[str] = set()  # tests that pass on the unchanged tree
        self.red: set[str] = set()

    def copy(self, mutant: Mutant | None) -> Path:
        """Raises ValueError if the file has changed since the mutant was made."""
        top = Path(self.options.scratch, str(threading.get_ident()))
        shutil.rmtree(top, ignore_errors=True)
        for name in self.files:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.root / name, top / name)
        for cache in {(self.root / name).parent / "__pycache__" for name in self.files}:
            if cache.exists():
                shutil.copytree(cache, top / cache.relative_to(self.root), dirs_exist_ok=True)
        (top / "build").mkdir()
        for name in ("roots", "venv-test", "venv", "promtool"):
            (top / "build" / name).symlink_to((self.root / "build" / name).resolve())
        if mutant:
            changed = top / mutant.path
            changed.write_text(mutant.applied(changed.read_text()))
        program = top / "dist/reassert"
        program.mkdir(parents=True)
        start = f"import sys; sys.path.insert(0, {str(top)!r}); from hook.__main__ import main; main()"
        (program / "reassert").write_text(f'#!/bin/sh\nexec {self.python} -I -c "{start}" "$@"\n')
        (program / "reassert").chmod(0o755)
        return top

    def run(self, top: Path, tests: list[str], tier: str, limit: float) -> tuple[str, str]:
        """Whether `tests` notice, until the first that does: passed, failed, stalled, long, or no test; and which."""
        if not tests:
            return "no test", ""
        command = [self.python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        command += [f"--deselect={each}" for each in self.red]
        if (top / "tests/conftest.py").exists():
            command += ["--fast"] if tier == "unit" else ["-k", self.options.engine]
        temporary = Path(f"{top}-tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(temporary)}
        environment.pop("COVERAGE_PROCESS_START", None)
        with open(f"{top}.log", "w+") as log:
            child = subprocess.Popen(command, cwd=top, env=environment, stdout=log, stderr=log, start_new_session=True)
            used, since, ended = 0.0, time.monotonic(), ""
            while child.poll() is None and not ended:
                time.sleep(0.2)
                now = session_cpu(child.pid)
                if now > used:
                    used, since = now, time.monotonic()
                ended = "long" if used > limit else "stalled" if time.monotonic() - since > STALLED else ""
            if ended:
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            log.seek(0)
            output = log.read()
        if ended or (code == 0 and re.search(r"^\d+ passed|, \d+ passed", output, re.MULTILINE)):
            return ended or "passed", ""
        if code in (0, 5) or "ERROR: not found" in output or "ERROR: file or directory not found" in output:
            return "no test", ""
        first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        return "failed", first[1] if first else f"pytest: {code}"

    def noticed(self, mutant: Mutant, top: Path, tests: list[str], tier: str, limit: float) -> tuple[str, str]:
        """The same of a mutant in `top`, without the tests that fail on the unchanged tree too."""
        while True:
            outcome, test = self.run(top, tests, tier, limit)
            if outcome != "failed" or test in self.green:
                return outcome, test
            unchanged, _ = self.run(self.copy(None), [test], tier, float("inf"))
            self.copy(mutant)
            if unchanged != "failed":
                self.green.add(test)
                return outcome, test
            print(f"red without a mutant, left out: {test}", flush=True)
            self.red.add(test)

    def of(self, mutant: Mutant) -> dict[str, Any]:
        """What became of a mutant: stillborn, killed by a tier, alive, or untested."""
        result: dict[str, Any] = {**asdict(mutant), "fate": "untested", "by": ""}
        top = self.copy(mutant)
        build = [top / "packaging/front/build.sh", top / "dist/reassert/front"]
        needs_front = mutant.path.endswith(".c") or "engine" in self.options.tiers
        if needs_front and subprocess.run(build, capture_output=True).returncode:
            return {**result, "fate": "stillborn"}
        for tier in self.options.tiers:
            if tier == "types":
                cache = Path(f"{top}-mypy")
                if not cache.exists() and (self.root / ".mypy_cache").exists():
                    shutil.copytree(self.root / ".mypy_cache", cache)
                types = [self.root / "build/venv-test/bin/mypy", "--cache-dir", cache]
                if not mutant.path.endswith(".c") and subprocess.run(types, cwd=top, capture_output=True).returncode:
                    return {**result, "fate": "types"}
                continue
            tests = self.options.tests or self.tests.of(mutant, tier)
            near = [
                test
                for test in tests
                if tier == "unit" and not mutant.path.endswith(".c") and is_near(test, mutant.path)
            ]
            if near and near != tests:  # most die of these, which are collected in a moment
                outcome, test = self.noticed(mutant, top, near, tier, self.options.cpu)
                if outcome in ("failed", "stalled"):
                    return {**result, "fate": tier, "by": test or outcome}
            outcome, test = self.noticed(mutant, top, tests, tier, self.options.cpu)
            if outcome == "long":  # for the tests, or for the mutant?
                began = os.times()
                self.run(self.copy(None), tests, tier, float("inf"))
                spent = os.times()
                limit = FACTOR * (
                    spent.children_user + spent.children_system - began.children_user - began.children_system
                )
                outcome, test = self.run(self.copy(mutant), tests, tier, max(self.options.cpu, limit))
            if outcome in ("passed", "no test") and tier == "unit" and not mutant.path.endswith(".c"):
                slower, test = self.noticed(mutant, top, self.tests.beside(mutant), tier, float("inf"))
                outcome = slower if slower in ("failed", "stalled") else outcome
            if outcome not in ("passed", "no test"):
                return {**result, "fate": tier, "by": test or outcome}
            result["fate"] = "alive" if outcome == "passed" else result["fate"]
        return result


def session_cpu(session: int) -> float:
    """Seconds of CPU that the processes of a session have taken, and those that they have waited for."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == str(session):
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/lab/mutants.sh", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--only", metavar="FILE", action="append", help="this file, or the files below this directory")
    parser.add_argument("--again", type=Path, metavar="RESULTS", help="the mutants that this run left alive")
    parser.add_argument("--tiers", type=lambda text: text.split(","), default=["unit", "types", "engine"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cpu", type=float, default=60, help="seconds of CPU that tests may take in any case")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--engine", default="", help="which engine tests run here: an expression of pytest's -k")
    parser.add_argument("--tests", nargs="+", help="these tests, whatever coverage says")
    options = parser.parse_args()
    runner = Runner(options)
    if options.again:
        old = map(json.loads, options.again.read_text().splitlines())
        mutants = [
            Mutant(**{name: row[name] for name in Mutant.__annotations__}) for row in old if row["fate"] in ALIVE
        ]
    else:
        files = mutated_files(options.root)
        files = [path for path in files if not options.only or path.startswith(tuple(options.only))]
        mutants = list(islice(random_mutants(options.root, files, random.Random(options.seed)), options.count))
    known = options.root / "tests/lab/mutants.toml"
    same = {Mutant(line=0, **{k: row[k] for k in ("path", "before", "after")}).key(): row["reason"]
            for row in tomllib.loads(known.read_text())["equivalent"]} if known.exists() else {}  # fmt: skip
    print(f"seed {options.seed}: {len(mutants)} mutants", flush=True)
    results: list[dict[str, Any]] = []
    record = options.root / f"build/mutants/{options.seed}.jsonl"
    record.parent.mkdir(parents=True, exist_ok=True)

    def tried(mutant: Mutant) -> None:
        if mutant.key() in same:
            result = {**asdict(mutant), "fate": "equivalent", "by": same[mutant.key()]}
        else:
            try:
                result = runner.of(mutant)
            except ValueError as error:
                result = {**asdict(mutant), "fate": "gone", "by": str(error)}
        results.append(result)
        _, before, after = mutant.key()
        print(f"{result['fate']:10} {mutant.path}:{mutant.line}: {before}  =>  {after}  {result['by']}", flush=True)
        with record.open("a") as file:
            file.write(json.dumps(result) + "\n")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(tried, mutants))
    for tier in ("unit", "engine"):
        killers = sorted({row["by"] for row in results if row["fate"] == tier and "::" in row["by"]})
        red = runner.run(runner.copy(None), killers, tier, float("inf"))[1]
        if red:
            print(f"\n{red} fails without a mutant too: do not believe in those that it killed")
    return summary(results)


def summary(results: list[dict[str, Any]]) -> int:
    """Prints how many died of what, by directory, then the survivors. 1 if there are any."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        table[str(Path(result["path"]).parent)][result["fate"]] += 1
    print()
    for directory, fates in [*sorted(table.items()), ("all", sum(table.values(), Counter()))]:
        alive = sum(fates[fate] for fate in ALIVE)
        tried = alive + sum(fates[fate] for fate in ("unit", "types", "engine"))
        share = f"{100 * (tried - alive) / tried:.0f} %, unit {100 * fates['unit'] / tried:.0f} %" if tried else ""
        print(f"{directory:24} {tried - alive:4} of {tried:4} died {share:20} {dict(fates)}")
    left = [result for result in results if result["fate"] in ALIVE]
    for result in left:
        print(f"\n{result['fate']}: {result['path']}:{result['line']}")
        print(
            "\n".join(
                [f"-{line}" for line in result["before"].split("\n")]
                + [f"+{line}" for line in result["after"].split("\n")]
            )
        )
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
