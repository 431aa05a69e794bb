"""The results of `reassert policy test` as a table, as JUnit's XML and as JSON."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from hook.core.base.terminal import table
from hook.core.base.text import printable
from hook.ops.cases import cases


def test(places: list[str], policy_file: str | None, output: str) -> int:
    """Run all cases and print the results. Returns 1 if a case failed. Raises ReassertError, OSError."""
    outcomes = [cases.run(path, policy_file) for path in cases.files(places)]
    {"table": _table, "junit": _junit, "json": _json}[output](outcomes)
    return 1 if any(result.failures for outcome in outcomes for result in outcome.results) else 0


def _table(outcomes: list[cases.Outcome]) -> None:
    results = [result for outcome in outcomes for result in outcome.results]
    for outcome in outcomes:
        print(printable(f"{outcome.file} ({outcome.policy})"))
        rows = [
            [result.case, result.container, "FAIL" if result.failures else "pass", "; ".join(result.failures)]
            for result in outcome.results
        ]
        print(table(rows, ["CASE", "CONTAINER", "RESULT", "WHY"]))
        if outcome.untried:
            print(printable(f"no case for: {', '.join(outcome.untried)}"))
        print()
    failed = sum(bool(result.failures) for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")


def _json(outcomes: list[cases.Outcome]) -> None:
    found = [
        {
            "file": outcome.file,
            "policy": outcome.policy,
            "results": [
                {
                    "case": result.case,
                    "container": result.container,
                    "passed": not result.failures,
                    "failures": result.failures,
                    "rules": result.rules,
                }
                for result in outcome.results
            ],
            "rulesWithoutCase": outcome.untried,
        }
        for outcome in outcomes
    ]
    print(json.dumps({"tests": found}, indent=2))


def _junit(outcomes: list[cases.Outcome]) -> None:
    suites = ElementTree.Element("testsuites")
    for outcome in outcomes:
        failed = sum(bool(result.failures) for result in outcome.results)
        counts = {"tests": str(len(outcome.results)), "failures": str(failed), "errors": "0", "skipped": "0"}
        suite = ElementTree.SubElement(suites, "testsuite", {"name": outcome.file, **counts})
        for result in outcome.results:
            case = ElementTree.SubElement(
                suite, "testcase", {"name": printable(result.name), "classname": outcome.file}
            )
            if result.failures:
                text = printable("; ".join(result.failures))
                ElementTree.SubElement(case, "failure", {"message": text}).text = text
    ElementTree.indent(suites)
    print('<?xml version="1.0" encoding="UTF-8"?>')
    print(ElementTree.tostring(suites, "unicode"))
