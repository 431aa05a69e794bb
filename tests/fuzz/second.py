"""The second reading of JSON: Go's encoding/json where Go is installed, else Python's json with Go's rules.

Both return values by Go's field names, with Go's zero values for what is missing, and None for what Go refuses.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_STRINGS: list[Any] = [str]
_PROCESS = {
    "Env": _STRINGS,
    "Args": _STRINGS,
    "Cwd": str,
    "Terminal": bool,
    "Capabilities": (dict.fromkeys(("Bounding", "Effective", "Inheritable", "Permitted", "Ambient"), _STRINGS),),
}
_RULE = {"Allow": bool, "Type": str, "Access": str, "Major": (int,), "Minor": (int,)}
_ENTRY = {
    "PodUID": str,
    "ContainerName": str,
    "ResourceName": str,
    "DeviceIDs": ("map", _STRINGS),
    "AllocResp": bytes,
}
_DRIVER = {"Devices": [{"RequestNames": _STRINGS, "CDIDeviceIDs": _STRINGS}]}
SHAPES: dict[str, Any] = {
    "process": _PROCESS,
    "config": {
        "Process": (_PROCESS,),
        "Mounts": [{"Destination": str, "Type": str, "Source": str, "Options": _STRINGS}],
        "Annotations": ("map", str),
        "Linux": (
            {
                "Devices": [{"Path": str, "Type": str, "Major": int, "Minor": int}],
                "Resources": ({"Devices": [_RULE]},),
                "Namespaces": [{"Type": str, "Path": str}],
            },
        ),
        "Root": ({"Path": str},),
        "Hooks": (("map", [{"Path": str, "Args": _STRINGS, "Env": _STRINGS}]),),
    },
    "checkpoint": {"Data": {"PodDeviceEntries": [_ENTRY]}},
    "claims": {
        "Kind": str,
        "apiVersion": str,
        "ClaimInfoStateList": [
            {"Namespace": str, "ClaimName": str, "PodUIDs": ("map", {}), "DriverState": ("map", _DRIVER)}
        ],
    },
}
"""Go's structs of oracle/main.go: a list, ("map", value), (pointer,), a struct or a scalar."""


class _Refused(ValueError):
    pass


class _Pairs(list[tuple[str, Any]]):
    """An object with all its members, in their order."""


def _refuse(name: str) -> None:
    raise _Refused(name)


@cache
def _go() -> subprocess.Popen[bytes] | None:
    if not shutil.which("go") or os.environ.get("REASSERT_FUZZ_GO") == "no":
        return None
    program = ROOT / "build/fuzz/oracle"
    source = Path(__file__).with_name("oracle") / "main.go"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(program.parent / "go-cache")}
        built = f"{program}.{os.getpid()}"  # workers of pytest build it at the same time
        subprocess.run(["go", "build", "-o", built, str(source)], check=True, env=environment)
        os.replace(built, program)
    return subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def read(kind: str, data: bytes) -> Any:
    """The value, or None for what Go refuses."""
    go = _go()
    if go is None:
        return python(kind, data)
    assert go.stdin
    assert go.stdout
    go.stdin.write(f"{kind} {len(data)}\n".encode() + data)
    go.stdin.flush()
    line = go.stdout.readline()
    assert line, "the oracle ended"
    return json.loads(line) if line.strip() else None


def python(kind: str, data: bytes) -> Any:
    """The same without Go. It also refuses what is not UTF-8, and nesting that Python cannot read."""
    try:
        text = data.decode().lstrip(" \t\r\n")
        value, _ = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_refuse).raw_decode(text)
        return _shaped(value, SHAPES[kind])
    except (ValueError, RecursionError):
        return None


def _shaped(value: Any, shape: Any) -> Any:
    """A value of a struct's field as Go stores it. Raises _Refused."""
    if isinstance(shape, tuple) and shape[0] != "map":
        return None if value is None else _shaped(value, shape[0])
    if isinstance(shape, dict):
        return _struct(value, shape)
    if value is None:
        return None if shape is bytes or isinstance(shape, (list, tuple)) else shape()
    if isinstance(shape, tuple):
        if not isinstance(value, _Pairs):
            raise _Refused("a map")
        return {_plain(name): _shaped(entry, shape[1]) for name, entry in value}
    if isinstance(shape, list):
        if not isinstance(value, list) or isinstance(value, _Pairs):
            raise _Refused("a list")
        return [_shaped(entry, shape[0]) for entry in value]
    if type(value) is not (str if shape is bytes else shape):
        raise _Refused("a scalar")
    if shape is int and not -(2**63) <= value < 2**63:
        raise _Refused("int64")
    if shape is bytes:
        try:
            base64.b64decode(value.replace("\r", "").replace("\n", ""), validate=True)
        except binascii.Error:
            raise _Refused("base64") from None
    return _plain(value) if isinstance(value, str) else value


def _struct(value: Any, shape: dict[str, Any]) -> Any:
    if value is not None and not isinstance(value, _Pairs):
        raise _Refused("a struct")
    result = {name: _shaped(None, field) for name, field in shape.items()}
    for name, entry in value or ():
        field = name if name in shape else next((known for known in shape if _fold(known) == _fold(name)), None)
        if field and entry is not None:
            result[field] = _shaped(entry, shape[field])
        elif field and isinstance(shape[field], (list, tuple)):
            result[field] = None
    return result


def _fold(name: str) -> str:
    return name.replace("\u017f", "s").replace("\u212a", "k").lower()


def _plain(text: str) -> str:
    """With U+FFFD for each half of a surrogate pair, as Go has it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if not text.isascii() else text


def in_c(data: bytes) -> Any:
    """The JSON as libocispec and yajl read it: exact names, the first of two members with one name."""

    def first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(pairs))

    return json.JSONDecoder(object_pairs_hook=first).raw_decode(data.decode().lstrip())[0]
