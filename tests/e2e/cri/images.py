"""Container images made of the host's static busybox, so that no test pulls anything."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from harness.bundle import APPLETS
from harness.paths import BUSYBOX

PAUSE = "reassert.test/pause:1"
PLAIN = "reassert.test/plain:1"
HOSTILE = "reassert.test/hostile:1"

IMAGES = {PAUSE: [], PLAIN: [], HOSTILE: ["NVIDIA_VISIBLE_DEVICES=all", "REQUESTS_CA_BUNDLE=/image/evil"]}
"""Every image, with what its author put into its ENV beside PATH."""

_SLEEP = ["/bin/busybox", "sleep", "1000000"]
_PAUSE = ["/bin/busybox", "sh", "-c", "trap 'exit 0' TERM; read forever <> /fifo"]
"""Ends when it is told to, like a real pause: kubelet ends pods with SIGTERM. It starts no process."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image."


def write_images(directory: Path) -> list[Path]:
    """Each image as an OCI layout in a tar, for `ctr image import`, which `docker load` and `podman load` take too."""
    paths = []
    for number, (name, env) in enumerate(IMAGES.items()):
        paths.append(directory / f"image-{number}.tar")
        pauses = name == PAUSE
        paths[-1].write_bytes(layout(name, env, root_filesystem(bare=pauses), _PAUSE if pauses else _SLEEP))
    return paths


def root_filesystem(bare: bool) -> bytes:
    """A layer. `bare`: a program and what it waits for, like a real pause image; no /etc, no /proc."""
    entries = [_directory("bin"), _file("bin/busybox", Path(BUSYBOX).read_bytes(), 0o755)]
    if bare:
        entries.append((_entry("fifo", tarfile.FIFOTYPE, 0o666), b""))
    else:
        entries += [_directory(path) for path in ("etc", "etc/ssl", "etc/ssl/certs", "proc", "sys", "dev", "tmp")]
        entries += [_link(f"bin/{applet}", "busybox") for applet in (*APPLETS, "tty", "mknod")]
        entries += [_file("etc/passwd", b"root:x:0:0::/:/bin/sh\n"), _file("etc/ssl/certs/image.crt", b"image\n")]
    return _tar(entries)


def layout(name: str, env: list[str], layer: bytes, entrypoint: list[str] = _SLEEP) -> bytes:
    """An OCI image layout (image-spec, image-layout.md) with one image of one layer."""
    entries = [_file("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')]

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        entries.append(_file(f"blobs/sha256/{digest}", content))
        return {"mediaType": _OCI + kind, "digest": f"sha256:{digest}", "size": len(content)}

    stored = blob(layer, "layer.v1.tar")
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/bin", *env], "Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [stored["digest"]]},
    }
    configured = blob(json.dumps(config).encode(), "config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": _OCI + "manifest.v1+json",
        "config": configured,
        "layers": [stored],
    }
    listed = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    listed["annotations"] = {"io.containerd.image.name": name}
    entries.append(_file("index.json", json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode()))
    # What dockers before 25 look for (moby, image/spec/v1.2.md).
    paths = [f"blobs/{str(part['digest']).replace(':', '/')}" for part in (configured, stored)]
    entries.append(
        _file("manifest.json", json.dumps([{"Config": paths[0], "RepoTags": [name], "Layers": paths[1:]}]).encode())
    )
    return _tar(entries)


_Entry = tuple[tarfile.TarInfo, bytes]


def _tar(entries: list[_Entry]) -> bytes:
    """A tar whose entries are root's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry, content in entries:
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _directory(path: str) -> _Entry:
    return _entry(path, tarfile.DIRTYPE, 0o755), b""


def _link(path: str, target: str) -> _Entry:
    entry = _entry(path, tarfile.SYMTYPE, 0o777)
    entry.linkname = target
    return entry, b""


def _file(path: str, content: bytes, mode: int = 0o644) -> _Entry:
    entry = _entry(path, tarfile.REGTYPE, mode)
    entry.size = len(content)
    return entry, content


def _entry(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, mode
    return entry
