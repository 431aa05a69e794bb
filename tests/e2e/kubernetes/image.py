"""The chart's image, put together as its Dockerfile says, since no image builder is at hand."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from harness.paths import REASSERT, TOP

from e2e.cri.images import layout

NAME = "reassert.test/reassert:1"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""As in Debian's images."""

_NOT_IN_A_SLIM_IMAGE = ("dev", "proc", "sys", "run", "tmp", "usr/share", "var")
_NOT_OF_THE_SCRIPTS = ("/systemd/", "/gconv/", "/perl", "/apt/")
_ENGINES = ("containerd", "ctr", "crun", "runc", "busybox")


def write_image(directory: Path, debian: Path, packages: Mapping[Path, str] | None = None) -> Path:
    """The image in a tar, for `ctr image import`.

    `debian`: root file system of the release that BASE names. `packages`: files of the packages that the Dockerfile
    installs, with their paths in the image.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(debian, ".", filter=_slim)
        for empty in ("dev", "proc", "sys", "run", "tmp"):
            tar.addfile(_directory(empty))
        for source, target in [*copies(), *(packages or {}).items()]:
            tar.add(Path(source).resolve() if target.startswith("usr/") else source, target, filter=_roots)
    path = directory / "image-reassert.tar"
    path.write_bytes(layout(NAME, [PATH], buffer.getvalue()))
    return path


def copies() -> list[tuple[Path, str]]:
    """What the Dockerfile copies into its last stage: (file or directory here, path in the image without the slash)."""
    found: list[tuple[Path, str]] = []
    for line in (TOP / "packaging/kubernetes/image/Dockerfile").read_text().splitlines():
        words = [word for word in line.split() if not word.startswith("--")]
        if line.startswith("COPY --from=build"):
            assert words[1] == "/src/dist/reassert"
            found.append((REASSERT.parent, words[2].strip("/")))
        elif line.startswith("COPY packaging"):
            found += [(TOP / source, words[-1].strip("/") + "/" + Path(source).name) for source in words[1:-1]]
    assert len(found) > 1
    return found


def _slim(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    path = entry.name.removeprefix("./")
    name = path.removeprefix("usr/bin/").removeprefix("usr/sbin/")
    left_out = path.startswith(_NOT_IN_A_SLIM_IMAGE) or name.startswith(_ENGINES)
    return None if left_out or any(part in path for part in _NOT_OF_THE_SCRIPTS) else entry


def _roots(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _directory(path: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry
