"""What reassert cannot write never starts uncorrected: with `failurePolicy: Ignore` a user could bring that about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, Node

from e2e.runtimes import EACH, real_runtime


def limited(bundle: Bundle) -> str:
    """A caller's RLIMIT_FSIZE, which sudo and podman hand down: EFBIG."""
    return f"exec prlimit --fsize={bundle.config.stat().st_size + 50}"


def read_only(bundle: Bundle) -> str:
    """A bundle on a read-only file system: EROFS."""
    path = bundle.directory
    inside = f"mount --bind {path} {path} && mount -o remount,bind,ro {path} && exec"
    return f'exec unshare --mount sh -c \'{inside} "$0" "$@"\''


@marks.claim("failure-policy", "runtime")
@marks.hole(
    "With `failurePolicy: Ignore`, a user's limit of the size of files (`ulimit -f`) let a container start uncorrected",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("obstacle", [limited, read_only])
@pytest.mark.parametrize("each", EACH)
def test_container_that_cannot_be_corrected_does_not_start(
    node: Node, bundle: Bundle, directory: Path, each: str, obstacle: Callable[[Bundle], str]
) -> None:
    node.compile(POLICY.replace("spec:", "spec:\n  failurePolicy: Ignore", 1))
    bundle.pod()
    bundle.save()
    engine = directory / "engine"
    engine.write_text(f'#!/bin/sh\n{obstacle(bundle)} {node.dispatcher(real_runtime(each, node.directory))} "$@"\n')
    engine.chmod(0o755)
    said = Running(str(engine), bundle).refused()
    assert f"{bundle.config} cannot be corrected: " in said, json.dumps(node.logged())
    if obstacle is read_only:  # the limit is the event log's too
        assert node.logged()[-1]["event"] == "container.denied"
