"""Holes of runtimes and engines that a policy closes, tried on the versions of Debian 12 that have them."""

from __future__ import annotations

from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import RUNTIMES, TOP
from harness.tools import run

from e2e.cri.images import layout, root_filesystem
from e2e.runtimes import guarded
from e2e.test_podman import LIMITS, Podman, podman, working_podman  # noqa: F401  # fixtures

LOADER = (TOP / "config/examples/loader.yaml").read_text()
PRELOAD = "LD_PRELOAD=/proc/self/cwd/poc.so"


def env_of_hook(bundle: Bundle) -> Path:
    """Add a vendor's hook without env, which runs on the node. It writes its env to the file that is returned."""
    file = bundle.directory / "hook.env"
    entry = {"path": "/bin/sh", "args": ["sh", "-c", f"env > {file}"]}
    bundle.spec["hooks"] = {"createContainer": [entry]}
    bundle.spec["process"]["env"] += [PRELOAD, "LD_AUDIT=/tmp/audit.so", "MODEL=large"]
    bundle.save()
    return file


@marks.cve("CVE-2025-23266")
def test_a_vendors_hook_gets_no_loader_variable_of_an_image(node: Node, bundle: Bundle, each: str) -> None:
    """CVE-2025-23266: runc before 1.3 gives a hook without env the container's."""
    node.compile(LOADER)
    file = env_of_hook(bundle)
    with guarded("wrapper", each, node, bundle) as container:
        assert "MODEL=large" in container.environ()
        assert not [entry for entry in container.environ() if entry.startswith("LD_")]
    assert "LD_" not in file.read_text()
    [event] = node.logged()
    assert {edit["name"] for edit in event["edits"]} == {"LD_PRELOAD", "LD_AUDIT"}


@marks.cve("CVE-2025-23266")
def test_without_reassert_runc_1_1_gives_it_to_the_hook(bundle: Bundle) -> None:
    """Else the test above would prove nothing."""
    file = env_of_hook(bundle)
    with Running(RUNTIMES["runc"], bundle):
        assert PRELOAD in file.read_text().splitlines()


@marks.cve("CVE-2026-30892")
@pytest.mark.parametrize("user", ["1000", "1000:1000", "0:0"])
def test_an_exec_as_another_user_is_corrected(node: Node, bundle: Bundle, each: str, user: str) -> None:
    """CVE-2026-30892: crun read the value of `--user` wrongly. It decides nothing here."""
    node.compile(LOADER)
    with guarded("wrapper", each, node, bundle) as container:
        options = ("--user", user, "--env", PRELOAD, "--env", "MODEL=large")
        got = container.exec("/bin/env", options=options).splitlines()
    assert "MODEL=large" in got
    assert PRELOAD not in got


NODES_OWN = {"HF_TOKEN": "token-of-the-node", "HF_SECRET_KEY": "key-of-the-node"}

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  rules:
  - name: no-secret-of-the-node
    env: [{name: "HF_*", absent: true}]
"""


@marks.cve("CVE-2026-57231")
def test_an_image_gets_no_env_of_podman_itself(podman: Podman, node: Node, directory: Path) -> None:  # noqa: F811
    """CVE-2026-57231: podman up to 5.8.3 fills in ENV of an image without `=`, or with `*`, from its own env."""
    archive = directory / "image.tar"
    entries = ["HF_SECRET_*", "HF_TOKEN", "MODEL=large"]
    archive.write_bytes(layout("reassert.test/cve:1", entries, root_filesystem(bare=False), ["/bin/busybox"]))
    own = [f"{name}={value}" for name, value in NODES_OWN.items()]

    def env() -> list[str]:
        command = [*podman.command(), "run", "--rm", "--network=host", *LIMITS, image, "env"]
        return run("env", *own, *command, cwd="/").stdout.splitlines()

    image = podman("pull", "--quiet", f"oci-archive:{archive}").stdout.strip()
    try:
        assert {*own, "MODEL=large"} <= {*env()}, "without reassert"
        node.compile(POLICY)
        podman.configure(node.dispatcher(RUNTIMES["crun"]))
        got = env()
    finally:
        podman("rmi", "--all", "--force", check=False)
    assert "MODEL=large" in got
    assert not [entry for entry in got if entry.startswith("HF_")]
    [event] = node.logged()
    assert {edit["name"] for edit in event["edits"]} == {*NODES_OWN}
    assert not [value for value in NODES_OWN.values() if value in node.events.read_text()]
