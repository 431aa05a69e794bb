"""The operation log of a real agent: what it answers at 3 a.m., what never reaches it, and that it stops no start."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest

from hook import __version__
from hook.entry import protocol
from hook.resident import oplog
from unit.agent.test_process import Process, wait_until
from unit.support import config

pytestmark = [
    pytest.mark.root,
    marks.promise(
        "The operation log says why a start is cold and who asked, and nothing of an innocent warm start; "
        "repeated lines are counted",
        about="Events and metrics",
    ),
]

SECRET = "planted-s3cret"
ESCAPE = "\x1b[2J\x9b\u202e"


@pytest.fixture
def process(root_dir: Path) -> Iterator[Process]:
    made = Process(root_dir)
    yield made
    made.close()


def lines(process: Process, event: str) -> list[dict[str, Any]]:
    return [line for line in process.said() if line["event"] == event]


def test_an_innocent_start_says_nothing(process: Process) -> None:
    process.start()
    process.create()
    wait_until(lambda: lines(process, "policy.in-force"))
    before = process.said()
    process.config.write_text(json.dumps(config(["CA=/ca.pem"])))
    for _ in range(20):
        assert process.ask(process.frame("create", "--bundle", str(process.bundle), "0a")) == protocol.go()
    process.end()
    assert [line["event"] for line in process.said()[len(before) :]] == ["agent.stopped"]


def test_why_cold_since_ten_and_who_asked(process: Process) -> None:
    process.start()
    for number in range(3):
        frame = process.frame("create", "--bundle", str(process.bundle), f"0a{number}", version="0.3.0")
        assert process.ask(frame) == protocol.cold("version")
    wait_until(lambda: lines(process, "start.cold"))
    process.end()
    first, counted = lines(process, "start.cold")
    assert {key: first[key] for key in ("level", "reason", "runtime", "verb", "id", "pid")} == {
        "level": "warning",
        "reason": "version",
        "runtime": "/real",
        "verb": "create",
        "id": "0a0",
        "pid": os.getpid(),
    }
    assert first["exe"] == os.readlink("/proc/self/exe")
    assert first["duration_ms"] >= 0
    assert "cgroup" in first
    assert (counted["repeated"], counted["reason"]) == (2, "version")


def test_a_shortage_is_said_with_its_name(process: Process) -> None:
    """Of descriptors, for example."""
    process.start("prlimit", "--nofile=64:64")
    silent = [process.connected() for _ in range(100)]
    wait_until(lambda: any(line["reason"] == "error" for line in lines(process, "caller.refused")))
    for connection in silent:
        connection.close()
    said = [line for line in lines(process, "caller.refused") if line["reason"] == "error"]
    assert {(line["error"].rpartition(": ")[2], line["level"]) for line in said} == {("Too many open files", "warning")}
    process.end()


def test_a_policy_that_is_held_back_is_said(process: Process) -> None:
    process.start()
    wait_until(lambda: lines(process, "policy.in-force"))
    good = Path(process.policy).read_text()
    sha256 = lines(process, "policy.in-force")[0]["sha256"]
    Path(process.policy).write_text("kind: [")
    wait_until(lambda: lines(process, "policy.held"))
    [held] = lines(process, "policy.held")
    assert (held["level"], held["sha256"]) == ("warning", sha256)
    assert process.policy in held["error"]
    Path(process.policy).write_text(good)
    wait_until(lambda: len(lines(process, "policy.in-force")) == 2)
    process.end()


def test_a_caller_that_is_not_answered_is_named(process: Process) -> None:
    process.start()
    assert process.ask(b"x") == b""
    wait_until(lambda: lines(process, "caller.refused"))
    [line] = lines(process, "caller.refused")
    assert (line["reason"], line["pid"], line["uid"]) == ("not a request", os.getpid(), 0)
    assert line["exe"] == os.readlink("/proc/self/exe")
    process.end()


@marks.promise(
    "No env value, secret or control character of a container, an image or a caller reaches the operation log",
    about="Events and metrics",
)
@pytest.mark.parametrize("form", oplog.LOG_FORMATS)
def test_no_env_value_no_secret_and_no_control_character_reaches_it(process: Process, form: str) -> None:
    """Whatever a pod, an image or a caller writes: in env, arguments, annotations, ids, broken JSON, and requests."""
    process.start("env", f"PASSWORD={SECRET}", form=form)
    hostile = config([f"DB_PASSWORD={SECRET}", f"CA={SECRET}", f"X={ESCAPE}"])
    hostile["process"]["args"] = ["login", SECRET]
    hostile["annotations"] = {
        f"a{ESCAPE}": SECRET,
        "io.kubernetes.cri.sandbox-name": f"p{ESCAPE}\nlevel=error {SECRET}",
    }
    whole = json.dumps(hostile)
    for text in (whole, whole[:-20], whole.replace('"env"', '"env": 1, "env"'), f'{{"process": "{SECRET}"}}', SECRET):
        for version in (__version__, "0"):
            process.config.write_text(text)
            process.ask(process.frame("create", "--bundle", str(process.bundle), f"0a{ESCAPE}\n", version=version))
    kinds = [
        ["exec", "--env", f"A={SECRET}", "0a", "sh", "-c", SECRET],
        ["exec", "--unknown", SECRET, "0a"],
        [f"--unknown{ESCAPE}", SECRET],
        ["exec", "--process", f"/proc/self/{ESCAPE}", "0a"],
        [SECRET],
    ]
    for number, arguments in enumerate(kinds):  # another runtime each, so that no line counts as repeated
        for version in (__version__, "0"):
            process.ask(process.frame(*arguments, version=version, real=f"/real{number}"))
    process.ask(f"{ESCAPE}{SECRET}\0".encode())
    process.ask(f"{protocol.REQUEST.decode()}\0{SECRET}\0".encode())
    wait_until(lambda: b"caller.refused" in (process.directory / "stderr").read_bytes())
    process.end()
    said = (process.directory / "stderr").read_bytes()
    assert SECRET.encode() not in said
    text = said.decode()
    assert all(line.isprintable() for line in text.split("\n"))
    for event in ("start.cold", "caller.refused", "agent.stopped"):
        assert event in text


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more, and is not read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    return reader, writer


@marks.promise(
    "A standard error that is full, closed or not read stops no start; lost lines are counted",
    about="Events and metrics",
)
@pytest.mark.parametrize("what", ["full pipe", "closed pipe", "full disk", "closed"])
def test_a_standard_error_that_takes_nothing_stops_no_start(process: Process, what: str) -> None:
    """A journal that hangs, one that has ended, a full disk, and none at all. What follows is what always follows."""
    reader, writer = full_pipe() if what == "full pipe" else os.pipe()
    if what == "closed pipe":
        os.close(reader)
    target = os.open("/dev/full", os.O_WRONLY) if what == "full disk" else os.dup(writer)
    before = ["sh", "-c", 'exec 2>&-; exec "$@"', "sh"] if what == "closed" else []
    process.start(*before, stderr=target)
    for number in range(oplog.KEYS + oplog.BACKLOG):
        process.ask(process.frame("create", "0a", version="0", real=f"/real{number}"))
    for _ in range(5):
        assert process.create() == protocol.go()
    assert process.status()["cold"] == {"version": oplog.KEYS + oplog.BACKLOG}
    process.end()
    for path in [Path(process.events), Path(process.policy), process.config, *Path(process.store).iterdir()]:
        if stat.S_ISREG(path.stat().st_mode):
            assert b"start.cold" not in path.read_bytes(), "a file that got the number of the closed descriptor"
    for fd in (target, writer, *([] if what == "closed pipe" else [reader])):
        os.close(fd)
