"""Broken bundles, policies and disks: a container gets the reserved entries, or is refused with one line of reason."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED, Node
from harness.paths import REASSERT
from harness.tools import need, run

RUNC = "/usr/sbin/runc"


@pytest.fixture
def wrapper(node: Node) -> str:
    """A dispatcher for runc, for tests whose result is the same under crun. The policy is not compiled yet."""
    return node.dispatcher(RUNC)


def refusal(wrapper: str, bundle: Bundle) -> str:
    """The refusal of a create: one line on stderr, which the runtime's log has too, and no other output."""
    log = bundle.directory.parent / "log.json"
    container = Running(wrapper, bundle, "--log", str(log), "--log-format", "json")
    line = container.refused()
    entry = json.loads(log.read_text())
    log.unlink()
    assert entry == {"level": "error", "msg": line, "time": entry["time"]}
    assert datetime.fromisoformat(entry["time"]).tzinfo is not None
    assert line.startswith("reassert: refused ")
    return line


def corrected(container: Running) -> bool:
    """Whether the container's process and an exec have the reserved entries."""
    return (
        WANTED in container.environ()
        and WANTED in container.exec("/bin/env").splitlines()
        and container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    )


def leftovers(bundle: Bundle) -> list[str]:
    return [path.name for path in bundle.directory.iterdir() if "reassert" in path.name]


# config.json


BAD_CONFIGS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda good: good[: len(good) // 2], "not valid JSON"),
    "50 MB": (lambda good: good + b" " * 50_000_000, "larger than the limit of 8388608 bytes"),
    "nested deeply": (lambda good: b'{"process":' + b"[" * 50_000, "nested too deeply"),
    "two processes": (lambda good: good.replace(b"{", b'{"process": {"env": []}, ', 1), "duplicate member 'process'"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_config_is_refused_in_one_line_and_kept(wrapper: str, node: Node, bundle: Bundle, name: str) -> None:
    """Whatever the failure policy."""
    node.write_policy(POLICY.replace("spec:", "spec:\n  failurePolicy: Ignore", 1))
    spoil, message = BAD_CONFIGS[name]
    bad = spoil(bundle.config.read_bytes())
    bundle.config.write_bytes(bad)
    line = refusal(wrapper, bundle)
    assert message in line
    assert str(bundle.config) in line
    assert bundle.config.read_bytes() == bad
    assert leftovers(bundle) == []
    [event] = node.logged()
    assert (event["event"], event["applied"]) == ("container.denied", False)


@pytest.mark.parametrize("name", ["truncated", "50 MB"])
def test_in_audit_mode_a_bad_config_is_the_real_runtimes_affair(
    wrapper: str, node: Node, bundle: Bundle, name: str
) -> None:
    node.write_policy(POLICY.replace("spec:", "spec:\n  mode: Audit", 1))
    bundle.config.write_bytes(BAD_CONFIGS[name][0](bundle.config.read_bytes()))
    container = Running(wrapper, bundle)
    container.create()
    run("runc", "delete", "--force", container.id, check=False)
    assert "reassert" not in container.output().replace(str(bundle.directory), "")
    [event] = node.logged()
    assert event["event"] == "container.would-deny"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_config_that_is_no_regular_file_is_refused(
    wrapper: str, bundle: Bundle, make: Callable[[Path], None]
) -> None:
    bundle.config.unlink()
    make(bundle.config)
    assert "config.json is not a regular file" in refusal(wrapper, bundle)


@marks.claim("env", "runtime")
def test_bare_names_cannot_erase_what_is_reserved(runtime: str, bundle: Bundle) -> None:
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE", "PYTHONHTTPSVERIFY"]
    bundle.save()
    with Running(runtime, bundle) as container:
        assert corrected(container)
    del bundle.spec["process"]["env"]
    bundle.save()
    with Running(runtime, bundle) as container:
        assert corrected(container)


def test_a_bundle_path_with_spaces_and_newlines_works(runtime: str, directory: Path) -> None:
    bundle = Bundle(directory / " a bundle\n\twith 'odd' \"characters\" é")
    with Running(runtime, bundle) as container:
        assert corrected(container)
    bundle.config.write_text("")
    assert "\n" not in Running(runtime, bundle).refused()


def test_of_two_creates_of_one_bundle_at_once_none_starts_uncorrected(runtime: str, bundle: Bundle) -> None:
    """One whose config.json the other replaces before it was read back is refused."""
    both = [Running(runtime, bundle), Running(runtime, bundle)]
    command = [runtime, "create", "--bundle", str(bundle.directory)]
    outputs = [bundle.directory / container.id for container in both]
    with ExitStack() as stack:
        files = [stack.enter_context(output.open("w")) for output in outputs]
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        started = [
            stack.enter_context(subprocess.Popen([*command, container.id], stdout=file, **quiet))
            for container, file in zip(both, files, strict=True)
        ]
        ended = [process.wait(600) for process in started]
    created = [container for container, status in zip(both, ended, strict=True) if status == 0]
    refusals = [output.read_text() for output, status in zip(outputs, ended, strict=True) if status]
    assert created, refusals
    assert all("config.json does not contain what was written to it" in text for text in refusals), refusals
    try:
        for container in created:
            run(runtime, "start", container.id)
            assert corrected(container)
    finally:
        for container in both:
            run(runtime, "delete", "--force", container.id, check=False)
    for output in outputs:
        output.unlink()
    assert leftovers(bundle) == []


@pytest.mark.parametrize("call", ["write", "fchown", "fchmod", "fsync", "?rename,?renameat,?renameat2"])
def test_a_kill_while_config_is_written_leaves_the_old_one(wrapper: str, node: Node, bundle: Bundle, call: str) -> None:
    """strace kills the wrapper where it enters a system call: before it has its way."""
    need(run("strace", "-o", "/dev/null", "true", check=False).returncode == 0, "strace (ptrace)", installed=False)
    node.compile()
    node.events = Path("/dev/null")  # no log: nothing is written there
    before = bundle.config.read_bytes()
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when=1"]
    command = [str(REASSERT), "runtime", "--real", RUNC, *node.options(), "--"]
    create = ["create", "--bundle", str(bundle.directory), "never"]
    done = run("strace", "-o", str(node.directory / "trace"), *inject, *command, *create, check=False)
    assert done.returncode == -9, (node.directory / "trace").read_text()
    assert bundle.config.read_bytes() == before
    assert len(leftovers(bundle)) == 1
    with Running(wrapper, bundle) as container:
        assert corrected(container)


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_store_that_cannot_be_written_still_enforces(node: Node, bundle: Bundle, state: str) -> None:
    disk = node.directory / "disk"
    disk.mkdir(mode=0o755)
    run("mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(disk))
    node.store = disk / "lib"
    if state == "full":
        with pytest.raises(OSError, match="No space"), (disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:
        run("mount", "-o", "remount,ro", str(disk))
    with Running(node.dispatcher(RUNC), bundle) as container:
        assert corrected(container)
    run("umount", str(disk))
    [event] = node.logged()
    assert "warning" not in event


def test_an_unwritable_log_is_no_reason_to_stay_silent(wrapper: str, bundle: Bundle) -> None:
    bundle.config.write_text("")
    done = run(wrapper, "--log", "/proc/nowhere/log", "create", "--bundle", str(bundle.directory), "x", check=False)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("reassert: refused ")
    assert second.startswith("reassert: cannot write /proc/nowhere/log: ")
