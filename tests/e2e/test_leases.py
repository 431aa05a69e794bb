"""Without the agent, a container of uid 0 gets a lease (fcntl(2)) on each file of root that it sees.

It needs no capability, and has the file in a read-only volume. Each open(2) by others then waits for up to 45 seconds,
or fails with O_NONBLOCK.
"""

from __future__ import annotations

from pathlib import Path

from e2e.support import POLICY, RUNTIMES, WANTED, Bundle, Node, Running

TAKE = """
import fcntl, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], "rb")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("taken", flush=True)
time.sleep(600)
"""


def leasing(directory: Path, file: Path) -> Running:
    """A container, past the wrapper, that takes a lease on a file of the node."""
    bundle = Bundle(directory)
    for path in ("/usr", "/lib", "/lib64"):
        bundle.bind(path, path, "ro")
    bundle.bind(file.parent, "/mnt", "ro")
    bundle.spec["process"].update(args=["/usr/bin/python3", "-c", TAKE, f"/mnt/{file.name}"], capabilities={})
    bundle.save()
    return Running(RUNTIMES["runc"], bundle)


def test_starts_go_on_while_a_container_has_a_lease_on_the_compiled_policy(
    node: Node, bundle: Bundle, directory: Path, real: str
) -> None:
    """Each start compiles the policy file. One with errors does not replace the last good policy meanwhile."""
    node.compile()
    (compiled,) = node.store.glob("*.json")
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
