"""Where the plugin's lines go when standard output is not what it should be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TextIO

import pytest

from hook.nri.report import CONNECTED, Report
from hook.ops.metrics.prometheus import Metrics


@pytest.mark.parametrize(("output", "errors"), [(None, None), ("/dev/full", 1)])
def test_a_standard_output_that_takes_nothing_stops_nobody(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch, output: str | None, errors: int | None
) -> None:
    """It is None where descriptor 1 was closed when the program was started."""
    stdout: TextIO | None = open(output, "w") if output else None  # noqa: SIM115  # closing it would fail
    monkeypatch.setattr(sys, "stdout", stdout)
    metrics = Metrics()
    for number in range(2):
        report = Report(str(root_dir / "events.jsonl"), metrics)
        report.plugin(CONNECTED, "info", str(number))
        report.close(60)
        assert (metrics.registry.get_sample_value("reassert_errors_total", {"kind": "log"}) or None) == (
            errors and errors + number
        )
    events = [json.loads(line) for line in (root_dir / "events.jsonl").read_text().splitlines()]
    assert [event["message"] for event in events] == ["0", "1"]
