"""NRI's connection multiplexer: several byte streams in frames over one socket. No I/O here.

A frame is the stream's number and the payload's length (u32 each, big-endian), then the payload (containerd/nri,
pkg/net/multiplex). Frames cut the streams anywhere; what they carry is put together again by `hook.adapters.nri.ttrpc`.
"""

from __future__ import annotations

import struct

from hook.base.errors import ReassertError

PLUGIN, RUNTIME = 1, 2
"""Streams: on the first the runtime calls the plugin, on the second the plugin calls the runtime."""

FRAME_LIMIT = 4096
"""Bytes of a payload that we send: what a runtime reads at once. A larger one makes it close the connection."""

INCOMING_LIMIT = 10 + 64 * 1024 * 1024
"""Bytes of a payload that we take: the largest message (`ttrpc`), which a runtime may send in a single frame."""

_HEADER = struct.Struct(">II")


class Violation(ReassertError):
    """What came over the connection is not NRI; there is nothing to do but to close it."""


def frames(stream: int, data: bytes) -> bytes:
    """Bytes of a stream as frames, ready to be sent."""
    parts = []
    for at in range(0, len(data), FRAME_LIMIT):
        payload = data[at : at + FRAME_LIMIT]
        parts += [_HEADER.pack(stream, len(payload)), payload]
    return b"".join(parts)


class Demux:
    """Takes what the socket gives, in pieces of any size, and gives back payloads, a large one in pieces as well."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """What there is of payloads, each with its stream, in order. Raises Violation."""
        found = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                found.append((self._stream, piece))
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
        return found
