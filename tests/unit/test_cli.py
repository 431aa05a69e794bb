"""The commands as processes: exit status, standard output and standard error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import marks
import pytest

from hook import __version__
from hook.cli import GROUPS, command_line
from unit.ownmachine import Machine
from unit.support import ROOT, called, document, reassert

pytestmark = marks.promise(
    "Commands have exit status, streams, help and manual pages as users expect", about="Packages and cluster"
)

RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}
USAGE = "usage: "
COMMAND = [sys.executable, str(ROOT / "hook/__main__.py")]


@pytest.fixture
def source(root_dir: Path) -> Path:
    file = root_dir / "policy.yaml"
    file.write_text(document(RULE))
    return file


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("policy check /", "/: Is a directory"),
        ("explain /proc", "/proc/config.json: No such file or directory"),
    ],
)
def test_file_that_cannot_be_read_is_one_line(line: str, complaint: str) -> None:
    result = called(*line.split())
    assert (result.returncode, result.stderr) == (1, f"reassert: {complaint}\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        *[("", ""), ("policy", ""), ("node", ""), ("nonsense", USAGE), ("explain", USAGE), ("--versio", USAGE)],
        *[("hook", "--help"), ("runtime", "--help"), ("runtime -- create --help", "--help")],
        ("polcy check", "invalid choice: 'polcy'; did you mean policy?"),
        ("policy chekc", "invalid choice: 'chekc'; did you mean check?"),
        ("policy check --stict", "unrecognized arguments: --stict; did you mean --strict?"),
        ("policy show --polcy=x", "unrecognized arguments: --polcy=x; did you mean --policy?"),
        ("policy show -o jsn", "invalid choice: 'jsn'; did you mean json?"),
        ("verify --exept x", "usage: reassert verify "),
        ("node verify --exept x", "usage: reassert node verify "),
        ("node verify --exept x", "unrecognized arguments: --exept x; did you mean --except?"),
        ("qqqqq", "invalid choice: 'qqqqq' (choose from "),
        ("policy check --qqqqq", "unrecognized arguments: --qqqqq\n"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_what_was_meant(line: str, says: str) -> None:
    result = (reassert if line.startswith(("hook", "runtime")) else called)(*line.split())
    assert (result.returncode, bool(result.stdout)) == (2, not says)  # the help, where a command is lacking
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("line", "text"),
    [
        *[("--help", ""), ("hook createRuntime -h", ""), ("runtime --help", "")],
        ("runtime -h --real /bin/true -- create 0a", ""),
        ("agent --help", "\n\nRun as a service that answers container starts"),
        ("install --help", "\n\nWire reassert into this node's container engine; if a step"),
        ("help policy check", "usage: reassert policy check "),
    ],
)
def test_help_is_on_stdout_and_says_what_a_command_does(line: str, text: str) -> None:
    result = (called if text else reassert)(*line.split())
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: reassert")
    assert text in result.stdout


def test_the_manual_page_names_every_command() -> None:
    """What each one takes is on its own page (e2e/packaging/test_shell.py)."""
    page = (ROOT / "packaging/deb/reassert.8").read_text()
    named = {word for line in re.findall(r"^\.It Cm (.+)", page, re.MULTILINE) for word in line.split(" , ")}
    [commands] = [action.choices for action in command_line(())._actions if isinstance(action.choices, dict)]
    aliases = {"node", "doctor"}
    assert named == {*commands, "runtime", "hook"} - aliases
    assert GROUPS.keys() - aliases <= named


def test_help_has_what_a_person_types_and_all_of_it_fits_80_columns() -> None:
    usual, everything = called("--help").stdout, called("help", "--all").stdout
    for name in ("install", "status", "verify", "uninstall", "policy", "explain", "audit", "report", "events"):
        assert f"\n  {name} " in usual
    for name in ("runtime", "hook", "nri", "agent", "policy compile", "dispatcher", "cdi"):
        assert f"\n  {name} " in everything
        assert f"\n  {name} " not in usual
    for text in (usual, everything, called("policy", "--help").stdout):
        assert "\n  node " not in text
        assert "\n  doctor " not in text
        assert " compile " not in text or text is everything
        assert max(map(len, text.splitlines())) <= 80
    for adapter in ("runtime", "hook"):
        assert max(map(len, reassert(adapter, "--help").stdout.splitlines())) <= 80


def test_version() -> None:
    assert reassert("--version").stdout == f"reassert {__version__}\n"


def test_show_and_compile_use_the_given_store(source: Path, root_dir: Path) -> None:
    """A policy file with errors is not in force, and the last good one stays."""
    where = ("--policy", str(source), "--store", str(root_dir / "s"))
    good = source.read_text()
    bad = good.replace("rules", "rulez")
    for text, status, says in (
        (bad, 1, "reassert: no policy is in force: "),
        (good, 0, f"{source}: in force, 1 rule, Enforce, sha256 [0-9a-f]{{64}}\n"),
        (bad, 1, f"(?s)^(?=.*the last good policy stays in force).*{source}:"),
    ):
        source.write_text(text)
        done = called("policy", "compile", *where)
        assert (done.returncode, bool(done.stdout), bool(done.stderr)) == (status, not status, bool(status))
        assert re.match(says, done.stdout or done.stderr)
        told = json.loads(called("policy", "compile", *where, "-o", "json").stdout)
        assert bool(told["missing"]) == ("no policy" in says)
        assert told["rules"] == (0 if told["missing"] else 1)
    stored = called("policy", "compile", *where, "-o", "store")
    assert (stored.returncode, len(stored.stdout.splitlines())) == (0, 2)
    assert json.loads(called("policy", "show", "-o", "json", *where).stdout)["status"]["source"] == str(source)


PRINTING = [["policy", "check"], ["--help"], ["help", "--all"], ["help", "break-glass"], ["policy", "check", "--help"]]


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_reader_that_went_away_or_a_full_disk_is_no_traceback(source: Path, words: list[str]) -> None:
    command = [*COMMAND, *words, *([str(source)] if words == ["policy", "check"] else [])]
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        gone = subprocess.run(command, stdout=reader.stdin, stderr=subprocess.PIPE, text=True)
    assert (gone.returncode, gone.stderr) == (1, "")
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "reassert: No space left on device\n")


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_caller_that_closed_standard_streams_is_no_error(source: Path, words: list[str], streams: str) -> None:
    command = [*COMMAND, *words, *([str(source)] if words == ["policy", "check"] else [])]
    done = subprocess.run(["sh", "-c", f'"$@" {streams}', "sh", *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_change_of_a_node_goes_on_though_nobody_reads(machine: Machine) -> None:
    """`uninstall --purge | head -1` must not end half-way."""
    files = [machine.file(path) for path in ("/etc/reassert/policy.yaml", "/var/log/reassert/events.jsonl")]
    with open("/dev/full", "w") as full:
        assert subprocess.run([*COMMAND, "uninstall", "--purge"], stdout=full).returncode == 0
    assert not [path for path in files if path.exists()]


@pytest.mark.users
def test_an_error_names_the_command_that_was_typed() -> None:
    """Each of these needs root."""
    for line in ("status", "doctor", "install --engine crio", "node verify", "uninstall --purge"):
        done = subprocess.run([*COMMAND, *line.split()], user=65534, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"reassert: this needs root: sudo reassert {line}\n")


def test_the_page_for_a_node_where_nothing_starts_is_in_the_program() -> None:
    done = called("help", "break-glass")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "# Nothing starts: what now")
    assert "| 2 | `reassert policy audit` |" in done.stdout
    assert "](" not in done.stdout
