"""Whether resource claims (Dynamic Resource Allocation) reach the containers of this node."""

from __future__ import annotations

from pathlib import Path

_CLAIM = b"ClaimUID"
"""A field that each claim in kubelet's dra_manager_state has."""


def without_devices(lack: str, kubelet_root: str) -> tuple[list[str], list[str]]:
    """Returns problems and hints of an engine that gives no container CDI devices.

    `lack`: why it gives none, with the remedy; "" if it does. It is a problem if kubelet has claims on this node.
    """
    if not lack:
        return [], []
    path = Path(kubelet_root, "dra_manager_state")
    try:
        has_claims = _CLAIM in path.read_bytes()
    except OSError:
        return [], []  # kubelet knows no claims: it is older, or runs elsewhere
    said = f"resource claims (DRA) do nothing on this node, their containers start without the devices: {lack}"
    return ([said], []) if has_claims else ([], [said])
