"""What our processes do in a namespace of somebody else, and with what rights they look at a container.

A process that enters a container's mount namespace has the container's root as its `/`: whatever it loads by path there
is the image's. The frozen program's modules are files, so an image can have files of the same paths.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from e2e.agent.support import Agent
from e2e.conftest import RUNTIMES
from e2e.runtimes import EACH, guarded, real_runtime
from e2e.support import REASSERT, Bundle, Node, Running, run

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {root: KUBELET}
  rules:
  - name: gpu
    deviceAllocations: {exclusive: ["/dev/nvidia?", "/dev/dri/*5"]}
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
    mounts:
    - {hostPath: CA, mountPath: /etc/ssl, readOnly: true}
"""
"""With an `exclusive` glob on a node that has no such device."""

CODE = "import posix\nposix.close(posix.open('/tmp/ran-as-root-of-the-node', posix.O_CREAT | posix.O_WRONLY))\n"
INSTALLED = """
place=$0 program=$1 scratch=$2
shift 2
mkdir -p "$scratch/above/reassert"
mount -t overlay overlay -o "lowerdir=$scratch/above:$place" "$place"
mount --bind "$program" "$place/reassert"
exec "$place/reassert/reassert" "$@"
"""
"""The program where a package, or the archive, installs it: in a mount namespace of its own."""


@pytest.fixture
def pod(node: Node, bundle: Bundle) -> Bundle:
    """Of a pod that makes a device whose name fits the glob."""
    node.compile(POLICY.replace("KUBELET", str(node.directory / "kubelet")))
    bundle.pod()
    (bundle.rootfs / "bin/mknod").symlink_to("busybox")
    bundle.spec["process"]["args"] = ["/bin/sh", "-c", "mknod /dev/nvidia0 c 240 0; echo made; exec /bin/sleep 600"]
    for kind in bundle.spec["process"]["capabilities"].values():
        kind.append("CAP_MKNOD")
    return bundle


def plant(bundle: Bundle, places: list[Path]) -> Path:
    """Put code at each module's path of the frozen program into the image. Returns the file that the code makes."""
    lib = REASSERT.resolve().parent / "lib"
    header = MAGIC_NUMBER + b"\1\0\0\0" + bytes(8)
    assert (lib / "hook/base/glob.pyc").read_bytes().startswith(MAGIC_NUMBER), "this Python is the frozen program's"
    evil = bundle.directory / "evil.pyc"
    evil.write_bytes(header + compile_code())
    for module in lib.rglob("*.pyc"):
        for place in places:
            there = bundle.rootfs / str(place / "lib" / module.relative_to(lib)).lstrip("/")
            there.parent.mkdir(parents=True, exist_ok=True)
            os.link(evil, there)
    return bundle.rootfs / "tmp/ran-as-root-of-the-node"


def compile_code() -> bytes:
    import marshal

    return marshal.dumps(compile(CODE, "evil", "exec"))


@pytest.mark.parametrize("place", ["dist", "/opt", "/usr/lib"])
@pytest.mark.parametrize("name", EACH)
def test_audit_runs_no_code_of_the_containers_image(node: Node, pod: Bundle, name: str, place: str) -> None:
    program = REASSERT.resolve().parent
    ran = plant(pod, [program if place == "dist" else Path(place) / "reassert"])
    with guarded("wrapper", real_runtime(name, node.directory), node, pod) as container:
        container.wait_for("made")
        words = ["audit", "-o", "json", *node.options()[:4], container.id]
        if place == "dist":
            done = run(str(REASSERT), *words, check=False)
        else:
            done = run("unshare", "--mount", "sh", "-ec", INSTALLED, place, str(program), str(node.directory), *words, check=False)
        assert not ran.exists()
        assert done.returncode == 1, done.stderr
        [found] = json.loads(done.stdout)["containers"]
        messages = [difference["message"] for difference in found["differences"]]
        assert messages == ["not allocated: /dev/nvidia0 in the container is a device (c 240:0)"]
