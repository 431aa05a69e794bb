"""OCI bundles, as engines write them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from harness.paths import BUSYBOX, RUNTIMES

APPLETS = ("sh", "sleep", "cat", "head", "env", "grep", "ls", "id", "true", "touch", "mkdir", "mount", "printenv", "tr")
UID = "11111111-2222-3333-4444-555555555555"


@cache
def _usual_spec() -> str:
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([RUNTIMES["runc"], "spec", "--bundle", directory], check=True)
        return (Path(directory) / "config.json").read_text()


def usual_spec() -> dict[str, Any]:
    """What `runc spec` writes, for a container without a terminal and without limits, whose root can be written to."""
    spec: dict[str, Any] = json.loads(_usual_spec())
    spec["root"]["readonly"] = False  # as in a pod that says nothing about it
    spec["process"].update(terminal=False, env=["PATH=/bin"])
    spec["process"].pop("rlimits", None)
    return spec


def as_engines_write(value: object) -> bytes:
    """JSON without white space, as Go's encoding/json writes it for containerd, dockerd and podman."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def containerd_annotations(
    namespace: str = "default",
    pod: str = "p",
    container: str = "c",
    *,
    kind: str = "container",
    uid: str = UID,
    sandbox: str = "0" * 64,
    image: str = "registry.example/app:1",
) -> dict[str, str]:
    """What containerd's CRI plugin says of a container of a pod. `kind`: `container` or `sandbox`."""
    names = {"container-name": container, "image-name": image} if kind == "container" else {}
    found = {
        "container-type": kind,
        **names,
        "sandbox-id": sandbox,
        "sandbox-name": pod,
        "sandbox-namespace": namespace,
        "sandbox-uid": uid,
    }
    return {f"io.kubernetes.cri.{key}": value for key, value in found.items()}


def make_image(rootfs: Path) -> None:
    """A root file system with busybox."""
    for name in ("bin", "etc/ssl/certs", "etc/pki", "proc", "sys", "dev", "tmp"):
        (rootfs / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, rootfs / "bin/busybox")
    for applet in APPLETS:
        (rootfs / "bin" / applet).symlink_to("busybox")
    (rootfs / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (rootfs / "etc/ssl/certs/image.crt").write_text("image\n")


class Bundle:
    """A bundle with a config.json, which has what is in `spec` after `save`."""

    def __init__(self, directory: Path, args: list[str] | None = None, rootfs: Path | None = None) -> None:
        """`rootfs`: a root file system that is there; else the bundle has one of its own, with busybox."""
        self.directory = directory
        self.rootfs = rootfs or directory / "rootfs"
        directory.mkdir(parents=True, exist_ok=True)
        if not rootfs:
            make_image(self.rootfs)
        self.spec = usual_spec()
        self.spec["process"]["args"] = args or ["/bin/sleep", "600"]
        if rootfs:
            self.spec["root"]["path"] = str(rootfs)
        self.save()

    @property
    def config(self) -> Path:
        """config.json."""
        return self.directory / "config.json"

    def save(self) -> None:
        """Write `spec` to config.json."""
        self.config.write_bytes(as_engines_write(self.spec))

    def saved(self) -> dict[str, Any]:
        """config.json as it is now."""
        loaded: dict[str, Any] = json.loads(self.config.read_text())
        return loaded

    def bind(self, source: Path | str, destination: str, *options: str) -> None:
        """Add a bind mount, as a pod's volume would be."""
        mount = {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", *options]}
        self.spec["mounts"].append(mount)

    def pod(self, namespace: str = "default", name: str = "p", container: str = "c", **more: str) -> None:
        """containerd's annotations for a pod's container."""
        kind = more.pop("type", "container")
        self.spec["annotations"] = {**containerd_annotations(namespace, name, container, kind=kind), **more}
