"""What only the engine knows of a container: the pod's labels, its type; and what only kubelet knows, its claims.

config.json has none of them. CRI's PodSandboxStatus has the labels; ContainerStatus has kubelet's annotation with the
type, and containerd's has the CDI devices that kubelet asked for. Loaded only for policies that need one of them
(`Policy.asks`), or for a pod with claims, and an engine is asked only if the answer decides. The sockets are those of
the engines that `node install` has wired: no pod, image or config.json names one. An answer counts only for a pod of
the container's own namespace and UID.

kubelet's PodResources has the claims of each container, but no init containers, no requests and no pod UIDs. An answer
about claims or their devices only narrows what dra_manager_state has for the pod's UID (hook.core.container.claims).

Both are gRPC, which is HTTP/2 (RFC 9113). Here a connection has one request, and of the answer only the message counts:
an error has none. Builtins only, and `_socket`.
"""

import posix
import time

from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import Malformed, parse
from hook.core.base.system import read_file, trusted
from hook.core.container.allocation import fields, message
from hook.core.container.identity import APP_TYPES, CONTAINERD, CRIO
from hook.core.policy.model import excluded, select

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from hook.core.container.identity import Identity
    from hook.core.container.start import Start
    from hook.core.policy.model import Policy

    Answer = dict[str, str] | None
    Ask = Callable[[str, str, str, Identity], Answer]

DIRECTORY = "cri"
"""The directory of the store with a file for each wired engine; it holds the path of the engine's CRI socket."""

POD, CONTAINER = "PodSandboxStatus", "ContainerStatus"

DEVICES = "CDI_devices"
"""ContainerStatus with `verbose`, which asks containerd for the CDI devices that kubelet asked for."""

GET = "Get"
"""The method of PodResources, stable in Kubernetes 1.36. In place of a store it is given kubelet's root."""

POD_RESOURCES = "pod-resources/kubelet.sock"
"""kubelet's socket, below its root."""

_PATHS = {GET: "v1.PodResourcesLister/Get", DEVICES: "runtime.v1.RuntimeService/ContainerStatus"}

TYPE = "io.kubernetes.container.type"
"""kubelet's annotation of a container in CRI: init, container or ephemeral (pkg/kubelet/kuberuntime/labels.go)."""

NOT_THE_PODS = ("io.kubernetes.", "io.cri-containerd.")
"""Prefixes of labels that kubelet and containerd add to the pod's own."""

SECONDS = 2.0
"""The longest wait of a cold start for one answer. containerd's shim and CRI-O wait longer for a runtime."""

KUBELETS_SECONDS = 1.0
"""The same for kubelet, which answered within 0.15 s in 21 creates. The NRI plugin has 1.5 s for its own answer."""

_PAUSE = 0.05
"""Seconds until kubelet is asked again after its rate limit refused a call: of 100 at once it answered 11."""

_GRPC_STATUS = b"\x9a\xca\xc8\xb2\x12\x34\xda\x8f"
"""`grpc-status` as HPACK's Huffman code has it (RFC 7541, appendix B), which servers in Go write."""

_SANDBOX_ID = {CONTAINERD: "io.kubernetes.cri.sandbox-id", CRIO: "io.kubernetes.cri-o.SandboxID"}
"""The annotation of a container with the id of its sandbox, which the engine writes over one of the pod."""

_LIMIT = 4 << 20
"""The largest answer in bytes. The API server limits a pod to 1.5 MB."""

_FRAME = 16384
"""The largest frame in bytes that a server may send without being asked for more (RFC 9113, 4.2)."""

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
_END_STREAM, _END_HEADERS, _PADDED = 1, 4, 8


def learn(
    policy: "Policy", identity: "Identity", start: "Start", container_id: str, store: str, ask: "Ask | None"
) -> None:
    """Add to a container's identity what the policy needs and the engine knows. The rest stays unknown.

    `store`, `ask`: as in hook.core.decide.Case. The engine is not asked about a sandbox itself: it is created before
    its engine answers about it.
    """
    ask = ask or ask_in_time
    sandbox = start.annotations.get(_SANDBOX_ID.get(identity.engine, ""), "")
    if not sandbox or identity.types != APP_TYPES or excluded(policy, identity):
        return
    if "containerTypes" in _undecided(policy, identity) or not {*policy.excluded_types}.isdisjoint(APP_TYPES):
        kind = (ask(store, CONTAINER, container_id, identity) or {}).get(TYPE, "")
        identity.types = (kind,) if kind in APP_TYPES else APP_TYPES
    if "podSelector" in _undecided(policy, identity) and not excluded(policy, identity):
        labels = ask(store, POD, sandbox, identity)
        if labels is not None:
            identity.labels = {key: labels[key] for key in labels if not key.startswith(NOT_THE_PODS)}


def _undecided(policy: "Policy", identity: "Identity") -> "set[str]":
    """The unknown conditions of the rules that may match."""
    matches = [match.conditions for match in select(policy, identity)]
    open_ones = [conditions for conditions in matches if False not in [condition.met for condition in conditions]]
    return {condition.field for conditions in open_ones for condition in conditions if condition.met is None}


def ask_in_time(store: str, method: str, asked_id: str, identity: "Identity") -> "Answer":
    """As `asked`, but None without a timely answer."""
    try:
        return asked(store, method, asked_id, identity, KUBELETS_SECONDS if method == GET else SECONDS)
    except TimeoutError:
        return None


def asked(store: str, method: str, asked_id: str, identity: "Identity", seconds: float) -> "Answer":
    """The labels of a pod, or the annotations of a container, in CRI. None if no engine knows it.

    With DEVICES: the container's CDI devices as keys; none if the engine does not keep them. With GET: the
    claims of each container of a pod, as `NAMESPACE/NAME` with spaces between them.
    `store`: the directory of the compiled policy. Raises TimeoutError if an engine has not answered in this time.
    """
    deadline = time.monotonic() + seconds
    late = False
    directory = store if method == GET else f"{store}/{DIRECTORY}"
    try:
        names = [POD_RESOURCES] if method == GET else sorted(posix.listdir(directory))
    except OSError:
        return None
    for name in names:
        path = f"{directory}/{name}"
        try:
            trusted(path)
            if method == GET:
                found = _of_containers(call(path, method, _pod(identity), deadline), identity)
            else:
                socket = read_file(path, 4096).decode().rstrip("\n")
                verbose = b"\x10\1" if method == DEVICES else b""
                found = _answer(method, call(socket, method, _field(1, asked_id) + verbose, deadline), identity)
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
        if found is not None:
            return found
    if late:
        raise TimeoutError
    return None


def _answer(method: str, answer: bytes, identity: "Identity") -> "Answer":
    """The map in a status; None if it is about another pod. Numbers: CRI's api.proto. Raises Malformed, ValueError."""
    status = message(answer).get(1)
    if method == POD:
        metadata = message(message(status).get(2))
        of = [part.decode() for part in (metadata.get(3), metadata.get(2)) if isinstance(part, bytes)]
        found = pairs(status, 7)
    else:
        labels = pairs(status, 12)
        of = [labels.get("io.kubernetes.pod.namespace", ""), labels.get("io.kubernetes.pod.uid", "")]
        found = pairs(status, 13) if method == CONTAINER else _devices(pairs(answer, 2).get("info", "{}"))
    return found if of == [identity.namespace, identity.uid] else None


def _devices(info: str) -> "dict[str, str]":
    """The CDI devices in what containerd tells of a container beside its status. Raises Malformed."""
    told = parse(info)
    config = told.get("config") if isinstance(told, dict) else None
    devices = config.get("CDI_devices") if isinstance(config, dict) else None
    return {str(each.get("name")): "" for each in devices or () if isinstance(each, dict)}


def _of_containers(answer: bytes, identity: "Identity") -> "Answer":
    """The claims in a GetPodResourcesResponse; None if it is about another pod. Numbers: k8s.io/kubelet's api.proto."""
    pod = message(answer).get(1)
    if not isinstance(pod, bytes) or pod[: len(_pod(identity))] != _pod(identity):
        return None
    found = {}
    for container in [content for field, content in fields(pod) if field == 3 and isinstance(content, bytes)]:
        claims = [message(content) for field, content in fields(container) if field == 5]
        named = [[part.decode() for part in (c.get(3), c.get(2)) if isinstance(part, bytes)] for c in claims]
        name = message(container).get(1)
        found[name.decode() if isinstance(name, bytes) else ""] = " ".join(["/".join(pair) for pair in named])
    return found


def _pod(identity: "Identity") -> bytes:
    """Name and namespace of a pod, as the first fields of PodResources' request and of what it has on a pod."""
    return _field(1, str(identity.pod)) + _field(2, str(identity.namespace))


def pairs(status: object, number: int) -> "dict[str, str]":
    """A field map<string, string> of a message. Raises Malformed, ValueError."""
    found: dict[str, str] = {}
    for entry in [content for field, content in fields(status) if field == number] if isinstance(status, bytes) else ():
        pair = message(entry, strict=True)
        key, value = pair.get(1, b""), pair.get(2, b"")
        if isinstance(key, bytes) and isinstance(value, bytes):
            found[key.decode()] = value.decode()
    return found


class _Busy(Malformed):
    """The answer is RESOURCE_EXHAUSTED."""


def call(path: str, method: str, asked: bytes, deadline: float) -> bytes:
    """The message that answers a call; empty if the answer is an error. Raises OSError, Malformed, _Busy."""
    from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket

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


def _body(connection: "_socket.socket", deadline: float) -> bytes:
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
