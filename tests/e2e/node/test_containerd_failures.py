"""`reassert install` where something fails on the way: all is put back, and the reason is said."""

from __future__ import annotations

from collections.abc import Iterator

import marks
import pytest

from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG, CRUN, FORMATS, RUNC, Handler, containerd_config
from e2e.node.wired import FILES, PACKAGED, POLICY, POLICY_FILE, Wirable, package

pytestmark = marks.promise(
    "After a failure, a signal or a kill, every file is restored, at the latest by the next command", about="Node"
)

DROP_IN = "/run/systemd/system/containerd.service.d/test.conf"
WRAPPER = "/usr/local/bin/containerd"
SITE = "/etc/containerd/conf.d/zz-site.toml"


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    node = module_boot("forky", files=FILES)
    package(node)
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """That node, as it was before each test."""
    config = booted.path(CONFIG).read_text()
    wirable = Wirable(booted, booted.snapshot(), PACKAGED)
    yield wirable
    wirable.take_out()
    for path in (WRAPPER, DROP_IN, SITE):
        booted.path(path).unlink(missing_ok=True)
    if booted.path(SITE).parent.exists():
        booted.path(SITE).parent.rmdir()
    booted.path(POLICY_FILE).write_text(POLICY)
    booted.run("systemctl", "daemon-reload")
    if wirable.config() != config:
        wirable.reconfigure(config)


def write(node: Wirable, path: str, text: str, mode: int = 0o644) -> None:
    """A file of the node's administrator, who was there before."""
    file = node.booted.path(path)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    node.before = node.booted.snapshot()


def test_containerd_rejects_the_configuration(node: Wirable) -> None:
    rejects = "if grep -rqs reassert- /etc/containerd; then echo 'no such plugin' >&2; exit 1; fi"
    write(node, WRAPPER, f'#!/bin/sh\n{rejects}\nexec /usr/bin/containerd "$@"\n', 0o755)
    pid = node.pid()
    said = node.refuses("--no-probe")
    assert f"containerd does not accept {CONFIG}: no such plugin\n" in said
    assert said.endswith("Everything is as it was before.\n")
    assert node.pid() == pid
    node.is_untouched()


def test_containerd_understands_something_else(node: Wirable) -> None:
    """A file that has the last word over ours.

    In containerd 1.x the file that has the last word is the one that is edited (test_containerd_configs.py).
    """
    plugin = "plugins.'io.containerd.cri.v1.runtime'.containerd"
    write(node, SITE, f"version = 3\n[{plugin}.runtimes.runc.options]\nBinaryName = '/usr/bin/crun'\n")
    node.reconfigure("imports = ['/etc/containerd/conf.d/*.toml']\n" + node.config())
    pid = node.pid()
    said = node.refuses("--no-probe")
    assert f"{SITE} is read after /etc/containerd/conf.d/99-reassert.toml and sets containerd.runtimes.runc." in said
    assert "name it so that it sorts before" in said
    assert node.pid() == pid
    node.is_untouched()


def test_containerd_does_not_come_up_again(node: Wirable) -> None:
    refuses = "if grep -rqs reassert- /etc/containerd; then echo not with this file; exit 1; fi"
    write(node, DROP_IN, f"[Service]\nRestart=no\nExecStartPre=/bin/sh -c '{refuses}'\n")
    node.booted.run("systemctl", "daemon-reload")
    said = node.refuses("--no-probe")
    assert "systemctl restart containerd.service failed: " in said
    assert "not with this file" in said
    node.is_untouched()
    node.pod_gets("runc", overridden=True)


def broken(node: Wirable, *names: str) -> str:
    """A config.toml in which these handlers start nothing."""
    handlers = [
        Handler(handler.name, 'BinaryName = "/bin/false"', "broken") if handler.name in names else handler
        for handler in (RUNC, CRUN)
    ]
    return containerd_config(FORMATS[node.booted.suite], tuple(handlers))


def test_no_container_starts_as_it_is(node: Wirable) -> None:
    node.reconfigure(broken(node, "runc", "crun"))
    pid = node.pid()
    said = node.refuses()
    assert "no container starts on this node, even without reassert: " in said
    assert said.endswith("\nNothing was changed. With --no-probe, install starts no test containers.\n")
    assert node.pid() == pid
    node.is_untouched()


def test_a_handler_that_was_broken_before_is_not_held_against_it(node: Wirable) -> None:
    node.reconfigure(broken(node, "crun"))
    said = node.install().stdout
    assert "Note: handler crun was not tried: its containers did not start before the install either: " in said
    assert node.status() == (0, {"crun": ["runtime"], "runc": ["runtime"]}, [])


@pytest.mark.parametrize("text", [POLICY.replace("name: gpu", "nane: gpu"), POLICY + "  - ["], ids=["key", "yaml"])
def test_a_broken_policy(node: Wirable, text: str) -> None:
    write(node, POLICY_FILE, text)
    pid = node.pid()
    done = node.install(check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{POLICY_FILE}:" in done.stderr.splitlines()[0]
    assert node.changes() == []
    assert node.pid() == pid
