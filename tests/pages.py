"""The parts of the documentation that repeat the code, written from the code.

    build/venv-test/bin/python tests/pages.py            writes them
    build/venv-test/bin/python tests/pages.py --check    names the pages that are not up to date

They stand between `<!-- generated: NAME -->` and `<!-- end -->`. What docs/security.md claims, tests/promises.md
promises and project/track-record.md tells are marks on the tests (tests/marks.py); which runtimes and engines a claim
is tried with is read from the parameters of its tests. The agents that are refused are those of tests/innocents with
`refused`.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import marks  # noqa: E402  # after the path is set
import pytest  # noqa: E402  # likewise
from e2e.innocents.rows import rows  # noqa: E402  # likewise
from lab.peers.results import COLUMNS, results  # noqa: E402  # likewise

from hook.compile.check import schema  # noqa: E402  # likewise
from hook.compile.trust import TRADE_OFFS  # noqa: E402  # likewise
from hook.compile.trust import table as trust_table  # noqa: E402  # likewise
from hook.core.reserve.unsafe_annotations import HARMLESS, UNSAFE  # noqa: E402  # likewise
from hook.ops.exits import COMMANDS, STATUSES  # noqa: E402  # likewise
from hook.ops.metrics.prometheus import Metrics  # noqa: E402  # likewise

ADAPTERS = ("runtime", "nri", "hook")
SEVERITIES = ("high", "medium", "low")
BLOCK = re.compile(r"(<!-- generated: ([\w. ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = "".join(
        f"| {' | '.join(cell or ' ' for cell in line)} |\n".replace("|   |", "| |") for line in [header, *rows]
    )
    return lines.replace("\n", f"\n|{'---|' * len(header)}\n", 1)


# -- exit statuses


def exit_statuses() -> str:
    """What each exit status means: for every command, then for each."""
    shown = (0, 1, 3, 4)
    rows = [["every command", *(STATUSES[status] for status in shown)]]
    rows += [[f"`{name}`", *(meanings.get(status, "") for status in shown)] for name, meanings in COMMANDS.items()]
    others = ", ".join(f"{status} {meaning}" for status, meaning in STATUSES.items() if status not in shown)
    return f"{table(['command', *map(str, shown)], rows)}\nOf every command: {others}.\n"


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
    if "anyOf" in field:
        return ", ".join(_values(each) for each in field["anyOf"])
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
    for start, (runtimes, what) in UNSAFE.items():
        stay = [f"`{key}`" + (f" with {' or '.join(HARMLESS[key])}" if HARMLESS[key] else "") for key in HARMLESS]
        name = f"`{start}*`" if start.endswith((".", "/")) else f"`{start}`"
        does = what.rpartition(" (")[0]  # without the runtime's source files
        rows.append([name, runtimes, does, ", ".join(text for text in stay if text.startswith(f"`{start}"))])
    return table(["annotation", "read by", "what it does", "stays"], rows)


def refused_agents() -> str:
    """The agents of tests/innocents that Enforce mode refuses, with the reason beside each."""
    refused = [row for row in rows().values() if row.refused]
    return table(
        ["agent", "why", "way out"],
        [[f"{row.name} ([{row.repository}]({row.url}))", row.refused["why"], row.refused["cure"]] for row in refused],
    )


def innocents() -> str:
    """tests/hostile-pod/innocents.json: the agents as cases of hostile-pod. A guard may refuse who can replace it."""
    cases: list[dict[str, Any]] = []
    for row in rows().values():
        security = row.securityContext
        case: dict[str, Any] = {"id": row.id, "severity": "high", "from": row.source, "name": row.name}
        if row.refused:
            case["why"] = "An agent that many nodes run; it could replace a guard of the node, which may refuse it"
        else:
            case |= {"why": "An agent that many nodes run", "start": "must"}
        case["check"] = []
        mounts = [
            {
                "host": v["hostPath"],
                "at": v["mountPath"],
                "optional": True,
                **({"readOnly": True} if v.get("readOnly") else {}),
            }
            for v in row.volumes
        ]
        if mounts:
            case["mounts"] = mounts
        if security.get("privileged"):
            case["privileged"] = True
        if security.get("capabilities", {}).get("add"):
            case["capabilities"] = [name for name in security["capabilities"]["add"] if name != "ALL"]
        if row.annotations:
            case["annotations"] = row.annotations
        if row.env:
            case["env"] = [f"{name}={value}" for name, value in row.env.items()]
        cases.append(case)
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


# -- peers


def products() -> str:
    """The products of docs/project/peers.md: what was run, when, by which command."""
    found, lines = results(), []
    for number, (name, called) in enumerate(COLUMNS.items(), 1):
        of = found.get(name, {"product": called, "date": "not run", "command": "", "setup": ""})
        command = f"`{of['command']}`" if of["command"] else "-"
        lines.append([str(number), of["product"], of["date"], command, of["setup"] or "-"])
    return table(["", "product", "run on", "options of hostile-pod", "set-up"], lines)


def who_holds_what() -> str:
    """The cases of hostile-pod, and what each product holds of them."""
    marks_of = {"held": "●", "refused": "○", "FAILED": "✗", "not run": "-", "error": "?", "": "·"}
    cases = json.loads((ROOT / "tests/hostile-pod/cases.json").read_text())
    found = [results().get(name, {}).get("cases", {}) for name in COLUMNS]
    lines = [
        [case["id"], case["name"], case["severity"], *(marks_of[each.get(case["id"], "")] for each in found)]
        for case in cases
    ]
    held = []
    for each in found:
        of_hostile = [each[case["id"]] for case in cases if each.get(case["id"], "not run") != "not run"]
        holds = sum(result in ("held", "refused") for result in of_hostile)
        held.append(f"{holds} of {len(of_hostile)}" if of_hostile else "·")
    numbers = [str(number + 1) for number in range(len(COLUMNS))]
    return table(["case", "name", "severity", *numbers], [*lines, ["", "held or refused", "", *held]])


# -- trust


def trust_layouts() -> str:
    """Where `trust` mounts the store, by distribution."""
    rows = []
    for layout in trust_table()[0].values():
        cells = [", ".join(f"`{path}`" for path in paths) for paths in (layout.directories, layout.files)]
        rows.append([f"[{layout.name}]({layout.source})", *cells])
    return table(["images", "`mount: Directories`", "`mount: Files`"], rows)


def trust_mounts() -> str:
    """What each value of `mount` reaches, and what it costs."""
    return table(["`mount`", "gives the CAs to", "costs"], [[f"`{n}`", a, c] for n, (a, c) in TRADE_OFFS.items()])


def trust_stacks() -> str:
    """Which programs `trust` reaches, and by what."""
    rows = []
    for stack in trust_table()[1].values():
        names = ", ".join(f"`{name}`" for name in stack.env)
        needs = f"{stack.needs} ({names})" if names else ""
        name = f"[{stack.name}]({stack.source})" + ("" if stack.default else f". Not a default: {stack.tradeoff}")
        aside = stack.aside if stack.env else "all of it"
        rows.append([f"`{stack.id}`{'*' * stack.tested}", name, stack.alone, needs, aside, stack.cannot])
    works, not_aside = "works with the mounts alone", "not with `mount: Aside`"
    header = ["stack", "programs", works, "needs a variable", not_aside, "cannot work"]
    return table(header, [[_cell(cell) for cell in row] for row in rows])


def sandbox_clients() -> str:
    """What becomes of clients behind an intercepting proxy."""
    rows = []
    for client in tomllib.loads((ROOT / "tests/e2e/sandboxes/clients.toml").read_text())["client"]:
        name = f"{client['name']} {client['version']}" + "*" * (not client.get("whole"))
        rows.append([_cell(cell) for cell in [name, client["through"], client["own"]]])
    return table(["client", "with the example", "what of the job's own it obeys"], rows)


# -- what tests hold


class Ledgers:
    """The tests with a mark of tests/marks.py, as pytest collects them."""

    def __init__(self) -> None:
        tests = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "marks." in path.read_text()]
        self.items = _collected([str(path) for path in tests])

    def _marked(self, mark: str) -> Iterator[tuple[Any, Any]]:
        """Each mark of this name, with its test; raises LookupError for an unknown first argument."""
        known = {"claim": marks.CLAIMS, "cve": marks.CVES}.get(mark)
        for item in self.items:
            for each in item.iter_markers(mark):
                if known is not None and each.args[0] not in known:
                    raise LookupError(f"{_name(item)}: tests/marks.py has no {mark} {each.args[0]!r}")
                yield item, each

    def _told(self, mark: str, *fields: str) -> dict[str, dict[str, Any]]:
        """What each text has beside it, and its `tests`; raises LookupError if that stands nowhere or twice."""
        found: dict[str, dict[str, Any]] = {}
        for item, each in self._marked(mark):
            entry = found.setdefault(each.args[0], {"tests": []})
            given = {field: each.kwargs[field] for field in fields}
            if all(given.values()):
                if "where" in entry and entry["where"] != id(each):
                    raise LookupError(f"{_name(item)}: another test has the {', '.join(fields)} of this {mark} too")
                entry |= {**each.kwargs, "where": id(each)}
            elif any(given.values()):
                raise LookupError(f"{_name(item)}: a {mark} has {', '.join(fields)}, or its text alone")
            if _name(item) not in entry["tests"]:
                entry["tests"].append(_name(item))
        for text, entry in found.items():
            if "where" not in entry:
                raise LookupError(f"{entry['tests'][0]}: no test has the {', '.join(fields)} of {text!r}")
        return found

    def holes(self) -> list[dict[str, Any]]:
        """Every hole: `gave`, `tests`, what marks.hole takes, and `what` is removed since, "" if nothing is."""
        told = self._told("hole", "since", "fixed", "severity")
        removed = [{**each._asdict(), "found": "review", "command": "", "tests": []} for each in marks.REMOVED]
        return [{**entry, "gave": text, "what": ""} for text, entry in told.items()] + removed

    def promises(self) -> str:
        """What is promised beside the claims."""
        lines: dict[str, list[str]] = {about: [] for about in marks.ABOUT}
        for text, entry in self._told("promise", "about").items():
            if entry["about"] not in lines:
                raise LookupError(f"{entry['tests'][0]}: tests/promises.md has no part {entry['about']!r}")
            lines[entry["about"]].append(f"- {text}.\n")
        return "".join(f"\n## {about}\n\n{''.join(found)}" for about, found in lines.items()) + "\n"

    def tried_with(self) -> dict[tuple[str, str], list[str]]:
        """For each claim and adapter, the runtimes and engines that the parameters of its tests name."""
        found: dict[tuple[str, str], list[str]] = {}
        for item, each in self._marked("claim"):
            if any(item.iter_markers("xfail")):
                continue
            values = item.callspec.params if hasattr(item, "callspec") else {}
            pairs = [value for value in values.values() if isinstance(value, tuple) and len(value) == 2]
            plain = {key: value[0] if value in pairs else value for key, value in values.items()}
            names = [marks.PARAMETERS.get(f"{key}={value}") for key, value in plain.items()]
            names += [words for start, words in marks.FIXED.items() if _name(item).startswith(f"tests/{start}")][:1]
            for adapter, _, case in (word.partition("@") for word in each.args[1:]):
                entry = found.setdefault((each.args[0], adapter), [])
                if not case or case in [*(pair[1] for pair in pairs), *values.values()]:
                    entry += [name for name in names if name and name not in entry]
        return found

    def table(self) -> str:
        """What is guaranteed, by adapter."""
        tried = self.tried_with()
        rows = [
            [claim.text, *(_cell_of(getattr(claim, adapter), tried.get((name, adapter))) for adapter in ADAPTERS)]
            for name, claim in marks.CLAIMS.items()
        ]
        every = _versions([*marks.PARAMETERS.values(), *marks.FIXED.values()])
        names = ", ".join(" ".join([program, *each]) for program, each in every.items() if each)
        legend = f"Tried are {names}. NAME is the first of these versions, and NAME* all of them.\n\n"
        return legend + table(["claim", *(f"`{adapter}`" for adapter in ADAPTERS)], rows)

    def cves(self) -> str:
        """What others' CVEs are here, and the tests that hold it; raises LookupError for a guard without a test."""
        tests: dict[str, dict[str, None]] = {number: {} for number in marks.CVES}
        for item, each in self._marked("cve"):
            tests[each.args[0]][f"`{_name(item).removeprefix('tests/')}`"] = None
        untried = [number for number, cve in marks.CVES.items() if cve.here == "guarded" and not tests[number]]
        if untried:
            raise LookupError(f"tests/marks.py: no test holds {', '.join(untried)}")
        rows = [[number, *cve, ", ".join(tests[number])] for number, cve in marks.CVES.items()]
        return table(["CVE", "what happens", "here", "why", "tests"], rows)

    def severities(self) -> str:
        """How many holes each released version has, by severity, and every hole of high severity, newest fix first."""
        holes = self.holes()
        released = sorted({hole["since"] for hole in holes if hole["since"] != hole["fixed"]})
        rows = []
        for version in released:
            has = [hole["severity"] for hole in holes if hole["since"] <= version < hole["fixed"]]
            rows.append([version, *(str(has.count(severity)) for severity in SEVERITIES)])
        high = [h for h in holes if h["severity"] == SEVERITIES[0] and h["since"] != h["fixed"]]
        high.sort(key=lambda hole: hole["fixed"], reverse=True)
        counts = table(["you run", *SEVERITIES], rows[::-1])
        urgent = [[h["gave"], h["since"], h["fixed"]] for h in high]
        return f"{counts}\n{table(['high', 'since', 'fixed in'], urgent)}"

    def track_record(self) -> str:
        """Every hole, by the version that closed it and by severity, with what tries it again."""
        closed: dict[str, list[str]] = {}
        for hole in sorted(self.holes(), key=lambda hole: SEVERITIES.index(hole["severity"])):
            since = "unreleased" if hole["since"] == hole["fixed"] else hole["since"]
            since += ", fuzz" * (hole["found"] == "fuzz")
            tried = [hole["command"]] if hole["command"] else hole["tests"]
            lines = [f"- {hole['severity']}: {hole['gave']} ({since}):", *(f"  `{each}`" for each in tried)]
            lines += [f"  removed: {hole['what']}"] if hole["what"] else []
            closed.setdefault(hole["fixed"], []).extend(f"{line}\n" for line in lines)
        return "\n".join(f"## Fixed in {fixed}\n\n{''.join(closed[fixed])}" for fixed in sorted(closed, reverse=True))


def _name(item: Any) -> str:
    """A test without its parameters."""
    return str(item.nodeid).partition("[")[0]


def _cell_of(words: str, tried: list[str] | None) -> str:
    """A cell of the table: the limit, then what tests try it with."""
    order = list(marks.PARAMETERS.values())
    found = sorted(tried or [], key=lambda name: order.index(name) if name in order else len(order))
    every, versions = _versions([*order, *marks.FIXED.values()]), _versions(found)
    with_ = ", ".join(_short(program, each, every[program]) for program, each in versions.items())
    return ": ".join(part for part in (words, with_) if part) or ("no" if tried is None else "yes")


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


def tried_engines() -> str:
    """The first table of docs/engines.md, without what README says in a sentence: where reassert ran."""
    table, *_ = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs/engines.md").read_text(), re.MULTILINE)
    rows = [
        row for row in table.splitlines(keepends=True) if not row.startswith(("| Debian", "| other systems", "| arm64"))
    ]
    return "".join(rows)


# -- pages


def pages() -> dict[Path, str]:
    """Every page with a generated part, as it should be."""
    ledgers = Ledgers()
    made: dict[str, Callable[[], str]] = {
        "exit statuses": exit_statuses,
        "metrics": metrics,
        "claims": ledgers.table,
        "promises": ledgers.promises,
        "cves": ledgers.cves,
        "severities": ledgers.severities,
        "track record": ledgers.track_record,
        "trust layouts": trust_layouts,
        "trust mounts": trust_mounts,
        "trust stacks": trust_stacks,
        "sandbox clients": sandbox_clients,
        **{f"fields of {name}": lambda name=name: fields(name) for name in ("spec", "rule", "match", "env", "mount")},
        "annotations that steer": steering,
        "fields of annotation": lambda: fields("annotation"),
        "agents that are refused": refused_agents,
        "products": products,
        "who holds what": who_holds_what,
        "tried engines": tried_engines,
    }
    found: dict[Path, str] = {}
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "tests/promises.md"]:
        text = path.read_text()
        if "<!-- generated: " in text:
            found[path] = BLOCK.sub(lambda match: match[1] + made[match[2]]() + match[3], text)
    found[ROOT / "tests/hostile-pod/innocents.json"] = innocents()
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
