"""A container of a checkpoint archive, which criu made for containerd's CRI (CheckpointContainer, containerd 2.1)."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import marks
import pytest

from e2e.cri.client import CriError, wait_for
from e2e.cri.images import IMAGES, PLAIN, write_images
from e2e.node.booted import BootedNode, booted
from e2e.node.wired import FILES, PROGRAM
from e2e.runtimes import criu

EVIL = ("REQUESTS_CA_BUNDLE", "/tmp/evil")
ARCHIVE = "/root/checkpoint.tar"
BASE = "127.0.0.1:5000/plain:1"
"""containerd pulls the base image of a checkpoint, by the name in it, even if the node has it."""

REGISTRY = """
import http.server, json, pathlib, sys
root = pathlib.Path(sys.argv[1])
[manifest] = json.loads((root / "index.json").read_text())["manifests"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.rpartition("/")[2]
        digest = manifest["digest"] if name == "1" else name
        content = (root / "blobs" / digest.replace(":", "/")).read_bytes()
        self.send_response(200)
        is_manifest = "/manifests/" in self.path
        self.send_header("Content-Type", manifest["mediaType"] if is_manifest else "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
    do_HEAD = do_GET
server = http.server.HTTPServer(("127.0.0.1", 5000), Handler)
(root / "listens").touch()
server.serve_forever()
"""


@contextmanager
def registry(node: BootedNode, image: Path) -> Iterator[None]:
    """BASE on the node's own loopback interface, from an image of `write_images`."""
    layout = node.directory / "layout"
    with tarfile.open(image) as tar:
        tar.extractall(layout)
    script = 'ip link set lo up && exec "$@"'
    inside = ["nsenter", f"--target={node.pid}", "--net", "sh", "-c", script, "sh"]
    with subprocess.Popen([*inside, sys.executable, "-c", REGISTRY, str(layout)]) as server:
        try:
            wait_for((layout / "listens").exists, "the registry")
            yield
        finally:
            server.kill()


def with_base(archive: Path) -> None:
    """Name BASE as the image of a checkpoint. Who brings an archive has written all of it."""
    with tarfile.open(archive) as tar:
        entries = {entry: (tar.extractfile(entry) or io.BytesIO()).read() if entry.isfile() else b"" for entry in tar}
    [named] = [entry for entry in entries if entry.name.endswith("config.dump")]
    entries[named] = json.dumps({**json.loads(entries[named]), "rootfsImageRef": BASE}).encode()
    named.size = len(entries[named])
    with tarfile.open(archive, "w") as tar:
        for entry, content in entries.items():
            tar.addfile(entry, io.BytesIO(content))


@marks.claim("restore", "runtime")
@marks.cve("CVE-2026-53492")
def test_checkpoint_image_is_restored_by_containerd_alone_and_refused_behind_the_wrapper() -> None:
    settings = {"/etc/criu/runc.conf": "manage-cgroups=ignore\n"}  # else criu copies the machine's tree of cgroups
    with booted("forky", files={**FILES, **settings}) as node:
        criu(node.directory)  # works on this kernel
        image = write_images(node.directory)[list(IMAGES).index(PLAIN)]
        container = node.cri.run_pod("").run(env=[EVIL])
        container.environ()
        container.checkpoint(ARCHIVE)
        with_base(node.path(ARCHIVE))
        with registry(node, image):
            restored = node.cri.run_pod("", name="alone").run(image=ARCHIVE)
            assert "=".join(EVIL) in restored.environ()
            node.run(PROGRAM, "install", "--engine=containerd", "--adapter=runtime", "--no-probe")
            node.wait_for_cri()
            with pytest.raises(
                CriError, match=r"reassert: refused default/behind/.*: a restored container has the env"
            ):
                node.cri.run_pod("", name="behind").run(image=ARCHIVE)
        events = node.path("/var/log/reassert/events.jsonl").read_text().splitlines()
        assert json.loads(events[-1])["event"] == "container.denied"
