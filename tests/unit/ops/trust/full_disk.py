"""Builds on a file system with too little room, in a mount namespace of its own: python full_disk.py DIRECTORY.

DIRECTORY has the sources of conftest.Node. Prints "full" for every build that failed with the message of a full disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[4]), str(Path(__file__).resolve().parents[3])]


SIZE = 4096
"""Of the file system, in KiB."""


def main(directory: Path) -> None:
    from hook.ops.trust.build import Sources, build
    from hook.ops.trust.certificate import TrustError
    from hook.ops.trust.generation import read_tree
    from unit.ops.trust.authority import ca, key

    disk = directory / "disk"
    disk.mkdir()
    sources = Sources([str(directory / "trust.d")], str(directory / "system.pem"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}k", "tmpfs", str(disk)], check=True)
    store = disk / "store"
    build(str(store), sources)
    before = read_tree(store / "live")
    ca("Another CA", signer=key(9)).at(directory / "trust.d/another.pem")
    used = int(
        subprocess.run(["df", "--output=used", "-k", str(disk)], capture_output=True, check=True).stdout.split()[-1]
    )
    failures = 0
    for size in range(used, SIZE, 4):
        with (disk / "other").open("wb") as other:  # takes all room but `size` (an ordinary user cannot remount)
            os.posix_fallocate(other.fileno(), 0, (SIZE - size) * 1024)
        try:
            build(str(store), sources)
        except TrustError as error:
            assert "No space left on device; free some space, then run" in str(error), error
            assert error.details == ["generation 1 stays in force"], error.details
            assert read_tree(store / "live") == before
            assert {path.name for path in store.iterdir()} == {"generations", "live", "lock"}
            assert [path.name for path in (store / "generations").iterdir()] == ["000001"]
            failures += 1
            print("full", size, error)
        else:
            assert read_tree(store / "live") == read_tree(store / "generations/000002")
            break
    else:
        raise AssertionError("no file system was large enough")
    assert failures > 4, failures


if __name__ == "__main__":
    main(Path(sys.argv[1]))
