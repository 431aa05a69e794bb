"""containerd's shims: which OCI runtime the running containers of a node still call."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def users(path: str, state: str) -> int:
    """How many containers have a shim that was told to call this runtime. `state`: containerd's state directory.

    A shim is told once, when its container is created; it keeps that in the bundle (containerd's runtime/v2/runc).
    """
    found = set()
    for name, needle in (("options.json", f'"{path}"'), ("runtime", path)):
        for file in glob.glob(f"{state}/io.containerd.runtime.v2.task/*/*/{name}"):
            try:
                text = Path(file).read_text(errors="replace").strip()
            except OSError:  # it ended meanwhile
                continue
            if text == needle or (needle in text and name == "options.json"):
                found.add(os.path.dirname(file))
    return len(found)
