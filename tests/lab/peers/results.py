"""What products hold of tests/hostile-pod, as tests/lab/peers/run.sh found it: the files of results/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

COLUMNS = {
    "runc": "runc",
    "runc-forky": "runc",
    "crun": "crun",
    "crun-forky": "crun",
    "runsc": "runsc",
    "youki": "youki",
    "containerd-1.6": "containerd",
    "containerd-1.7": "containerd",
    "containerd-2.1": "containerd",
    "crio": "CRI-O",
    "docker": "docker",
    "podman": "podman",
    "nvidia": "NVIDIA's runtime",
    "oci-interceptor": "oci-interceptor",
    "nri-samples": "NRI's samples",
    "reassert-wrapper-runc": "reassert, wrapper",
    "reassert-wrapper-crun": "reassert, wrapper",
    "reassert-hook": "reassert, hook",
    "reassert-containerd": "reassert, wrapper",
    "reassert-docker": "reassert, wrapper",
    "reassert-crio": "reassert, wrapper",
    "reassert-nri": "reassert, NRI",
}
"""In their order: file, and what the product is called where there is no file."""


def results() -> dict[str, dict[str, Any]]:
    """Each result that there is, by the name of its column."""
    paths = {name: RESULTS / f"{name}.json" for name in COLUMNS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
