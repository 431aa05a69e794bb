"""Whatever an author writes, a decision takes less than a second of CPU time and 128 MB.

Both are the process's own, as wait4(2) counts them. On a slower or busy machine CPU time counts as much less as a loop
takes longer there, which is timed after a decision that took longer.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import remove_tree, scratch
from harness.tools import run as mounted

from e2e.hostile_mounts import DIRECTORY
from e2e.hostile_sizes import LET_THROUGH, POLICY, REFUSED, config
from e2e.runtimes import EXHAUSTIVE, hook_entry
from hook.core.container.spec import CONFIG_LIMIT

MEGABYTES = 128
SECONDS = 1.0
LOOP = 0.04
"""Seconds of CPU time of `is_bounded` on the machine that the bound is stated for (docs/internals/runtime.md)."""

OTHERS = ("exec", "hook")
TRIED = [
    (shape, adapter)
    for turn, shape in enumerate([*LET_THROUGH, *REFUSED])
    for adapter in ("runtime", *OTHERS)
    if adapter in ("runtime", OTHERS[turn % 2]) or (adapter == "exec" and "env" in shape) or EXHAUSTIVE
]
"""Those that read a config.json as the wrapper does, and exec, which reads the `process` of it, have it by turns."""


class Cost(NamedTuple):
    """What one run of the frozen program took."""

    status: int
    said: str
    seconds: float
    megabytes: float


def run(command: list[str], stdin: Path, cwd: Path | None = None) -> Cost:
    """Run it below time(1), a small program: a child counts what its parent had before exec(2)."""
    with stdin.open("rb") as source:
        done = subprocess.run(
            ["/usr/bin/time", "--quiet", "--format", "@%U %S %M", *command],
            stdin=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            cwd=cwd,
        )
    said, _, figures = done.stderr.rpartition("@")
    user, system, kilobytes = figures.split()
    return Cost(done.returncode, said, float(user) + float(system), int(kilobytes) / 1024)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node(scratch())
    for number in range(1000):  # each mount that allowBelow lets through has a place
        (made.ca / "let" / str(number)).mkdir(parents=True)
    made.compile(POLICY)
    yield made
    remove_tree(made.directory)


def cost(node: Node, adapter: str, text: str) -> Cost:
    """Of one decision. The real runtime is true(1); exec has the same env as the container."""
    bundle = node.directory / "k8s.io" / "0a1b"
    (bundle / "rootfs").mkdir(parents=True, exist_ok=True)
    path = bundle / "config.json"
    path.write_text(text)
    state = node.directory / "state.json"
    state.write_text(
        json.dumps({"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 0, "bundle": str(bundle)})
    )
    wrapper = [str(REASSERT), "runtime", "--real", "/bin/true", *node.options(), "--"]
    if adapter == "runtime":
        return run([*wrapper, "create", "--bundle", str(bundle), "x"], state)
    if adapter == "hook":
        return run([str(REASSERT), "hook", *node.options(), "--inject-env", "createRuntime"], state)
    decision = {
        "version": 1,
        "policy": "",
        "env": {"REQUESTS_CA_BUNDLE": "/ca"},
        "absent": ["N_*", "*_TOKEN", "*secret*", "*a?b*"],
        "allowed": {"CHOICE": {"oneOf": ["x"], "pattern": "x*a?b*", "else": "x"}},
    }
    process = node.directory / "process.json"
    found = text[text.index('"process":') + len('"process":') : text.index(',"mounts":')]
    process.write_text(found)
    path.write_text(json.dumps({"process": {}, "annotations": {"reassert/decision": json.dumps(decision)}}))
    root = node.directory / "root" / "x"
    root.mkdir(parents=True, exist_ok=True)
    (root / "state.json").write_text(json.dumps({"config": {"labels": [f"bundle={bundle}"]}}))
    return run([*wrapper, "--root", str(root.parent), "exec", "--process", str(process), "x"], state)


def is_bounded(seconds: float) -> bool:
    """Whether so many seconds of CPU time would be less than SECONDS on the machine that the bound is stated for."""
    if seconds < SECONDS:
        return True
    began = time.process_time()
    assert sum(number * number for number in range(1_000_000))
    return seconds < SECONDS * (time.process_time() - began) / LOOP


@lru_cache(1)
def text_of(shape: str) -> str:
    """To write one takes longer than any decision about it."""
    return {**LET_THROUGH, **REFUSED}[shape]()


@marks.claim("bounded", "runtime@runtime", "runtime@exec", "hook@hook")
@marks.cve("CVE-2025-64329, CVE-2026-47262, CVE-2025-4437")
@marks.cve("CVE-2026-34040")
@marks.hole("Thousands of env names under an `absent` pattern cost minutes of CPU time")
@marks.hole(
    "With a glob that has `?` between two `*`, long env names, or the value of a name that may be chosen, cost up to a"
    " minute of CPU time",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize(("shape", "adapter"), TRIED)
def test_a_decision_is_bounded(node: Node, adapter: str, shape: str) -> None:
    taken = cost(node, adapter, text_of(shape))
    print(f"{shape}, {adapter}: {taken.seconds:.2f} s, {taken.megabytes:.0f} MB, {taken.status}, {taken.said[:200]}")
    assert taken.megabytes < MEGABYTES
    assert is_bounded(taken.seconds)
    if adapter == "runtime":
        assert (taken.status != 0) == (shape in REFUSED)
    if taken.status:
        assert taken.said.startswith("reassert: refused ") or adapter == "exec"
        assert taken.said.count("\n") == 1


@marks.claim("bounded", "runtime@runtime")
@pytest.mark.parametrize("what", ["bytes", "entries"])
def test_result_that_no_adapter_would_read_is_refused_and_not_written(node: Node, what: str) -> None:
    """The hook and exec read config.json again. The engine's is below both limits, the corrected one is not."""
    text = config(more='"x":[0' + ",0" * 99_960 + "]" if what == "entries" else '"x":""')
    if what == "bytes":
        text = text.replace('"x":""', f'"x":"{"v" * (CONFIG_LIMIT - len(text) - 100)}"')
    taken = cost(node, "runtime", text)
    assert taken.status == 1
    assert f"as corrected {'is larger than' if what == 'bytes' else 'has lists and objects of more than'}" in taken.said
    assert (node.directory / "k8s.io/0a1b/config.json").read_text() == text


@marks.hole(
    "A hostPath with mounts below it, many times, cost 676 MB and 4 s of CPU time",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
def test_mount_table_that_volumes_multiply() -> None:
    """A hostPath with mounts below it, many times at long paths: 23,000 mounts with paths of 3 KB."""
    made = Node(scratch())
    made.compile(DIRECTORY)
    many = made.directory / "many"
    many.mkdir()
    mounted("mount", "-t", "tmpfs", "tmpfs", str(many))
    try:
        for number in range(230):
            (many / str(number)).mkdir()
            mounted("mount", "-t", "tmpfs", "tmpfs", str(many / str(number)))
        bundle = Bundle(made.directory / "k8s.io" / "0a1b")
        for number in range(100):
            bundle.bind(many, f"/v{('/' + 'a' * 250) * 11}/{number}")
        timed = made.directory / "timed"
        timed.write_text(f'#!/bin/sh\nexec time --quiet -f "%U %S %M" -o {made.directory}/cost {REASSERT} "$@"\n')
        timed.chmod(0o755)
        bundle.spec["hooks"] = {"createRuntime": [{**hook_entry(made, "createRuntime"), "path": str(timed)}]}
        bundle.save()
        container = Running(RUNTIMES["runc"], bundle)
        assert container.create() != 0
        mounted(RUNTIMES["runc"], "delete", "--force", container.id, check=False)
        assert "mounts, or too long ones" in container.output()
        user, system, kilobytes = (made.directory / "cost").read_text().split()[-3:]
        assert int(kilobytes) / 1024 < MEGABYTES
        assert is_bounded(float(user) + float(system))
    finally:
        mounted("umount", "--recursive", "--lazy", str(many))
        remove_tree(made.directory)
