"""The commands of README, of docs/first-week.md and of each preset's page, on a node that never had reassert."""

from __future__ import annotations

import re
from collections.abc import Iterator

import marks
import pytest
from harness.paths import TOP
from unit.ops.trust.authority import bundle, ca, roots

from e2e.node.booted import BootedNode, booted
from e2e.node.engines import FORMATS, RUNC, containerd_config

POLICY = "/etc/reassert/policy.yaml"
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
SWITCH = "PYTHONHTTPSVERIFY"
README, WEEK, REFERENCE = (TOP / path for path in ("README.md", "docs/first-week.md", "docs/policy.md"))
EXAMPLE = re.compile(r"```yaml\n(apiVersion: reassert/v1\n.*?)```", re.DOTALL)

ARCHIVE = "reassert-VERSION-linux-x86_64"
PACKED = ("install.sh", "config", "dist", *(f"packaging/{name}" for name in ("demo.sh", "extras.sh", "deb", "systemd")))
"""What the commands need of a release's archive."""

NOT_RUN = {
    "helm install": "it needs a cluster: tests/lab/cluster/run.sh; unit/kubernetes/test_chart.py renders it",
    "helm uninstall": "it needs a cluster: tests/lab/cluster/run.sh",
    "docker run": "it needs a registry, docker and a proxy: e2e/sandboxes/test_sandboxes.py",
}
"""Commands that no test of a node can run, by their first words, with the reason."""

STATUS = {
    "sudo reassert status": (4, "the mode is Audit, which is a warning"),
    "reassert policy diff /etc/reassert/policy.yaml draft.yaml": (1, "something changes"),
}
"""Commands whose exit status says something, with what; all others have 0."""


@pytest.fixture
def node() -> Iterator[BootedNode]:
    """A node with containerd 1.7 and one handler, with a distribution's roots, and with what stands for sudo."""
    with booted("trixie", config=containerd_config(FORMATS["trixie"], (RUNC,))) as started:
        started.path(ROOTS).parent.mkdir(parents=True, exist_ok=True)
        started.path(ROOTS).write_bytes(bundle(*roots()))
        started.path("/usr/local/bin/sudo").write_text('#!/bin/sh\nexec "$@"\n')
        started.path("/usr/local/bin/sudo").chmod(0o755)
        yield started


def container(node: BootedNode) -> tuple[bool, bytes]:
    """Whether a new container keeps the switch that turns verification off, and the CA bundle that it sees."""
    pod = node.cri.run_pod("")
    started = pod.run(env=[(SWITCH, "0")])
    found = f"{SWITCH}=0" in started.environ(), started.exec("sh", "-c", f"cat {ROOTS} || :").encode()
    pod.remove()
    return found


@marks.promise(
    "The policy at the top of docs/policy.md refuses no pod on a node that never had reassert, in whichever order the "
    "policy, the installation and the trust store come",
    about="Decision",
)
def test_no_step_refuses_every_pod(node: BootedNode) -> None:
    """The store of `trust` is built after the installation; without it, the policy waits."""
    [policy] = EXAMPLE.findall(REFERENCE.read_text())
    program = "/src/reassert/dist/reassert/reassert"
    node.path(POLICY).parent.mkdir(exist_ok=True)
    node.path(POLICY).write_text(policy)
    first = node.run("sh", "-c", f"{program} install 2>&1", check=False)
    assert first.returncode == 1
    assert "run `reassert trust build`" in first.stdout
    assert "Everything is as it was before." in first.stdout
    assert container(node)[0], "the engine is not wired"

    node.path(POLICY).unlink()
    node.run(program, "install")
    node.wait_for_cri()
    node.path(POLICY).write_text(policy)
    assert container(node)[0], "the policy is held back"
    company = company_ca(node)
    node.run("reassert", "trust", "build")
    kept, seen = container(node)
    assert not kept
    assert company in seen
    assert "protected" in node.run("reassert", "status", check=False).stdout
    node.run("reassert", "verify", "--except", "rule/*")


def company_ca(node: BootedNode) -> bytes:
    """Puts a CA where `reassert trust build` looks. Returns its PEM."""
    company = ca("Company CA")
    node.path("/etc/reassert/trust.d").mkdir(exist_ok=True)
    company.at(node.path("/etc/reassert/trust.d/company.pem"))
    return company.pem


class Reader:
    """Who types a page's commands: in one directory, with sudo where the page has it, else without rights."""

    def __init__(self, node: BootedNode) -> None:
        """A directory of the reader's own, with the archive that was downloaded."""
        self.node = node
        self.directory = "/srv/reader"
        node.path(self.directory).mkdir()
        paths = " ".join(f"/src/reassert/{path}" for path in PACKED)
        pack = (
            f"tar -cI 'gzip -1' -f {self.directory}/{ARCHIVE}.tar.gz --transform 's,^src/reassert,{ARCHIVE},' {paths}"
        )
        node.run("sh", "-c", pack)
        node.run("chown", "65534:65534", self.directory)
        self.exports = ""

    def write(self, name: str, text: str) -> None:
        """A file beside the reader."""
        self.node.path(f"{self.directory}/{name}").write_text(text)

    def type(self, line: str) -> str:
        """Runs a line of a page. Returns what it prints."""
        user = () if "sudo " in line else ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        script = f"cd {self.directory}\n{self.exports}{line}\nstatus=$?; pwd >&2; exit $status"
        done = self.node.run(*user, "bash", "-c", script, check=False)
        wanted, _ = STATUS.get(line, (0, ""))
        assert done.returncode == wanted, (line, done.stdout, done.stderr)
        self.directory = done.stderr.splitlines()[-1]
        self.exports += f"{line}\n" if line.startswith("export ") else ""
        return done.stdout


def commands(page: str) -> list[str]:
    """The lines of a page's indented blocks, without what stands behind ` # `."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return [line.partition(" # ")[0].strip() for line in re.findall(r"^    (\S.*)$", prose, re.MULTILINE)]


@marks.promise("Every command of README does what it says, as it is printed", about="Packages and cluster")
def test_every_command_of_readme(node: BootedNode) -> None:
    page = README.read_text()
    reader = Reader(node)
    lines = [line for line in commands(page) if not line.startswith(tuple(NOT_RUN))]
    assert len(lines) >= 11, lines
    unpack = next(line for line in lines if line.startswith("tar "))
    [demo, leave] = [line for line in lines if line.endswith(("--demo", "--uninstall"))]
    [help_] = [line for line in lines if line.endswith("help break-glass")]
    reader.type(unpack)
    lines.remove(unpack)
    [policy] = EXAMPLE.findall(page)
    reader.write("policy.yaml", policy)
    for line in lines:
        if line in (demo, leave, help_):
            continue
        said = reader.type(line)
        if line.startswith("reassert explain"):
            assert re.search("'all' +'void'", said), said
    assert "# Nothing starts: what now" in reader.type(help_)
    reader.type(leave)
    assert "All results are as expected." in reader.type(demo)


@marks.promise("Every command of docs/first-week.md does what it says, as it is printed", about="Packages and cluster")
def test_every_command_of_the_first_week(node: BootedNode) -> None:
    """The policy of the second day is docs/policy.md's, in Audit mode; the edit of the fifth day is made here."""
    reader = Reader(node)
    reader.type(f"tar -xzf {ARCHIVE}.tar.gz; cd {ARCHIVE}")
    [policy] = EXAMPLE.findall(REFERENCE.read_text())
    reader.write("draft.yaml", policy.replace("mode: Enforce ", "mode: Audit   "))
    lines = commands(WEEK.read_text())
    assert len(lines) >= 13, lines
    for line in lines:
        if line == "sudo reassert trust build":
            company_ca(node)
        if line == "sudo reassert verify":
            tried = node.path(POLICY).read_text().replace("mode: Audit   ", "mode: Enforce ")
            node.path(POLICY).write_text(re.sub(r"(- name: (?:company-ca|proxy).*)", r"\1\n    mode: Audit", tried))
        reader.type(line)


DOORS = ("devices", "trust", "sandboxes", "loader")
"""The page of each preset."""


@marks.promise(
    "Every command at the top of a preset's page does what it says, as it is printed", about="Packages and cluster"
)
def test_every_command_of_each_presets_page(node: BootedNode) -> None:
    """`verify` ends with 0 in each: the policy is enforced then, and a hostile container was tried."""
    reader = Reader(node)
    reader.type(f"tar -xzf {ARCHIVE}.tar.gz; cd {ARCHIVE}")
    for name in ("company.pem", "proxy-ca.pem"):
        reader.write(name, ca(name).pem.decode())
    for door in DOORS:
        page = (TOP / f"docs/{door}.md").read_text().partition("\n## ")[0]
        lines = [line for line in commands(page) if not line.startswith(tuple(NOT_RUN))]
        assert any("--preset" in line for line in lines), lines
        assert "verify" in lines[-1], lines
        for line in lines:
            reader.type(line)
        reader.type("sudo ./install.sh --uninstall --purge")
        node.run("rm", "-rf", "/etc/reassert", "/var/lib/reassert")
