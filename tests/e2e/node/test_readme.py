"""README's policy on a node that never had reassert, in both orders of policy and installation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from unit.ops.trust.authority import bundle, ca, roots

from e2e.node.booted import BootedNode, booted
from e2e.support import TOP

POLICY = "/etc/reassert/policy.yaml"
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
SWITCH = "PYTHONHTTPSVERIFY"


@pytest.fixture
def node() -> Iterator[BootedNode]:
    """A node with containerd 1.7, and with a distribution's roots."""
    with booted("trixie") as started:
        started.path(ROOTS).parent.mkdir(parents=True, exist_ok=True)
        started.path(ROOTS).write_bytes(bundle(*roots()))
        yield started


def container(node: BootedNode) -> tuple[bool, bytes]:
    """Whether a new container keeps the switch that turns verification off, and the CA bundle that it sees."""
    pod = node.cri.run_pod("")
    started = pod.run(env=[(SWITCH, "0")])
    found = f"{SWITCH}=0" in started.environ(), started.exec("sh", "-c", f"cat {ROOTS} || :").encode()
    pod.remove()
    return found


def test_no_step_refuses_every_pod(node: BootedNode) -> None:
    """The store of `trust` is built after the installation; without it, the policy waits."""
    [policy] = re.findall(r"```yaml\n(apiVersion: reassert/v1\n.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
    program = "/src/reassert/dist/reassert/reassert"
    node.path(POLICY).parent.mkdir(exist_ok=True)
    node.path(POLICY).write_text(policy)
    first = node.run("sh", "-c", f"{program} node install 2>&1", check=False)
    assert first.returncode == 1
    assert "Run: reassert trust build" in first.stdout
    assert "Everything is as it was before." in first.stdout
    assert container(node)[0], "the engine is not wired"

    node.path(POLICY).unlink()
    node.run(program, "node", "install")
    node.wait_for_cri()
    node.path(POLICY).write_text(policy)
    assert container(node)[0], "the policy is held back"
    company = ca("Company CA")
    node.path("/etc/reassert/trust.d").mkdir(exist_ok=True)
    company.at(node.path("/etc/reassert/trust.d/company.pem"))
    node.run("reassert", "trust", "build")
    kept, seen = container(node)
    assert not kept
    assert company.pem in seen
    assert "protected" in node.run("reassert", "node", "status", check=False).stdout
    node.run("reassert", "node", "verify", "--except", "rule/*")
