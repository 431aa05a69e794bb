"""The operation log: what its lines have, what they never have, and that no line delays or ends what it is about."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.base.errors import ReassertError
from hook.resident import oplog
from hook.resident.service import tell_undecided
from unit.support import ROOT

pytestmark = [
    marks.promise(
        "The operation log says why a start is cold and who asked, and nothing of an innocent warm start; "
        "repeated lines are counted"
    ),
    marks.promise(
        "No env value, secret or control character of a container, an image or a caller reaches the operation log"
    ),
]

Lines = Callable[[], list[dict[str, Any]]]

HEAD = "import sys, time; from hook.resident import oplog\n"


def run(code: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A process with an operation log."""
    return subprocess.run(
        [sys.executable, "-c", HEAD + code], cwd=ROOT, timeout=600, check=True, **{"stderr": subprocess.PIPE, **options}
    )


LINE = 'oplog.configure({form!r}, None, True); oplog.warning("it.happened", id="0a", text={text!r}, n=1); oplog.close()'
HOSTILE = 'a\x1b[31m\nlevel=error\0\u202eb "c" https://user:planted@proxy/ d\x9b'


@pytest.mark.parametrize("form", oplog.LOG_FORMATS)
def test_a_value_is_one_line_without_control_characters(form: str) -> None:
    text = run(LINE.format(form=form, text=HOSTILE)).stderr.decode()
    assert text.endswith("\n")
    line = text.removesuffix("\n")
    assert line.isprintable()
    assert "it.happened" in line
    assert "planted" not in line
    if form == oplog.JSON:
        found = json.loads(line)
        assert {key: found[key] for key in ("level", "event", "id", "n")} == {
            "level": "warning",
            "event": "it.happened",
            "id": "0a",
            "n": 1,
        }
        assert found["timestamp"].endswith("Z")
    if form == oplog.LOGFMT:
        assert " level=warning event=it.happened id=0a text=" in line
        assert line.startswith("timestamp=2")


def test_a_long_value_is_cut(oplog_lines: Lines) -> None:
    oplog.info("it.happened", text="x" * 10_000)
    [line] = oplog_lines()
    assert len(line["text"]) < 1200
    assert "(10000 bytes, sha256 " in line["text"]


def test_an_exception_is_fields_and_the_text_of_a_bug_is_left_out(oplog_lines: Lines) -> None:
    """The text of an unexpected error quotes what it was about, such as an env value."""
    for error in (OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/a"), ReassertError("the reason")):
        oplog.error("it.failed", exc_info=error)
    try:
        int("planted")
    except ValueError as found:
        oplog.error("it.failed", exc_info=found)
    missing, reason, bug = oplog_lines()
    assert (missing["error"], reason["error"]) == ("/a: No such file or directory", "the reason")
    assert bug["error"] == "internal error, please report it: ValueError"
    assert "test_oplog.py:" in bug["traceback"]
    assert "planted" not in json.dumps(bug)


def test_an_error_about_a_container_has_names_and_no_value(oplog_lines: Lines) -> None:
    event: dict[str, Any] = {"event": "container.error", "level": "error", "id": "0a", "adapter": "nri"}
    event |= {"container": {"namespace": "team-a", "pod": "p\x1b\nq", "image": "i"}, "policy": {"sha256": "12"}}
    event["errors"] = [{"rule": "", "message": "internal error, please report it: KeyError: 'planted'"}]
    tell_undecided(event)
    tell_undecided({**event, "event": "container.edited"})
    [line] = oplog_lines()
    assert (line["event"], line["pod"], line["refused"], line["policy"]) == (
        "container.undecided",
        "p\\x1b\\nq",
        True,
        "12",
    )
    assert line["error"] == "internal error, please report it: KeyError"


REPEATS = """
oplog.WINDOW = {window}
oplog.configure("json", None, True)
for number in range(5):
    oplog.warning("it.happened", key="one", number=number)
oplog.warning("it.happened", key="two", number=7)
{then}
oplog.close()
"""


UNTIL_TOLD = "while oplog._repeats.until() is not None: time.sleep(0.05)"


@pytest.mark.parametrize(("window", "then"), [(600, ""), (2, UNTIL_TOLD)])
def test_repeated_lines_are_counted(window: float, then: str) -> None:
    """At the end of the window, and at the end of the process."""
    said = [json.loads(line) for line in run(REPEATS.format(window=window, then=then)).stderr.splitlines()]
    assert [(line["number"], line.get("repeated")) for line in said] == [(0, None), (7, None), (4, 4)]


def test_different_lines_without_end_are_told_apart_up_to_a_number() -> None:
    code = """
oplog.configure("json", None, True)
for number in range(10_000):
    oplog.warning("it.happened", key=number)
oplog.close(60)
"""
    said = [json.loads(line) for line in run(code).stderr.splitlines()]
    assert len(said) == oplog.KEYS + 2
    assert said[-1]["repeated"] == 10_000 - oplog.KEYS - 1


def test_the_level_leaves_lines_out() -> None:
    code = (
        'oplog.configure("json", "warning", True); oplog.info("a"); oplog.warning("b"); oplog.error("c"); oplog.close()'
    )
    assert [json.loads(line)["event"] for line in run(code).stderr.splitlines()] == ["b", "c"]


def test_a_command_has_this_log_only_if_it_is_asked_for() -> None:
    code = 'oplog.configure({}, {}, False); oplog.info("a"); assert ("structlog" in sys.modules) == {}; oplog.close()'
    assert run(code.format(None, None, False)).stderr == b""
    assert b"event=a" in run(code.format(None, "'info'", True)).stderr


def test_the_journal_gets_a_priority_and_is_known_by_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is not asked: a caller could set JOURNAL_STREAM."""
    path = str(tmp_path / "stdout")
    code = f"""
oplog._JOURNAL = {path!r}
oplog.configure(None, "debug", False)
oplog.debug("d"); oplog.info("i"); oplog.info("n", notice=True); oplog.warning("w"); oplog.error("e"); oplog.close()
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as journald, socket.socket(socket.AF_UNIX) as stream:
        journald.bind(path)
        journald.listen()
        stream.connect(path)
        reader, _ = journald.accept()
        run(code, stderr=stream)
        with reader:
            said = reader.recv(65536).decode().splitlines()
    assert [line[:3] for line in said] == ["<7>", "<6>", "<5>", "<4>", "<3>"]
    assert all(line[3:].startswith("timestamp=") for line in said)
    status = os.stat("/dev/null")
    stream_is_null = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
    code = "oplog.configure(None, None, False); assert not oplog.is_active()"
    run(code, stderr=subprocess.DEVNULL, env=stream_is_null)


def test_a_log_does_not_load_asyncio_and_leaves_it_loadable() -> None:
    code = """
oplog.configure("json", None, True)
assert "asyncio" not in sys.modules
import asyncio
asyncio.run(asyncio.sleep(0))
oplog.close()
"""
    assert run(code).stderr == b""


@marks.promise("A standard error that is full, closed or not read stops no start; lost lines are counted")
def test_a_full_pipe_delays_nothing_and_what_is_lost_is_counted() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    code = f"""
oplog.configure("json", None, True)
for number in range({oplog.BACKLOG} + 500):
    oplog.info("it.happened", number=number)
print("done", flush=True)
sys.stdin.readline()
oplog.close(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer
    )
    os.close(writer)
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == b"done\n", "though the pipe is full"
    process.stdin.write(b"\n")
    process.stdin.flush()
    with open(reader, "rb") as pipe:
        said = [json.loads(line) for line in pipe.read().splitlines() if line]
    assert process.wait(600) == 0
    process.stdin.close()
    process.stdout.close()
    [dropped] = [line["lines"] for line in said if line["event"] == "log.dropped"]
    assert dropped + len(said) - 1 == oplog.BACKLOG + 500


def test_a_file_with_the_number_of_a_closed_standard_error_stays_as_it_is(tmp_path: Path) -> None:
    code = f"""
import os
assert os.open({str(tmp_path / "file")!r}, os.O_CREAT | os.O_WRONLY) == 2
oplog.configure("json", None, True)
oplog.info("it.happened")
oplog.close()
assert oplog._lines.dropped == 1
"""
    command = ["sh", "-c", 'exec 2>&-; exec "$@"', "sh", sys.executable, "-c", HEAD + code]
    assert subprocess.run(command, cwd=ROOT, timeout=600).returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_a_thread_that_ends_by_a_bug_is_a_line() -> None:
    code = """
import threading
oplog.configure("json", None, True)
thread = threading.Thread(target=lambda: int("planted"))
thread.start(); thread.join()
oplog.close()
"""
    [line] = [json.loads(line) for line in run(code).stderr.splitlines()]
    assert (line["event"], line["level"], "ValueError" in line["error"]) == ("process.bug", "error", True)
    assert "planted" not in json.dumps(line)


def test_time_is_utc_whatever_the_zone() -> None:
    code = 'oplog.configure("json", None, True); oplog.info("a"); oplog.close()'
    before = time.time()
    [line] = [json.loads(line) for line in run(code, env={"TZ": "XYZ-9"}).stderr.splitlines()]
    assert line["timestamp"][:13] in {time.strftime("%Y-%m-%dT%H", time.gmtime(at)) for at in (before, time.time())}
