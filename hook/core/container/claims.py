"""The CDI devices that a pod's resource claims gave it (Dynamic Resource Allocation). Loaded for `exclusive` only.

kubelet keeps the claims of its pods in dra_manager_state. It holds pod UIDs, but no container names: which of a pod's
containers a claim is for stands in the pod alone. kubelet writes the file before it creates the pod's sandbox.
"""

from hook.core.base.errors import Undecided
from hook.core.base.jsontext import Malformed, decode, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KIND, API = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class Unknown(Malformed):
    """The file is of another version."""


class Claim:
    """A resource claim of a pod. `cdi`: fully qualified CDI device names."""

    def __init__(self, namespace: str, name: str, cdi: "list[str]") -> None:
        self.namespace = namespace
        self.name = name
        self.cdi = cdi

    def __str__(self) -> str:
        return f"claim {self.name}"


def claims(data: bytes, uid: str, path: str, asked: "list[str] | None" = None) -> "list[Claim]":
    """The claims of one pod; with `asked`, those of them and their devices that kubelet asked for by CDI name.

    Raises Undecided for a file of another version, or with a wrong checksum.
    """
    from zlib import crc32  # a file to load, which only a start with such a file pays for

    try:
        outer = parse(decode(data))
        text = outer.get("Data") if isinstance(outer, dict) else None
        if not isinstance(text, str):
            raise Malformed("it has no Data")
        if crc32(text.encode()) != outer.get("Checksum"):
            raise Malformed("its checksum is wrong")
        state = parse(text)
        kind, version = (state.get("kind"), state.get("apiVersion")) if isinstance(state, dict) else (None, None)
        if (kind, version) != (KIND, API):
            raise Unknown(f"{kind} {version} is not the known version, {KIND} {API}")
        found = [_claim(entry) for entry in state.get("ClaimInfoStateList") or [] if uid in _object(entry, "PodUIDs")]
    except (Malformed, UnicodeEncodeError) as error:
        remedy = "drain the node, remove the file and restart kubelet"
        if isinstance(error, Unknown):
            remedy = "use a version of reassert that knows it"
        raise Undecided(f"kubelet's record of resource claims, {path}: {error}; {remedy}") from None
    if asked is None:
        return found
    for claim in found:
        claim.cdi = [name for name in claim.cdi if name in asked]
    return [claim for claim in found if claim.cdi]


def _claim(entry: "dict[str, Any]") -> Claim:
    names = []
    for driver in _object(entry, "DriverState").values():
        for device in driver.get("Devices") or [] if isinstance(driver, dict) else ():
            names += [str(name) for name in _member(device, "CDIDeviceIDs", list)]
    return Claim(str(entry.get("Namespace")), str(entry.get("ClaimName")), names)


def _object(entry: object, member: str) -> "dict[str, Any]":
    found: dict[str, Any] = _member(entry, member, dict)
    return found


def _member(entry: object, member: str, kind: "type[Any]") -> "Any":
    value = entry.get(member) if isinstance(entry, dict) else ""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise Malformed(f"{member} is not what kubelet writes")
    return value
