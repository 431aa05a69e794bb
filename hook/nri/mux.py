"""NRI's connection multiplexer: several byte streams in frames over one socket. No I/O here.

A frame is the stream's number and the payload's length (u32 each, big-endian), then the payload (containerd/nri,
pkg/net/multiplex). A frame may end anywhere in a message; `hook.nri.ttrpc` reassembles the messages.
"""

from __future__ import annotations

import struct

from hook.core.base.errors import ReassertError

PLUGIN, RUNTIME = 1, 2
"""Numbers of the streams: on PLUGIN the runtime calls the plugin, on RUNTIME the plugin calls the runtime."""

FRAME_LIMIT = 4096
"""Bytes of the largest payload that the plugin sends. A runtime closes the connection at a larger one."""

INCOMING_LIMIT = 10 + 64 * 1024 * 1024
"""Bytes of the largest payload that the plugin accepts: the largest message (`ttrpc`) may come in one frame."""

_HEADER = struct.Struct(">II")


class Violation(ReassertError):
    """The runtime sent bytes that are not valid NRI. The plugin closes the connection."""


def frames(stream: int, data: bytes) -> bytes:
    """Bytes of a stream as frames, ready to be sent."""
    if 0 < len(data) <= FRAME_LIMIT:  # as almost always
        return _HEADER.pack(stream, len(data)) + data
    parts = []
    for at in range(0, len(data), FRAME_LIMIT):
        payload = data[at : at + FRAME_LIMIT]
        parts += [_HEADER.pack(stream, len(payload)), payload]
    return b"".join(parts)


class Demux:
    """Splits the bytes from the socket into payloads. A payload that arrives in pieces is returned in pieces."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._left = 0

    def is_cut(self) -> bool:
        """Whether the bytes so far end inside a frame."""
        return bool(self._left or self._header)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The payloads, or pieces of them, that these bytes hold, in order, each with its stream. Raises Violation."""
        pieces = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                pieces.append((self._stream, piece))
                self._left -= len(piece)
                at += len(piece)
                continue
            header = data[at : at + _HEADER.size - len(self._header)]
            self._header += header
            at += len(header)
            if len(self._header) == _HEADER.size:
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header.clear()
                if self._left > INCOMING_LIMIT:
                    raise Violation(f"a frame of {self._left} bytes; the limit is {INCOMING_LIMIT}")
        return pieces
