"""What a proof makes of its findings. Real containers are in tests/e2e."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hook.node.engines.base import HOOK, RUNTIME, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.probe.proof import Proof
from unit.node.probe.local import POLICY, Env, Make, keep, protect


def again(local: Make, wired: str, *changes: Callable[[Env], Env]) -> list[str]:
    """The remarks about a handler whose exec'ed processes are exposed."""
    handler, starter = Handler("crun", "/usr/bin/crun", (wired,)), local(*changes)
    engine: Any = SimpleNamespace(starter=lambda _: starter)
    config: Any = SimpleNamespace(handlers=lambda _: [handler])
    wiring = Wiring()
    Proof(engine, POLICY, wiring).after(config)
    return wiring.remarks


@pytest.mark.root
def test_what_the_hook_cannot_reach_is_no_failure_of_the_hook(local: Make) -> None:
    """podman's `exec --env` asks the runtime, and no hook."""
    [remark] = again(local, HOOK, protect, keep)
    assert remark.startswith("handler crun: executed in it: env CA is ")
    assert remark.endswith("; only --adapter runtime prevents that")


@pytest.mark.root
@pytest.mark.parametrize(("wired", "change"), [(RUNTIME, protect), (HOOK, keep), (RUNTIME, keep)])
def test_what_should_have_been_reached_is_one(local: Make, wired: str, change: Callable[[Env], Env]) -> None:
    with pytest.raises(NodeError, match="handler crun is not protected: "):
        again(local, wired, change, keep)
