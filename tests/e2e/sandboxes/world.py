"""A node with docker and podman whose containers reach nothing but proxies (outside.py), and clients for them.

The clients are programs of Debian that containers have as a volume: in CI copies of this machine's, with
REASSERT_SANDBOXES=1 (tests/lab/sandboxes/run.sh) all of build/roots/sandboxes, and of PyPI.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pip
from harness.paths import TOP
from harness.tools import need, run

from e2e.cri.images import layout
from e2e.node.booted import ENVIRONMENT, BootedNode, booted
from e2e.node.wired import PACKAGED, package
from e2e.sandboxes.outside import ADDRESS, PORTS, WITHOUT_PASSWORD, url
from e2e.trust.images import JAVA

WHOLE = os.environ.get("REASSERT_SANDBOXES") == "1"
CLIENTS = [
    client
    for client in tomllib.loads((TOP / "tests/e2e/sandboxes/clients.toml").read_text())["client"]
    if WHOLE or not client.get("whole")
]
EXAMPLE = (TOP / "config/examples/egress-proxy.yaml").read_text()
MATCH = '    match:\n      namespaces: ["sandbox-*"]\n'
"""What the example says to leave out with docker and podman alone."""

IMAGE, HOSTILE = "reassert.test/sandbox:1", "reassert.test/sandbox-hostile:1"
"""The public CAs of both images are web.pem and attacker.pem."""

EVIL = "/etc/evil/attacker.pem"
HOSTILE_ENV = [
    "NODE_TLS_REJECT_UNAUTHORIZED=0",
    "PYTHONHTTPSVERIFY=0",
    "GIT_SSL_NO_VERIFY=1",
    "GIT_CONFIG_COUNT=1",
    "GIT_CONFIG_KEY_0=http.sslVerify",
    "GIT_CONFIG_VALUE_0=false",
    "PIP_TRUSTED_HOST=web.example",
    "npm_config_strict_ssl=false",
    *(f"{name}={EVIL}" for name in ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")),
    *(f"{name}={EVIL}" for name in ("PIP_CERT", "GIT_SSL_CAINFO")),
    "NODE_OPTIONS=--use-bundled-ca",
]
PROXY_NAMES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")

RUNSC = ["--platform=ptrace", "--network=host", "--ignore-cgroups"]
"""gVisor's options where the engine gives a container the node's network."""

PROGRAMS = (
    *("bin/openssl", "bin/curl", "bin/wget", "bin/git", "lib/git-core/git-remote-https", "bin/python3", "bin/kubectl"),
)
"""What tests/run.sh installs on this machine."""


def image(directory: Path, name: str, env: list[str]) -> bytes:
    """A Debian without programs: /usr is empty."""
    root = directory / "image"
    shutil.rmtree(root, ignore_errors=True)
    for path in ("etc/ssl/certs", "etc/evil", "usr", "proc", "sys", "dev", "tmp", "root", "java"):
        (root / path).mkdir(parents=True)
    for path in ("bin", "sbin", "lib", "lib64"):
        (root / path).symlink_to(f"usr/{path}")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "java/Get.java").write_text(JAVA)
    certs = root / "etc/ssl/certs"
    pems = [(directory / f"{authority}.pem").read_text() for authority in ("web", "attacker")]
    for number, pem in enumerate(pems):
        (certs / f"{number}.pem").write_text(pem)
    run("openssl", "rehash", str(certs))
    (certs / "ca-certificates.crt").write_text("".join(pems))
    (root / "etc/evil/attacker.pem").write_text(pems[1])
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as tar:
        tar.add(root, ".")
    return layout(name, env, stored.getvalue(), ["/bin/sh"])


def copied_programs(usr: Path) -> None:
    """PROGRAMS with what they load, and busybox, in a directory that is to be /usr."""
    files = [f"/usr/{program}" for program in PROGRAMS]
    python = Path("/usr/bin/python3").resolve()
    library = Path(f"/usr/lib/{python.name}")
    files += [str(path) for path in (library / "lib-dynload").iterdir()]
    linked = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout  # kubectl is static
    for file in {*files, *re.findall(r"(/\S+) \(0x", linked)}:
        path = Path("/", re.sub(r"^/(lib|lib64|bin|sbin)/", r"/usr/\1/", file))
        target = usr / path.relative_to("/usr")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    unneeded = shutil.ignore_patterns("test", "config-*", "idlelib", "lib2to3", "ensurepip", "__pycache__")
    shutil.copytree(library, usr / "lib" / library.name, ignore=unneeded, dirs_exist_ok=True)
    shutil.copytree(Path(pip.__file__).parent, usr / "lib/python3/dist-packages/pip")
    shutil.copytree("/usr/lib/ssl", usr / "lib/ssl", symlinks=True)
    shutil.copy("/bin/busybox", usr / "bin/busybox")
    for applet in ("sh", "sed", "timeout", "env", "true"):
        (usr / "bin" / applet).symlink_to("busybox")


def script() -> str:
    """Tries each client with each proxy: `proxy` is the one that the environment names."""
    lines = [
        "export HOME=/tmp GIT_TERMINAL_PROMPT=0",
        "curl -sS --noproxy '*' http://192.0.2.1/ 2>&1 | sed 's/^/past: /'",
    ]
    for number, client in enumerate(CLIENTS):
        for name, port in PORTS.items():
            command = client["command"].format(address=ADDRESS, port=port, open=port + WITHOUT_PASSWORD)
            there = "" if name == "proxy" else "env " + " ".join(f"{each}={url(name)}" for each in PROXY_NAMES)
            lines.append(f"if {there} {command} </dev/null >/tmp/said 2>&1; then echo '{number}: {name} yes'; else")
            lines.append(f"echo '{number}: {name} no'; sed 's/^/   /' /tmp/said; fi")
    return "\n".join([*lines, "echo done"])


class World:
    """The node, and the directory with the CAs of what is outside."""

    def __init__(self, node: BootedNode) -> None:
        self.node = node
        self.outside = node.directory / "outside"
        self.outside.mkdir()
        if WHOLE:
            pypi = TOP / "build/sandboxes-pypi"
            mounted = {path: path for path in ("/usr", "/etc/alternatives", "/etc/java-17-openjdk")}
            mounted[str(pypi)] = "/pypi"
            mounted = {source.replace(str(TOP), "/src/reassert"): target for source, target in mounted.items()}
        else:
            copied_programs(node.directory / "usr")
            mounted = {str(node.directory / "usr"): "/usr"}
        self.volumes = [f"--volume={source}:{target}:ro" for source, target in mounted.items()]

    def load_images(self) -> None:
        """For both engines."""
        for name, env in ((IMAGE, []), (HOSTILE, HOSTILE_ENV)):
            archive = self.node.directory / "image.tar"
            archive.write_bytes(image(self.outside, name, ["PATH=/usr/sbin:/usr/bin", *env]))
            for engine in ("docker", "podman"):
                self.node.run(engine, "load", "--input", str(archive))

    def wire(self) -> None:
        """What docs/sandboxes.md says."""
        root = self.node.path("/etc/reassert")
        (root / "trust.d/sandboxes").mkdir(parents=True)
        shutil.copy(self.outside / "proxy.pem", root / "trust.d/sandboxes/proxy.pem")
        (root / "egress-proxy").write_text(url("proxy") + "\n")
        (root / "egress-proxy").chmod(0o600)
        (root / "policy.yaml").write_text(EXAMPLE.replace(MATCH, ""))
        system = str(self.outside / "web.pem")  # the node has no roots of its own
        self.node.run(PACKAGED, "trust", "build", "sandboxes", "--system", system)
        for engine in ("docker", "podman"):
            self.node.run(PACKAGED, "install", "--engine", engine, "--no-agent", "--no-probe")

    def container(
        self, engine: str, runtime: str, *options: str, image: str = IMAGE
    ) -> subprocess.CompletedProcess[str]:
        """The output of a container that runs the script. `runtime`: "" for the engine's default."""
        command = ["--cgroup-manager=cgroupfs"] if engine == "podman" else []
        command += ["run", "--rm", "--network=host", *([f"--runtime={runtime}"] if runtime else [])]
        command += ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"] if engine == "podman" else []
        command += [*self.volumes, *options, image, "-c", script()]
        return subprocess.run(self.node.command(engine, *command), capture_output=True, text=True, check=False)

    def events(self) -> list[dict[str, Any]]:
        """About containers, since the last call."""
        return self.node.container_events()


@contextmanager
def world() -> Iterator[World]:
    """Docker and podman of Debian 12, not wired."""
    veth = run("unshare", "--net", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", check=False)
    need(veth.returncode == 0, "pairs of virtual network interfaces (veth)", installed=False)
    daemon: dict[str, Any] = {"bridge": "none", "iptables": False, "ip-forward": False, "storage-driver": "vfs"}
    daemon["runtimes"] = {"crun": {"path": "/usr/bin/crun"}}
    files = {}
    if WHOLE:
        daemon["runtimes"]["runsc"] = {"path": "/usr/bin/runsc", "runtimeArgs": RUNSC}
        files["/usr/local/bin/runsc-here"] = f'#!/bin/sh\nexec /usr/bin/runsc {" ".join(RUNSC)} "$@"\n'
        names = '[engine.runtimes]\nrunsc = ["/usr/local/bin/runsc-here"]\n'
        files["/etc/containers/containers.conf.d/10-gvisor.conf"] = names
    files["/etc/docker/daemon.json"] = json.dumps(daemon)
    with booted("sandboxes" if WHOLE else "bookworm", files=files, docker=True, images=False) as node:
        if WHOLE:
            node.run("chmod", "755", "/usr/local/bin/runsc-here")
        package(node)
        made = World(node)
        command = ["unshare", "--net", "--mount", "--propagation", "private", sys.executable]
        command += ["-m", "e2e.sandboxes.outside", str(made.outside), str(node.pid)]
        environment = {**ENVIRONMENT, "PYTHONPATH": f"{TOP}:{TOP / 'tests'}"}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as outside:
            assert outside.stdout and outside.stdin
            assert outside.stdout.readline() == b"ready\n"
            made.load_images()
            yield made
            outside.stdin.close()
