"""Without the agent, a container of uid 0 gets a lease (fcntl(2)) on each file of root that it sees.

It needs no capability, and has the file in a read-only volume. Each open(2) by others then waits for up to 45 seconds,
or fails with O_NONBLOCK.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED, Node
from harness.paths import RUNTIMES
from harness.tools import run

TAKE = """
import fcntl, os, signal, sys, time
def let_go(*_):
    print("opened", flush=True)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
signal.signal(signal.SIGIO, let_go if sys.argv[2:] else signal.SIG_IGN)
file = open(sys.argv[1], "rb")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("taken", flush=True)
while True:
    time.sleep(600)
"""
"""With a second argument it only tells who opens the file."""


def leasing(directory: Path, file: Path, *more: str) -> Running:
    """A container, past the wrapper, that takes a lease on a file of the node. `more`: arguments of TAKE."""
    bundle = Bundle(directory)
    for path in ("/usr", "/lib", "/lib64"):
        bundle.bind(path, path, "ro")
    bundle.bind(file.parent, "/mnt", "ro")
    bundle.spec["process"].update(args=["/usr/bin/python3", "-c", TAKE, f"/mnt/{file.name}", *more], capabilities={})
    bundle.save()
    return Running(RUNTIMES["runc"], bundle)


@marks.hole(
    "Without the agent, a container of uid 0 leased the compiled policy, and all others were refused",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
def test_starts_go_on_while_a_container_has_a_lease_on_the_compiled_policy(
    node: Node, bundle: Bundle, directory: Path, real: str
) -> None:
    """Each start compiles the policy file. One with errors does not replace the last good policy meanwhile."""
    node.compile()
    compiled = node.compiled
    before = compiled.read_bytes()
    bundle.pod()
    bundle.save()
    with leasing(directory / "other", compiled) as other:
        other.wait_for("taken")
        with Running(node.dispatcher(real), bundle) as running:
            assert WANTED in running.environ()
        node.write_policy(POLICY.replace("spec:", "specs:"))
        assert "specs" in Running(node.dispatcher(real), bundle).refused()
    assert compiled.read_bytes() == before
    with Running(node.dispatcher(real), bundle) as running:
        assert WANTED in running.environ()


@marks.hole(
    "A container of uid 0 with /etc/localtime as a read-only volume leased it: each cold start and exec of "
    "other pods took 45 s",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@marks.hole(
    "A container of uid 0 with a read-only volume of /run/containerd leased the config.json of another container, or "
    "the runtime's record of it: each exec there was refused at once, probes too",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("leased", ["config.json", "record"])
def test_an_exec_waits_for_the_end_of_a_lease(
    node: Node, bundle: Bundle, directory: Path, real: str, leased: str
) -> None:
    """As the runtime itself does, which opens its record. This container gives the lease back when it is asked to."""
    node.compile()
    bundle.pod()
    bundle.save()
    wrapper, name = node.dispatcher(real), Path(real).name
    with Running(wrapper, bundle) as victim:
        record = Path(f"/run/{name}/{victim.id}/{'status' if name == 'crun' else 'state.json'}")
        file = record
        if leased == "config.json":  # crun has its own beside the record
            file = record.with_name(leased) if name == "crun" else bundle.config
        with leasing(directory / "other", file, "tells") as other:
            other.wait_for("taken")
            done = run(wrapper, "exec", victim.id, "/bin/cat", "/proc/self/environ")
            assert WANTED in done.stdout.split("\0")
            other.wait_for("opened")


def test_no_start_and_no_exec_opens_the_nodes_time_zone(node: Node, bundle: Bundle, directory: Path) -> None:
    """Many pods have /etc/localtime as a read-only volume. crun itself opens it, runc does not."""
    node.compile()
    zone = directory / "zone" / "localtime"
    zone.parent.mkdir()
    shutil.copy("/etc/localtime", zone)
    engine = directory / "engine"  # whose mount namespace has a time zone that no other process of the machine opens
    inside = f'mount --bind {zone} /etc/localtime && exec {node.dispatcher(RUNTIMES["runc"])} "$@"'
    engine.write_text(f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inside)} sh "$@"\n')
    engine.chmod(0o755)
    bundle.pod()
    bundle.save()
    with leasing(directory / "other", zone, "tells") as other:
        other.wait_for("taken")
        with Running(str(engine), bundle) as running:
            assert WANTED in running.environ()  # by an exec
        assert "opened" not in other.output()
        zone.read_bytes()
        other.wait_for("opened")
