"""Whatever an author writes, a decision costs no more than a second of processor time and 128 MB.

Memory is measured as it is. Processor time is held against that of a small container of the same run, since a busy
machine takes twice as long: the limits let through what costs about 20 times as much; what is quadratic, 1,000 times.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e.hostile_sizes import LET_THROUGH, POLICY, REFUSED, config
from e2e.support import REASSERT, Node, scratch

MEGABYTES = 128
TIMES = 150
"""At most so many times the processor time of a small container, which is 10 to 15 ms."""

ADAPTERS = ("runtime", "precreate", "hook", "exec")


class Cost(NamedTuple):
    """What one run of the frozen program took."""

    status: int
    said: str
    seconds: float
    megabytes: float


def run(command: list[str], stdin: Path) -> Cost:
    """Run it below time(1), a small program: a child counts what its parent had before exec(2)."""
    with stdin.open("rb") as source:
        done = subprocess.run(
            ["/usr/bin/time", "--quiet", "--format", "@%U %S %M", *command],
            stdin=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    said, _, figures = done.stderr.rpartition("@")
    user, system, kilobytes = figures.split()
    return Cost(done.returncode, said, float(user) + float(system), int(kilobytes) / 1024)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node(scratch())
    made.compile(POLICY)
    yield made
    shutil.rmtree(made.directory)


def cost(node: Node, adapter: str, text: str) -> Cost:
    """Of one decision. The real runtime is true(1); exec has the same env as the container."""
    bundle = node.directory / "k8s.io" / "0a1b"
    bundle.mkdir(parents=True, exist_ok=True)
    path = bundle / "config.json"
    path.write_text(text)
    state = node.directory / "state.json"
    state.write_text(
        json.dumps({"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 0, "bundle": str(bundle)})
    )
    wrapper = [str(REASSERT), "runtime", "--real", "/bin/true", *node.options(), "--"]
    if adapter == "runtime":
        return run([*wrapper, "create", "--bundle", str(bundle), "x"], state)
    if adapter == "precreate":
        return run([str(REASSERT), "hook", *node.options(), "precreate"], path)
    if adapter == "hook":
        return run([str(REASSERT), "hook", *node.options(), "--inject-env", "createRuntime"], state)
    decision = {
        "version": 1,
        "policy": "",
        "env": {"REQUESTS_CA_BUNDLE": "/ca"},
        "absent": ["N_*", "*_TOKEN", "*secret*"],
    }
    process = node.directory / "process.json"
    found = text[text.index('"process":') + len('"process":') : text.index(',"mounts":')]
    process.write_text(found)
    path.write_text(json.dumps({"process": {}, "annotations": {"reassert/decision": json.dumps(decision)}}))
    root = node.directory / "root" / "x"
    root.mkdir(parents=True, exist_ok=True)
    (root / "state.json").write_text(json.dumps({"config": {"labels": [f"bundle={bundle}"]}}))
    return run([*wrapper, "--root", str(root.parent), "exec", "--process", str(process), "x"], state)


@pytest.fixture(scope="module")
def small(node: Node) -> dict[str, float]:
    """Seconds that a small container takes, by adapter; at least time(1)'s resolution."""
    return {
        adapter: max(
            0.01, sum(cost(node, adapter, config(env='"REQUESTS_CA_BUNDLE=/ca"')).seconds for _ in range(5)) / 5
        )
        for adapter in ADAPTERS
    }


@lru_cache(1)
def text_of(shape: str) -> str:
    """To write one takes longer than any decision about it."""
    return {**LET_THROUGH, **REFUSED}[shape]()


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("shape", [*LET_THROUGH, *REFUSED])
def test_a_decision_is_bounded(node: Node, small: dict[str, float], adapter: str, shape: str) -> None:
    taken = cost(node, adapter, text_of(shape))
    print(f"{shape}, {adapter}: {taken.seconds:.2f} s, {taken.megabytes:.0f} MB, {taken.status}, {taken.said[:200]}")
    assert taken.megabytes < MEGABYTES
    assert taken.seconds < TIMES * small[adapter]
    if adapter in ("runtime", "precreate"):
        assert (taken.status != 0) == (shape in REFUSED)
    if taken.status:
        assert taken.said.startswith("reassert: refused ") or adapter == "exec"
        assert taken.said.count("\n") == 1
