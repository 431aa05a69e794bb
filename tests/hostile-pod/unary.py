"""Calls unary gRPC methods over a unix socket, with a Python that has no packages. A connection for each call.

HTTP/2 is RFC 9113, its header compression RFC 7541, gRPC over it PROTOCOL-HTTP2.md of grpc, the messages proto3's
encoding: a message is a list of (field number, value).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

Message = list[tuple[int, Any]]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_STATIC = """
:authority :method :method :path :path :scheme :scheme :status :status :status :status :status :status :status
accept-charset accept-encoding accept-language accept-ranges accept access-control-allow-origin age allow
authorization cache-control content-disposition content-encoding content-language content-length
content-location content-range content-type cookie date etag expect expires from host if-match
if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards
proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie
strict-transport-security transfer-encoding user-agent vary via www-authenticate
"""
"""Names of the static table (RFC 7541, appendix A). Their values are of no interest here."""
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6f565"
    "65666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmnqqkjmnmp"
    "qqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
"""Bits of each symbol's code in base 36 (appendix B). Codes are given out by length, then by symbol."""


class CallError(Exception):
    """The call failed: what the server, or the system, says."""


def encode(message: Message) -> bytes:
    """A message as bytes. Values: str, bytes, int, bool, a list of them, a Message, or a dict of strings."""
    found = b""
    for number, value in message:
        if isinstance(value, dict):
            found += b"".join(encode([(number, [(1, key), (2, each)])]) for key, each in value.items())
        elif isinstance(value, int):
            found += _number(number << 3) + _number(value) if value else b""
        elif isinstance(value, list) and not (value and isinstance(value[0], tuple)):
            found += b"".join(encode([(number, each)]) or _number(number << 3 | 2) + b"\0" for each in value)
        elif value:
            text = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else encode(value)
            found += _number(number << 3 | 2) + _number(len(text)) + text
    return found


def decode(text: bytes) -> dict[int, Any]:
    """The last value of each field: int or bytes."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(text):
        tag, at = _read_number(text, at)
        if tag & 7 == 0:
            found[tag >> 3], at = _read_number(text, at)
        elif tag & 7 == 2:
            size, at = _read_number(text, at)
            found[tag >> 3], at = text[at : at + size], at + size
        else:
            at += {1: 8, 5: 4}[tag & 7]
    return found


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _read_number(text: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (text[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if text[at - 1] < 0x80:
            return value, at


def call(path: str, method: str, request: Message, seconds: float) -> dict[int, Any]:
    """The answer of a method, such as /runtime.v1.RuntimeService/Version. Raises CallError."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(path)
            return _call(connection, method, encode(request))
    except (OSError, EOFError, KeyError, IndexError, struct.error) as error:
        raise CallError(f"{path}: {error or 'the connection ended'}") from None


def _call(connection: socket.socket, method: str, body: bytes) -> dict[int, Any]:
    named = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost"}
    named |= {"content-type": "application/grpc", "te": "trailers", "user-agent": "hostile-pod"}
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in named.items())  # literals, no table, no code
    body = struct.pack(">BI", 0, len(body)) + body
    wide = struct.pack(">HI", 4, 1 << 30)  # SETTINGS_INITIAL_WINDOW_SIZE: an answer needs no WINDOW_UPDATE
    connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, wide) + _frame(_WINDOW, 0, 0, struct.pack(">I", 1 << 30)))
    connection.sendall(_frame(_HEADERS, _END_HEADERS, 1, block))
    for at in range(0, len(body), 16384):
        last = at + 16384 >= len(body)
        connection.sendall(_frame(_DATA, _END_STREAM * last, 1, body[at : at + 16384]))
    table: list[str | tuple[str, str]] = []
    headers: dict[str, str] = {}
    answer = blocks = b""
    for kind, flags, content in _frames(connection):
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, content))
        elif kind == _DATA:
            answer += content
        elif kind in (_HEADERS, _CONTINUATION):
            blocks += content
            if flags & _END_HEADERS:
                headers |= dict(_headers(blocks, table))
                blocks = b""
        elif kind in (_RST, _GOAWAY):
            raise CallError(f"{method}: the server ended the call: {content!r}")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            break
    if headers.get("grpc-status", "2") != "0":
        raise CallError(unquote(headers.get("grpc-message", f"{method}: {headers}")))
    return decode(answer[5:])


def _text(text: str) -> bytes:
    """A string literal of a header block that is shorter than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _frames(connection: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Type, flags and content of each frame, without padding and priority. Raises EOFError."""
    while True:
        head = _read(connection, 9)
        kind, flags = head[3], head[4]
        content = _read(connection, int.from_bytes(head[:3], "big"))
        if kind in (_DATA, _HEADERS) and flags & _PADDED:
            content = content[1 : len(content) - content[0]]
        if kind == _HEADERS and flags & _PRIORITY:
            content = content[5:]
        yield kind, flags, content


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def _headers(block: bytes, table: list[Any]) -> Iterator[tuple[str, str]]:
    """Name and value of each header. `table`: the dynamic one, newest first."""
    at = 0

    def integer(bits: int) -> int:
        nonlocal at
        most = (1 << bits) - 1
        value, at = block[at] & most, at + 1
        if value == most:
            more, at = _read_number(block, at)
            value += more
        return value

    def string() -> str:
        nonlocal at
        coded = block[at] & 0x80
        size = integer(7)
        text, at = block[at : at + size], at + size
        return (_decoded(text) if coded else text).decode("utf-8", "replace")

    def entry(index: int) -> tuple[str, str]:
        if index <= len(_NAMES):
            return _NAMES[index - 1], ""
        found: tuple[str, str] = table[index - len(_NAMES) - 1]
        return found

    while at < len(block):
        first = block[at]
        if first & 0x80:
            yield entry(integer(7))
        elif first & 0xE0 == 0x20:  # the size of the table: what is too much in it is never named again
            integer(5)
        else:
            indexed = first & 0x40
            index = integer(6 if indexed else 4)
            header = (entry(index)[0] if index else string(), string())
            if indexed:
                table.insert(0, header)
            yield header


def _codes(lengths: Sequence[int]) -> dict[tuple[int, int], int]:
    """Symbols by length and code."""
    found, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - before
        found[length, code] = symbol
        code, before = code + 1, length
    return found


_NAMES = _STATIC.split()
_SYMBOLS = _codes([int(digit, 36) for digit in _LENGTHS])


def _decoded(text: bytes) -> bytes:
    """A string in Huffman's code."""
    found, code, length = bytearray(), 0, 0
    for byte in text:
        for bit in range(7, -1, -1):
            code, length = code << 1 | byte >> bit & 1, length + 1
            symbol = _SYMBOLS.get((length, code))
            if symbol is not None:
                found.append(symbol)
                code = length = 0
    return bytes(found)
