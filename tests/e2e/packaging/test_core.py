"""`packaging/build.sh --core`: the program without hook/ops and hook/node starts containers as the whole one does."""

from __future__ import annotations

import marshal
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.support import REASSERT, TOP, need, run

pytestmark = [pytest.mark.frozen, pytest.mark.root, pytest.mark.slow]

ENGINE_TESTS = ("test_hook.py", "test_runtime.py", "test_verbs.py", "agent/test_agent.py", "nri/test_override.py")
"""Tests of the start path by each way in: hook, wrapper, the other verbs, the agent, the NRI plugin."""

LEFT_OUT = (
    "agent/test_agent.py::test_200_creations_at_once_with_an_edit_and_a_restart",
    "test_verbs.py::test_an_unknown_option_of_a_verb_hides_nothing",
    "test_verbs.py::test_audit_mode_only_logs_a_verb",
    "test_verbs.py::test_features_pass_byte_for_byte",
    "test_verbs.py::test_front_dispatcher_and_wrapper_treat_each_verb_by_the_table",
    "test_verbs.py::test_no_start_passes_unedited_whatever_the_options_before_it",
)
"""The reading of command lines and the load of many starts, which are the same modules."""


@pytest.fixture(scope="module")
def core() -> Path:
    """The program."""
    need(REASSERT.parents[2] == TOP, "the program that packaging/build.sh makes here")
    done = subprocess.run([TOP / "packaging/build.sh", "--core"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return TOP / "dist/core/reassert/reassert"


def test_it_has_no_wings(core: Path) -> None:
    assert {path.name for path in (core.parent / "lib/hook").iterdir() if path.is_dir()} == {
        "agent",
        "core",
        "entry",
        "nri",
    }
    said = run(str(core), "--help").stdout
    commands = {"agent", "cdi", "dispatcher", "hook", "nri", "policy", "runtime"}
    assert set(re.findall(r"^  (\w+)\b", said, re.MULTILINE)) == commands
    refused = run(str(core), "node", "status", check=False)
    assert (refused.returncode, "invalid choice: 'node'" in refused.stderr) == (2, True)


def test_it_has_the_modules_of_the_whole_program(core: Path) -> None:
    """Their code is compared, not their bytes, in which a set has no order."""
    for path in (core.parent / "lib/hook").rglob("*.pyc"):
        whole = REASSERT.parent / "lib/hook" / path.relative_to(core.parent / "lib/hook")
        one, other = (marshal.loads(file.read_bytes()[16:]) for file in (path, whole))
        assert one == other, path


def test_the_engine_tests_of_the_start_path_pass_with_it(core: Path) -> None:
    tests = [str(TOP / "tests/e2e" / name) for name in ENGINE_TESTS]
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    command += [f"--deselect=tests/e2e/{test}" for test in LEFT_OUT]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, "REASSERT": str(core)}, cwd=TOP)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
