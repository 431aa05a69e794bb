"""What a proof makes of its findings. Real containers are in tests/e2e."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from hook.node.engines.base import HOOK, RUNTIME, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.probe import proof
from hook.node.probe.proof import Proof
from hook.node.probe.verify import EXPOSED, PROTECTED, Finding
from unit.support import policy

POLICY = policy({"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]})
IN_EXEC = "executed in it: env CA is evil, the policy wants /ca.pem"


def again(monkeypatch: pytest.MonkeyPatch, wired: str, started: str) -> list[str]:
    """The remarks about a handler whose exec'ed processes are exposed."""
    handler = Handler("crun", "/usr/bin/crun", (wired,))
    finding = Finding(handler, EXPOSED, [IN_EXEC], EXPOSED, started)
    monkeypatch.setattr(proof, "probe", lambda *_: None)
    monkeypatch.setattr(proof, "examine", lambda *_: ([finding], {}))
    engine: Any = Mock(handlers=lambda *_: [handler])
    wiring = Wiring()
    Proof(engine, POLICY, wiring).after(None)
    return wiring.remarks


def test_what_the_hook_cannot_reach_is_no_failure_of_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """podman's `exec --env` asks the runtime, and no hook."""
    assert again(monkeypatch, HOOK, PROTECTED) == [f"handler crun: {IN_EXEC}; only --adapter runtime prevents that"]


@pytest.mark.parametrize(("wired", "started"), [(RUNTIME, PROTECTED), (HOOK, EXPOSED), (RUNTIME, EXPOSED)])
def test_what_should_have_been_reached_is_one(monkeypatch: pytest.MonkeyPatch, wired: str, started: str) -> None:
    with pytest.raises(NodeError, match="handler crun is not protected: executed in it"):
        again(monkeypatch, wired, started)
