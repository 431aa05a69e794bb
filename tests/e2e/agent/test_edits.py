"""An edit of the policy is compiled by the agent, before a container start needs it."""

from __future__ import annotations

import json
import os
import time

import pytest

from e2e.agent.support import Agent, Cold
from e2e.support import POLICY
from hook.core.policy import store

pytestmark = [pytest.mark.frozen, pytest.mark.root]

WITHIN = 20.0
"""Seconds for which a test waits. The agent looks twice a second and compiles in less than one."""


def compiled(agent: Agent) -> None:
    """Wait until the store has the policy file as it is now."""
    source = str(agent.node.policy)
    end = time.monotonic() + WITHIN
    while time.monotonic() < end:
        stored = store.read_store(source, str(agent.node.store))
        if stored is not None and stored.has_compiled(store.file_key(os.stat(source))):
            return
        time.sleep(0.05)
    raise AssertionError("the agent did not compile the policy")


@pytest.mark.parametrize("how", ["written", "renamed"])
def test_start_after_an_edit_is_warm(agent: Agent, start: Cold, how: str) -> None:
    edited = POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/new.pem")
    if how == "written":
        agent.node.write_policy(edited)
    else:
        new = agent.node.policy.with_name("new.yaml")
        new.write_text(agent.node.placed(edited))
        new.rename(agent.node.policy)
    compiled(agent)
    assert not start.is_cold()
    assert "REQUESTS_CA_BUNDLE=/new.pem" in json.loads((start.bundle / "config.json").read_text())["process"]["env"]


def test_broken_edit_is_held_back_before_a_start_and_its_correction_is_compiled(agent: Agent, start: Cold) -> None:
    agent.node.write_policy("kind: [")
    compiled(agent)
    assert not start.is_cold()
    assert "/etc/ssl/certs/ca-certificates.crt" in (start.bundle / "config.json").read_text()
    start.reset()
    agent.node.write_policy(POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/new.pem"))
    compiled(agent)
    assert not start.is_cold()
    assert "/new.pem" in (start.bundle / "config.json").read_text()
