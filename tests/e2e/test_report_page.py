"""The HTML report of the frozen program in a real browser: what a person sees, and that no name of a pod runs there."""

from __future__ import annotations

import re
import struct
import subprocess
import zlib
from html import unescape
from pathlib import Path

import pytest
from conftest import BROWSER
from unit.eventlog.support import CA, DENIED, MOUNT, NVIDIA, event, write
from unit.eventlog.test_report import ATTACKS, hostile

from e2e.support import REASSERT

pytestmark = pytest.mark.browser

RED = (0xB3, 0x26, 0x1E)
"""The colour of what is refused, in the page's style sheet."""

CONTROL = "<!doctype html><title>t</title><body><img src=x onerror=\"document.title='owned'\">"


def render(page: Path, *options: str) -> str:
    """Opens a page; what the browser made of it, after scripts have run."""
    home = page.parent / "home"
    where = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={home}",
        "--window-size=1200,900",
        *options,
    ]
    command = [BROWSER, *where, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def colours(picture: Path) -> set[tuple[int, ...]]:
    """The colours of a PNG of 8 bits a channel."""
    data, at, rows = picture.read_bytes(), 8, b""
    width = height = channels = 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour]
        rows += body if kind == b"IDAT" else b""
        at += size + 12
    raw, stride, found = zlib.decompress(rows), width * channels, set()
    last = bytearray(stride)
    for row in range(height):
        start = row * (stride + 1)
        line = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), last, channels)
        found |= {tuple(line[at : at + 3]) for at in range(0, stride, channels)}
        last = line
    return found


def _unfiltered(kind: int, line: bytearray, last: bytearray, step: int) -> bytearray:
    """One line of a PNG (PNG specification, 9.2)."""
    for at in range(len(line) if kind else 0):
        left, up, corner = line[at - step] if at >= step else 0, last[at], last[at - step] if at >= step else 0
        near = min((abs(up - corner), 0, left), (abs(left - corner), 1, up), (abs(left + up - 2 * corner), 2, corner))
        line[at] = (line[at] + (0, left, up, (left + up) // 2, near[2])[kind]) & 0xFF
    return line


def made(directory: Path, events: list[dict[str, object]]) -> Path:
    """The page of a log."""
    log = write(directory / "events.jsonl", events)
    command = [str(REASSERT), "report", "--events", str(log), "--since", "2025-01-01", "-o", "html"]
    page = directory / "report.html"
    page.write_text(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    return page


def test_an_audit_week_is_one_page(tmp_path: Path) -> None:
    audit = {"mode": "Audit", "applied": False}
    pods = [f"web-7c5ddbdf54-x2k9{letter}" for letter in "bcdfghjk"]
    found = [
        event("would-deny", pod, number, edits=[NVIDIA, CA, MOUNT], denials=[DENIED], **audit)
        for number, pod in enumerate(pods)
    ]
    picture = tmp_path / "page.png"
    page = made(tmp_path, [*found, event("edited", "db-0", 20, edits=[CA], **audit)])
    text = unescape(re.sub("<[^>]*>", " ", render(page)))
    assert "Ask the owner of team-a/web to remove env NVIDIA_VISIBLE_DEVICES of container app" in text
    assert "8 would be refused" in text
    render(page, f"--screenshot={picture}")
    assert RED in (seen := colours(picture))
    assert len(seen) > 20, "text that is not drawn has no grey edges"


def test_a_name_that_is_an_attack_is_only_text(tmp_path: Path) -> None:
    shown = render(made(tmp_path, hostile()))
    title = re.search("<title>(.*)</title>", shown)
    assert title
    assert title[1].startswith("reassert report: ")
    assert not re.search("<(?:img|script|a|iframe|svg)[ >]", shown)
    assert shown.count("<tr>") == 1 + len(ATTACKS)
    assert ATTACKS[0] in unescape(shown)
    control = tmp_path / "control.html"
    control.write_text(CONTROL)
    assert "<title>owned</title>" in render(control), "this browser runs scripts"
