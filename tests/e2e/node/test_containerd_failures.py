"""`reassert node install` where something fails on the way: all is put back, the engine runs, and the reason is said."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG, CRUN, FORMATS, RUNC, Handler, containerd_config
from e2e.node.wiring import (
    CA,
    FILES,
    POLICY,
    POLICY_TEXT,
    Before,
    assert_overridden,
    is_wired,
    prepared,
    reassert,
    status,
    unwire,
    wired,
)

DROP_IN = "/run/systemd/system/containerd.service.d/test.conf"
WRAPPER = "/usr/local/bin/containerd"


@pytest.fixture(scope="module", params=["trixie", "forky"])
def booted(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    """A node whose config.toml is edited in place, and one that gets a drop-in."""
    return prepared(module_boot(request.param, files=FILES))


@pytest.fixture
def node(booted: BootedNode) -> Iterator[BootedNode]:
    """That node without reassert, and as it was before each test."""
    config = booted.path(CONFIG).read_text()
    yield booted
    unwire(booted)
    for path in (WRAPPER, DROP_IN, "/etc/containerd/conf.d/zz-site.toml"):
        booted.path(path).unlink(missing_ok=True)
    booted.path(POLICY).write_text(POLICY_TEXT)
    booted.path(CONFIG).write_text(config)
    booted.run("systemctl", "daemon-reload")
    booted.run("systemctl", "reset-failed", "containerd")
    booted.run("systemctl", "restart", "containerd")
    booted.wait_for_cri()


def assert_fails(node: BootedNode, *arguments: str, because: str) -> subprocess.CompletedProcess[str]:
    """Install fails and says why; the node is as it was, to the byte, and starts pods."""
    before = Before(node, CONFIG)
    done = reassert(node, "install", *arguments, status=1)
    assert because in done.stderr
    assert done.stderr.startswith("reassert: ")
    before.is_back()
    assert not is_wired(node)
    assert wired(node, expected=3) == dict.fromkeys(status(node, expected=3)["handlers"], [])
    assert node.property("containerd.service", "ActiveState") == "active"
    return done


def write_executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_the_engine_rejects_the_configuration(node: BootedNode) -> None:
    write_executable(
        node.path(WRAPPER),
        "#!/bin/sh\nif grep -rqs reassert- /etc/containerd; then echo 'no such plugin' >&2; exit 1; fi\n"
        'exec /usr/bin/containerd "$@"\n',
    )
    done = assert_fails(node, "--no-probe", because=f"containerd does not accept {CONFIG}: no such plugin")
    assert "that failed; putting everything back\n" in done.stdout
    assert "restarting" not in done.stdout
    assert done.stderr.endswith("Everything is as it was before.\n")
    assert_overridden(node)


def test_the_engine_understands_something_else(node: BootedNode) -> None:
    """A file that has the last word over ours."""
    if FORMATS[node.suite] == 2:
        pytest.skip("containerd 1.x: the file that has the last word is the one that is edited")
    site = node.path("/etc/containerd/conf.d/zz-site.toml")
    site.parent.mkdir(exist_ok=True)
    site.write_text(
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n"
        "BinaryName = '/usr/bin/crun'\n"
    )
    config = node.path(CONFIG)
    config.write_text("imports = ['/etc/containerd/conf.d/*.toml']\n" + config.read_text())
    done = assert_fails(node, "--no-probe", because="containerd reads its configuration differently than meant: ")
    assert "runc.options.BinaryName is '/usr/bin/crun', not '/usr/local/sbin/reassert-crun'" in done.stderr


def test_the_engine_does_not_come_up_again(node: BootedNode) -> None:
    node.path(DROP_IN).parent.mkdir(exist_ok=True)
    node.path(DROP_IN).write_text(
        "[Service]\nRestart=no\nExecStartPre=/bin/sh -c 'if grep -rqs reassert- /etc/containerd; then"
        ' echo "this node takes no such file"; exit 1; fi\'\n'
    )
    node.run("systemctl", "daemon-reload")
    done = assert_fails(node, "--no-probe", because="systemctl restart containerd.service failed: ")
    assert "this node takes no such file" in done.stderr
    assert_overridden(node)


def test_no_container_starts_any_more(node: BootedNode) -> None:
    node.path(POLICY).write_text(POLICY_TEXT.replace(f"hostPath: {CA}", "hostPath: /etc/missing"))
    done = assert_fails(node, because="a container under handler crun does not start: ")
    assert "/etc/missing" in done.stderr
    assert "restarting" in done.stdout
    assert_overridden(node)
    assert node.ctr("container", "list", "--quiet") == ""


def test_no_container_starts_as_it_is(node: BootedNode) -> None:
    broken = [Handler(handler.name, 'BinaryName = "/bin/false"', "broken") for handler in (RUNC, CRUN)]
    configure(node, *broken)
    done = assert_fails(node, because="no container starts on this node as it is, reassert has no part in it: ")
    assert done.stdout == ""


def test_a_handler_that_was_broken_before_is_not_held_against_it(node: BootedNode) -> None:
    configure(node, RUNC, Handler("crun", 'BinaryName = "/bin/false"', "broken"))
    done = reassert(node, "install")
    assert "Note: handler crun was not tried, its containers did not start before either: " in done.stdout
    assert wired(node, expected=0) == {"crun": ["runtime"], "runc": ["runtime"]}


def configure(node: BootedNode, *handlers: Handler) -> None:
    """Another config.toml."""
    node.path(CONFIG).write_text(containerd_config(FORMATS[node.suite], handlers))
    node.run("systemctl", "restart", "containerd")
    node.wait_for_cri()


@pytest.mark.parametrize(
    ("text", "because"),
    [
        (POLICY_TEXT.replace("name: gpu", "nane: gpu"), "nane"),
        (POLICY_TEXT + "  - [", f"{POLICY}:"),
    ],
)
def test_a_broken_policy_is_said_before_anything_is_done(node: BootedNode, text: str, because: str) -> None:
    node.path(POLICY).write_text(text)
    done = assert_fails(node, because=because)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
