"""The repository, the frozen program, and programs of the machine."""

from __future__ import annotations

import os
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
REASSERT = Path(os.environ.get("REASSERT", TOP / "dist/reassert/reassert")).absolute()
ROOTS = TOP / "build/roots"
"""Root file systems of Debian, by suite (tests/roots.sh)."""
BUSYBOX = "/bin/busybox"
RUNTIMES = {"runc": "/usr/sbin/runc", "crun": "/usr/bin/crun"}
