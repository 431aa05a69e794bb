"""The parts of the documentation that repeat the code, written from the code.

    build/venv-test/bin/python tests/pages.py            writes them
    build/venv-test/bin/python tests/pages.py --check    names the pages that are not up to date

They stand between `<!-- generated: NAME -->` and `<!-- end -->`. tests/claims.toml has the claims of docs/security.md
and the promises of tests/promises.md; which runtimes and engines a claim is tried with is read from the parameters of
its tests. The holes of docs/track-record.md are in tests/track-record.toml.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pytest  # noqa: E402  # after the path is set

from hook.cli import GROUPS, command_line  # noqa: E402  # likewise
from hook.core.policy.check import schema  # noqa: E402  # likewise
from hook.core.policy.trust import table as trust_table  # noqa: E402  # likewise
from hook.core.reserve.annotations import HARMLESS, STEER  # noqa: E402  # likewise
from hook.ops.metrics.prometheus import Metrics  # noqa: E402  # likewise

ADAPTERS = ("runtime", "nri", "hook", "precreate")
BLOCK = re.compile(r"(<!-- generated: ([\w. ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = "".join(
        f"| {' | '.join(cell or ' ' for cell in line)} |\n".replace("|   |", "| |") for line in [header, *rows]
    )
    return lines.replace("\n", f"\n|{'---|' * len(header)}\n", 1)


# -- commands


def commands() -> str:
    """Every command with what it does, from the parsers that print --help."""
    return "".join(_commands(command_line(GROUPS), "reassert"))


def _commands(parser: argparse.ArgumentParser, name: str, text: str = "") -> Iterator[str]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for word, below in action.choices.items():
            yield from _commands(below, f"{name} {word}", helps[word])
    if nested:
        return
    operands = [
        str(action.metavar) + "…" * (action.nargs in ("*", "+"))
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not action.option_strings
    ]
    yield f"- `{' '.join([name, *operands])}`: {text.partition('; exit status')[0]}\n"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


# -- metrics


def metrics() -> str:
    """Every metric of the NRI plugin, from its definition."""
    made = Metrics()
    rows = []
    for metric in made.metrics.values():
        (family,) = metric.describe()  # collect() leaves out gauges without a sample
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = f"{{{','.join(metric._labelnames)}}}" if metric._labelnames else ""
        rows.append([f"`{name}{labels}`", family.type, family.documentation])
    return table(["metric and its labels", "type", "meaning"], rows)


# -- the policy's fields


def fields(path: str) -> str:
    """The fields of one object of the policy file, from its schema. `path`: names of `properties` or `$defs`."""
    whole = schema()
    node = whole["properties"]["spec"] if path == "spec" else whole["$defs"][path]
    return table(["field", "values, default first", "meaning"], list(_fields(node, "")))


def _fields(node: dict[str, Any], prefix: str) -> Iterator[list[str]]:
    for name, field in node["properties"].items():
        if field.get("properties") and name != "podSelector":
            yield from _fields(field, f"{prefix}{name}.")
        else:
            yield [f"`{prefix}{name}`", _values(field), field.get("description", "")]


def _values(field: dict[str, Any]) -> str:
    named = {
        "#/$defs/path": "absolute path",
        "#/$defs/globs": "list of globs",
        "#/$defs/glob": "glob",
        "#/$defs/containerTypes": "list of `sandbox`, `init`, `container`, `ephemeral`",
    }
    default = field.get("default")
    if "$ref" in field and default is None:
        return named.get(field["$ref"], "mapping")
    if "$ref" in field:
        return f"`{default}`"
    if "const" in field:
        return "`true`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in sorted(field["enum"], key=lambda value: value != default))
    kind = field["type"]
    if kind == "boolean":
        return {True: "`true`, `false`", False: "`false`, `true`", None: "`true`"}[default]
    if kind == "array":
        items = field["items"]
        if "enum" in items:
            return "list of " + ", ".join(f"`{value}`" for value in items["enum"])
        return "list of absolute paths" if items.get("$ref") == "#/$defs/path" else "list"
    return {"string": "text", "object": "mapping", "integer": "number"}[kind]


def steering() -> str:
    """Which annotations steer a runtime, and which of them stay."""
    rows = []
    for start, (runtimes, what) in STEER.items():
        stay = [f"`{key}`" + (f" with {' or '.join(HARMLESS[key])}" if HARMLESS[key] else "") for key in HARMLESS]
        name = f"`{start}*`" if start.endswith((".", "/")) else f"`{start}`"
        does = what.rpartition(" (")[0]  # without the runtime's source files
        rows.append([name, runtimes, does, ", ".join(text for text in stay if text.startswith(f"`{start}"))])
    return table(["annotation", "read by", "what it does", "stays"], rows)


# -- trust


def trust_layouts() -> str:
    """Where `trust` mounts the store, by distribution."""
    rows = []
    for layout in trust_table()[0].values():
        cells = [", ".join(f"`{path}`" for path in paths) for paths in (layout.directories, layout.files)]
        rows.append([f"[{layout.name}]({layout.source})", *cells])
    return table(["images", "`mount: Directories`", "`mount: Files`"], rows)


def trust_stacks() -> str:
    """Which programs `trust` reaches, and by what."""
    rows = []
    for stack in trust_table()[1].values():
        names = ", ".join(f"`{name}`" for name in stack.env)
        needs = f"{stack.needs} ({names})" if names else ""
        name = f"[{stack.name}]({stack.source})" + ("" if stack.default else f". Not a default: {stack.tradeoff}")
        rows.append([f"`{stack.id}`{'*' * stack.tested}", name, stack.alone, needs, stack.cannot])
    header = ["stack", "programs", "works with the mounts alone", "needs a variable", "cannot work"]
    return table(header, [[_cell(cell) for cell in row] for row in rows])


def sandbox_clients() -> str:
    """What becomes of clients behind an intercepting proxy."""
    rows = []
    for client in tomllib.loads((ROOT / "tests/sandboxes/clients.toml").read_text())["client"]:
        name = f"{client['name']} {client['version']}" + "*" * (not client.get("whole"))
        rows.append([_cell(cell) for cell in [name, client["through"], client["own"]]])
    return table(["client", "with the example", "what of the job's own it obeys"], rows)


# -- claims and holes


class Ledgers:
    """tests/claims.toml and tests/track-record.toml, with the tests that pytest collects for each claim and hole."""

    def __init__(self) -> None:
        self.data = tomllib.loads((ROOT / "tests/claims.toml").read_text())
        self.holes = tomllib.loads((ROOT / "tests/track-record.toml").read_text())["hole"]
        named = {test for claim in self.data["claim"] for adapter in ADAPTERS for test in claim.get(adapter, [])}
        named.update(test for hole in self.holes for test in hole["tests"])
        files = sorted({str(ROOT / "tests" / test.partition("::")[0]) for test in named})
        self.items = _collected(files)

    def _items(self, test: str) -> list[Any]:
        """The items of a test; raises LookupError for no such test."""
        items = [item for item in self.items if item.nodeid.partition("[")[0] == f"tests/{test}"]
        if not items:
            raise LookupError(f"tests/claims.toml, tests/track-record.toml: no test is called {test}")
        return items

    def tried_with(self, test: str) -> list[str]:
        """The runtimes and engines that the parameters of a test name; raises LookupError for no such test.

        `test@wrapper`: only where a parameter is this adapter, or a pair of a runtime and this adapter.
        """
        found: dict[str, None] = {}
        test, _, adapter = test.partition("@")
        items = self._items(test)
        fixed = next((words for start, words in self.data["fixed"].items() if test.startswith(start)), "")
        for item in items:
            if any(item.iter_markers("xfail")):
                continue
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            pairs = [value for value in parameters.values() if isinstance(value, tuple) and len(value) == 2]
            if adapter and adapter not in [*(pair[1] for pair in pairs), *parameters.values()]:
                continue
            plain = {k: v[0] if v in pairs else v for k, v in parameters.items()}
            names = [self.data["parameters"].get(f"{key}={value}") for key, value in plain.items()]
            found.update(dict.fromkeys(name for name in names if name))
            if fixed:
                found[fixed] = None
        order = list(self.data["parameters"].values())
        return sorted(found, key=lambda name: order.index(name) if name in order else len(order))

    def table(self) -> str:
        """What is guaranteed, by adapter."""
        rows = [[claim["text"], *(self._cell(claim, adapter) for adapter in ADAPTERS)] for claim in self.data["claim"]]
        every = _versions([*self.data["parameters"].values(), *self.data["fixed"].values()])
        names = ", ".join(" ".join([program, *each]) for program, each in every.items() if each)
        legend = f"Tried are {names}. NAME is the first of these versions, and NAME* all of them.\n\n"
        return legend + table(["claim", *(f"`{adapter}`" for adapter in ADAPTERS)], rows)

    def _cell(self, claim: dict[str, Any], adapter: str) -> str:
        tests = claim.get(adapter, [])
        tried = list(dict.fromkeys(name for test in tests for name in self.tried_with(test)))
        words = claim.get("but", {}).get(adapter, "" if tests else "no")
        order = list(self.data["parameters"].values())
        tried.sort(key=lambda name: order.index(name) if name in order else len(order))
        every, versions = _versions([*order, *self.data["fixed"].values()]), _versions(tried)
        with_ = ", ".join(_short(program, each, every[program]) for program, each in versions.items())
        return ": ".join(part for part in (words, with_) if part) or "yes"

    def track_record(self) -> str:
        """Every hole, by the version that closed it, with what tries it again."""
        closed: dict[str, list[str]] = {}
        for hole in self.holes:
            for test in hole["tests"]:
                self._items(test)
            tried = [hole["command"]] if "command" in hole else [f"tests/{test}" for test in hole["tests"]]
            since = "unreleased" if hole["introduced"] == hole["fixed"] else hole["introduced"]
            since += ", fuzz" * (hole["found"] == "fuzz")
            lines = [f"- {hole['gave']} ({since}):", *(f"  `{each}`" for each in tried)]
            closed.setdefault(hole["fixed"], []).extend(f"{line}\n" for line in lines)
        return "\n".join(f"## Closed in {fixed}\n\n{''.join(each)}" for fixed, each in closed.items())


def _short(program: str, tried: list[str], every: list[str]) -> str:
    """A program with the versions that a claim is tried with: NAME for the first one, NAME* for all."""
    if tried == every:
        return program + "*" * (len(every) > 1)
    return program if tried == every[:1] else f"{program} {' '.join(tried)}"


def _versions(names: Iterable[str]) -> dict[str, list[str]]:
    """Programs with their versions, of names such as `runc 1.1.5`. A name that does not end in one is a program."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        program, _, version = name.rpartition(" ")
        found.setdefault(program if version[0].isdigit() else name, []).extend([version] * version[0].isdigit())
    return found


def promises() -> str:
    """What is promised beside the claims; raises LookupError for a promise of a test that does not exist."""
    found: dict[str, list[str]] = {}
    missing = []
    for promise in tomllib.loads((ROOT / "tests/claims.toml").read_text())["promise"]:
        found.setdefault(promise["about"], []).append(f"- {promise['text']}.\n")
        for test in promise["tests"]:
            file, _, name = test.partition("::")
            path = ROOT / "tests" / file
            if not path.is_file() or (name and f"\ndef {name}(" not in path.read_text()):
                missing.append(test)
    if missing:
        raise LookupError(f"tests/claims.toml: there is no {', '.join(missing)}")
    return "".join(f"\n## {about}\n\n{''.join(lines)}" for about, lines in found.items()) + "\n"


def _collected(files: list[str]) -> list[Any]:
    """Every test in some files; nothing is run, and nothing of the machine is needed."""

    class Collector:
        items: list[Any] = []  # noqa: RUF012  # one object, which is thrown away

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            self.items = list(items)

    collector = Collector()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pytest.main(
            ["--fast", "--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *files], [collector]
        )
    if not collector.items:
        sys.exit(said.getvalue())
    return collector.items


# -- pages


def pages() -> dict[Path, str]:
    """Every page with a generated part, as it should be."""
    ledgers = Ledgers()
    made: dict[str, Callable[[], str]] = {
        "commands": commands,
        "metrics": metrics,
        "claims": ledgers.table,
        "promises": promises,
        "track record": ledgers.track_record,
        "trust layouts": trust_layouts,
        "trust stacks": trust_stacks,
        "sandbox clients": sandbox_clients,
        **{f"fields of {name}": lambda name=name: fields(name) for name in ("spec", "rule", "match", "env", "mount")},
        "annotations that steer": steering,
        "fields of annotation": lambda: fields("annotation"),
    }
    found: dict[Path, str] = {}
    for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "tests/promises.md"]:
        text = path.read_text()
        if "<!-- generated: " in text:
            found[path] = BLOCK.sub(lambda match: match[1] + made[match[2]]() + match[3], text)
    return found


def main() -> int:
    """Write or check; returns 1 for pages that are not up to date."""
    stale = [path for path, text in pages().items() if path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date; run tests/pages.py")
        return 1 if stale else 0
    for path, text in pages().items() if stale else ():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
