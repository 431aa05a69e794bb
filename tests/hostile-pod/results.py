"""The results as a table, JSON, JUnit's XML or TAP."""

from __future__ import annotations

import json
from typing import Any
from xml.sax.saxutils import escape, quoteattr

Row = dict[str, Any]
RESULTS = ("held", "refused", "not run", "FAILED", "error")


def table(rows: list[Row]) -> str:
    """For a terminal."""
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'ID':6} {'CASE':{width}}  {'RESULT':8} REASON"]
    for row in rows:
        more = f" (and {len(row['reasons']) - 1} more)" if len(row["reasons"]) > 1 else ""
        text = printable("".join(row["reasons"][:1]))[:200] + more
        lines.append(f"{row['id']:6} {row['name']:{width}}  {row['result']:8} {text}".rstrip())
    counts = {result: sum(row["result"] == result for row in rows) for result in RESULTS}
    return "\n".join([*lines, "", ", ".join(f"{number} {result}" for result, number in counts.items())])


def as_json(rows: list[Row]) -> str:
    """For programs: {"cases": [{id, name, severity, from, why, result, reasons}]}."""
    return json.dumps({"cases": rows}, indent=2)


def junit(rows: list[Row]) -> str:
    """JUnit's XML, as CI systems read it."""
    kinds = {"FAILED": "failure", "error": "error", "not run": "skipped"}
    counts = {kind: sum(row["result"] == result for row in rows) for result, kind in kinds.items()}
    lines = [
        f'<testsuite name="hostile-pod" tests="{len(rows)}" failures="{counts["failure"]}" errors="{counts["error"]}" '
        f'skipped="{counts["skipped"]}">'
    ]
    for row in rows:
        name = quoteattr(f"{row['id']} {row['name']}".strip())
        reasons = printable("; ".join(row["reasons"]))
        kind = kinds.get(row["result"])
        inside = (
            f'<{kind} type="{row["result"]}" message={quoteattr(reasons)}/>'
            if kind
            else f"<system-out>{escape(row['result'])}</system-out>"
        )
        lines.append(f'  <testcase classname="hostile-pod" name={name}>{inside}</testcase>')
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *lines, "</testsuite>"])


def tap(rows: list[Row]) -> str:
    """TAP 13 (testanything.org)."""
    lines = ["TAP version 13", f"1..{len(rows)}"]
    for number, row in enumerate(rows, 1):
        state = "not ok" if row["result"] in ("FAILED", "error") else "ok"
        skip = " # SKIP" if row["result"] == "not run" else ""
        name = f"{row['id']} {row['name']}".replace("#", "\\#")  # of a case in a file of one's own
        lines.append(f"{state} {number} - {name}{skip}")
        lines += [f"# {printable(reason)}" for reason in row["reasons"]]
    return "\n".join(lines)


def printable(text: str) -> str:
    """Text in which no character controls a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


FORMATS = {"table": table, "json": as_json, "junit": junit, "tap": tap}
"""By the value of `--output`."""
