"""Framing: whatever the cuts, the same messages come out; what is not NRI is noticed."""

from __future__ import annotations

import struct
import tracemalloc

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.nri import ttrpc
from hook.nri.ttrpc import FRAME_LIMIT, PLUGIN, RUNTIME, Violation, frames

pytestmark = marks.promise(
    "Recorded requests of containerd are read, split at any byte; no size, speed or malformed data "
    "disconnects the plugin or delays others",
    about="NRI",
)

CONFIGURE = bytes.fromhex("0a1b6e72692e706b672e6170692e7631616c706861312e506c7567696e1209436f6e666967757265")
"""Service and method of a Request as containerd 1.7 and 2.1 put them on the wire."""


def message(stream: int, payload: bytes, kind: int = ttrpc.REQUEST) -> bytes:
    return struct.pack(">IIBB", len(payload), stream, kind, 0) + payload


def fed(chunks: list[bytes]) -> list[tuple[int, ttrpc.Message]]:
    """What arrives when the socket gives these chunks."""
    streams = ttrpc.Streams()
    return [arrived for chunk in chunks for arrived in streams.feed(chunk)]


def test_a_cut_at_every_byte_changes_nothing() -> None:
    """Also where the rest looks like a whole request: a container's env can hold one."""
    request = frames(PLUGIN, message(1, CONFIGURE))
    payload = b"x" * 5000 + request
    wire = request + frames(RUNTIME, message(1, payload, ttrpc.RESPONSE))
    whole = fed([wire])
    assert [(stream, arrived.payload) for stream, arrived in whole] == [(PLUGIN, CONFIGURE), (RUNTIME, payload)]
    for at in range(len(wire) + 1):
        assert fed([wire[:at], wire[at:]]) == whole
    assert fed([bytes([byte]) for byte in wire]) == whole


@given(st.binary(max_size=40000))
def test_our_frames_are_small_and_lose_nothing(data: bytes) -> None:
    wire, joined = frames(RUNTIME, data), b""
    while wire:
        stream, length = struct.unpack_from(">II", wire)
        assert (stream, 0 < length <= FRAME_LIMIT == 4096) == (RUNTIME, True)
        joined, wire = joined + wire[8 : 8 + length], wire[8 + length :]
    assert joined == data


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (struct.pack(">IIBB", ttrpc.SKIP_LIMIT + 1, 1, 1, 0), "a message of 16781303 bytes"),
        (struct.pack(">IIBB", 0, 1, 3, 0), "a message of type 3"),
        (struct.pack(">IIBB", 0, 1, 0, 0), "a message of type 0"),
    ],
)
def test_a_bad_header_is_noticed(header: bytes, why: str) -> None:
    with pytest.raises(Violation, match=why):
        ttrpc.Assembler().feed(header)


def test_of_a_message_beyond_ttrpcs_limit_the_head_is_read() -> None:
    """containerd 1.7 sends such ones. What comes after it is whole again, wherever the cuts are."""
    long, short = CONFIGURE + b"\x1a" + b"\xff" * ttrpc.MESSAGE_LIMIT, CONFIGURE
    body = message(1, long) + message(3, short)
    for size in (1 << 30, 1 << 16, 4096 + 7):
        wire = b"".join(
            struct.pack(">II", PLUGIN, len(part)) + part
            for part in (body[at : at + size] for at in range(0, len(body), size))
        )
        for cut in (8, 18, 1050, len(long), len(wire) - len(short) - 10, len(wire)):
            (_, first), (_, second) = fed([wire[:cut], wire[cut:]])
            assert (first.stream, first.skipped, len(first.payload)) == (1, len(long), 1024)
            assert ttrpc.read_request(first).method == "Configure"
            assert (second.stream, second.skipped, second.payload) == (3, 0, short)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, ttrpc.ANSWER_LIMIT])
def test_answer_is_encoded_as_protobuf_does(size: int) -> None:
    response = ttrpc.get("Response")(payload=b"x" * size)
    assert ttrpc.answer(7, b"x" * size) == message(7, response.SerializeToString(), ttrpc.RESPONSE)


def test_nothing_is_kept_of_what_is_skipped() -> None:
    streams = ttrpc.Streams()
    header = struct.pack(">IIBB", ttrpc.SKIP_LIMIT, 1, ttrpc.REQUEST, 0)
    streams.feed(struct.pack(">II", PLUGIN, ttrpc.INCOMING_LIMIT))
    tracemalloc.start()
    for piece in (header, *[bytes(1 << 16)] * 100):
        assert streams.feed(piece) == []
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 1 << 18


@pytest.mark.parametrize("payload", [b"\x12" * 1024, b"\x0a\xff" * 512, b"\x0a\x01a\x1a" * 256])
def test_a_message_that_is_skipped_has_to_begin_as_a_request_does(payload: bytes) -> None:
    with pytest.raises(Violation, match="is not a request"):
        ttrpc.read_request(ttrpc.Message(1, ttrpc.REQUEST, payload, ttrpc.SKIP_LIMIT))


@pytest.mark.parametrize("stream", [0, 2])
def test_a_request_has_an_odd_stream(stream: int) -> None:
    with pytest.raises(Violation):
        ttrpc.read_request(ttrpc.Message(stream, ttrpc.REQUEST, b""))


def test_an_answer_that_a_runtime_would_choke_on_is_not_made() -> None:
    adjust = {"env": [{"key": "A", "value": "x" * ttrpc.ANSWER_LIMIT}]}
    with pytest.raises(Violation, match="an answer of"):
        ttrpc.serialize(ttrpc.get("CreateContainerResponse")(adjust=adjust))
