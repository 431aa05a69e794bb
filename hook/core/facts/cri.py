"""What only the engine knows of a container, the pod's labels; and what only kubelet knows, its type and its claims.

config.json has none of them. CRI's PodSandboxStatus has the labels, and containerd's ContainerStatus the CDI devices
that kubelet asked for. A question is asked only if the answer decides. The sockets are kubelet's, and those of the
engines that `install` has wired: no pod, image or config.json names one. An engine's answer counts only for a pod
of the container's own namespace and UID.

kubelet writes no type of a container anywhere. Its PodResources lists the containers of each active pod that stay:
those of `containers` and sidecars, with their claims; no other init containers and no ephemeral ones. It has no
requests and no pod UIDs: of the pods of one name, kubelet lists the one whose containers it creates. An answer about
claims or their devices only narrows what dra_manager_state has for the pod's UID (hook.core.container.claims).

Both are gRPC, which is HTTP/2 (RFC 9113). Here a connection has one request, and of the answer only the message counts:
an error has none.
"""

from __future__ import annotations

import _socket
import posix
import time
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import Malformed, parse
from hook.core.base.system import read_file, trusted
from hook.core.container.allocation import fields, message
from hook.core.container.identity import APP_TYPES, CONTAINER, CONTAINERD, CRIO, NOT_LISTED, Identity
from hook.core.container.start import Start
from hook.core.facts import NodeAccess
from hook.core.policy.model import Match, Policy, excluded, select

Answer: TypeAlias = dict[str, str] | None

SOCKETS_DIRECTORY = "cri"
"""The directory of the store with a file for each wired engine; it holds the path of the engine's CRI socket."""

POD = "PodSandboxStatus"

DEVICES = "CDI_devices"
"""ContainerStatus with `verbose`, which asks containerd for the CDI devices that kubelet asked for."""

GET = "Get"
"""The method of PodResources, stable in Kubernetes 1.36. In place of a store it is given kubelet's root. Where kubelet
does not answer it, LIST is asked."""

LIST = "List"
"""The method of PodResources with all pods, in kubelet since 1.20."""

POD_RESOURCES = "pod-resources/kubelet.sock"
"""kubelet's socket, below its root."""

_PATHS = {
    GET: "v1.PodResourcesLister/Get",
    LIST: "v1.PodResourcesLister/List",
    DEVICES: "runtime.v1.RuntimeService/ContainerStatus",
}

NOT_THE_PODS = ("io.kubernetes.", "io.cri-containerd.")
"""Prefixes of labels that kubelet and containerd add to the pod's own."""

CRI_SECONDS = 2.0
"""The longest wait of a cold start for one answer. containerd's shim and CRI-O wait longer for a runtime."""

KUBELETS_SECONDS = 1.0
"""The same for kubelet, which answered within 0.15 s in 21 creates. The NRI plugin has 1.5 s for its own answer."""

_PAUSE = 0.05
"""Seconds until kubelet is asked again after its rate limit refused a call: of 100 at once it answered 11."""

_GRPC_STATUS = b"\x9a\xca\xc8\xb2\x12\x34\xda\x8f"
"""`grpc-status` as HPACK's Huffman code has it (RFC 7541, appendix B), which servers in Go write."""

SANDBOX_ID = {CONTAINERD: "io.kubernetes.cri.sandbox-id", CRIO: "io.kubernetes.cri-o.SandboxID"}
"""The annotation of a container with the id of its sandbox, which the engine writes over one of the pod."""

_LIMIT = 4 << 20
"""The largest answer in bytes. The API server limits a pod to 1.5 MB."""

_FRAME = 16384
"""The largest frame in bytes that a server may send without being asked for more (RFC 9113, 4.2)."""

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
_END_STREAM, _END_HEADERS, _PADDED = 1, 4, 8


def learn(
    node: NodeAccess,
    policy: Policy,
    identity: Identity,
    start: Start,
    *,
    container_id: str,
    is_probe: Callable[[], bool] = lambda: False,
) -> list[Match]:
    """Add to a container's identity what the policy needs, and the engine or kubelet knows. The rest stays unknown.

    Returns the policy's rules, evaluated with it.

    The engine is not asked about a sandbox itself: it is created before its engine answers about it. `is_probe`:
    whether the container is of `verify`, in a pod that kubelet does not know.
    """
    matches = select(policy, identity)
    if identity.types != APP_TYPES or excluded(policy, identity):
        return matches
    if _needs_type(policy, matches):
        probe = is_probe()
        listed = None if probe else of_kubelet(policy.kubelet_root, container_id, identity, node)
        if probe or (listed and identity.container in listed):
            identity.types = (CONTAINER,)
        elif listed:
            identity.types = NOT_LISTED
        matches = select(policy, identity)
    sandbox = start.annotations.get(SANDBOX_ID.get(identity.engine, ""), "") if node.sockets else ""
    if sandbox and "podSelector" in _undecided(matches) and not excluded(policy, identity):
        labels = node.ask(node.sockets, POD, sandbox, identity)
        if labels is not None:
            identity.labels = {key: labels[key] for key in labels if not key.startswith(NOT_THE_PODS)}
            matches = select(policy, identity)
    return matches


def _needs_type(policy: Policy, matches: Sequence[Match]) -> bool:
    """Whether it decides anything that kubelet lists the container, or does not."""
    excludes = CONTAINER in policy.excluded_types or {*NOT_LISTED} <= {*policy.excluded_types}
    return excludes or "containerTypes" in _undecided(matches)


def of_kubelet(root: str, container_id: str, identity: Identity, node: NodeAccess) -> Answer:
    """The listed containers of the container's pod, with their claims. kubelet is asked once for each decision."""
    if not (identity.kubernetes and identity.namespace and identity.pod and identity.container):
        return None
    if identity.of_kubelet is None:
        identity.of_kubelet = (node.ask(root, GET, container_id, identity),)
    return identity.of_kubelet[0]


def _undecided(matches: Sequence[Match]) -> set[str]:
    """The unknown conditions of the rules that may match."""
    open_ones = [match.met for match in matches if False not in match.met.values()]
    return {field for conditions in open_ones for field, met in conditions.items() if met is None}


def ask_in_time(store: str, method: str, asked_id: str, identity: Identity) -> Answer:
    """As `asked`, but None without a timely answer."""
    try:
        return asked(store, method, asked_id, identity, seconds=KUBELETS_SECONDS if method == GET else CRI_SECONDS)
    except TimeoutError:
        return None


def asked(store: str, method: str, asked_id: str, identity: Identity, *, seconds: float) -> Answer:
    """The labels of a pod in CRI. None if no engine knows it.

    With DEVICES: the container's CDI devices as keys; none if the engine does not keep them. With GET: the
    claims of each listed container of a pod, as `NAMESPACE/NAME` with spaces between them.
    `store`: the directory of the compiled policy. Raises TimeoutError if an engine has not answered in this time.
    """
    deadline = time.monotonic() + seconds
    late = False
    directory = store if method == GET else f"{store}/{SOCKETS_DIRECTORY}"
    try:
        names = [POD_RESOURCES] if method == GET else sorted(posix.listdir(directory))
    except OSError:
        return None
    for name in names:
        path = f"{directory}/{name}"
        try:
            trusted(path)
            if method == GET:
                contents = _of_pod(path, _pod(identity), deadline)
            else:
                socket = read_file(path, 4096).decode().rstrip("\n")
                verbose = b"\x10\1" if method == DEVICES else b""
                contents = _answer(method, call(socket, method, _field(1, asked_id) + verbose, deadline), identity)
        except _Busy:
            time.sleep(_PAUSE)
            late = time.monotonic() > deadline
            names += [] if late else [name]
            continue
        except TimeoutError:
            late = True
            continue
        except (ReassertError, OSError, Malformed, ValueError):
            continue
        if contents is not None:
            return contents
    if late:
        raise TimeoutError
    return None


def _answer(method: str, answer: bytes, identity: Identity) -> Answer:
    """The map in a status; None if it is about another pod. Numbers: CRI's api.proto. Raises Malformed, ValueError."""
    status = message(answer).get(1)
    if method == POD:
        metadata = message(message(status).get(2))
        of = [part.decode() for part in (metadata.get(3), metadata.get(2)) if isinstance(part, bytes)]
        annotations = pairs(status, 7)
    else:
        labels = pairs(status, 12)
        of = [labels.get("io.kubernetes.pod.namespace", ""), labels.get("io.kubernetes.pod.uid", "")]
        annotations = _devices(pairs(answer, 2).get("info", "{}"))
    return annotations if of == [identity.namespace, identity.uid] else None


def _devices(info: str) -> dict[str, str]:
    """The CDI devices in what containerd tells of a container beside its status. Raises Malformed."""
    told = parse(info)
    config = told.get("config") if isinstance(told, dict) else None
    devices = config.get("CDI_devices") if isinstance(config, dict) else None
    return {str(each.get("name")): "" for each in devices or () if isinstance(each, dict)}


def _of_pod(path: str, pod: bytes, deadline: float) -> Answer:
    """The claims of a pod's containers; None if kubelet does not list the pod. Raises OSError, Malformed, _Busy.

    Before Kubernetes 1.36 a feature gate opens Get. Of two pods of one name in a list, neither counts.
    """
    for method in (GET, LIST):
        answer = call(path, method, pod if method == GET else b"", deadline)
        pods = [content for field, content in fields(answer) if field == 1 and isinstance(content, bytes)]
        of_pod = [content for content in pods if content.startswith(pod)]
        if len(of_pod) == 1:
            return _claims_of(of_pod[0])
    return None


def _claims_of(pod: bytes) -> dict[str, str]:
    """The claims of each container in PodResources' message about a pod. Numbers: k8s.io/kubelet's api.proto."""
    names = {}
    for container in [content for field, content in fields(pod) if field == 3 and isinstance(content, bytes)]:
        claims = [message(content) for field, content in fields(container) if field == 5]
        named = [[part.decode() for part in (c.get(3), c.get(2)) if isinstance(part, bytes)] for c in claims]
        name = message(container).get(1)
        names[name.decode() if isinstance(name, bytes) else ""] = " ".join(["/".join(pair) for pair in named])
    return names


def _pod(identity: Identity) -> bytes:
    """Name and namespace of a pod, as the first fields of PodResources' request and of what it has on a pod."""
    return _field(1, str(identity.pod)) + _field(2, str(identity.namespace))


def pairs(status: object, number: int) -> dict[str, str]:
    """A field map<string, string> of a message. Raises Malformed, ValueError."""
    result: dict[str, str] = {}
    for entry in [content for field, content in fields(status) if field == number] if isinstance(status, bytes) else ():
        pair = message(entry, strict=True)
        key, value = pair.get(1, b""), pair.get(2, b"")
        if isinstance(key, bytes) and isinstance(value, bytes):
            result[key.decode()] = value.decode()
    return result


class _Busy(Malformed):
    """The answer is RESOURCE_EXHAUSTED."""


def call(path: str, method: str, asked: bytes, deadline: float) -> bytes:
    """The message that answers a call; empty if the answer is an error. Raises OSError, Malformed, _Busy."""
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{_PATHS.get(method, 'runtime.v1.RuntimeService/' + method)}"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    encoded = b"".join([b"\0" + _string(name) + _string(value) for name, value in headers])  # RFC 7541, 6.2.2
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    try:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        connection.connect(path)
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, b"\0\4" + _LIMIT.to_bytes(4, "big"))  # SETTINGS_INITIAL_WINDOW_SIZE
            + _frame(_WINDOW_UPDATE, 0, 0, _LIMIT.to_bytes(4, "big"))
            + _frame(_HEADERS, _END_HEADERS, 1, encoded)
            + _frame(_DATA, _END_STREAM, 1, b"\0" + len(asked).to_bytes(4, "big") + asked)
        )
        body = _body(connection, deadline)
    finally:
        connection.close()
    return body[5 : 5 + int.from_bytes(body[1:5], "big")] if body[:1] == b"\0" else b""  # else compressed, or an error


def _body(connection: _socket.socket, deadline: float) -> bytes:
    """The content of all DATA frames up to the end of the stream. Raises OSError, Malformed."""
    data, body = b"", b""
    while True:
        size = int.from_bytes(data[:3], "big")
        if len(data) < 9 or len(data) < 9 + size:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            more = connection.recv(65536)
            if not more or size > _FRAME or len(body) > _LIMIT:
                raise Malformed("no answer of CRI")
            data += more
            continue
        kind, flags, content, data = data[3], data[4], data[9 : 9 + size], data[9 + size :]
        if kind in (_RST_STREAM, _GOAWAY) or (kind == _DATA and flags & _PADDED):
            raise Malformed("no answer of CRI")
        if kind == _DATA:
            body += content
        elif kind == _HEADERS and _GRPC_STATUS + b"\x018" in content:
            raise _Busy
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return body


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def _field(number: int, text: str) -> bytes:
    """A string field of a protobuf message. Raises ValueError for more than a name of Kubernetes may have (253)."""
    data = text.encode()
    size = len(data)
    if size > 253:
        raise ValueError
    return bytes((number << 3 | 2, *([size] if size < 128 else [size & 127 | 128, size >> 7]))) + data


def _string(text: str) -> bytes:
    """A string in HPACK. Raises ValueError from 127 bytes on, whose length takes more than one byte."""
    data = text.encode()
    if len(data) > 126:
        raise ValueError
    return bytes((len(data),)) + data
