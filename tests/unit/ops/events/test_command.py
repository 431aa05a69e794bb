"""`reassert events`: filters, outputs, and following a log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import Usage
from hook.core.base.logfile import append
from hook.ops.events import select
from hook.ops.events.command import message
from unit.node.test_terminal import EVIL, assert_harmless
from unit.ops.events.support import CA, DENIED, MOUNT, NVIDIA, event, write
from unit.support import ROOT, called

pytestmark = marks.promise(
    "`events` and `report` read the log with its rotated files, and miss no line under a crash loop"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write(tmp_path / "l.1", [event("edited", "web-0", 1, edits=[NVIDIA, CA, MOUNT])])
    found = [
        event("denied", "db-0", 2, denials=[DENIED], container={"namespace": "team-b", "pod": "db-0"}),
        event("would-deny", "web-1", 3, mode="Audit", edits=[NVIDIA], start="cold", cold="absent", probe=True),
        {**event("", "", 4, adapter="agent", message="answered 3"), "event": "agent.ended", "id": ""},
    ]
    return write(tmp_path / "l", found)


def events(log: Path, *arguments: str) -> list[str]:
    done = called("events", "--events", str(log), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_table_has_an_event_per_line_and_what_was_done(log: Path) -> None:
    assert len(events(log)) == 4, "the events of reassert's own test containers are left out"
    head, edited, denied, audited, agent = events(log, "--probes")
    assert head.split() == ["TIME", "EVENT", "CONTAINER", "MESSAGE"]
    assert edited.split(None, 3) == [
        "2026-01-01T00:01:00Z",
        "container.edited",
        "team-a/web-0/app",
        "set env NVIDIA_VISIBLE_DEVICES to void (was all); set env REQUESTS_CA_BUNDLE to /etc/ssl/ca.pem; "
        "set mount /etc/ssl to /etc/ssl (was /pod/certs)",
    ]
    assert denied.endswith("rule gpu: env NVIDIA_VISIBLE_DEVICES is reserved and was set to something else")
    assert "would set env" in audited
    assert audited.endswith("(probe of reassert verify)")
    assert agent.split(None, 2)[1:] == ["agent.ended", f"{'(agent)':40} answered 3"]


def test_wide_has_rules_and_why_a_start_was_cold_and_json_the_object(log: Path) -> None:
    wide = events(log, "-o", "wide", "--probes")
    assert "gpu,company-ca" in wide[1]
    assert "cold:absent" in wide[3]
    found = [json.loads(line) for line in events(log, "-o", "json", "--probes")]
    names = ["container.edited", "container.denied", "container.would-deny", "agent.ended"]
    assert [each["event"] for each in found] == names
    assert found[0]["edits"] == [NVIDIA, CA, MOUNT]


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--namespace", "team-b"], ["c2"]),
        (["--namespace", "team-?", "--pod", "*-0"], ["c1", "c2"]),
        (["--rule", "company-*"], ["c1"]),
        (["--event", "container.*deny"], ["c3"]),
        (["--since", "2026-01-01T00:02Z"], ["c2", "c3", ""]),
        (["--since", "1m"], []),
    ],
)
def test_filters(log: Path, arguments: list[str], ids: list[str]) -> None:
    os.utime(f"{log}.1")
    assert [json.loads(line).get("id") for line in events(log, "-o", "json", "--probes", *arguments)] == ids


def test_conflicts_are_what_is_overridden_or_refused(tmp_path: Path) -> None:
    same = {**NVIDIA, "before": ["void"]}
    found = [
        event("edited", edits=[CA, same]),
        event("edited", "", 1, edits=[NVIDIA]),
        event("denied", "", 2, denials=[DENIED]),
    ]
    lines = events(write(tmp_path / "l", found), "--conflicts", "-o", "json")
    assert [json.loads(line)["id"] for line in lines] == ["c1", "c2"]


def test_since_takes_ages_and_dates() -> None:
    assert select.since("", 0) == ""
    assert select.since("2h", 7200 + 86400) == "1970-01-02T00:00:00.000000Z"
    assert select.since("2026-01-31T12:00+02:00") == "2026-01-31T10:00:00.000000Z"
    for wrong in ("x", "1y", "-1h", "2026-13-01", "999999999w "):
        with pytest.raises(Usage, match="--since takes"):
            select.since(wrong)
    assert select.since("999999999w", 0) == "1970-01-01T00:00:00.000000Z"


def test_long_lists_are_cut_in_the_table_only() -> None:
    edits = [{**NVIDIA, "name": f"N_{number}"} for number in range(9)]
    assert message(event("edited", "web", edits=edits)).endswith("and 6 more")
    assert "N_8" in message(event("edited", "web", edits=edits), all_of_it=True)


def test_what_stands_for_a_value_is_shown_in_words() -> None:
    for value, words in (({"bytes": 3, "hash": "0a"}, "3 bytes, hash 0a"), ({"bytes": 3}, "3 bytes")):
        edit = {**NVIDIA, "before": [value]}
        assert f"NVIDIA_VISIBLE_DEVICES to void (was {words})" in message(event("edited", "web", edits=[edit]))
        assert select.overrides(edit)


def test_an_edit_that_was_only_asked_for_is_not_said_to_be_made() -> None:
    said = {
        "asked for": event("edited", "w", asked=True, applied=False, edits=[CA]),
        "would set": event("edited", "w", mode="Audit", applied=False, edits=[CA]),
        "not set:": event("denied", "w", edits=[CA]),
    }
    for words, each in said.items():
        assert message(each).startswith(f"{words} env REQUESTS_CA_BUNDLE")


@pytest.mark.parametrize("output", ["table", "wide", "json"])
def test_a_terminal_gets_no_escape(tmp_path: Path, output: str) -> None:
    edit = {**NVIDIA, "name": EVIL, "before": [EVIL], "rule": EVIL}
    names = {"namespace": EVIL, "pod": EVIL, "container": EVIL}
    bad = event("edited", "x", container=names, edits=[edit], id=EVIL, cold=EVIL, timestamp=EVIL, warning=EVIL)
    lines = events(write(tmp_path / "l", [bad]), "-o", output)
    assert_harmless("\n".join(lines))


def test_it_follows_over_a_rotation_and_prints_at_once(root_dir: Path) -> None:
    log = root_dir / "events.jsonl"
    append(str(log), json.dumps(event("edited", "web-0", 1)).encode())
    command = [sys.executable, str(ROOT / "hook" / "__main__.py"), "events", "-f", "-o", "json", "--events", str(log)]
    # What a shell has started in the background ignores SIGINT, and so do its children.
    command = ["env", "--default-signal=INT", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout
        assert json.loads(running.stdout.readline())["id"] == "c1"
        for number in (2, 3):
            append(str(log), json.dumps(event("denied", "web-0", number)).encode(), limit=10)
            assert json.loads(running.stdout.readline())["id"] == f"c{number}"
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=600) == 130


@marks.hole("Events and metrics claimed edits that rules in Audit mode did not make")
def test_an_edit_and_a_refusal_of_a_tried_rule_are_not_said_to_be_made() -> None:
    edits = [MOUNT, {**NVIDIA, "mode": "Audit"}]
    text = message(
        event("would-deny", "web", applied=True, tried=True, edits=edits, denials=[{**DENIED, "mode": "Audit"}])
    )
    assert "would refuse: rule gpu: env NVIDIA_VISIBLE_DEVICES" in text
    assert "; set mount /etc/ssl to" in text
    assert "would set env NVIDIA_VISIBLE_DEVICES" in text
    assert "; set env" not in text


@pytest.mark.parametrize("command", ["events", "report"])
def test_a_log_that_is_missing_is_an_error_and_one_without_an_event_in_that_time_is_none(
    tmp_path: Path, command: str
) -> None:
    done = called(command, "--events", str(tmp_path / "none"))
    error = f"reassert: {tmp_path}/none: No such file or directory\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)
    path = write(tmp_path / "events.jsonl", [event("edited", "web", edits=[NVIDIA])])
    os.utime(path, (1, 1))
    done = called(command, "--since", "1h", "--events", str(path))
    assert (done.returncode, done.stderr) == (0, "")
