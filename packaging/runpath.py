"""Remove DT_RPATH and DT_RUNPATH from the frozen program's libraries.

A Python that is not the distribution's has its own directory in every extension module, for example
`/home/me/.pyenv/…/lib`. On a node, the dynamic linker would search it first for libraries that are not in the frozen
tree, such as libm. The owner of that home directory could then run code as root in every container start. The
libraries of the tree are found by LD_LIBRARY_PATH.
"""

from __future__ import annotations

import struct
from pathlib import Path

_PT_DYNAMIC, _DT_RPATH, _DT_RUNPATH = 2, 15, 29


def remove(path: Path) -> None:
    """Remove the run paths of a 64-bit ELF file (elf(5), Elf64_Dyn). Other files are not changed."""
    data = bytearray(path.read_bytes())
    if data[:5] != b"\x7fELF\x02":
        return
    order = "<" if data[5] == 1 else ">"
    (headers,) = struct.unpack_from(order + "Q", data, 32)
    size, count = struct.unpack_from(order + "HH", data, 54)
    for header in range(headers, headers + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from(order + "IIQQQQ", data, header)
        if kind != _PT_DYNAMIC:
            continue
        entries = [bytes(data[at : at + 16]) for at in range(offset, offset + length, 16)]
        kept = [entry for entry in entries if struct.unpack_from(order + "q", entry)[0] not in (_DT_RPATH, _DT_RUNPATH)]
        if kept != entries:
            data[offset : offset + length] = b"".join(kept).ljust(length, b"\0")
            path.write_bytes(data)
