"""Frames of front, and those that no front sends."""

from __future__ import annotations

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.entry.protocol import Malformed, Request
from unit.support import examples

pytestmark = marks.promise("front reads no byte beyond a frame or a file's header")

GOOD = b"reassert-front/1\x000.1.0\x00runtime\0/r\0/p\0/s\0/e\0\0/run/user\0create\0\xff\0"


def test_a_request() -> None:
    request = Request(GOOD)
    assert (request.kind, request.real, request.policy, request.hook) == ("runtime", "/r", "/p", "")
    assert request.runtime_directory == b"/run/user"
    assert request.arguments == ["create", "\udcff"]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0" * 20,
        GOOD[:-1],
        GOOD[:40],
        GOOD.replace(b"front/1", b"front/2"),
        GOOD.replace(b"runtime\0", b"other\0"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_no_front_sends(frame: bytes) -> None:
    with pytest.raises(Malformed):
        Request(frame)


@examples(500)
@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.integers(0, len(GOOD)))
def test_any_bytes_are_a_request_or_malformed(data: bytes, begin: int, end: int) -> None:
    try:
        Request(GOOD[:begin] + data + GOOD[end:])
    except Malformed:
        pass
