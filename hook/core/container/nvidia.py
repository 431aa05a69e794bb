"""The device nodes of NVIDIA GPUs that a plugin's answer names by UUID alone. For `exclusive` only; builtins only.

NVIDIA's device plugin with `deviceListStrategy: envvar` answers with env and no device nodes, as HAMi's does too;
NVIDIA's hook then makes the nodes. Which node a GPU has is in the driver's own files.
"""

import posix

from hook.core.base.system import read_file

GPUS = "/proc/driver/nvidia/gpus"
"""A directory for each GPU; the file `information` has its UUID and the minor number of /dev/nvidia*."""

DEV = "/dev"

EVERY_GPUS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Nodes that NVIDIA's hook gives to each container with a GPU."""

_LIMIT = 64 * 1024


def nodes_of(names: "set[str]") -> "list[str]":
    """The paths of the nodes of the GPUs that have these UUIDs. A MIG device's is not in the driver's files."""
    found = []
    try:
        gpus = posix.listdir(GPUS)
    except OSError:  # no driver of NVIDIA
        return []
    for gpu in gpus:
        try:
            text = read_file(f"{GPUS}/{gpu}/information", _LIMIT).decode("ascii", "replace")
        except OSError:
            continue
        fields = {key: value.strip() for key, _, value in (line.partition(":") for line in text.split("\n"))}
        if fields.get("GPU UUID") in names and fields.get("Device Minor", "").isdigit():
            found.append(f"nvidia{fields['Device Minor']}")
    return [f"{DEV}/{name}" for name in (*found, *EVERY_GPUS)] if found else []
