"""Which runtimes the plugin asks to show it what all NRI plugins together ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.nri.creation import VALIDATES, version_at_least
from unit.nri.support import KNOWN, running
from unit.support import document

POLICY = document({"name": "gpu", "env": [{"name": "GPU", "value": "void"}]})
SUBSCRIBED = 8 | 1 << 13


@pytest.mark.parametrize(
    ("engine", "version", "known"),
    [
        ("containerd", "1.7.29", False),
        ("containerd", "v2.1.9", False),
        ("containerd", "v2.2.0", True),
        ("containerd", "unknown", False),
        ("cri-o", "1.33.4", False),
        ("cri-o", "1.34.0", True),
        ("cri-o", "2.0.0-dev", True),
        ("other", "9.9.9", False),
    ],
)
def test_only_runtimes_that_know_the_question_are_subscribed_to(engine: str, version: str, known: bool) -> None:
    """A runtime refuses a plugin that subscribes to what it does not know."""
    assert version_at_least(engine, version, VALIDATES) is known


@pytest.mark.parametrize(
    ("version", "nri", "events"),
    [
        ("2.1.9", "", 8),
        (KNOWN, "", SUBSCRIBED),
        ("2.1.9", "v0.12.0", SUBSCRIBED),
        ("2.4.0-beta+unknown", "v0.12.2", SUBSCRIBED),
        ("unknown", "(devel)", SUBSCRIBED),
    ],
)
def test_subscription_of_old_and_new_runtimes(root_dir: Path, version: str, nri: str, events: int) -> None:
    with running(root_dir, POLICY, take_in=False) as plugin:
        assert plugin.peer.take_in(version, nri=nri) == events


def test_subscription_is_given_up_where_the_runtime_refuses_it_twice(root_dir: Path) -> None:
    """Else a runtime whose version misleads would have no plugin at all. A later one is asked again."""
    with running(root_dir, POLICY, take_in=False) as first:
        decider = first.decider
        assert first.peer.take_in(KNOWN, ends=True) == SUBSCRIBED
        first.peer.socket.close()
        first.thread.join(20)
    for events in (SUBSCRIBED, 8):
        with running(root_dir, POLICY, take_in=False) as plugin:
            plugin.decider.unwanted = decider.unwanted
            assert plugin.peer.take_in(KNOWN, ends=True) == events
    with running(root_dir, POLICY, take_in=False) as plugin:
        plugin.decider.unwanted = decider.unwanted
        assert plugin.peer.take_in("2.2.1") == SUBSCRIBED
        plugin.create(["GPU=void"])
        plugin.peer.socket.close()
        plugin.thread.join(20)
        assert not decider.unwanted["containerd 2.2.1"]  # it asked: the subscription was accepted
