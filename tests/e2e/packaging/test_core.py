"""`packaging/build.sh --core`: the program without ops, node and inside starts containers as the whole one does."""

from __future__ import annotations

import marshal
import os
import re
import subprocess
import sys
from pathlib import Path

import marks
import pytest
from harness.paths import REASSERT, TOP
from harness.tools import need, run

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.root,
    pytest.mark.slow,
    marks.promise(
        "`packaging/build.sh --core` builds a program without node and ops that starts containers as the whole "
        "one does",
        about="Packages and cluster",
    ),
]

ENGINE_TESTS = (
    "test_hook.py::test_the_hook_puts_the_mount_back_over_a_pods",
    "test_hook.py::test_the_hook_refuses_wrong_env_and_says_who_can_set_it",
    "test_hook.py::test_poststop_needs_no_bundle",
    "test_runtime.py::test_a_pods_override_is_undone_in_the_process_and_in_exec",
    "test_verbs.py::test_restore_is_refused_where_anything_is_reserved",
    "test_verbs.py::test_update_of_a_container_that_is_not_found_is_refused",
    "agent/test_agent.py::test_a_containers_life",
    "agent/test_agent.py::test_a_policy_that_is_edited_between_create_and_its_hook",
    "nri/test_override.py::test_an_override_is_undone_in_the_container_and_in_exec[2.1-runc-/etc/ssl/certs]",
)
"""By each way in: the hook, the wrapper's create and exec, the other verbs, the agent, the NRI plugin. Its modules are
those of the whole program, so a case of each finds what the program lacks."""


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
        "compile",
        "core",
        "entry",
        "nri",
        "resident",
    }
    said = run(str(core), "--help").stdout
    commands = {"agent", "cdi", "dispatcher", "hook", "nri", "policy", "runtime"}
    assert set(re.findall(r"^  (\w+)\b", said, re.MULTILINE)) == commands
    refused = run(str(core), "status", check=False)
    assert (refused.returncode, "invalid choice: 'status'" in refused.stderr) == (2, True)


def test_it_has_the_modules_of_the_whole_program(core: Path) -> None:
    """Their code is compared, not their bytes, in which a set has no order."""
    for path in (core.parent / "lib/hook").rglob("*.pyc"):
        whole = REASSERT.parent / "lib/hook" / path.relative_to(core.parent / "lib/hook")
        one, other = (marshal.loads(file.read_bytes()[16:]) for file in (path, whole))
        assert one == other, path


def test_the_engine_tests_of_the_start_path_pass_with_it(core: Path) -> None:
    tests = [str(TOP / "tests/e2e" / name) for name in ENGINE_TESTS]
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, "REASSERT": str(core)}, cwd=TOP)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
