"""The commands as processes: exit status, standard output and standard error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hook import __version__
from unit.ownmachine import Machine
from unit.support import ROOT, called, document, reassert

RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}
BROKEN = document(RULE, mode="audit", exclud={})


@pytest.fixture
def source(root_dir: Path) -> Path:
    file = root_dir / "policy.yaml"
    file.write_text(document(RULE))
    return file


def test_valid_policy_is_said_to_be_valid(source: Path) -> None:
    result = called("policy", "check", str(source))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{source}: valid, 1 rule, sha256 ")


def test_every_error_of_a_policy_is_a_line_on_stderr(source: Path) -> None:
    source.write_text(BROKEN)
    result = called("policy", "check", str(source))
    assert (result.returncode, result.stdout) == (1, "")
    assert [line.partition(": error: ")[2] for line in result.stderr.splitlines()] == [
        "mode: 'audit' is not one of Enforce, Audit; did you mean Audit?",
        "unknown field 'exclud'; did you mean exclude?",
    ]
    assert all(line.startswith(f"{source}:") for line in result.stderr.splitlines())


def test_warnings_do_not_make_a_policy_invalid(source: Path) -> None:
    source.write_text(document({**RULE, "annotations": [{"name": "a/b", "absent": True, "of": "Pod"}]}))
    result = called("policy", "check", str(source))
    assert result.returncode == 0
    assert ": warning: " in result.stderr


def test_draft_of_foreign_ownership_is_warned_of(source: Path) -> None:
    source.chmod(0o666)
    result = called("policy", "check", str(source))
    assert result.returncode == 0
    assert "warning: on a node this file would be refused" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (("policy", "check", "/nonexistent/p.yaml"), 1, "reassert: /nonexistent/p.yaml: No such file or directory\n"),
        (("policy", "check", "/"), 1, "reassert: /: Is a directory\n"),
        (("explain", "--bundle", "/nonexistent"), 1, "reassert: /nonexistent/config.json: No such file or directory\n"),
    ],
)
def test_file_that_cannot_be_read_is_one_line(arguments: tuple[str, ...], status: int, complaint: str) -> None:
    result = called(*arguments)
    assert (result.returncode, result.stderr) == (status, complaint)


@pytest.mark.parametrize(
    "arguments",
    [
        *[(), ("policy",), ("nonsense",), ("explain",), ("policy", "chec"), ("--versio",), ("hook",), ("runtime",)],
        ("runtime", "--", "create", "--help"),
    ],
)
def test_wrong_usage_ends_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    result = (reassert if arguments[:1] in (("hook",), ("runtime",)) else called)(*arguments)
    assert result.returncode == 2
    assert "usage: " in result.stdout + result.stderr or "--help" in result.stderr
    assert "Traceback" not in result.stderr


HELP = [("--help",), ("hook", "createRuntime", "-h"), ("runtime", "--help")]


@pytest.mark.parametrize("arguments", [*HELP, ("runtime", "-h", "--real", "/bin/true", "--", "create", "0a")])
def test_help_is_on_stdout(arguments: tuple[str, ...]) -> None:
    result = reassert(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: reassert")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("agent",), "Run as a service that answers container starts"),
        (("node",), "Configure this node's container engine"),
        (("node", "install"), "Wire reassert into the engine; if a step fails,"),
    ],
)
def test_the_help_of_a_command_says_what_it_does(words: tuple[str, ...], text: str) -> None:
    assert f"\n\n{text}" in called(*words, "--help").stdout


def test_version() -> None:
    assert reassert("--version").stdout == f"reassert {__version__}\n"


def test_show_and_compile_use_the_given_store(source: Path, root_dir: Path) -> None:
    where = ("--policy", str(source), "--store", str(root_dir / "s"))
    done = called("policy", "compile", *where)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(f"{source}: in force, 1 rule, Enforce, sha256 [0-9a-f]{{64}}\n", done.stdout)
    assert json.loads(called("policy", "compile", *where, "-o", "json").stdout)["rules"] == 1
    result = called("policy", "show", "-o", "json", *where)
    assert (result.returncode, json.loads(result.stdout)["status"]["source"]) == (0, str(source))


def test_compile_says_that_a_policy_file_with_errors_is_not_in_force(source: Path, root_dir: Path) -> None:
    where = ("--policy", str(source), "--store", str(root_dir / "s"))
    good = source.read_text()
    source.write_text(good.replace("rules", "rulez"))
    done = called("policy", "compile", *where)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("reassert: no policy is in force: ")
    assert json.loads(called("policy", "compile", *where, "-o", "json").stdout)["missing"]
    source.write_text(good)
    assert called("policy", "compile", *where).returncode == 0
    source.write_text(good.replace("rules", "rulez"))
    done = called("policy", "compile", *where)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the last good policy stays in force" in done.stderr
    assert f"{source}:" in done.stderr
    stored = called("policy", "compile", *where, "-o", "store")
    assert (stored.returncode, len(stored.stdout.splitlines())) == (0, 2)


def test_reader_that_went_away_is_no_traceback(source: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(ROOT / "hook" / "__main__.py"), "policy", "check", str(source)]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def test_full_disk_behind_stdout_is_one_line(source: Path) -> None:
    command = [sys.executable, "-m", "hook", "policy", "check", str(source)]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "reassert: No space left on device\n")


def test_a_change_of_a_node_goes_on_though_nobody_reads(machine: Machine) -> None:
    """`uninstall --purge | head -1` must not end half-way."""
    files = [machine.file(path) for path in ("/etc/reassert/policy.yaml", "/var/log/reassert/events.jsonl")]
    command = [sys.executable, str(ROOT / "hook/__main__.py"), "node", "uninstall", "--purge"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stdout=full).returncode == 0
    assert not [path for path in files if path.exists()]
