"""systemd's sandbox of the units: `systemd-analyze security`, and a reason for each line that the agent's has not."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import marks
import pytest
from harness.tools import need

from unit.support import ROOT

pytestmark = marks.promise("The units' exposure (systemd-analyze security) does not grow", about="Agent")

UNITS = ROOT / "packaging" / "systemd"


def analyzed(unit: str, *options: str) -> subprocess.CompletedProcess[str]:
    need(shutil.which("systemd-analyze") is not None, "systemd-analyze")
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", *options, str(UNITS / unit)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("unit", "most"), [("reassert-agent.service", 48), ("reassert-nri.service", 29), ("reassert-trust.service", 29)]
)
def test_the_exposure_is_low(unit: str, most: int) -> None:
    done = analyzed(unit, f"--threshold={most}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_agents_unit_misses_has_its_reason() -> None:
    found: list[dict[str, Any]] = json.loads(analyzed("reassert-agent.service", "--json=short").stdout)
    missing = [one["name"] for one in found if not one["set"] and one["exposure"]]
    text = (UNITS / "reassert-agent.service").read_text()
    reasons = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    assert [name for name in missing if name not in reasons] == []
    assert len(missing) > 20


@marks.hole(
    "A container of uid 0 took root's inotify instances: reassert-trust.path failed, and no later change of a"
    " trust store's sources was built"
)
def test_the_path_unit_of_a_trust_store_starts_a_timer() -> None:
    """Where systemd can watch nothing any more, a change is built within the hour. %N: also of an instance."""
    units = ROOT / "packaging/systemd"
    assert "Wants=%N.timer\n" in (units / "reassert-trust.path").read_text()
    timer = (units / "reassert-trust.timer").read_text()
    assert "OnCalendar=hourly\n" in timer and "PartOf=%N.path\n" in timer
    for file in ("deb/build.sh", "kubernetes/image/node.sh"):
        text = (ROOT / "packaging" / file).read_text()
        assert any("path" in line and "service" in line and "timer" in line for line in text.splitlines()), file
