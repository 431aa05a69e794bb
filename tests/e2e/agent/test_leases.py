"""With the agent, no container gets a lease (fcntl(2)) on a file that a start opens, or keeps one for long.

The test's process is root, as a container that sees the file read-only is: the kernel gives both the same leases.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, Node
from harness.paths import RUNTIMES
from harness.tools import need, run

from e2e.agent.support import FRONT, PRINTER, WENT_COLD, Agent
from e2e.cri.client import wait_for


@pytest.fixture
def agent(node: Node) -> Iterator[Agent]:
    found = Agent(node)
    node.compile()
    yield found
    if found.process:
        found.stop()


def gets_lease(path: str, kind: int) -> bool:
    with open(path, "rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, kind)
        except OSError as error:
            assert error.errno == 11, error
            return False
        return True


@contextlib.contextmanager
def stubborn() -> Iterator[None]:
    """This process does not give a lease back when the kernel asks for it."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGIO, before)


def opened_by(node: Node, bundle: Bundle, *command: str) -> set[str]:
    """The regular files that a command opens or executes, until it executes the node's runtime."""
    trace = node.directory / "trace"
    run("strace", "-f", "-s", "4096", "-o", str(trace), "-e", "trace=open,openat,openat2,execve", *command)
    before = trace.read_text().partition(f'execve("{node.directory}/runc"')[0]
    named = re.findall(r'(?:open|openat|openat2|execve)\((?:[^"]*, )?"(/[^"]*)".*\) += \d+', before)
    apart = ("/proc/", "/sys/", "/dev/", str(bundle.directory))
    named = [path.replace("\\\\", "\\") for path in named]  # strace escapes them
    return {path for path in named if os.path.isfile(path) and not path.startswith(apart)}


@marks.hole(
    "A container of uid 0 with a read-only volume of reassert's program leased a file of it: each start of "
    "other containers took 45 s",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("way", ["warm", "cold"])
def test_no_file_that_a_start_opens_gets_a_lease(agent: Agent, directory: Path, way: str) -> None:
    need(shutil.which("strace") is not None, "strace")
    node = agent.node
    bundle = Bundle(directory / "bundle")
    bundle.pod()
    bundle.save()
    file = agent.before(PRINTER)
    agent.start()
    command = (agent.only_cold(file) if way == "cold" else file, "create", "--bundle", str(bundle.directory), "id")
    run(file, *command[1:])  # a request tells the agent where the dispatcher is
    bundle.save()
    opened = opened_by(node, bundle, *command) | {"/bin/sh"}
    if way == "cold":
        opened -= {command[0]}  # the test's own: its socket does not exist, and the agent has not heard of it
        assert str(node.compiled) in opened and any("libpython" in path for path in opened)
    else:
        assert file in opened
    opened |= {file, agent.hook_file(), str(FRONT), str(node.policy), str(node.events)}
    logs = {str(node.events)}

    def leased() -> list[str]:
        return [path for path in opened if gets_lease(path, fcntl.F_WRLCK)]

    wait_for(lambda: not leased(), "every file is held", lambda: str(leased()))
    wait_for(lambda: not [path for path in logs if gets_lease(path, fcntl.F_RDLCK)], "the log is held")


@marks.hole(
    "A container of uid 0 leased each reserved file that the operator replaced: with 140 files, readers "
    "waited for up to 105 minutes",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_leases_on_all_replaced_files_end_at_once(agent: Agent) -> None:
    """The operator renames new files over reserved ones, and a container has a lease on each before the agent looks."""
    node = agent.node
    certs = [node.ca / "certs" / f"{number}.pem" for number in range(5)]
    for cert in certs:
        cert.write_text("old\n")
    agent.start()
    wait_for(lambda: not [cert for cert in certs if gets_lease(str(cert), fcntl.F_WRLCK)], "the old files are held")
    with contextlib.ExitStack() as stack, stubborn():
        leases = []
        for cert in certs:
            new = cert.with_suffix(".new")
            new.write_text("new\n")
            leases.append(stack.enter_context(new.open("rb")))
            fcntl.fcntl(leases[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
            new.rename(cert)
        # The kernel wants each of them back: somebody waits in open(2). It ends them together.
        wait_for(
            lambda: fcntl.F_WRLCK not in [fcntl.fcntl(file, fcntl.F_GETLEASE) for file in leases], "all are asked for"
        )
    wait_for(lambda: not [cert for cert in certs if gets_lease(str(cert), fcntl.F_WRLCK)], "the new files are held")


@marks.hole(
    "A container of uid 0 with a read-only volume of /etc/cdi or of kubelet's records leased a file: "
    "containers with allocated devices were refused",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_cdi_specs_and_kubelets_records_are_held(agent: Agent) -> None:
    node = agent.node
    root = node.directory / "kubelet"
    records = [root / "device-plugins/kubelet_internal_checkpoint", root / "dra_manager_state"]
    for record in records:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("{}")
    node.compile(POLICY.replace("spec:\n", f"spec:\n  kubelet: {{root: {root}}}\n"))
    agent.start()
    wait_for(
        lambda: not [path for path in records if gets_lease(str(path), fcntl.F_WRLCK)], "kubelet's records are held"
    )
    with records[0].with_name("new").open("w") as new:
        new.write("{}")
    records[0].with_name("new").rename(records[0])
    wait_for(lambda: not gets_lease(str(records[0]), fcntl.F_WRLCK), "the new record is held")


@pytest.mark.parametrize("leased", ["config.json", "state.json"])
def test_an_exec_for_which_a_lease_has_to_end_is_a_cold_one(agent: Agent, directory: Path, leased: str) -> None:
    """It is not refused; e2e/test_leases.py has what the cold one does."""
    agent.start()
    bundle = Bundle(directory / "bundle")
    bundle.pod()
    bundle.save()
    file = agent.dispatcher(RUNTIMES["runc"])
    with Running(file, bundle) as victim:
        path = bundle.config if leased == "config.json" else Path(f"/run/runc/{victim.id}/state.json")
        with stubborn(), path.open("rb") as lease:
            fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            done = run(agent.only_warm(file), "exec", victim.id, "/bin/true", check=False)
    assert (done.returncode, done.stderr) == (WENT_COLD, "--cold=error\n")
