"""A pod whose author overrides what the node reserves, and what must come of it."""

from __future__ import annotations

import os
from pathlib import Path

from harness.node import Node
from harness.proc import Mount

from e2e.cri.client import Container
from e2e.cri.fixtures import StartPod
from e2e.cri.node import Containerd

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
TEXT = 'a "b"\n\tü\\ =c'

ENV = [
    ("NVIDIA_VISIBLE_DEVICES", "GPU-4"),
    ("NVIDIA_VISIBLE_DEVICES", "all"),
    ("REQUESTS_CA_BUNDLE", "/tmp/evil"),
    ("PYTHONHTTPSVERIFY", "0"),
    ("TEXT", TEXT),
]
"""As kubelet sends it: the device plugin's value first, then the pod's; the image has its own before both."""

RESERVED = {"NVIDIA_VISIBLE_DEVICES": "void", "REQUESTS_CA_BUNDLE": CA_BUNDLE}
"""What the node wants of these names: two values, and the third absent."""

OVERRIDDEN = {"NVIDIA_VISIBLE_DEVICES": "all", "REQUESTS_CA_BUNDLE": "/tmp/evil", "PYTHONHTTPSVERIFY": "0"}
"""What the pod's author wants."""


NOT_UTF8 = os.fsdecode(b"\xff")
"""A value that is not UTF-8: a Secret may have one, and CRI sends it as it is."""


def reserved_in(environ: list[str]) -> dict[str, str]:
    """The entries under reserved names, none of which may be there twice."""
    found = [entry.partition("=") for entry in environ if entry.partition("=")[0] in OVERRIDDEN]
    assert len({name for name, _, _ in found}) == len(found), found
    return {name: value for name, _, value in found}


def assert_only_ours(mounts: list[Mount]) -> None:
    """Of mounts at or below /etc/ssl, there is the node's and no other."""
    [mount] = mounts
    assert mount.root.endswith("/ca"), mount
    assert (mount.point, mount.options[0]) == ("/etc/ssl", "ro")


REMOUNT = "mount -o remount,bind,rw none /etc/ssl && echo remounted; echo evil >> /etc/ssl/certs/company.crt; true"


def assert_a_remount_writes_nothing(container: Container, node: Node) -> None:
    """A container with CAP_SYS_ADMIN makes its reserved mount writable; the node's files stay."""
    assert container.exec("/bin/sh", "-c", REMOUNT) == "remounted\n"
    assert (node.ca / "certs/company.crt").read_text() == "company\n"
    assert container.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"


def assert_no_annotation_steers_a_runtime(start_pod: StartPod, containerd: Containerd, directory: Path) -> None:
    """Through a handler that lets all annotations of pods and containers through; docs/policy.md lists them."""
    opened = directory / "opened"
    asked = {"run.oci.hooks.stderr": str(opened), "bundle": "/x", "run.oci.keep_original_groups": "1"}
    container = start_pod("open", annotations={**asked, "pods/own": "arrived"}).run(annotations=asked)
    notes = containerd.annotations(container.id)
    assert {key: notes.get(key) for key in (*asked, "pods/own")} == {
        "run.oci.hooks.stderr": None,
        "bundle": None,
        "run.oci.keep_original_groups": "1",
        "pods/own": "arrived",
    }
    assert not opened.exists()
