"""Shared by the end-to-end tests: the frozen program, temporary directories, OCI bundles, real runtimes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hook.compile.in_force import refresh
from hook.core.policy.store import store_path
from hook.entry.dispatcher import dispatcher

TOP = Path(__file__).resolve().parents[2]
REASSERT = Path(os.environ.get("REASSERT", TOP / "dist/reassert/reassert"))
BUSYBOX = "/bin/busybox"
RUNTIMES = {"runc": "/usr/sbin/runc", "crun": "/usr/bin/crun"}
EXHAUSTIVE = os.environ.get("REASSERT_EXHAUSTIVE") == "1"
"""Whether every case is tried with every runtime and adapter; CONTRIBUTING.md says what the usual run has of them."""
APPLETS = ("sh", "sleep", "cat", "head", "env", "grep", "ls", "id", "true", "touch", "mkdir", "mount", "printenv", "tr")

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  exclude: {namespaces: [kube-system]}
  rules:
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
    - {name: PYTHONHTTPSVERIFY, absent: true}
    mounts:
    - {hostPath: CA, mountPath: /etc/ssl, readOnly: true}
"""
"""`CA` is replaced by the scratch node's directory of CA files."""

WANTED = "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"
"""The entry of POLICY's first name."""


@dataclass
class Node:
    """A test node: policy, store, event log and CA directory, in a directory that only root can write to."""

    directory: Path
    policy: Path = field(init=False)
    store: Path = field(init=False)
    events: Path = field(init=False)
    ca: Path = field(init=False)

    def __post_init__(self) -> None:
        self.policy = self.directory / "etc" / "policy.yaml"
        self.store = self.directory / "lib"
        self.events = self.directory / "log" / "events.jsonl"
        self.ca = self.directory / "ca"
        (self.ca / "certs").mkdir(parents=True)
        (self.ca / "certs" / "company.crt").write_text("company\n")
        self.policy.parent.mkdir()
        self.write_policy(POLICY)

    def placed(self, text: str) -> str:
        """A policy with `CA` replaced by this node's CA directory."""
        return text.replace("hostPath: CA", f"hostPath: {self.ca}")

    def write_policy(self, text: str) -> None:
        """The policy file, `placed`."""
        self.policy.write_text(self.placed(text))

    def compile(self, text: str = "") -> None:
        """Compile the policy, as `reassert policy compile` does long before a container starts. `text`: a new one."""
        if text:
            self.write_policy(text)
        refresh(str(self.policy), str(self.store))

    @property
    def compiled(self) -> Path:
        """The file of the compiled policy that this version reads."""
        return Path(store_path(str(self.policy), str(self.store)))

    def options(self) -> list[str]:
        """What every adapter is told about this node."""
        return ["--policy", str(self.policy), "--store", str(self.store), "--events", str(self.events)]

    def dispatcher(self, real: str) -> str:
        """Path of a `reassert-runc` for a real runtime, as `reassert dispatcher` prints it."""
        path = self.directory / f"reassert-{Path(real).name}"
        if not path.exists():
            path.write_text(dispatcher(real, str(REASSERT), extra=self.options()))
            path.chmod(0o755)
        return str(path)

    def logged(self) -> list[dict[str, Any]]:
        """The event log."""
        return [json.loads(line) for line in self.events.read_text().splitlines()] if self.events.exists() else []


def scratch() -> Path:
    """A new directory that root alone can write to (not in /tmp) and programs can be executed from (not in /run)."""
    path = Path("/var/lib/reassert-tests") / uuid.uuid4().hex[:12]
    path.mkdir(parents=True, mode=0o755)
    return path


CLEAN_UP_SECONDS = 60


def cleaned(what: str, remove: Callable[[], object]) -> bool:
    """Clean up after a test: `remove` is called again until it raises nothing; returns whether it did.

    What an engine or a file system answers then fails no test. pytest's summary says what could not be removed.
    """
    deadline, pause = time.monotonic() + CLEAN_UP_SECONDS, 0.05
    while True:
        try:
            remove()
            return True
        except Exception as error:
            if time.monotonic() > deadline:
                warnings.warn(f"{what} could not be removed: {error}", stacklevel=2)
                return False
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def remove_tree(path: Path) -> None:
    """Remove a test's directory (`cleaned`)."""
    cleaned(str(path), lambda: shutil.rmtree(path))


def run(*command: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command with its output as text; fails the test with both streams in the message."""
    if "stdin" not in options:  # not /dev/null: with a user namespace crun gives its stdin, the node's own, away
        options.setdefault("input", "")
    options.setdefault("timeout", 60)
    done = subprocess.run(command, text=True, capture_output=True, **options)
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def suspend(child: subprocess.Popen[bytes]) -> None:
    """Send SIGSTOP, and wait until all threads have stopped: on a busy machine one of them may go on for a while."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)


def need(there: bool, what: str, installed: bool = True) -> None:
    """Skip the test where something is missing, saying what. In CI that is a failure.

    `installed`: tests/run.sh installs it; missing in its whole run (REASSERT_WHOLE), it is a failure too.
    """
    if not there:
        fails = os.environ.get("CI") == "true" or (installed and "REASSERT_WHOLE" in os.environ)
        (pytest.fail if fails else pytest.skip)(f"this machine lacks: {what}")


@contextmanager
def another_root() -> Iterator[Path]:
    """The machine's root directory by another mount, with /proc, /dev and the tests' directories.

    Read-only, and in a directory that is removed only while it is empty: where it cannot be unmounted, nothing may
    take it for a scratch directory and remove what is in it.
    """
    root = Path(tempfile.mkdtemp(dir="/run"))
    try:
        run("mount", "--bind", "--make-private", "/", str(root))
        run("mount", "-o", "remount,bind,ro", str(root))
        for name in ("dev", "proc", "var/lib/reassert-tests"):
            run("mount", "--bind", "--make-private", f"/{name}", str(root / name))
            run("mount", "-o", "remount,bind,ro", str(root / name))
        yield root
    finally:
        run("umount", "--lazy", str(root), check=False)
        root.rmdir()


@cache
def usual_spec() -> str:
    """What `runc spec` writes."""
    with tempfile.TemporaryDirectory() as directory:
        run("runc", "spec", "--bundle", directory)
        return (Path(directory) / "config.json").read_text()


class Bundle:
    """An OCI bundle with a busybox root filesystem. `spec` is written to config.json by `save`."""

    def __init__(self, directory: Path, args: list[str] | None = None) -> None:
        self.directory = directory
        self.rootfs = directory / "rootfs"
        for name in ("bin", "etc/ssl/certs", "etc/pki", "proc", "sys", "dev", "tmp"):
            (self.rootfs / name).mkdir(parents=True)
        shutil.copy(BUSYBOX, self.rootfs / "bin/busybox")
        for applet in APPLETS:
            (self.rootfs / "bin" / applet).symlink_to("busybox")
        (self.rootfs / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
        (self.rootfs / "etc/ssl/certs/image.crt").write_text("image\n")
        self.spec: dict[str, Any] = json.loads(usual_spec())
        self.spec["root"]["readonly"] = False  # as in a pod that says nothing about it
        process = self.spec["process"]
        process.update(terminal=False, args=args or ["/bin/sleep", "600"], env=["PATH=/bin"])
        process.pop("rlimits", None)
        self.save()

    @property
    def config(self) -> Path:
        """config.json."""
        return self.directory / "config.json"

    def save(self) -> None:
        """Write `spec` to config.json."""
        self.config.write_text(json.dumps(self.spec, separators=(",", ":")))

    def saved(self) -> dict[str, Any]:
        """config.json as it is now."""
        loaded: dict[str, Any] = json.loads(self.config.read_text())
        return loaded

    def bind(self, source: Path | str, destination: str, *options: str) -> None:
        """Add a bind mount, as a pod's volume would be."""
        mount = {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", *options]}
        self.spec["mounts"].append(mount)

    def pod(self, namespace: str = "default", name: str = "p", container: str = "c", **more: str) -> None:
        """containerd's annotations for a pod's container."""
        kind = more.pop("type", "container")
        self.spec["annotations"] = {
            "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.container-name": container,
            "io.kubernetes.cri.image-name": "registry.example/app:1",
            "io.kubernetes.cri.sandbox-id": "0" * 64,
            "io.kubernetes.cri.sandbox-name": name,
            "io.kubernetes.cri.sandbox-namespace": namespace,
            "io.kubernetes.cri.sandbox-uid": "11111111-2222-3333-4444-555555555555",
            **more,
        }


class Running:
    """A container of a runtime command (`runc`, or a dispatcher's path), deleted at the end."""

    def __init__(self, runtime: str, bundle: Bundle, *options: str) -> None:
        """`options`: global ones of the runtime, for its `create` alone."""
        self.runtime = runtime
        self.bundle = bundle
        self.options = options
        self.id = "t-" + uuid.uuid4().hex[:12]
        self.create_options: list[str] = []

    def create(self) -> int:
        """Exit status of the runtime's `create`."""
        empty = self.bundle.directory / "empty"
        empty.touch()
        (self.bundle.directory / "output").write_text("")
        with (self.bundle.directory / "output").open("a") as output, empty.open() as stdin:
            # The container inherits these descriptors: pipes would keep `run` waiting for it.
            return subprocess.run(
                [
                    *(self.runtime, *self.options, "create", "--bundle", str(self.bundle.directory)),
                    *(*self.create_options, self.id),
                ],
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60,
            ).returncode

    def refused(self) -> str:
        """The one line that a refused `create` prints."""
        status = self.create()
        run(self.runtime, "delete", "--force", self.id, check=False)
        lines = self.output().splitlines()
        assert (status, len(lines)) == (1, 1), f"{status}: {self.output()}"
        return lines[0]

    def __enter__(self) -> Running:
        assert self.create() == 0, self.output()
        self.start()
        return self

    def start(self) -> None:
        """The runtime's `start`, after which it can be asked to `exec`."""
        run(self.runtime, "start", self.id)
        if {"type": "user"} in self.bundle.spec["linux"]["namespaces"]:
            self._wait_for_program()

    def _wait_for_program(self) -> None:
        """Until the runtime's process executes the container's: before, crun's exec may not join its user namespace.

        `start` does not wait for that. A runtime's own process is not dumpable (ptrace(2), access mode checking).
        """
        pid = self.pid()
        program = os.path.basename(self.bundle.spec["process"]["args"][0])
        for _ in range(1000):
            if Path(f"/proc/{pid}/comm").read_text().strip() == program[:15]:
                return
            time.sleep(0.01)
        raise AssertionError("the container's process was not executed")

    def pid(self) -> int:
        """The container's first process, by the runtime's `state`."""
        found: int = json.loads(run(self.runtime, "state", self.id).stdout)["pid"]
        return found

    def __exit__(self, *_: object) -> None:
        cleaned(self.id, lambda: run(self.runtime, "delete", "--force", self.id, check=False))

    def output(self) -> str:
        """The output of the container's process so far."""
        return (self.bundle.directory / "output").read_text()

    def wait_for(self, text: str) -> str:
        """The output, once it contains `text`."""
        for _ in range(100):
            if text in self.output():
                return self.output()
            time.sleep(0.05)
        raise AssertionError(f"{text!r} never came: {self.output()}")

    def exec(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """Standard output of a command in the container."""
        return run(self.runtime, "exec", *options, self.id, *command).stdout

    def environ(self) -> list[str]:
        """The environment of the container's process.

        `start` can return before the runtime's own process executes that one: the environment of `runc init` does not
        count, and that of crun's cannot be read (not dumpable: ptrace(2), access mode checking).
        """
        for _ in range(100):
            done = run(self.runtime, "exec", self.id, "/bin/cat", "/proc/1/environ", check=False)
            environ = done.stdout.rstrip("\0").split("\0")
            if done.returncode == 0 and not any(entry.startswith("_LIBCONTAINER_") for entry in environ):
                return environ
            assert done.returncode == 0 or "Permission denied" in done.stderr, done.stderr
            time.sleep(0.05)
        raise AssertionError(f"the runtime did not execute the container's process: {done.stderr}")

    def mounts(self, below: str = "/etc") -> list[tuple[str, str, str]]:
        """(root, mount point, options) of the mounts that the container sees at or below a path, in order."""
        rows = [line.split() for line in self.exec("/bin/cat", "/proc/self/mountinfo").splitlines()]
        return [(row[3], row[4], row[5]) for row in rows if row[4] == below or row[4].startswith(below + "/")]
