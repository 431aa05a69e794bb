"""How long `reassert audit` takes over many running containers: `python -m bench.audit [COUNT] [RUNTIME]`, as root.

It starts real containers of a shared bundle that sleep, half of them past the wrapper, and runs the frozen program.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from e2e.support import REASSERT, Bundle, Node, run, scratch

SECONDS = 5.0
"""The promise for 500 containers."""


def main(count: int = 500, real: str = "/usr/sbin/runc") -> int:
    """Print the figures; returns 1 if it took longer than promised."""
    directory = scratch()
    node = Node(directory / "node")
    node.compile()
    bundles = [Bundle(directory / "k8s.io" / name) for name in ("corrected", "past")]
    for bundle in bundles:
        bundle.pod()
        bundle.save()
    ids = [f"bench-audit-{os.getpid()}-{number}" for number in range(count)]

    def start(number: int) -> None:
        runtime = (node.dispatcher(real), real)[number % 2]
        where = str(bundles[number % 2].directory)
        with open(os.devnull, "r+b") as null:
            create = [runtime, "create", "--bundle", where, ids[number]]
            subprocess.run(create, stdin=null, stdout=null, stderr=null, check=True)
            subprocess.run([real, "start", ids[number]], stdin=null, stdout=null, stderr=null, check=True)

    def remove(container: str) -> None:
        run(real, "delete", "--force", container, check=False)

    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, range(count)))
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = run(str(REASSERT), "audit", "-o", "json", *node.options()[:4], check=False)
        took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        found = {c["id"]: c["state"] for c in json.loads(done.stdout)["containers"]}
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{len(found)} containers, {took:.2f} s, {cpu:.2f} s of CPU time, exit status {done.returncode}")
        wanted = {container: ("in policy", "drifted")[number % 2] for number, container in enumerate(ids)}
        assert {container: found.get(container) for container in ids} == wanted
        return int(took > SECONDS * max(1, count / 500))
    finally:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(remove, ids))
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main(*(int(word) if word.isdigit() else word for word in sys.argv[1:])))  # type: ignore[arg-type]  # numbers and a path
