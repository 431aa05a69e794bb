"""The engine's own validator requires the plugin, as `install --adapter nri` sets it where the engine has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import marks
import pytest
from harness.node import Node
from harness.paths import RUNTIMES
from harness.tools import need, remove_tree, scratch

from e2e.cri.client import CriError, wait_for
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.node import NRI_GENERATIONS, Containerd, Handler, running
from e2e.nri.conftest import StartPlugin
from e2e.nri.test_validation import VISIBLE, validates

_REQUIRED = """\
[plugins."io.containerd.nri.v1.nri".default_validator]
  enable = true
  required_plugins = ["reassert"]
"""

__all__ = ["validates"]

pytestmark = [
    one_runtime,
    marks.promise("An engine with a validator requires the plugin, and starts no container without it"),
]


@pytest.fixture(scope="module", params=["2.1"])
def containerd(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    """One with the validator's settings, which versions before 2.2 ignore."""
    generation = NRI_GENERATIONS[request.param]
    need(bool(generation.root and (generation.root / ".complete").exists()), f"{generation.root} (tests/roots.sh)")
    node = Node(scratch())
    handlers = [Handler("runc-bare", RUNTIMES["runc"]), Handler("runc", RUNTIMES["runc"])]
    with running(node, replace(generation, config=generation.config + _REQUIRED), handlers) as containerd:
        yield containerd
    remove_tree(node.directory)


def test_nothing_starts_before_the_plugin_is_there(
    start_pod: StartPod, start_plugin: StartPlugin, validates: bool
) -> None:
    pod = start_pod("bare")
    if validates:
        with pytest.raises(CriError, match='required plugin "reassert" not present'):
            pod.create(name="early", env=[(VISIBLE, "all")])
    else:
        assert reserved_in(pod.run(name="early", env=[(VISIBLE, "all")]).environ())[VISIBLE] == "all"
    plugin = start_plugin()
    assert reserved_in(pod.run(env=[(VISIBLE, "all")]).environ()) == RESERVED
    plugin.close()

    def refused() -> bool:
        try:
            pod.create(name="late", env=[(VISIBLE, "all")])
        except CriError as error:
            return "not present" in str(error) or "validator plugin 10-reassert failed" in str(error)
        return not validates

    wait_for(refused, "a refusal")
