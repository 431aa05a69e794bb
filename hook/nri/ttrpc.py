"""NRI's wire: frames of several byte streams over one socket, and in each stream the messages of ttrpc. No I/O here.

A frame is the stream's number and the payload's length (u32 each, big-endian), then the payload (containerd/nri,
pkg/net/multiplex). A frame may end anywhere in a message.

ttrpc is containerd's gRPC without HTTP/2. A message is its length, its stream id (u32 each, big-endian), its type and
flags (u8 each), then a protobuf message (containerd/ttrpc, PROTOCOL.md). Only unary calls are implemented: NRI uses no
others.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from hook.core.base.errors import ReassertError
from hook.core.base.text import message
from hook.resident.protobuf import load

_CLASSES = load(Path(__file__).with_name("nri.proto"))


def get(name: str) -> Any:
    """The class of the message with this name."""
    return _CLASSES[name]


REQUEST, RESPONSE = 1, 2
UNKNOWN, PERMISSION_DENIED, UNIMPLEMENTED = 2, 7, 12
"""gRPC status codes."""

MESSAGE_LIMIT = 4 * 1024 * 1024
"""Bytes of the largest message that is read whole (ttrpc, messageLengthMax)."""

INCOMING_LIMIT = 1 << 24
"""Bytes of the largest payload that a runtime sends (NRI before 0.7; maxPayloadSize of its mux)."""

SKIP_LIMIT = INCOMING_LIMIT + 4096 - 10
"""Bytes of the largest message of which the plugin reads only the head. containerd 1.7 sends more than ttrpc allows
for a container with much env and for many containers. Disconnecting there would let a pod author switch enforcement
off. Of a larger one it sends the first 4096 bytes with the header, and then nothing more on the connection."""

_HEAD = 1024
"""Bytes of the head: a request's service and method come first and fit into it."""

ANSWER_LIMIT = 512 * 1024
"""Bytes of the largest answer: a runtime queues 256 frames of a connection and closes it if there are more."""

_HEADER = struct.Struct(">IIBB")
_WHOLE = struct.Struct(">IIIIBB")
"""The header of a frame, and of a message at its start."""

_Request: Any = get("Request")
_Response: Any = get("Response")
_PAYLOAD: int = _Response.DESCRIPTOR.fields_by_name["payload"].number


PLUGIN, RUNTIME = 1, 2
"""Numbers of the streams: on PLUGIN the runtime calls the plugin, on RUNTIME the plugin calls the runtime."""

FRAME_LIMIT = 4096
"""Bytes of the largest payload that the plugin sends. A runtime closes the connection at a larger one."""

_FRAME = struct.Struct(">II")


class Violation(ReassertError):
    """The runtime sent bytes that are not valid NRI. The plugin closes the connection."""


def frames(stream: int, data: bytes) -> bytes:
    """Bytes of a stream as frames, ready to be sent."""
    if 0 < len(data) <= FRAME_LIMIT:  # the usual case
        return _FRAME.pack(stream, len(data)) + data
    parts = []
    for at in range(0, len(data), FRAME_LIMIT):
        payload = data[at : at + FRAME_LIMIT]
        parts += [_FRAME.pack(stream, len(payload)), payload]
    return b"".join(parts)


class Message(NamedTuple):
    """One message: `kind` is REQUEST or RESPONSE, `payload` the protobuf bytes of that type."""

    stream: int
    kind: int
    payload: bytes
    skipped: int = 0
    """0, or the size of a message beyond MESSAGE_LIMIT; `payload` holds only its head then."""


class Assembler:
    """Joins a stream's payloads, which may end anywhere in a message, into whole messages."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping: Message | None = None
        self._left = 0

    def is_cut(self) -> bool:
        """Whether the bytes so far end inside a message."""
        return bool(self._rest or self._skipping)

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete. Raises Violation."""
        rest = self._rest
        rest += data
        complete = []
        at = 0
        while True:
            if self._skipping:
                step = min(self._left, len(rest) - at)
                at += step
                self._left -= step
                if self._left:
                    break
                complete.append(self._skipping)
                self._skipping = None
            if len(rest) - at < _HEADER.size:
                break
            size, stream, kind, _ = _HEADER.unpack_from(rest, at)
            if size > SKIP_LIMIT:
                raise Violation(f"a message of {size} bytes; the limit is {SKIP_LIMIT}")
            if kind not in (REQUEST, RESPONSE):
                raise Violation(f"a message of type {kind}")
            wanted = size if size <= MESSAGE_LIMIT else _HEAD
            end = at + _HEADER.size + wanted
            if end > len(rest):
                break
            message = Message(stream, kind, bytes(rest[at + _HEADER.size : end]))
            at = end
            if wanted == size:
                complete.append(message)
            else:
                self._skipping, self._left = message._replace(skipped=size), size - wanted
        del rest[:at]
        return complete


class Streams:
    """The messages in the bytes that come from a socket, of the streams that the plugin knows.

    The bytes of other streams are ignored, as a runtime does.
    """

    def __init__(self) -> None:
        self._assemblers = {PLUGIN: Assembler(), RUNTIME: Assembler()}
        self._header = bytearray()
        self._stream = 0
        self._left = 0  # bytes of the frame that are still to come
        self._cut = False

    def feed(self, data: bytes) -> list[tuple[int, Message]]:
        """The messages that these bytes complete, each with its stream. Raises Violation."""
        if not self._cut and len(data) >= _WHOLE.size:  # the usual case: one message in one frame
            stream, length, size, number, kind, _ = _WHOLE.unpack_from(data)
            fits = length - _HEADER.size == size == len(data) - _WHOLE.size and size <= MESSAGE_LIMIT
            if fits and stream == PLUGIN and kind == REQUEST:
                return [(stream, Message(number, kind, data[_WHOLE.size :]))]
        complete = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                if self._stream in self._assemblers:
                    messages = self._assemblers[self._stream].feed(piece)
                    complete += [(self._stream, message) for message in messages]
            else:
                piece = data[at : at + _FRAME.size - len(self._header)]
                self._header += piece
                if len(self._header) == _FRAME.size:
                    self._stream, self._left = _FRAME.unpack(self._header)
                    self._header.clear()
                    if self._left > INCOMING_LIMIT:
                        raise Violation(f"a frame of {self._left} bytes; the limit is {INCOMING_LIMIT}")
            at += len(piece)
        self._cut = bool(self._left or self._header) or any(each.is_cut() for each in self._assemblers.values())
        return complete


def parse(kind: Any, data: bytes) -> Any:
    """A protobuf message of the class `kind`. Raises Violation if the bytes do not decode."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Violation(f"{len(data)} bytes do not decode as {kind.DESCRIPTOR.name}") from None


def read_request(message: Message) -> Any:
    """Returns the Request in a message; for a skipped message, only its service and method. Raises Violation."""
    if message.kind != REQUEST or message.stream % 2 == 0:
        raise Violation(f"a message of type {message.kind} on stream {message.stream}; expected a request")
    return parse(_Request, _head(message.payload) if message.skipped else message.payload)


def _head(payload: bytes) -> bytes:
    """The encoded service and method of a Request, each shorter than 128 bytes. Raises Violation."""
    at = 0
    for tag in (0x0A, 0x12):
        if payload[at] != tag or payload[at + 1] > 127:
            raise Violation(f"a message above {MESSAGE_LIMIT} bytes is not a request")
        at += 2 + payload[at + 1]
    return payload[:at]


def read_response(message: Message) -> Any:
    """The Response in a message. Raises Violation."""
    if message.kind != RESPONSE:
        raise Violation(f"a message of type {message.kind}; expected a response")
    return parse(_Response, message.payload)


def _encode(stream: int, kind: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), stream, kind, 0) + payload


def call(stream: int, service: str, method: str, argument: Any) -> bytes:
    """An encoded request."""
    request = _Request(service=service, method=method, payload=argument.SerializeToString())
    return _encode(stream, REQUEST, request.SerializeToString())


def serialize(result: Any) -> bytes:
    """Returns the bytes of a result, for `answer`. Raises Violation above ANSWER_LIMIT."""
    return bounded(result.SerializeToString())


def bounded(payload: bytes) -> bytes:
    """The bytes of a result, if a runtime accepts so many. Raises Violation above ANSWER_LIMIT."""
    if len(payload) > ANSWER_LIMIT:
        raise Violation(f"an answer of {len(payload)} bytes; the limit is {ANSWER_LIMIT}")
    return payload


def field(number: int, data: bytes) -> bytes:
    """A field of a protobuf message that holds bytes or an encoded message: its tag, its length, the data."""
    tag, size = number << 3 | 2, len(data)
    if size < 1 << 14:
        return bytes((tag, size) if size < 1 << 7 else (tag, size & 127 | 128, size >> 7)) + data
    head = bytearray((tag,))
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes((*head, size)) + data


def answer(stream: int, payload: bytes) -> bytes:
    """The encoded response to a request, with the serialized result."""
    return _encode(stream, RESPONSE, field(_PAYLOAD, payload) if payload else b"")


def refusal(stream: int, code: int, text: str) -> bytes:
    """The encoded response to a request that failed. Users of the runtime may read the text in a terminal."""
    status = get("Status")(code=code, message=message(text))
    return _encode(stream, RESPONSE, _Response(status=status).SerializeToString())


def rejection(stream: int, text: str) -> bytes:
    """The encoded response that rejects an adjustment. Users of the runtime may read the text in a terminal."""
    return answer(stream, serialize(get("ValidateContainerAdjustmentResponse")(reject=True, reason=message(text))))
