#!/usr/bin/env python3
"""Publish the files of a release, which were built before: its image and its chart, and an index of all releases.

    packaging/release.sh --publish registry.example/platform --output build/release/VERSION

The image goes to REGISTRY/reassert:VERSION, with every architecture that the directory has. The chart goes to
REGISTRY/charts/reassert:VERSION as an OCI artifact, which `helm install oci://…` takes; its default image is that image
by digest. Beside the directory, index.json names the files of every release with their checksums: put both on a web
server. What is published stays: another content under a published version is an error.

Needs skopeo, which takes credentials from `skopeo login REGISTRY`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

INDEX = "index.json"
INDEX_VERSION = 1
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
_CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"  # https://helm.sh/docs/topics/registries/
_CHART_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_CHART_FIELD = r'^(apiVersion|name|description|type|version|appVersion|kubeVersion): "?(.+?)"?$'
_NO_REPOSITORY = '  repository: ""\n'
_NO_DIGEST = '  digest: ""'
_REGISTRY = r"[a-z0-9.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
_NO_IMAGE = r"  # There is no public image: .*\n"


class PublishError(Exception):
    """What is wrong, for the one who publishes."""


class Layout:
    """An OCI image layout in a directory, with one tag."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.blobs.mkdir(parents=True)
        (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    @property
    def blobs(self) -> Path:
        """Their directory; each file has the name of its digest."""
        return self.directory / "blobs/sha256"

    def add(self, content: bytes, media_type: str) -> dict[str, Any]:
        """Stores a blob. Returns its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def tag(self, descriptor: dict[str, Any], tag: str) -> str:
        """Names a manifest. Returns its digest."""
        named = {**descriptor, "annotations": {"org.opencontainers.image.ref.name": tag}}
        (self.directory / "index.json").write_bytes(_json({"schemaVersion": 2, "manifests": [named]}))
        return str(descriptor["digest"])


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def checked(release: Path) -> dict[str, str]:
    """The files that SHA256SUMS names, and their checksums. Raises PublishError if one is not what it was."""
    try:
        lines = (release / "SHA256SUMS").read_text().splitlines()
    except FileNotFoundError:
        raise PublishError(f"{release}/SHA256SUMS is missing: build the release first (packaging/release.sh)") from None
    sums = {name.lstrip(" *"): digest for digest, _, name in (line.partition(" ") for line in lines)}
    for name, digest in sums.items():
        try:
            with (release / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise PublishError(f"{release}/{name} is missing; SHA256SUMS names it") from None
        if found != digest:
            raise PublishError(f"{release}/{name} has another checksum than in SHA256SUMS: build the release again")
    return sums


def image(archives: list[Path], layout: Layout, tag: str) -> str:
    """One image of every architecture from the archives that packaging/release/image.sh makes. Returns its digest."""
    manifests = []
    for archive in archives:
        with tarfile.open(archive) as opened:
            files = {member.name: file.read() for member in opened if (file := opened.extractfile(member)) is not None}
        for name, content in files.items():
            if "/blobs/sha256/" in name:
                (layout.blobs / Path(name).name).write_bytes(content)
        (descriptor,) = json.loads(files["./index.json"])["manifests"]
        manifest = json.loads((layout.blobs / descriptor["digest"].removeprefix("sha256:")).read_bytes())
        config = json.loads((layout.blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
        platform = {"os": config["os"], "architecture": config["architecture"]}
        manifests.append({key: descriptor[key] for key in ("mediaType", "digest", "size")} | {"platform": platform})
    manifests.sort(key=lambda each: each["platform"]["architecture"])
    content = _json({"schemaVersion": 2, "mediaType": _IMAGE_INDEX, "manifests": manifests})
    return layout.tag(layout.add(content, _IMAGE_INDEX), tag)


def chart(archive: Path, layout: Layout, tag: str, repository: str, digest: str) -> str:
    """The chart in a release's archive, whose default image is `repository` at `digest`. Returns the chart's digest."""
    packed = io.BytesIO()
    metadata: dict[str, str] = {}
    with (
        tarfile.open(archive) as opened,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as made,
    ):
        for member in sorted(opened.getmembers(), key=lambda each: each.name):
            _, found, path = member.name.partition("/packaging/kubernetes/chart/")
            file = opened.extractfile(member)
            if not found or file is None:
                continue
            content = file.read()
            if path == "values.yaml":
                content = _with_image(content.decode(), repository, digest).encode()
            if path == "Chart.yaml":  # a registry shows these
                metadata = dict(re.findall(_CHART_FIELD, content.decode(), re.MULTILINE))
            member.name, member.size = f"reassert/{path}", len(content)
            made.addfile(member, io.BytesIO(content))
    config = layout.add(_json(metadata), _CHART_CONFIG)
    layer = layout.add(packed.getvalue(), _CHART_CONTENT)
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [layer]}
    return layout.tag(layout.add(_json(manifest), _MANIFEST), tag)


def _with_image(values: str, repository: str, digest: str) -> str:
    for old, new in (
        (_NO_IMAGE, ""),
        (_NO_REPOSITORY, f"  repository: {repository}\n"),
        (_NO_DIGEST, f"  digest: {digest}"),
    ):
        values, times = re.subn(old, new, values)
        if times != 1:
            raise PublishError(f"values.yaml of the chart has {times} lines like this one: {old.strip()}")
    return values


def _skopeo(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["skopeo", *arguments], capture_output=True, check=False)  # noqa: S603, S607


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode(errors="replace").strip()


def push(layout: Layout, tag: str, reference: str, digest: str, *, plain_http: bool) -> None:
    """Raises PublishError if the registry has another content under this name, or does not take it."""
    secure = "=false" if plain_http else "=true"
    shown = _skopeo("inspect", f"--tls-verify{secure}", "--raw", f"docker://{reference}")
    if shown.returncode == 0:
        there = f"sha256:{hashlib.sha256(shown.stdout).hexdigest()}"
        if there != digest:
            raise PublishError(f"{reference} is published already, with another content: {there}, not {digest}")
        print(f"{reference} is published already, the same: {digest}")
        return
    if not re.search(rb"manifest unknown|name unknown|not found", shown.stderr):
        raise PublishError(f"{reference} cannot be looked up: {_said(shown)}")
    options = "--quiet", "--all", "--preserve-digests", f"--dest-tls-verify{secure}"
    copied = _skopeo("copy", *options, f"oci:{layout.directory}:{tag}", f"docker://{reference}")
    if copied.returncode:
        raise PublishError(f"{reference} could not be pushed: {_said(copied)}")
    print(f"{reference}@{digest}")


def _architecture(name: str) -> str:
    for architecture, words in (("amd64", ("x86_64", "amd64")), ("arm64", ("aarch64", "arm64"))):
        if any(word in name for word in words):
            return architecture
    return "any"


def write_index(release: Path, entry: dict[str, Any]) -> Path:
    """Adds a release to the index beside its directory, the newest first; the entries of others stay."""
    path = release.parent / INDEX
    try:
        others = json.loads(path.read_bytes())["releases"]
    except FileNotFoundError:
        others = []
    except (ValueError, KeyError, TypeError) as error:
        raise PublishError(f"{path} is not an index of releases ({error}); it was left as it is") from None
    releases = [entry, *(other for other in others if other["version"] != entry["version"])]
    releases.sort(key=lambda each: [int(part) for part in re.findall(r"\d+", each["version"])], reverse=True)
    temporary = path.with_name(f".{INDEX}.{os.getpid()}")
    temporary.write_bytes(_json({"version": INDEX_VERSION, "releases": releases}))
    temporary.replace(path)
    return path


def publish(release: Path, registry: str, *, plain_http: bool) -> None:
    """All of it. Raises PublishError."""
    if not re.fullmatch(_REGISTRY, registry):
        raise PublishError(
            f"{registry!r} is no registry: write its host, and a path below it: registry.example/platform"
        )
    if shutil.which("skopeo") is None:
        raise PublishError("skopeo is missing; on Debian: apt-get install skopeo")
    sums = checked(release)
    archives = sorted(release.glob("reassert-*-linux-*.tar.gz"))
    images = sorted(release.glob("reassert-*-image-*.tar"))
    if not archives or not images:
        raise PublishError(f"{release} has no archive or no image of a release: build it first (packaging/release.sh)")
    version = archives[0].name.split("-")[1]
    with tempfile.TemporaryDirectory() as work:
        repository = f"{registry}/reassert"
        layout = Layout(Path(work) / "image")
        digest = image(images, layout, version)
        push(layout, version, f"{repository}:{version}", digest, plain_http=plain_http)
        charts = Layout(Path(work) / "chart")
        chart_repository = f"{registry}/charts/reassert"
        chart_digest = chart(archives[0], charts, version, repository, digest)
        push(charts, version, f"{chart_repository}:{version}", chart_digest, plain_http=plain_http)
    files = [
        {"name": name, "architecture": _architecture(name), "size": (release / name).stat().st_size, "sha256": digest}
        for name, digest in sorted(sums.items())
    ]
    entry = {
        "version": version,
        "directory": release.name,
        "signed": (release / "SHA256SUMS.sig").exists(),
        "image": f"{repository}:{version}@{digest}",
        "chart": f"oci://{chart_repository}:{version}@{chart_digest}",
        "files": files,
    }
    print(write_index(release, entry))
    if not entry["signed"]:
        print(
            f"{release} has no SHA256SUMS.sig: who made it cannot be checked (packaging/release.sh --key)",
            file=sys.stderr,
        )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("release", type=Path, help="directory with the files of packaging/release.sh")
    parser.add_argument("registry", help="host, and path below it: registry.example/platform")
    parser.add_argument(
        "--plain-http", action="store_true", help="the registry has no TLS: a rehearsal on this machine"
    )
    arguments = parser.parse_args()
    try:
        publish(arguments.release.resolve(), arguments.registry.removesuffix("/"), plain_http=arguments.plain_http)
    except (PublishError, OSError, tarfile.TarError) as error:
        print(f"packaging/release/publish.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
