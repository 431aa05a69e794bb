"""The HTML report of the frozen program in a real browser: what a person sees, and that no name of a pod runs there."""

from __future__ import annotations

import re
import subprocess
from html import unescape
from pathlib import Path

import marks
import pytest
from conftest import BROWSER
from harness.paths import REASSERT
from unit.ops.events.support import write
from unit.ops.events.test_report import ATTACKS, hostile

pytestmark = [
    pytest.mark.browser,
    marks.promise("No text of a pod controls a terminal, a browser, a shell or a field of the journal"),
]

CONTROL = "<!doctype html><title>t</title><body><img src=x onerror=\"document.title='owned'\">"


def render(page: Path) -> str:
    """Opens a page; what the browser made of it, after scripts have run."""
    home = page.parent / "home"
    where = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={home}",
        "--window-size=1200,900",
    ]
    command = [BROWSER, *where, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


def made(directory: Path, events: list[dict[str, object]]) -> Path:
    """The page of a log."""
    log = write(directory / "events.jsonl", events)
    command = [str(REASSERT), "report", "--events", str(log), "--since", "2025-01-01", "-o", "html"]
    page = directory / "report.html"
    page.write_text(subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout)
    return page


def test_a_name_that_is_an_attack_is_only_text(tmp_path: Path) -> None:
    shown = render(made(tmp_path, hostile()))
    title = re.search("<title>(.*)</title>", shown)
    assert title
    assert title[1].startswith("reassert report: ")
    assert not re.search("<(?:img|script|a|iframe)[ >]", shown)
    assert shown.count("<tr>") == 2 * len(ATTACKS), "a heading and a row for each namespace"
    assert ATTACKS[0] in unescape(shown)
    control = tmp_path / "control.html"
    control.write_text(CONTROL)
    assert "<title>owned</title>" in render(control), "this browser runs scripts"
