"""containerd by its command line and files, where nothing runs. Real ones: tests/e2e/node/test_containerd*.py."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.node.engines.base import Wiring
from hook.node.engines.containerd.config import ContainerdConfig
from hook.node.errors import NodeError
from unit.node.engines.table import Table
from unit.node.opt import Opt
from unit.ownmachine import Machine
from unit.support import called, document

CONFIG = Path("/etc/containerd/config.toml")
CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'
GPU = "/usr/local/bin/gpu-container-runtime"
RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}


def handler(name: str, binary: str = "") -> str:
    text = f'[{CRI}.runtimes.{name}]\n  runtime_type = "io.containerd.runc.v2"\n'
    return text + (f'  [{CRI}.runtimes.{name}.options]\n    BinaryName = "{binary}"\n' if binary else "")


def config(*handlers: str, default: str = "runc") -> str:
    return f'version = 2\n[{CRI}]\n  default_runtime_name = "{default}"\n' + "".join(handlers)


def configured(dump: dict[str, Any], version: tuple[int, int, int] = (2, 1, 9), *programs: str) -> ContainerdConfig:
    """What `containerd config dump` prints, on a node with these programs."""
    return ContainerdConfig(
        dump=dump,
        version=version,
        engine="containerd",
        title="containerd",
        file=str(CONFIG),
        address="/run/containerd/containerd.sock",
        plugin_runs=False,
        default_spec=lambda _: {},
        node=Table(programs),
    )


@pytest.fixture
def node(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A node with a containerd 1.7 that does not run, whose effective configuration is its file."""
    machine.program("containerd", f'case "$*" in *version*) echo containerd x 1.7.24 y ;; *) cat {CONFIG} ;; esac')
    machine.program("ctr", "exit 1")
    machine.program("runc", "echo runc version 1.1.5")
    machine.file("/etc/reassert/policy.yaml", document(RULE))
    Opt(tmp_path, monkeypatch).frozen("a program")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield machine
    for number, before in handlers.items():
        signal.signal(number, before)


def handlers_of(status: int) -> dict[str, dict[str, Any]]:
    """The rows of `status`, which has this exit status."""
    done = called("status", "--engine", "containerd", "-o", "json")
    assert done.returncode == status, done.stdout
    return {each["name"]: each for each in json.loads(done.stdout)["engines"]["containerd"]["handlers"]}


def change(verb: str, *options: str) -> str:
    done = called(verb, "--engine", "containerd", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


INSTALL = "install", "--no-agent", "--no-probe"


def test_a_runtime_that_is_not_installed_decides_about_its_own_handler_alone(node: Machine) -> None:
    """Before the install. Once the runtime is there, the handler is said to be not wired."""
    node.file(str(CONFIG), before := config(handler("runc"), handler("gpu", GPU), handler("by-name", "nowhere")))
    found = handlers_of(3)
    assert {name: each["note"] for name, each in found.items()} == {
        "runc": "",
        "gpu": "not installed",
        "by-name": "not installed",
    }
    said = " ".join(change(*INSTALL).split())
    for name, runtime in (("gpu", GPU), ("by-name", "nowhere")):
        assert f"handler {name} is not wired, since its runtime {runtime} is not installed: run" in said
    found = handlers_of(1)  # containerd does not run here
    assert {name: each["wired"] for name, each in found.items()} == {"runc": ["runtime"], "gpu": [], "by-name": []}
    assert (found["gpu"]["runtime"], found["by-name"]["note"]) == (GPU, "not installed")
    assert "NOT WIRED" not in called("status").stdout
    node.file(GPU, "#!/bin/sh\n", 0o755)
    said = called("status").stdout
    assert ("NOT WIRED" in said, "containerd: containers of gpu start without reassert" in said) == (True, True)
    change(*INSTALL)
    assert handlers_of(1)["gpu"]["wired"] == ["runtime"]
    change("uninstall")
    assert CONFIG.read_text() == before


def test_a_runtime_that_is_removed_hides_nothing_and_stops_no_uninstall(node: Machine) -> None:
    """As `apt remove nvidia-container-runtime` does on a wired node."""
    gpu = node.file(GPU, "#!/bin/sh\n", 0o755)
    node.file(str(CONFIG), before := config(handler("runc"), handler("gpu", GPU)))
    change(*INSTALL)
    gpu.unlink()
    found = handlers_of(1)
    assert {name: (each["wired"], each["note"]) for name, each in found.items()} == {
        "runc": (["runtime"], ""),
        "gpu": (["runtime"], "not installed"),
    }
    problems = json.loads(called("status", "-o", "json").stdout)["problems"]
    assert not [problem for problem in problems if "gpu" in problem], problems
    change(*INSTALL)
    change("uninstall")
    assert CONFIG.read_text() == before


def test_a_default_runtime_that_is_not_installed_is_a_problem(node: Machine) -> None:
    node.file(str(CONFIG), config(handler("runc"), handler("gpu", GPU), default="gpu"))
    change(*INSTALL)
    problems = json.loads(called("status", "-o", "json").stdout)["problems"]
    assert f"containerd: the default handler gpu calls {GPU}, which is not installed" in problems


def test_a_node_without_any_runtime_is_not_wired(node: Machine) -> None:
    node.file(str(CONFIG), config(handler("gpu", GPU), default="gpu"))
    done = called("install", "--dry-run", "--engine", "containerd", "--no-agent")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no OCI runtime of a handler is installed on this node: {GPU}" in done.stderr


def test_the_first_shim_of_containerd_is_no_other_runtime(node: Machine) -> None:
    """containerd 1.x still starts it, and it calls runc."""
    linux = f'[{CRI}.runtimes.old]\n  runtime_type = "io.containerd.runtime.v1.linux"\n  runtime_engine = "runc"\n'
    node.file(str(CONFIG), config(handler("runc"), linux))
    found = handlers_of(3)["old"]
    assert found["runtime"].endswith("/runc")
    assert found["note"].startswith(
        "io.containerd.runtime.v1.linux: containerd's first shim, which is not wrapped; write"
    )


def test_an_import_of_an_import_is_the_file_that_is_edited(node: Machine) -> None:
    """In containerd 1.x the last file with the CRI plugin's table counts."""
    node.file(str(CONFIG), f'imports = ["/etc/containerd/site.toml"]\n{config(handler("runc"))}')
    node.file("/etc/containerd/site.toml", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    last = node.file("/etc/containerd/conf.d/99-gpu.toml", config(handler("runc")))
    node.program("containerd", f'case "$*" in *version*) echo containerd x 1.7.24 y ;; *) cat {last} ;; esac')
    done = called("install", "--dry-run", "--engine", "containerd", "--no-agent")
    assert [line for line in done.stdout.splitlines() if line.startswith("+++ /etc/containerd/")] == [f"+++ {last}"]


def test_what_a_version_2_file_hides_until_it_has_runtimes_is_said() -> None:
    def dump(snapshotter: str) -> dict[str, Any]:
        images = {"io.containerd.cri.v1.images": {"snapshotter": snapshotter}}
        return {"plugins": {"io.containerd.cri.v1.runtime": {}, **images}}

    for version, told in (((2, 1, 9), True), ((1, 7, 24), False)):
        with pytest.raises(NodeError, match="snapshotter is 'soci', not 'overlayfs'") as caught:
            configured(dump("soci"), version).check(Wiring(expected=dump("overlayfs")))
        assert ("containerd config migrate" in str(caught.value)) is told
