"""Containers of docker, or of podman, by its command."""

from __future__ import annotations

import io
import shlex
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import Any

from base import MARKER, Broken, Refused, make_root, run
from by_oci import CAPABILITIES


class Docker:
    """The command of docker or podman: `docker`, `podman`, or one with options."""

    kind = "docker"

    def __init__(self, command: str, busybox: str, runtime: str) -> None:
        self.command = shlex.split(command)
        self.runtime = ["--runtime", runtime] if runtime else []
        self.image = f"localhost/hostile-pod:{uuid.uuid4().hex[:12]}"
        archive = io.BytesIO()
        with tempfile.TemporaryDirectory() as root, tarfile.open(fileobj=archive, mode="w") as tar:
            make_root(Path(root), busybox)
            tar.add(root, "/")
        status, _, errors = self.call("import", "-", self.image, stdin=archive.getvalue())
        if status:
            raise Broken(f"{command} import: {errors.strip()}")

    def call(self, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Exit status, output and errors of a command. Raises Broken."""
        done = run([*self.command, *arguments], input=stdin, capture_output=True)
        return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")

    def start(self, case: dict[str, Any], scratch: Path) -> Container:
        """Starts the container of a case. Raises Refused, Broken."""
        # podman's `rm --force` waits ten seconds for a signal that `sleep` as process 1 ignores
        options = ["--network=none", "--cap-drop=ALL", "--stop-signal=KILL", "--env", MARKER]
        options += [f"--cap-add={name}" for name in (*CAPABILITIES, *case.get("capabilities", []))]
        for entry in case.get("env", []):
            options += ["--env", entry]
        for mount in case.get("mounts", []):
            source = mount.get("host") or str(scratch / "volumes" / mount["volume"])
            options += ["--volume", f"{source}:{mount['at']}" + (":ro" if mount.get("readOnly") else "")]
        options += [f"--device={path}" for path in case.get("devices", [])]
        options += [f"--annotation={key}={value}" for key, value in case.get("annotations", {}).items()]
        options += ["--privileged"] if case.get("privileged") else []
        container = Container(self)
        words = ["run", "--detach", "--name", container.name, *self.runtime, *options, self.image, "/bin/sleep", "3600"]
        try:
            status, _, errors = self.call(*words)
            if status:
                raise Refused(errors.strip().rpartition("\n")[2] or f"exit status {status}")
        except (Refused, Broken):
            container.remove()
            raise
        return container

    def close(self) -> None:
        """Removes the image."""
        self.call("rmi", "--force", self.image)


class Container:
    """A container, by its name."""

    def __init__(self, docker: Docker) -> None:
        self.docker = docker
        self.name = f"hostile-pod-{uuid.uuid4().hex[:12]}"

    def exec(self, *command: str, extra: dict[str, Any] | None = None) -> tuple[int, bytes, str]:
        """Exit status, output and errors of a command in it. `extra`: a case's `exec`."""
        options = [part for entry in (extra or {}).get("env", []) for part in ("--env", entry)]
        return self.docker.call("exec", *options, self.name, f"/bin/{command[0]}", *command[1:])

    def remove(self) -> None:
        """Ends and removes it."""
        self.docker.call("rm", "--force", self.name)
