"""`reassert node install` of another version on a wired node, while containers start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.node.conftest import Boot
from e2e.node.wired import FILES, PROGRAM, Wirable
from e2e.support import REASSERT

CONFIG = '{"ociVersion": "1.0.2", "process": {"env": []}, "root": {"path": "r"}}'
STATE = '{"ociVersion": "1.0.2", "id": "x", "bundle": "/bundle", "pid": 0}'

STARTS = """
say() {
  "$@" < /bundle/state.json && echo started || echo failed
}
reassert dispatcher --real /bin/true > /usr/local/sbin/reassert-true
reassert dispatcher --real /bin/true --socket /run/reassert/agent/agent.sock --front /opt/reassert/front \
  --hook-file /usr/local/sbin/reassert-hook > /usr/local/sbin/reassert-warm
chmod 755 /usr/local/sbin/reassert-true /usr/local/sbin/reassert-warm
while [ ! -e /stop ]; do
  say reassert-true create --bundle /bundle c
  say reassert-warm create --bundle /bundle c
  say /opt/reassert/reassert hook poststop
  say reassert-hook poststop
done > /starts 2>&1 &
until grep -q started /starts; do sleep 0.05; done
"""
INSTALL = "node install --engine containerd --adapter runtime,hook --no-probe"


def twin(directory: Path) -> Path:
    """Another version, whose files have other paths: what begins as one and goes on as the other finds nothing."""
    shutil.copytree(REASSERT.parent, directory, symlinks=True)
    (directory / "lib").rename(directory / "bil")
    executable = directory / REASSERT.name
    said, other = b"pyi-contents-directory lib", b"pyi-contents-directory bil"
    assert said in executable.read_bytes()
    executable.write_bytes(executable.read_bytes().replace(said, other))
    return executable


@pytest.fixture
def node(boot: Boot) -> Wirable:
    booted = boot("trixie", files={**FILES, "/bundle/config.json": CONFIG, "/bundle/state.json": STATE}, images=False)
    return Wirable(booted, booted.snapshot())


def test_containers_start_while_the_program_changes(node: Wirable) -> None:
    """A start is wholly the old version's or wholly the new one's; nothing else changes, so nothing is restarted."""
    booted = node.booted
    versions = [PROGRAM, str(twin(booted.directory / "twin"))]
    booted.run(PROGRAM, *INSTALL.split())
    first = booted.run("readlink", "/opt/reassert/reassert").stdout.partition("/")[0]
    wired, pid = booted.snapshot(("/etc", "/usr/local")), node.pid()
    upgrades = "; ".join(f"{version} {INSTALL}" for version in reversed(versions))
    said = booted.run("sh", "-euc", f"{STARTS}{upgrades}; touch /stop; wait").stdout
    assert "restarting" not in said
    assert set(booted.path("/starts").read_text().splitlines()) == {"started"}
    booted.run("rm", "/usr/local/sbin/reassert-true", "/usr/local/sbin/reassert-warm")
    assert (booted.snapshot(("/etc", "/usr/local")), node.pid()) == (wired, pid)
    assert said.count("writing the program in /opt/reassert\n") == 2
    assert set(booted.run("ls", "/opt/reassert").stdout.split()) == {first, "front", "reassert", "start"}
    assert booted.run("/opt/reassert/reassert", *INSTALL.split()).stdout.endswith("nothing was restarted.\n")
    node.node("uninstall")
    assert node.changes() == []
