"""`tests/run.sh --fast` names the tests that it leaves out, and needs no root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from e2e.support import TOP, run

ROOTLESS = TOP / "tests/rootless.sh"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture
def shared(directory: Path) -> Path:
    """A copy of rootless.sh that everybody may read, in a checkout of nobody's."""
    directory.chmod(0o755)
    script = directory / "tests/rootless.sh"
    script.parent.mkdir()
    script.write_bytes(ROOTLESS.read_bytes())
    script.chmod(0o755)
    for path in (directory, script.parent, script):
        os.chown(path, 65534, 65534)
    return script


def test_an_ordinary_user_is_root_of_what_is_its_own(shared: Path) -> None:
    """Its files are root's, /var and /run are empty, and what it writes there is gone when it ends."""
    script = 'id -u; stat -c %u "$0" /var/lib; ls /run; touch /var/lib/x /run/y; exit 7'
    done = run(*NOBODY, str(shared), "sh", "-c", script, str(shared), check=False, cwd=shared.parent)
    assert (done.returncode, done.stdout.split(), done.stderr) == (7, ["0", "0", "0"], "")
    assert not Path("/var/lib/x").exists()


def test_where_there_are_no_user_namespaces_it_says_so(shared: Path) -> None:
    fake = shared.with_name("unshare")
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    done = run(*NOBODY, "env", f"PATH={fake.parent}:{os.environ['PATH']}", str(shared), "true", check=False)
    assert (done.returncode, done.stdout) == (125, "")


def pytest_run(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and output of pytest in this checkout. No test of it runs in an engine."""
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments)
    done = run(*command, check=False, cwd=TOP, env={"PATH": os.environ["PATH"], **environment})
    return done.returncode, done.stdout


def test_what_is_left_out_is_counted_by_what_it_needs() -> None:
    status, said = pytest_run("--fast", "--quiet", "tests/e2e/test_hookentry.py", "tests/unit/base/test_compare.py")
    assert status == 0
    assert " passed, 3 deselected in " in said
    assert "    3 tests need the frozen program (packaging/build.sh) and real runtimes and engines\n" in said
    assert "The other 3 tests, and all examples: sudo tests/run.sh\n" in said


@pytest.mark.parametrize(("ci", "status", "word"), [("", 0, "1 skipped"), ("true", 1, "was skipped in CI")])
def test_a_skip_for_what_is_missing_is_a_failure_in_ci(directory: Path, ci: str, status: int, word: str) -> None:
    """As a user without several users' rights would see it."""
    test = "tests/unit/base/test_system.py::test_group_root_may_write"
    command = (str(ROOTLESS), sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", test)
    done = run(*command, check=False, cwd=TOP, env={"PATH": os.environ["PATH"], "CI": ci})
    assert done.returncode == status, done.stdout
    assert word in done.stdout
