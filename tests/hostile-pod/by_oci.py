"""Containers of an OCI runtime, from bundles that are made here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from pathlib import Path
from typing import Any

from base import MARKER, Broken, Refused, make_files, make_root, run

PROCESS = {"cwd": "/", "args": ["/bin/sleep", "3600"], "env": ["PATH=/bin", MARKER], "user": {"uid": 0, "gid": 0}}
EVERY = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
"""All capabilities, in the order of their numbers (linux/capability.h)."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_CHROOT")
MOUNTS = (
    ("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
    ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
    ("/dev/shm", "tmpfs", "shm", ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    ("/sys", "sysfs", "sysfs", ["nosuid", "noexec", "nodev", "ro"]),
)


class Runtime:
    """An OCI runtime or a wrapper, called as `PATH create --bundle DIR ID`, `start`, `exec` and `delete --force`."""

    kind = "oci"

    def __init__(self, path: str, busybox: str) -> None:
        self.path = path
        self.busybox = busybox

    def close(self) -> None:
        """Nothing is left."""

    def start(self, case: dict[str, Any], scratch: Path) -> Container:
        """Starts the container of a case, whose volumes are in `scratch`. Raises Refused, Broken."""
        bundle = scratch / "bundle"
        rootfs = bundle / "rootfs"
        make_root(rootfs, self.busybox)
        make_files(rootfs, case.get("image", {}))
        (bundle / "config.json").write_text(json.dumps(_spec(case, scratch)), "utf-8")
        container = Container(self.path, bundle)
        try:
            for verb in (["create", "--bundle", str(bundle), container.id], ["start", container.id]):
                status, message = container.call(*verb)
                if status:
                    raise Refused(message.strip().rpartition("\n")[2] or f"{verb[0]}: exit status {status}")
        except (Refused, Broken):
            container.remove()
            raise
        return container


class Container:
    """A container of a runtime, by its id."""

    def __init__(self, path: str, bundle: Path) -> None:
        self.path = path
        self.bundle = bundle
        self.id = f"hostile-pod-{uuid.uuid4().hex[:12]}"

    def call(self, *arguments: str) -> tuple[int, str]:
        """Calls the runtime. What it prints goes to a file: the container keeps the descriptor."""
        output = self.bundle / "output"
        with output.open("wb") as stream:
            done = run([self.path, *arguments], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        return done.returncode, output.read_text("utf-8", "replace")

    def exec(self, *command: str, extra: dict[str, Any] | None = None) -> tuple[int, bytes, str]:
        """Exit status, output and errors of a command in it. `extra`: a case's `exec`."""
        options: list[str] = []
        if extra and extra["how"] == "--process":
            process = self.bundle / "process.json"
            spec = json.loads((self.bundle / "config.json").read_text("utf-8"))["process"]
            env = ["PATH=/bin", MARKER, *extra["env"]]
            process.write_text(json.dumps({**spec, "args": [f"/bin/{command[0]}", *command[1:]], "env": env}), "utf-8")
            options, command = ["--process", str(process)], ()
        elif extra:
            options = [part for entry in extra["env"] for part in ("--env", entry)]
        path = [f"/bin/{command[0]}", *command[1:]] if command else []
        arguments = [self.path, "exec", *options, self.id, *path]
        done = run(arguments, stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")

    def remove(self) -> None:
        """Ends it, and removes what the runtime has of it."""
        self.call("delete", "--force", self.id)


def _spec(case: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """config.json of a case."""
    bound = int(re.search(r"^CapBnd:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1], 16)
    wanted = {*CAPABILITIES, *case.get("capabilities", [])}
    wanted |= {*EVERY.split()} if case.get("privileged") else set()
    has = [name for number, name in enumerate(EVERY.split()) if name in wanted and bound >> number & 1]
    names = [f"CAP_{name}" for name in has]
    devices, rules = [], [{"allow": bool(case.get("privileged")), "access": "rwm"}]
    for path in case.get("devices", []):
        about = Path(path).stat()
        number = {"type": "b" if Path(path).is_block_device() else "c", **_number(about.st_rdev)}
        devices.append({"path": path, **number, "fileMode": 0o666, "uid": 0, "gid": 0})
        rules.append({"allow": True, **number, "access": "rwm"})
    mounts = [
        {"destination": at, "type": kind, "source": source, "options": options} for at, kind, source, options in MOUNTS
    ]
    for mount in case.get("mounts", []):
        source = mount.get("host") or str(scratch / "volumes" / mount["volume"])
        options = ["rbind", "rprivate", *(["ro"] if mount.get("readOnly") else [])]
        mounts.append({"destination": mount["at"], "type": "bind", "source": source, "options": options})
    spec: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "hostname": "hostile-pod",
        "root": {"path": "rootfs", "readonly": False},
        "process": {
            **PROCESS,
            "env": [*PROCESS["env"], *case.get("env", [])],
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), names),
        },
        "mounts": mounts,
        "annotations": case.get("annotations", {}),
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "devices": devices,
            "resources": {"devices": rules},
        },
    }
    return merged(spec, case.get("spec", {}))


def _number(device: int) -> dict[str, int]:
    return {"major": os.major(device), "minor": os.minor(device)}


def merged(one: Any, other: Any) -> Any:
    """A case's `spec` over the usual one: members are merged, lists appended, anything else replaced."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: merged(one[key], value) if key in one else value for key, value in other.items()}}
    return [*one, *other] if isinstance(one, list) and isinstance(other, list) else other
