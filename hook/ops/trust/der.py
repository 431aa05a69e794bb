"""Reads and writes the few parts of DER (X.690) that are needed.

`cryptography` is too large for a resident process, and the store that it writes for Java has a MAC in any case.
"""

from __future__ import annotations

_SEQUENCE = 0x30


def value(data: bytes, at: int = 0) -> tuple[int, int, int]:
    """The tag of the value at an offset, and where its content begins and ends. Raises ValueError."""
    try:
        tag, length, start = data[at], data[at + 1], at + 2
        if length >= 0x80:
            count = length & 0x7F
            if not 0 < count <= 4:
                raise ValueError("a length that DER does not have")
            start += count
            length = int.from_bytes(data[at + 2 : start])
    except IndexError:
        raise ValueError("it ends too early") from None
    if start + length > len(data):
        raise ValueError("it ends too early")
    return tag, start, start + length


def parts(data: bytes) -> list[bytes]:
    """The values in a sequence, each with its tag. Raises ValueError."""
    found = []
    _, at, last = value(data)
    while at < last:
        _, _, end = value(data, at)
        found.append(data[at:end])
        at = end
    return found


def sequence(*content: bytes) -> bytes:
    """The sequence of these values."""
    body = b"".join(content)
    size = len(body)
    if size < 0x80:
        return bytes((_SEQUENCE, size)) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((_SEQUENCE, 0x80 | len(length))) + length + body


def dotted(identifier: bytes) -> str:
    """An object identifier, with its tag, in numbers and dots."""
    numbers, number = [], 0
    _, at, last = value(identifier)
    for byte in identifier[at:last]:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2) if numbers else 0
    return ".".join(map(str, [first, *[n - 40 * first for n in numbers[:1]], *numbers[1:]]))
