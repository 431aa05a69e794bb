"""A row as containerd would start it with the NRI plugin: asked about, adjusted, and looked at by the hook."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from unit.nri.support import create_request

from e2e.innocents import containers
from e2e.innocents.node import HOOK, InnocentNode
from e2e.innocents.rows import Row
from hook.nri import ttrpc


def use_base_spec(process: dict[str, Any]) -> None:
    """Take away what NRI cannot remove, and begin with the env that `install` writes into base_runtime_spec.

    containerd replaces the names there by those of the image and the pod, in place.
    """
    env = [entry for entry in process["env"] if not entry.startswith("PYTHONHTTPSVERIFY=")]
    reserved = "NVIDIA_VISIBLE_DEVICES=void"
    process["env"] = env if reserved.partition("=")[0] in "\0".join(env) else [reserved, *env]


def adjusted(node: InnocentNode, row: Row, namespace: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Why the plugin refuses the container, or "", and config.json as containerd writes it after the plugin's answer.

    The plugin is the frozen program. What containerd does with the answer (containerd, pkg/nri; runtime-tools,
    generate) stands here.
    """
    made = deepcopy(config)
    linux = {name: made["linux"][name] for name in ("devices", "resources") if name in made["linux"]}
    fields = ("path", "type", "major", "minor")
    linux["devices"] = [{name: one[name] for name in fields} for one in linux.get("devices", ())]
    request = create_request(
        made["process"]["env"],
        [{**mount, "options": mount.get("options", [])} for mount in made["mounts"]],
        linux=linux,
        id="innocent",
        name="main",
        annotations=made.get("annotations", {}),
        pod={"name": row.name, "namespace": namespace, "uid": containers.uid(row)},
    )
    peer = node.nri()
    response = peer.call("CreateContainer", request)
    peer.call("StateChange", ttrpc.get("Empty")())
    if response.status.code:
        return response.status.message, made
    adjust = ttrpc.get("CreateContainerResponse").FromString(response.payload).adjust
    _env(made["process"]["env"], [(one.key, one.value) for one in adjust.env])
    for mount in adjust.mounts:
        path = mount.destination.removeprefix("-")
        made["mounts"] = [one for one in made["mounts"] if one["destination"] != path]
        if path == mount.destination:
            added = {"destination": path, "type": mount.type, "source": mount.source, "options": [*mount.options]}
            made["mounts"].append(added)
    entry = {
        "path": HOOK,
        "args": [HOOK, "createRuntime"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 30,
    }
    made.setdefault("hooks", {}).setdefault("createRuntime", []).append(entry)
    return "", made


def _env(env: list[str], adjustments: list[tuple[str, str]]) -> None:
    for key, value in adjustments:
        name = key.removeprefix("-")
        env[:] = [entry for entry in env if entry.partition("=")[0] != name]
        if name == key:
            env.append(f"{name}={value}")
