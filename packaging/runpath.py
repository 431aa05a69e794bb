"""Takes out of the frozen libraries where the builder's Python had its own (DT_RPATH, DT_RUNPATH).

A Python that was not built by the distribution names its directory in every extension module, `/home/me/.pyenv/…/lib`
say. On a node root's dynamic linker would look there first for what is not in the tree, libm say: whoever owns that
home on the node would run as root in every container start. What is in the tree is found by LD_LIBRARY_PATH.
"""

from __future__ import annotations

import struct
from pathlib import Path

_PT_DYNAMIC, _DT_RPATH, _DT_RUNPATH = 2, 15, 29


def remove(path: Path) -> None:
    """Rewrite a 64-bit ELF file without its run paths; leave any other file alone (elf(5), Elf64_Dyn)."""
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
