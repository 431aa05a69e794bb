"""What only the engine knows of a container: the pod's labels, and whether it is an init container.

config.json has neither. CRI's PodSandboxStatus has the labels; ContainerStatus has kubelet's annotation with the type.
Loaded only for policies that need one of them (`Policy.asks`), and an engine is asked only if the answer decides. The
sockets are those of the engines that `node install` has wired: no pod, image or config.json names one. An answer counts
only for a pod of the container's own namespace and UID.

CRI is gRPC, which is HTTP/2 (RFC 9113). Here a connection has one request, and of the answer only the message counts:
an error has none. Builtins only, and `_socket`.
"""

import posix
import time

from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import Malformed
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

TYPE = "io.kubernetes.container.type"
"""kubelet's annotation of a container in CRI: init, container or ephemeral (pkg/kubelet/kuberuntime/labels.go)."""

NOT_THE_PODS = ("io.kubernetes.", "io.cri-containerd.")
"""Prefixes of labels that kubelet and containerd add to the pod's own."""

SECONDS = 2.0
"""The longest wait of a cold start for one answer. containerd's shim and CRI-O wait longer for a runtime."""

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
        return asked(store, method, asked_id, identity, SECONDS)
    except TimeoutError:
        return None


def asked(store: str, method: str, asked_id: str, identity: "Identity", seconds: float) -> "Answer":
    """The labels of a pod, or the annotations of a container, in CRI. None if no engine knows it.

    `store`: the directory of the compiled policy. Raises TimeoutError if an engine has not answered in this time.
    """
    deadline = time.monotonic() + seconds
    late = False
    directory = f"{store}/{DIRECTORY}"
    try:
        names = sorted(posix.listdir(directory))
    except OSError:
        return None
    for name in names:
        path = f"{directory}/{name}"
        try:
            trusted(path)
            of_id = b"\n" + _string(asked_id)  # field 1, the id
            answer = call(read_file(path, 4096).decode().rstrip("\n"), method, of_id, deadline)
            found = _answer(method, answer, identity)
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
        found = pairs(status, 13)
    return found if of == [identity.namespace, identity.uid] else None


def pairs(status: object, number: int) -> "dict[str, str]":
    """A field map<string, string> of a message. Raises Malformed, ValueError."""
    found: dict[str, str] = {}
    for entry in [content for field, content in fields(status) if field == number] if isinstance(status, bytes) else ():
        pair = message(entry, strict=True)
        key, value = pair.get(1, b""), pair.get(2, b"")
        if isinstance(key, bytes) and isinstance(value, bytes):
            found[key.decode()] = value.decode()
    return found


def call(path: str, method: str, request: bytes, deadline: float) -> bytes:
    """The message that answers a call of the RuntimeService; empty if the engine answers with an error.

    `request`: the message of the call. `deadline`: of the monotonic clock. Raises OSError, Malformed.
    """
    from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket

    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/runtime.v1.RuntimeService/{method}"),
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
            + _frame(_DATA, _END_STREAM, 1, b"\0" + len(request).to_bytes(4, "big") + request)
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
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return body


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def _string(text: str) -> bytes:
    """A string in HPACK and in protobuf. Raises ValueError from 127 bytes on, whose length takes more than one byte."""
    data = text.encode()
    if len(data) > 126:
        raise ValueError
    return bytes((len(data),)) + data
