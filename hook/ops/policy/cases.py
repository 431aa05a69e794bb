"""Cases beside a policy: a pod or a config.json, facts of the node, and what the container must start with."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hook.compile.compiler import compile_bytes
from hook.compile.in_force import read_source
from hook.core.base.compare import clean
from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import read_file
from hook.core.base.text import printable
from hook.core.container.allocation import Allocation
from hook.core.container.identity import Identity, identify
from hook.core.container.oci import Mount
from hook.core.container.spec import CONFIG_LIMIT, Spec
from hook.core.container.start import Start
from hook.core.decide import Case
from hook.core.facts import Facts
from hook.core.plan import Plan
from hook.core.policy.model import Match, Policy, Rule
from hook.node.engines.base import NRI, RUNTIME
from hook.ops.adapter import Command
from hook.ops.policy import adapters, pods
from hook.ops.policy.pods import Given, documents
from hook.resident.terminal import columns, line, table

FILE = "reassert-test.yaml"
"""The name of a file of cases."""

KIND = "PolicyTest"

_TEST = ("apiVersion", "kind", "metadata", "policy", "adapter", "cases")
_CASE = (
    *("name", "pod", "workload", "config", "container", "adapter", "namespace", "labels", "image"),
    *("configMaps", "secrets", "node", "expect"),
)
_NODE = ("allocations", "files", "missing", "directories")
_ALLOCATION = ("resource", "deviceIDs", "env", "mounts", "devices", "annotations", "cdiDevices")
_EXPECT = ("refusal", "env", "mounts", "annotations", "edits")


class CaseProblem(ReassertError):
    """A file of cases that cannot be used."""


@dataclass
class Result:
    """The outcome of one case for one container. `failures`: how it differs from what is expected; empty: it passed."""

    case: str
    container: str
    failures: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)


@dataclass
class TestedFile:
    """All results of one file of cases. `rules_without_case`: rules of the policy that no case's container matched."""

    file: str
    policy: str
    results: list[Result] = field(default_factory=list)
    rules_without_case: list[str] = field(default_factory=list)


def files(places: list[str]) -> list[Path]:
    """The files of cases in these directories, and these files. Raises CaseProblem."""
    found: list[Path] = []
    for place in map(Path, places):
        below = sorted(place.rglob(FILE)) if place.is_dir() else [place]
        if not below:
            raise CaseProblem(f"{place}: no {FILE} in this directory or below")
        found += below
    return found


def run(path: Path, policy_file: str | None) -> TestedFile:
    """Run the cases of a file. Raises CaseProblem, PolicyInvalid, ReassertError, OSError."""
    found = documents(path)
    if len(found) != 1 or not isinstance(found[0], dict) or found[0].get("kind") != KIND:
        raise CaseProblem(f"{path}: it takes one document of kind {KIND}")
    test = _known(found[0], _TEST, str(path))
    source = policy_file or str(path.parent / str(test.get("policy") or "policy.yaml"))
    policy = enforced(source)
    outcome = TestedFile(str(path), source)
    for number, case in enumerate(_list(test.get("cases"), f"{path}: cases")):
        error_path = (
            f"{path}: case {case.get('name', number + 1)}" if isinstance(case, dict) else f"{path}: case {number + 1}"
        )
        given = {"adapter": test["adapter"]} if "adapter" in test else {}
        outcome.results += _run(path, given | _known(case, _CASE, error_path), error_path, policy)
    tried = {rule for result in outcome.results for rule in result.rules}
    outcome.rules_without_case = [rule.name for rule in policy.candidates(None) if rule.name not in tried]
    return outcome


def enforced(path: str) -> Policy:
    """A policy file with every rule enforced: a test shows what the rules do, not whether they are switched on."""
    content, _ = read_source(path)
    policy = compile_bytes(path, content).policy()
    policy.enforce_all()
    return policy


class Tested(Command):
    """The adapter of a case. Nothing of this machine is read: the case says what the node has."""

    def __init__(self, policy: Policy, node: dict[str, Any], error_path: str) -> None:
        super().__init__("test", policy)
        self._node = node
        self._where = error_path

    def facts(self, policy: Policy, identity: Identity, matches: list[Match], container_id: str) -> Facts:
        """HostPaths exist, but for those that the case calls missing; files have what the case gives them."""
        facts = Facts()
        facts.allocations = [_allocation(a, self._where) for a in _list(self._node.get("allocations"), self._where)]
        facts.files = {path: str(value) for path, value in (self._node.get("files") or {}).items()}
        facts.absent_sources = {clean(str(path)) for path in self._node.get("missing") or []}
        facts.directories = {clean(str(path)) for path in self._node.get("directories") or []}
        for match in matches:
            for env in match.rule.env if match.applies else []:
                for path in env.files:
                    if path not in facts.files:
                        facts.unreadable[path] = f"the case does not say what {path} has (node.files)"
        return facts

    def add_mounted(self, facts: Facts, rules: list[Rule], mounts: list[Mount]) -> None:
        """Nothing: this machine is not the node."""


def _run(path: Path, case: dict[str, Any], error_path: str, policy: Policy) -> Iterator[Result]:
    if ("pod" in case) == ("config" in case):
        raise CaseProblem(f"{error_path}: it takes a pod or a config")
    if "expect" not in case:
        raise CaseProblem(f"{error_path}: expect is missing")
    expected = _known(case["expect"], _EXPECT, f"{error_path}: expect")
    node = _known(case.get("node") or {}, _NODE, f"{error_path}: node")
    adapter = case.get("adapter")
    if adapter not in (None, *adapters.ADAPTERS):
        raise CaseProblem(f"{error_path}: adapter: {adapter!r} is not one of {', '.join(adapters.ADAPTERS)}")
    tried = adapters.ways(adapter) if adapter or "pod" in case else [(RUNTIME,)]  # which rewrites config.json
    for name, read in _containers(path, case, error_path, node):
        result = Result(str(case.get("name") or error_path), name)
        failures: dict[str, list[str]] = {}
        for way in tried:
            identity, target = read(way)
            adapters.add_base_env(way, policy, target, node.get("files") or {})
            tested = Case(Tested(policy, node, error_path), "")
            try:
                decided: Plan | None = tested.decide(identity, target)
                refusal = adapters.refusal(way, decided, tested.container) if decided else ""
            except ReassertError as error:
                refusal, decided = describe(error), None
            if decided is not None:
                result.rules = [match.rule.name for match in decided.matches if match.applies]
            if decided is not None and not refusal:
                decided.apply(target)
            wanted = expected.get("refusal", False)
            differs = _of_refusal(wanted, refusal) if refusal or wanted else _failures(expected, decided, target)
            failures[",".join(way)] = list(differs)
        result.failures = next(iter(failures.values()))
        if any(other != result.failures for other in failures.values()):
            result.failures = [f"as {way}: {text}" for way, texts in failures.items() for text in texts]
        yield result


def _containers(
    path: Path, case: dict[str, Any], error_path: str, node: dict[str, Any]
) -> Iterator[tuple[str, Callable[[adapters.Way], tuple[Identity, Start]]]]:
    """Each container's name, and a function that returns a new copy of it, as the adapters of a way see it."""
    if "config" in case:
        config = str(path.parent / str(case["config"]))

        def spec(way: adapters.Way) -> tuple[Identity, Start]:
            read = Spec(read_file(config, CONFIG_LIMIT), config)
            return identify(read, copied=True), read

        yield "", spec
        return
    file = path.parent / str(case["pod"])
    pod = pods.pod(documents(file), str(file), str(case.get("workload") or ""))
    if "namespace" in case:
        pod.metadata["namespace"] = case["namespace"]
    if "labels" in case:
        pod.metadata["labels"] = {**(pod.metadata.get("labels") or {}), **case["labels"]}
    given = Given(
        [str(entry) for entry in (case.get("image") or {}).get("env") or []],
        {name: str(value) for a in node.get("allocations") or [] for name, value in (a.get("env") or {}).items()},
        {name: {k: str(v) for k, v in data.items()} for name, data in (case.get("configMaps") or {}).items()},
        {name: {k: str(v) for k, v in data.items()} for name, data in (case.get("secrets") or {}).items()},
    )
    wanted = case.get("container")
    found = [each for each in pod.containers() if wanted in (None, each[1].get("name"))]
    if not found:
        raise CaseProblem(f"{error_path}: the pod has no container {wanted}")
    for types, container in found:
        start = partial(pod.start, types, container, given)
        yield str(container.get("name")), lambda way, start=start: start(NRI in way)  # type: ignore[misc]  # mypy does not infer a lambda's default


def _of_refusal(wanted: object, refusal: str) -> list[str]:
    """How a refusal ("" for none) differs from the expected one: `true`, or a part of its text."""
    if not refusal:
        return ["not refused"]
    if not wanted:
        return [f"refused: {refusal}"]
    return [] if not isinstance(wanted, str) or wanted in refusal else [f"refused with another text: {refusal}"]


def _failures(expected: dict[str, Any], decided: Plan | None, target: Start) -> Iterator[str]:
    """How a container that starts differs from what is expected."""
    values = {name: value for name, equals, value in (entry.partition("=") for entry in target.env) if equals}
    yield from _differences("env", expected.get("env"), values)  # of a name that occurs twice, the last value counts
    wanted = {clean(str(path)): source for path, source in (expected.get("mounts") or {}).items()}
    sources = {mount.path: mount.source for mount in target.mounts}
    yield from _differences("mount", wanted, sources)
    yield from _differences("annotation", expected.get("annotations"), target.annotations)
    if "edits" in expected and decided is not None:
        edits = sorted(f"{edit.kind} {edit.name}" for edit in decided.edits)
        named = sorted(map(str, expected["edits"] or []))
        if edits != named:
            yield f"edits: {', '.join(edits) or 'none'}; expected {', '.join(named) or 'none'}"


def _differences(kind: str, expected: dict[str, Any] | None, there: dict[str, str]) -> Iterator[str]:
    for name, value in (expected or {}).items():
        if there.get(name) != (None if value is None else str(value)):
            yield f"{kind} {name}: {_shown(there.get(name))}, expected {_shown(value)}"


def _shown(value: object) -> str:
    return "absent" if value is None else repr(str(value))


def _allocation(given: Any, error_path: str) -> Allocation:
    known = _known(given, _ALLOCATION, f"{error_path}: allocations")
    made = Allocation(str(known.get("resource", "")), [str(each) for each in known.get("deviceIDs") or []], b"")
    made.env = {name: str(value) for name, value in (known.get("env") or {}).items()}
    made.annotations = {name: str(value) for name, value in (known.get("annotations") or {}).items()}
    made.mounts = [
        (str(m.get("hostPath")), str(m.get("containerPath")), bool(m.get("readOnly")))
        for m in known.get("mounts") or []
    ]
    made.devices = [
        (str(d.get("hostPath")), str(d.get("containerPath")), str(d.get("permissions") or "rw"))
        for d in known.get("devices") or []
    ]
    made.cdi = [str(name) for name in known.get("cdiDevices") or []]
    return made


def _known(value: Any, fields: tuple[str, ...], error_path: str) -> dict[str, Any]:
    """A mapping with these fields and no other. Raises CaseProblem."""
    if not isinstance(value, dict):
        raise CaseProblem(f"{error_path}: not a mapping")
    for name in value:
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(fields)}"
            raise CaseProblem(f"{error_path}: unknown field {name!r}; {hint}")
    return value


def _list(value: Any, error_path: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise CaseProblem(f"{error_path}: not a list")
    return value or []


def test(places: list[str], policy_file: str | None, output: str) -> int:
    """Run all cases and print the results. Returns 1 if a case failed. Raises ReassertError, OSError."""
    outcomes = [run(path, policy_file) for path in files(places)]
    if output in ("junit", "json"):
        {"junit": _junit, "json": _json}[output](outcomes)
    else:
        print(_table(outcomes, columns(output)))
    return 1 if any(result.failures for outcome in outcomes for result in outcome.results) else 0


def _table(outcomes: list[TestedFile], width: int) -> str:
    results = [result for outcome in outcomes for result in outcome.results]
    failed = sum(bool(result.failures) for result in results)
    parts = [f"{len(results) - failed} passed, {failed} failed"]
    for outcome in outcomes:
        parts += ["", line(f"{outcome.file} ({outcome.policy})", width, 2)]
        rows = [
            [result.case, result.container, "FAIL" if result.failures else "pass", "; ".join(result.failures)]
            for result in outcome.results
        ]
        parts.append(table(rows, ["CASE", "CONTAINER", "RESULT", "WHY"], width))
        if outcome.rules_without_case:
            parts.append(line(f"no case for: {', '.join(outcome.rules_without_case)}", width, 2))
    return "\n".join(parts)


def _json(outcomes: list[TestedFile]) -> None:
    found = []
    for outcome in outcomes:
        results = [{**asdict(result), "passed": not result.failures} for result in outcome.results]
        tested = {"file": outcome.file, "policy": outcome.policy, "results": results}
        found.append({**tested, "rulesWithoutCase": outcome.rules_without_case})
    print(json.dumps({"tests": found}, indent=2))


def _junit(outcomes: list[TestedFile]) -> None:
    suites = ElementTree.Element("testsuites")
    for outcome in outcomes:
        failed = sum(bool(result.failures) for result in outcome.results)
        counts = {"tests": str(len(outcome.results)), "failures": str(failed), "errors": "0", "skipped": "0"}
        suite = ElementTree.SubElement(suites, "testsuite", {"name": outcome.file, **counts})
        for result in outcome.results:
            name = f"{result.case}: {result.container}" if result.container else result.case
            case = ElementTree.SubElement(suite, "testcase", {"name": printable(name), "classname": outcome.file})
            if result.failures:
                text = printable("; ".join(result.failures))
                ElementTree.SubElement(case, "failure", {"message": text}).text = text
    ElementTree.indent(suites)
    print('<?xml version="1.0" encoding="UTF-8"?>')
    print(ElementTree.tostring(suites, "unicode"))
