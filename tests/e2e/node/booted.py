"""Nodes that are real but for their kernel: a Debian root, booted by systemd, with engines as its services."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import proc
from harness.paths import REASSERT, ROOTS, TOP
from harness.tools import cleaned, need, remove_tree, run, scratch

from e2e.cri.client import Cri, CriError, wait_for
from e2e.cri.images import IMAGES, PAUSE, write_images
from e2e.node.engines import CONFIG, FORMATS, containerd_config
from e2e.node.files import TOPS, Snapshot, snapshot

BOOT = Path(__file__).with_name("boot.sh")
BOOT_SECONDS = 600

USELESS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "ldconfig.service",
    "netavark-dhcp-proxy.socket",
    "netavark-firewalld-reload.service",
    "podman.socket",
    "podman-auto-update.service",
    "podman-auto-update.timer",
    "podman-restart.service",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-journal-catalog-update.service",
    "systemd-logind.service",
    "systemd-modules-load.service",
    "systemd-pstore.service",
    "systemd-sysctl.service",
    "systemd-tmpfiles-clean.timer",
)
"""Units that do nothing for the tests, would touch the machine's kernel, or fail without it."""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
}
"""Of commands on the node."""


class BootedNode:
    """A node of a Debian suite, or of the root `sandboxes` (tests/roots.sh).

    `directory` is at the same path inside and outside. The frozen program and the repository are at /src/reassert.
    """

    def __init__(self, suite: str, files: Mapping[str, str | None], docker: bool) -> None:
        """Prepare it; `boot` starts it. `files`: text by path, None for one of Debian's that is not to be there."""
        self.suite = suite
        self.root = ROOTS / suite
        need((self.root / ".complete").exists(), f"{self.root} (tests/roots.sh {suite})")
        self.directory = scratch()
        self._log = self.directory / "boot.log"
        self._units = USELESS if docker else (*USELESS, "docker.service", "docker.socket")
        self._holder: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.cri: Cri
        (self.directory / "files").mkdir()
        with (self.directory / "absent").open("w") as absent:
            absent.writelines(f"{path}\n" for path, text in files.items() if text is None)
        for path, text in files.items():
            if text is None:
                continue
            target = self.directory / "files" / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def boot(self) -> None:
        """Start it, and wait until systemd has started what it is to start."""
        command = ["unshare", "--mount", "--propagation", "private", "sh", str(BOOT), "hold"]
        command += [f"reassert-node-{self.directory.name}", str(self.directory)]
        command += [str(self.root), str(TOP), str(REASSERT.parent), *self._units]
        with self._log.open("wb") as log:
            self._holder = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + BOOT_SECONDS
        while not self._has_booted():
            ended = self._holder.poll() is not None or "the node has ended" in self._log.read_text()
            assert not ended, f"{self.suite} did not boot:\n{self.trouble()}"
            assert time.monotonic() < deadline, f"{self.suite} did not boot in {BOOT_SECONDS} s:\n{self.trouble()}"
            time.sleep(0.1)
        self.cri = Cri(self.path("/run/containerd/containerd.sock"), "", self.directory / "pods")

    def _has_booted(self) -> bool:
        try:
            self.pid = int((self.directory / "pid").read_text())
            if Path(f"/proc/{self.pid}/exe").resolve().name != "systemd":
                return False
        except (FileNotFoundError, ValueError):
            return False
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def trouble(self) -> str:
        """What may have gone wrong: systemd's own output, failed units, the end of the journal."""
        text = self._log.read_text()[-2000:]
        for command in (
            ["systemctl", "list-jobs", "--no-legend"],
            ["systemctl", "--failed", "--no-legend"],
            ["journalctl", "--no-pager", "--lines=40"],
        ):
            if self.pid:
                text += self.run(*command, check=False).stdout
        return text

    def command(self, *command: str) -> list[str]:
        """The command line, here, of a command there."""
        environment = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return ["sh", str(BOOT), "run", str(self.pid), "env", "-i", *environment, *command]

    def run(self, *command: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on the node, where engines see what it sees; fails the test with both streams in the message."""
        return run(*self.command(*command), check=check, **options)

    def path(self, path: str) -> Path:
        """A file of the node as it is seen from here. Absolute links in it lead to files of this machine: mind them."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def snapshot(self, tops: tuple[str, ...] = TOPS) -> Snapshot:
        """Everything below some directories, to the byte."""
        return snapshot(self.path("/"), tops)

    def journal(self, unit: str) -> list[str]:
        """What a service has printed."""
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout.splitlines()

    def property(self, unit: str, name: str) -> str:
        """A property of a unit (systemctl show)."""
        return self.properties(unit, name)[name]

    def properties(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit, all as they were at one moment."""
        shown = self.run("systemctl", "show", f"--property={','.join(names)}", unit).stdout
        return dict(line.split("=", 1) for line in shown.splitlines())

    def import_images(self) -> None:
        """Give containerd the images of the tests, and the pause image under the name that it is configured with."""
        self.wait_for_cri()
        archives = write_images(self.directory)
        for archive in archives:
            self.ctr("image", "import", str(archive))
            archive.unlink()
        dump = self.run("containerd", "config", "dump").stdout
        sandbox = re.search(r"""^\s*sandbox(?:_image)? = ['"](.+)['"]""", dump, re.MULTILINE)
        assert sandbox, dump
        self.ctr("image", "tag", PAUSE, sandbox[1])
        wait_for(lambda: all(map(self.cri.has_image, (*IMAGES, sandbox[1]))), "the images")

    def ctr(self, *arguments: str) -> str:
        """Standard output of containerd's own client, in Kubernetes' namespace."""
        return self.run("ctr", "--namespace", "k8s.io", *arguments).stdout

    def wait_for_cri(self) -> None:
        """Until containerd's CRI answers."""

        def answers() -> bool:
            try:
                return bool(self.cri.version())
            except CriError:
                return False

        wait_for(answers, "containerd's CRI", self.trouble)

    def container_events(self) -> list[dict[str, Any]]:
        """The events about containers in reassert's log since the last call."""
        log = self.path("/var/log/reassert/events.jsonl")
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return [event for event in map(json.loads, lines) if event["event"].startswith("container.")]

    def value_in_docker(self, container: str, name: str) -> str:
        """A name's value in a docker container's process and, the same, in an exec'ed one; "" without."""
        pid = self.run("docker", "inspect", "--format", "{{.State.Pid}}", container).stdout.strip()
        environ = proc.environ(self.run("cat", f"/proc/{pid}/environ").stdout)
        [*values] = [each.partition("=")[2] for each in environ if each.startswith(name + "=")]
        assert self.run("docker", "exec", container, "sh", "-c", f"echo ${name}").stdout.split() == values
        return values[0] if values else ""

    def kill(self) -> None:
        """The power cord: everything on the node ends, and nothing of it is left."""
        if self._holder:
            self._holder.communicate(timeout=600)
            holder, self._holder = self._holder, None
            assert holder.returncode == 0, self._log.read_text()[-2000:]


USUAL, PACKAGED, NONE = "usual", "packaged", "none"
"""config.toml as administrators write it, as Debian ships it (which says hardly anything), and not at all."""


@contextmanager
def booted(
    suite: str,
    config: str = USUAL,
    files: Mapping[str, str] | None = None,
    docker: bool = False,
    images: bool = True,
) -> Iterator[BootedNode]:
    """A node that has booted.

    `config`: containerd's config.toml, or one of the above. `files`: others that are there before it boots, text by
    path. `docker`: whether dockerd runs. `images`: whether containerd has the images of the tests.
    """
    configs: dict[str, dict[str, str | None]] = {
        USUAL: {CONFIG: containerd_config(FORMATS.get(suite, FORMATS["bookworm"]))},
        PACKAGED: {},
        NONE: {CONFIG: None},
    }
    node = BootedNode(suite, {**configs.get(config, {CONFIG: config}), **(files or {})}, docker)
    try:
        node.boot()
        if images:
            node.import_images()
        yield node
        node.cri.close()
    finally:
        cleaned(f"the node of {suite}", node.kill)
        remove_tree(node.directory)
