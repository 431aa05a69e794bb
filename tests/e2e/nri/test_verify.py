"""`reassert node verify` where NRI does the work: with the plugin, without it, and without the second line."""

from __future__ import annotations

from e2e.conftest import RUNTIMES
from e2e.cri.node import Containerd
from e2e.cri.verify import verify
from e2e.nri.conftest import NRI_POLICY, StartPlugin
from e2e.support import Node

WIRED = {name: ["nri", "hook"] for name in RUNTIMES}


def test_with_the_plugin_every_handler_is_protected(
    containerd: Containerd, start_plugin: StartPlugin, node: Node
) -> None:
    start_plugin()
    verified = verify(containerd, WIRED)
    assert (verified.status, verified.error) == (0, "")
    assert verified.results() == dict.fromkeys(RUNTIMES, ("protected", "protected"))
    assert verified.saw("runc") == verified.saw("crun") == ["put back: 2 env, 2 mounts; in exec too"]


def test_what_nri_can_only_refuse_is_refused(containerd: Containerd, start_plugin: StartPlugin, node: Node) -> None:
    """It cannot take env away; the rest is put back."""
    node.write_policy(NRI_POLICY + "  - {name: tls, env: [{name: PYTHONHTTPSVERIFY, absent: true}]}\n")
    start_plugin()
    verified = verify(containerd, WIRED)
    assert verified.status == 0
    for name in RUNTIMES:
        refused, rest = verified.saw(name)
        assert "reassert: refused default/reassert-verify-" in refused
        assert "PYTHONHTTPSVERIFY" in refused
        assert rest == "put back: 2 env, 2 mounts; in exec too"


def test_without_the_plugin_the_second_line_refuses_and_puts_mounts_back(containerd: Containerd, node: Node) -> None:
    """The hostile container is refused. One that overrides nothing has the base spec's env and the hook's mounts.

    runc shows what the hook said, crun only that it was our hook.
    """
    verified = verify(containerd, WIRED)
    assert verified.status == 0
    assert verified.results() == dict.fromkeys(RUNTIMES, ("protected", None))
    assert "a hook cannot set env" in verified.saw("runc")[-1]


def test_without_plugin_and_hook_nothing_is_protected(containerd: Containerd, node: Node) -> None:
    verified = verify(containerd, {f"{name}-bare": ["nri"] for name in RUNTIMES})
    assert verified.status == 1
    assert verified.results() == dict.fromkeys((f"{name}-bare" for name in RUNTIMES), ("not protected",) * 2)
