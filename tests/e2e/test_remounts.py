"""A container with CAP_SYS_ADMIN, not privileged, makes its reserved mounts writable again: what can it then write?

The mounts are read-only, and `remount,bind,rw` takes that off. All containers of the node read the same files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.runtimes import guarded
from e2e.support import Bundle, Node

DIRECTORY = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  rules:
  - name: company-ca
    mounts:
    - {hostPath: CA, mountPath: /etc/ssl, readOnly: true}
"""
FILE = DIRECTORY.replace("hostPath: CA, mountPath: /etc/ssl,", "hostPath: CA/ca.crt, mountPath: /etc/ssl/ca.crt,")
RESERVED = {"directory": (DIRECTORY, "/etc/ssl"), "file": (FILE, "/etc/ssl/ca.crt")}

USUAL = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL"
"""The capabilities that containerd gives a container of a pod that asks for none."""

ATTACK = """\
b=/bin/busybox
$b mount -o remount,bind,rw none {at} && echo remounted
for file in /etc/ssl/ca.crt /etc/ssl/open.crt; do
    $b echo evil >> $file; $b chmod 666 $file; $b chown 1000 $file; $b touch -t 200001010000 $file
    $b truncate -s 0 $file; $b ln $file /etc/ssl/link; $b mv $file /etc/ssl/moved; $b rm -f $file
done
$b touch /etc/ssl/new; $b mkdir /etc/ssl/more; $b ln -s / /etc/ssl/symbolic
$b mount -t tmpfs none /tmp && $b mkdir /tmp/more && $b mount -o bind {at} /etc/pki && $b echo evil >> /etc/pki/ca.crt
$b cat /etc/ssl/ca.crt
"""


def administrator(bundle: Bundle) -> Bundle:
    """The bundle of a container with CAP_SYS_ADMIN beside the usual capabilities."""
    listed = [f"CAP_{name}" for name in (*USUAL.split(), "SYS_ADMIN")]
    bundle.spec["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), listed)
    return bundle


def ca(node: Node) -> Path:
    """The file that all containers of the node read. Another one beside it can be written by everybody."""
    (node.ca / "ca.crt").write_text("company\n")
    (node.ca / "open.crt").write_text("company\n")
    (node.ca / "open.crt").chmod(0o666)
    return node.ca / "ca.crt"


def files(directory: Path) -> list[object]:
    """Everything in a directory: owner, mode, time and content."""
    found: list[object] = []
    for path in sorted([directory, *directory.rglob("*")]):
        status = path.lstat()
        content = path.read_text() if path.is_file() else ""
        found.append((str(path), status.st_uid, status.st_mode, status.st_nlink, status.st_mtime_ns, content))
    return found


@pytest.mark.parametrize("name", RESERVED)
def test_remounted_reserved_mount_cannot_be_written(
    way: tuple[str, str], node: Node, bundle: Bundle, name: str
) -> None:
    policy, at = RESERVED[name]
    ca(node)
    before = files(node.ca)
    node.compile(policy)
    with guarded(way[1], way[0], node, administrator(bundle)) as container:
        said = container.exec("/bin/sh", "-c", ATTACK.format(at=at))
        assert said.startswith("remounted\n") and said.endswith("company\n"), said
        assert files(node.ca) == before
        [event] = node.logged()
        assert (event["applied"], event["verified"]) == (True, "container")
