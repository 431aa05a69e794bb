"""Annotations that steer a runtime (hook.reserve.annotations.STEERING), on real runtimes and under podman."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.runtimes import guarded
from e2e.support import Bundle, Node

WANTED = "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"
STREAMS = ("run.oci.hooks.stderr", "run.oci.hooks.stdout")
MOUNTS = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  rules:
  - name: company-ca
    env: [{name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}]
    mounts: [{hostPath: CA, mountPath: /etc/ssl, readOnly: true}]
"""


def profile(node: Node) -> Path:
    """A file that shells of the node read, as /etc/profile.d/x.sh."""
    return node.directory / "profile.d.sh"


def attack(node: Node, bundle: Bundle, annotation: str) -> Path:
    """Ask crun for the file as a stream of hooks, and put code into a path that the refusal of the hook quotes.

    Only the hook refuses it: the reserved path leads through a volume by a link of the image. Returns what the code
    would make.
    """
    owned = node.directory / "OWNED"
    bundle.spec.setdefault("annotations", {})[annotation] = str(profile(node))
    name = f"x;cd ${{OLDPWD:-.}};>{owned.name};#"
    (bundle.directory.parent / "volume/ssl").mkdir(parents=True)
    shutil.rmtree(bundle.rootfs / "etc")
    (bundle.rootfs / "etc").symlink_to(f"/{name}")
    (bundle.rootfs / name).mkdir()
    bundle.bind(bundle.directory.parent / "volume", f"/{name}")
    return owned


def read_by_a_shell(node: Node, owned: Path) -> bool:
    """Whether a shell that reads the file runs the pod's code."""
    if profile(node).exists():
        subprocess.run(["sh", str(profile(node))], cwd=node.directory, capture_output=True, timeout=60)
    return owned.exists()


@pytest.mark.parametrize("annotation", STREAMS)
def test_no_message_reaches_the_file_that_an_annotation_names(
    way: tuple[str, str], node: Node, bundle: Bundle, annotation: str
) -> None:
    """crun opens it as root of the node, as stderr or stdout of our hook."""
    node.compile(MOUNTS)
    owned = attack(node, bundle, annotation)
    container = guarded(way[1], way[0], node, bundle)
    assert container.create() == 1
    assert not profile(node).exists() or profile(node).read_text() == ""
    assert not read_by_a_shell(node, owned)
    assert "is a volume above the reserved mount /etc/ssl" in container.output()
