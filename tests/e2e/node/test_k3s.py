"""k3s and RKE2: a stand-in for their service runs the real containerd 2.1 with the config.toml that they generate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import marks
import pytest
from unit.support import FIXTURES

from e2e.cri.client import Cri
from e2e.cri.images import IMAGES, PAUSE, write_images
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.files import TOPS, differences
from e2e.node.wired import FILES, PACKAGED, Wirable, package

pytestmark = marks.promise(
    "Install wires every handler, tests it, and restarts no container; uninstall restores every byte"
)

SOCKET = "/run/k3s/containerd/containerd.sock"


@dataclass(frozen=True)
class Distribution:
    """k3s or RKE2. `programs`: the directory of its containerd, in its own. `link`: one on the way, and its target."""

    name: str
    unit: str
    programs: str
    link: tuple[str, str]

    @property
    def directory(self) -> str:
        return f"/var/lib/rancher/{self.name}"

    @property
    def etc(self) -> str:
        return f"{self.directory}/agent/etc/containerd"

    @property
    def base(self) -> str:
        return f"{self.directory}/base.toml"

    @property
    def drop_in(self) -> str:
        return f"{self.etc}/config-v3.toml.d/99-reassert.toml"

    @property
    def template(self) -> str:
        return f"{self.etc}/config-v3.toml.tmpl"

    def service(self) -> str:
        """The unit's text."""
        return UNIT.format(directory=self.directory, programs=f"{self.directory}/{self.programs}")

    def generates(self, version: str) -> str:
        """The config.toml of a version (tests/fixtures/rancher), but for the kind of cgroups that these nodes have."""
        text = (FIXTURES / f"rancher/{version}.{self.name}.toml").read_text()
        return text.replace("SystemdCgroup = true", "SystemdCgroup = false")


K3S = Distribution("k3s", "k3s", "data/current/bin", ("data/current", "1"))
RKE2 = Distribution("rke2", "rke2-server", "bin", ("bin", "data/1/bin"))
NEW, OLD, OLDEST = "1.36.3", "1.34.3", "1.32.3"
"""With an import of drop-ins, and without."""

PAUSE_IMAGE = "docker.io/rancher/mirrored-pause:3.10.2"
"""As containerd writes the names that both have."""

UNIT = """\
[Service]
Type=notify
NotifyAccess=all
KillMode=process
Delegate=yes
Restart=always
RestartSec=1s
ExecStart=/bin/sh /src/reassert/tests/e2e/node/k3s.sh {directory} {programs}
"""


@dataclass
class Rancher(Wirable):
    """A node of a distribution whose base template has the import."""

    of: Distribution = K3S

    def use_base(self, text: str) -> None:
        """Another version of it."""
        self.booted.path(self.of.base).write_text(text)
        self.booted.run("systemctl", "restart", self.of.unit)
        self.booted.wait_for_cri()

    def changes(self) -> list[str]:
        """What is different from before the test, but for what k3s itself writes at each start."""
        found = differences(self.before, self.booted.snapshot((*TOPS, self.of.etc)))
        return [line for line in found if not line.startswith(f"{self.of.etc}/config.toml:")]


@pytest.fixture(scope="module", params=[K3S], ids=lambda of: of.name)
def started(request: pytest.FixtureRequest, module_boot: Boot) -> tuple[BootedNode, Distribution]:
    """A node on which the distribution runs."""
    of: Distribution = request.param
    files = {**FILES, f"/etc/systemd/system/{of.unit}.service": of.service(), of.base: of.generates(NEW)}
    node = module_boot("forky", files=files, images=False)
    node.run("systemctl", "disable", "--now", "containerd")
    programs = node.path(f"{of.directory}/data/1/bin")
    programs.mkdir(parents=True)
    link, target = of.link
    node.path(f"{of.directory}/{link}").symlink_to(target)
    for program in ("bin/containerd", "bin/ctr", "sbin/runc"):
        (programs / Path(program).name).symlink_to(f"/usr/{program}")
    node.run("systemctl", "start", of.unit)
    node.cri = Cri(node.path(SOCKET), "", node.directory / "pods")
    for archive in write_images(node.directory):
        node.run("ctr", "--address", SOCKET, "--namespace", "k8s.io", "image", "import", str(archive))
    node.run("ctr", "--address", SOCKET, "--namespace", "k8s.io", "image", "tag", PAUSE, PAUSE_IMAGE)
    assert all(map(node.cri.has_image, IMAGES))
    package(node)
    return node, of


@pytest.fixture
def node(started: tuple[BootedNode, Distribution]) -> Iterator[Rancher]:
    """The node. After every test, nothing is different."""
    booted, of = started
    rancher = Rancher(booted, booted.snapshot((*TOPS, of.etc)), PACKAGED, of=of)
    yield rancher
    rancher.take_out()
    assert not booted.path(of.drop_in).parent.exists()
    assert not booted.path(of.template).exists()


both = pytest.mark.parametrize("started", [K3S, RKE2], indirect=True, ids=lambda of: of.name)

SHIM = "io.containerd.runhcs.v1, the shim of Windows nodes, is not installed"


@both
def test_in_proved_and_out_again(node: Rancher) -> None:
    booted, of = node.booted, node.of
    pid = booted.property(of.unit, "MainPID")
    planned = node.node("install", "--dry-run").stdout
    note = "the kubelet restarts too, on a server also the API server; running pods stay"
    assert f"{of.name} (containerd 2." in planned
    assert f"would be restarted; {note}." in planned
    pod = node.hostile_pod("runc")
    running = pod.run()
    probe = ["--no-probe"] * (of is RKE2)  # `verify` starts what the probes would
    said = node.node("install", *probe).stdout  # it is found: nobody has to name it, though containerd is installed too
    assert f"; {note}\n" in said
    assert f"{of.name} (containerd 2." in said and "is wired (runtime)." in said
    assert booted.property(of.unit, "MainPID") != pid
    assert running.environ()  # pods stay
    pod.remove()
    assert not booted.path(of.template).exists()
    assert booted.path(f"{of.etc}/config.toml").read_text().count("imports =") == 1
    found = json.loads(node.node("status", "-o", "json").stdout)
    assert [(row["name"], row["wired"]) for row in found["engines"][of.name]["handlers"]] == [
        ("crun", ["runtime"]),
        ("runc", ["runtime"]),
        ("runhcs-wcow-process", []),
    ]
    assert found["problems"] == []
    assert SHIM in node.node("status").stdout
    assert "protected" in node.node("verify").stdout
    for handler in ("runc", "crun"):
        node.pod_gets(handler)
    assert "no engine restarted" in node.node("install").stdout
    node.use_base(booted.path(of.base).read_text())  # a restart generates config.toml anew
    node.pod_gets("runc")
    node.node("uninstall")
    node.pod_gets("runc", overridden=True)
    assert node.changes() == []


def test_the_other_adapters(node: Rancher) -> None:
    """The plugin, and the verifying hook in base_runtime_spec, whose default k3s' own ctr prints."""
    said = node.node("install", "--adapter", "nri", "--no-probe").stdout
    assert "is wired (nri, hook)." in said
    assert "protected" in node.node("verify").stdout
    node.pod_gets("crun")
    node.node("uninstall")
    assert node.changes() == []


@pytest.mark.parametrize("version", [OLDEST, OLD])
def test_an_old_base_is_refused_until_an_administrators_template_imports(node: Rancher, version: str) -> None:
    booted, of = node.booted, node.of
    node.use_base(of.generates(version))
    done = node.node("install", "--no-probe", check=False)
    assert done.returncode == 1
    assert f"make this the first line of {of.template}, with " in done.stderr
    assert node.changes() == []
    imports = f'imports = ["{of.etc}/config-v3.toml.d/*.toml"]\n'
    booted.path(of.template).write_text(imports + '{{ template "base" . }}\n')
    node.use_base(of.generates(version))
    node.node("install", "--no-probe")
    node.pod_gets("runc")
    node.node("uninstall")
    booted.path(of.template).unlink()
    node.use_base(of.generates(NEW))
