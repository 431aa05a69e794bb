"""Which containers run: by records that may be old, of processes that may be others, with names that may be forged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import ReassertError
from hook.core.container.identity import Identity
from hook.inside import containers
from hook.inside.containers import Running, chosen, from_state
from hook.inside.process import ContainerGone, Process, when
from hook.inside.traces import Traces

pytestmark = marks.promise(
    "`audit` says of every running container, of each engine, whether the policy is in force in it and why "
    "not; no container hides"
)

A, B = "a" * 64, "b" * 64


@pytest.fixture
def sleeping() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child.pid
        child.kill()


def record(directory: Path, pid: int, started: int, **more: object) -> str:
    state = directory / A
    state.mkdir(exist_ok=True)
    config = {"labels": [f"bundle={directory}"]}
    data = {"init_process_pid": pid, "init_process_start": started, "config": config, **more}
    (state / "state.json").write_text(json.dumps(data))
    return str(state)


def test_a_process_is_the_one_that_was_meant(sleeping: int) -> None:
    with Process(sleeping) as process:
        assert time.time() - when(process.started) < 60
        started = process.started
    with pytest.raises(ContainerGone):
        Process(sleeping, started + 1)
    with Process(sleeping, started) as process:
        os.kill(sleeping, 9)
        os.waitid(os.P_PID, sleeping, os.WEXITED | os.WNOWAIT)  # it is a zombie: nobody has waited for it
        with pytest.raises(ContainerGone):
            process.check()
        with pytest.raises(ContainerGone):
            process.environ()


def test_the_name_of_a_process_cannot_forge_its_state() -> None:
    code = "import ctypes,sys,time; ctypes.CDLL(None).prctl(15, b'x) Z 1 9 9 (y'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        with Process(child.pid) as process:
            assert process.parent() == os.getpid()
        child.kill()


def test_an_old_record_is_no_container(tmp_path: Path, sleeping: int) -> None:
    with Process(sleeping) as process:
        started = process.started
    found = from_state(record(tmp_path, sleeping, started, created="2026-01-02T03:04:05Z"))
    assert found is not None
    assert (found.id, found.pid, found.created) == (A, sleeping, 1767323045.0)
    assert "config.json" in found.problem, "it runs, and nothing is known of it"
    for pid, then in ((sleeping, started + 7), (0, 0), (1 << 22, started), (-1, 0)):
        assert from_state(record(tmp_path, pid, then)) is None
    record(tmp_path, sleeping, started)
    (tmp_path / A / "exec.fifo").touch()
    assert from_state(str(tmp_path / A)) is None, "it is created, and not started"
    (tmp_path / A / "exec.fifo").unlink()
    (tmp_path / A / "state.json").write_text("{")
    broken = from_state(str(tmp_path / A))
    assert broken is not None
    assert (broken.pid, "state.json" in broken.problem) == (0, True)


def test_the_outermost_container_of_a_cgroup_counts() -> None:
    """What a container makes below its own cgroup it names as it likes."""
    for path in (
        f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{A}.scope/docker/{B}",
        f"/docker/{A}/kubepods/besteffort/{B}",
        f"/machine.slice/libpod-{A}.scope/container",
        f"/kubepods/burstable/pod12/crio-{A}",
    ):
        assert containers._id_in(["/", path]) == A
    for path in (f"/user.slice/user-1000.slice/libpod-{A}.scope", f"/system.slice/x{A}.service", f"/{A}0", "/"):
        assert containers._id_in([path]) == ""


def container(container_id: str, name: str = "", identity: Identity | None = None) -> Running:
    return Running(container_id, 1, 1, "", "", 0.0, name, identity=identity)


def test_a_name_that_looks_like_an_id_hides_nobody() -> None:
    forged = container(B, A)
    named = container("c" * 64, "web", Identity("containerd", True, namespace="n", pod="p", container="web"))
    sandbox = container("5" * 64, identity=Identity("containerd", True, namespace="n", pod="p", types=("sandbox",)))
    there = [container(A, "db"), forged, sandbox, named]
    assert chosen(A, there).id == A
    assert chosen("db", there).id == A
    assert chosen("bbbb", there).id == B
    for word in ("n/p", "p/web", "n/p/web", "p", "web"):
        assert chosen(word, there) is named
    assert chosen("n/p", [sandbox]) is sandbox
    twice = [*there, container("d" * 64, "aaaa")]
    with pytest.raises(
        ReassertError, match=r"2 running containers have the id or name aaaa: a{64} \(db\), d{64} \(aaaa\)"
    ):
        chosen("aaaa", twice)
    for word in ("", "bbb", "nobody"):
        with pytest.raises(ReassertError, match="no running container"):
            chosen(word, there)


def test_it_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ReassertError, match="sudo"):
        containers.running([])


def test_a_bundle_of_a_shim_is_a_container_with_its_process_or_unknown(
    tmp_path: Path, sleeping: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd's: runc may have another --root, and kata no process here."""
    traces = [Traces(states=(str(tmp_path / "states"),), bundles=(f"{tmp_path}/task/*/*",), names=())]
    monkeypatch.setattr(containers, "_of_processes", lambda *_: [])
    monkeypatch.setattr("os.geteuid", lambda: 0)
    bundle = tmp_path / "task/k8s.io" / A
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text('{"process": {}}')
    assert containers.running(traces) == [], "it is being created"
    os.utime(bundle / "config.json", (1, 1))
    assert [(found.id, found.pid, "kata" in found.problem) for found in containers.running(traces)] == [(A, 0, True)]
    (bundle / "init.pid").write_text(str(sleeping))
    assert containers.running(traces) == [], "that process is in no cgroup of the container"
    monkeypatch.setattr(Process, "cgroups", lambda _: [f"/kubepods/{A}"])
    (found,) = containers.running(traces)
    assert (found.pid, found.engine, found.problem) == (sleeping, "containerd", "")
    (tmp_path / "states" / A).mkdir(parents=True)
    assert containers.running(traces) == [], "the runtime has a record of it: it is not started, or has ended"
