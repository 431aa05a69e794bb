"""`reassert node install` on containerd by other adapters than the default one, and for one RuntimeClass alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cri.client import CriError
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import FORMATS, containerd_config
from e2e.node.wiring import (
    FILES,
    HANDLERS,
    POLICY,
    POLICY_TEXT,
    RUNC_TYPE,
    Before,
    assert_corrected,
    assert_overridden,
    main_pid,
    prepared,
    reassert,
    start_hostile,
    status,
    unwire,
    wired,
)

# NRI cannot remove env: with a name that must be absent, its hostile pods are refused.
SETTABLE = "".join(line for line in POLICY_TEXT.splitlines(keepends=True) if "absent" not in line)
NOTHING: dict[str, list[str]] = {name: [] for name in (*RUNC_TYPE, "kata")}
ENGINE = ("--engine", "containerd")


@pytest.fixture(scope="module", params=sorted(FORMATS))
def booted(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    config = containerd_config(FORMATS[request.param], HANDLERS)
    return prepared(module_boot(request.param, config=config, files=FILES))


@pytest.fixture
def node(booted: BootedNode) -> Iterator[BootedNode]:
    """After every test reassert is taken out, and nothing is different from before."""
    before = Before(booted, "/etc/containerd/config.toml")
    yield booted
    booted.path(POLICY).write_text(POLICY_TEXT)
    unwire(booted)
    before.is_back()


def by(adapters: list[str]) -> dict[str, list[str]]:
    """What `status` says when every handler of a runc type is wired by these."""
    return {**NOTHING, **dict.fromkeys(RUNC_TYPE, adapters)}


def test_one_runtime_class_alone(node: BootedNode) -> None:
    reassert(node, "install", *ENGINE, "--runtime-class", "guarded")
    assert wired(node, 0) == {**NOTHING, "guarded": ["runtime"]}
    assert_corrected(node, "guarded")
    assert_overridden(node, "runc")
    reassert(node, "install", *ENGINE, "--runtime-class", "crun")
    assert wired(node, 0) == {**NOTHING, "crun": ["runtime"]}
    reassert(node, "install", *ENGINE, "--default")
    assert wired(node, 0) == by(["runtime"])


@pytest.mark.parametrize(("name", "because"), [("kata", "calls no runc"), ("No_Class", "DNS label")])
def test_what_can_be_no_runtime_class_of_ours(node: BootedNode, name: str, because: str) -> None:
    refused = reassert(node, "install", *ENGINE, "--runtime-class", name, status=1)
    assert because in refused.stderr


def test_the_hook_alone_refuses_and_is_in_nobodys_way(node: BootedNode) -> None:
    """install proves both: containers that ask for nothing start, hostile ones do not."""
    reassert(node, "install", *ENGINE, "--adapter", "hook")
    assert wired(node, 0) == by(["hook"])
    with pytest.raises(CriError, match=r"reassert"):
        start_hostile(node, "runc")
    reassert(node, "verify", *ENGINE)


def test_nri_with_its_second_line(node: BootedNode) -> None:
    if node.suite == "bookworm":
        refused = reassert(node, "install", *ENGINE, "--adapter", "nri", status=1)
        assert "containerd 1.6.20 has no NRI" in refused.stderr
        return
    node.path(POLICY).write_text(SETTABLE)
    reassert(node, "install", *ENGINE, "--adapter", "nri")
    assert wired(node, 0) == by(["hook", "nri"])
    assert node.property("reassert-nri.service", "ActiveState") == "active"
    for handler in RUNC_TYPE:
        started = start_hostile(node, handler)
        assert "NVIDIA_VISIBLE_DEVICES=void" in started.container.environ()
        assert "NVIDIA_VISIBLE_DEVICES=void" in started.container.exec_environ()
        started.pod.remove()
    # Without the plugin: refused, by the second line.
    node.run("systemctl", "stop", "reassert-nri.service")
    assert "reassert-nri.service does not run" in str(status(node, 1)["problems"])
    with pytest.raises(CriError, match=r"reassert"):
        start_hostile(node, "runc")
    node.run("systemctl", "start", "reassert-nri.service")
    # From one adapter to another: nothing of the first stays.
    reassert(node, "install", *ENGINE, "--adapter", "runtime")
    assert wired(node, 0) == by(["runtime"])
    assert node.property("reassert-nri.service", "LoadState") == "not-found"


def test_a_new_reserved_name_takes_a_restart_and_status_says_so(node: BootedNode) -> None:
    reassert(node, "install", *ENGINE, "--adapter", "hook")
    node.path(POLICY).write_text(POLICY_TEXT + "  - {name: more, env: [{name: MORE, value: '1'}]}\n")
    [problem] = status(node, 1)["problems"]
    assert "/etc/reassert/base-runtime-spec/crun.json" in problem
    assert "which restarts containerd" in problem
    pid = main_pid(node)
    reassert(node, "install", *ENGINE)
    assert main_pid(node) != pid
    assert "MORE=1" in node.path("/etc/reassert/base-runtime-spec/runc.json").read_text()
    assert wired(node, 0) == by(["hook"])
