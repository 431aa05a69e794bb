"""NRI's connection multiplexer: several byte streams in frames over one socket. No I/O here.

A frame is the stream's number and the payload's length (u32 each, big-endian), then the payload (containerd/nri,
pkg/net/multiplex). Frames cut the streams anywhere; what they carry is put together again by `hook.adapters.nri.ttrpc`.
"""

from __future__ import annotations

import struct

from hook.errors import ReassertError

PLUGIN, RUNTIME = 1, 2
"""Streams: on the first the runtime calls the plugin, on the second the plugin calls the runtime."""

FRAME_LIMIT = 4096
"""Bytes of a payload that we send: what a runtime reads at once. A larger one makes it close the connection."""

INCOMING_LIMIT = 10 + 4 * 1024 * 1024
"""Bytes of a payload that we take: the largest ttrpc message, which a runtime may send in a single frame."""

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
    """Takes what the socket gives, in pieces of any size, and gives back whole payloads."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The payloads that are complete by now, each with its stream. Raises Violation."""
        rest = self._rest
        rest += data
        found = []
        at = 0
        while len(rest) - at >= _HEADER.size:
            stream, size = _HEADER.unpack_from(rest, at)
            if size > INCOMING_LIMIT:
                raise Violation(f"a frame of {size} bytes; the limit is {INCOMING_LIMIT}")
            end = at + _HEADER.size + size
            if end > len(rest):
                break
            found.append((stream, bytes(rest[at + _HEADER.size : end])))
            at = end
        del rest[:at]
        return found
