"""Write kubelet's records of devices for a test: the device checkpoint, with the real protobuf runtime, and claims."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hook.core.container.allocation import checkpoint_below

_STRING, _BOOL, _MESSAGE = 9, 8, 11
_MESSAGES: dict[str, list[tuple[str, int, Any]]] = {
    "Mount": [("container_path", 1, _STRING), ("host_path", 2, _STRING), ("read_only", 3, _BOOL)],
    "DeviceSpec": [("container_path", 1, _STRING), ("host_path", 2, _STRING), ("permissions", 3, _STRING)],
    "CDIDevice": [("name", 1, _STRING)],
    "ContainerAllocateResponse": [
        ("envs", 1, "map"),
        ("mounts", 2, "Mount"),
        ("devices", 3, "DeviceSpec"),
        ("annotations", 4, "map"),
        ("cdi_devices", 5, "CDIDevice"),
    ],
}
"""Kubernetes' device plugin API, v1beta1 (k8s.io/kubelet, deviceplugin/v1beta1/api.proto): name, number, type."""


def _answer_class() -> Any:
    """The message class of a ContainerAllocateResponse."""
    file = descriptor_pb2.FileDescriptorProto(name="deviceplugin.proto", package="v1beta1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=1)
            if isinstance(kind, int):
                added.type = kind
                continue
            added.label, added.type = 3, _MESSAGE
            entry = "".join(word.title() for word in field.split("_")) + "Entry"
            added.type_name = f".v1beta1.{name}.{entry}" if kind == "map" else f".v1beta1.{kind}"
            if kind == "map":
                pair = message.nested_type.add(name=entry)
                pair.options.map_entry = True
                pair.field.add(name="key", number=1, label=1, type=_STRING)
                pair.field.add(name="value", number=2, label=1, type=_STRING)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1beta1.ContainerAllocateResponse"))


Answer = _answer_class()
"""ContainerAllocateResponse: what a device plugin answers for one container."""


def entry(uid: str, container: str, *ids: str, resource: str = "example.com/gpu", **answer: Any) -> dict[str, Any]:
    """An entry of the checkpoint. `answer`: fields of the plugin's answer, messages in them as dicts."""
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": {"-1": list(ids)},
        "AllocResp": base64.b64encode(Answer(**answer).SerializeToString()).decode(),
    }


def checkpoint(*entries: dict[str, Any]) -> bytes:
    """The file's bytes, as Go's encoding/json writes them."""
    data = {"PodDeviceEntries": list(entries) or None, "RegisteredDevices": {"example.com/gpu": ["GPU-1"]}}
    return json.dumps({"Data": data, "Checksum": 4242424242}, separators=(",", ":"), ensure_ascii=False).encode()


def write_checkpoint(kubelet_root: Path, *entries: dict[str, Any]) -> Path:
    """Write it to kubelet's path, atomically and with mode 0600 as kubelet does."""
    path = Path(checkpoint_below(f"{kubelet_root}/device-plugins"))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".kubelet_internal_checkpoint123")
    temporary.touch(0o600)
    temporary.write_bytes(checkpoint(*entries))
    temporary.rename(path)
    return path


def state(entries: list[dict[str, Any]], **more: Any) -> bytes:
    """The bytes of dra_manager_state as kubelet writes it."""
    text = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": entries,
            **more,
        },
        separators=(",", ":"),
    )
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}).encode()


def claim(name: str, *uids: str, devices: dict[str, list[str]]) -> dict[str, Any]:
    """A claim in dra_manager_state. `devices`: CDI devices by driver."""
    return {
        "ClaimUID": "u",
        "ClaimName": name,
        "Namespace": "ns",
        "PodUIDs": {uid: {} for uid in uids},
        "DriverState": {
            driver: {"Devices": [{"DeviceName": n, "RequestNames": ["r"], "CDIDeviceIDs": [n]} for n in names]}
            for driver, names in devices.items()
        },
    }
