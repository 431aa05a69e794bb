"""A row as containerd's CRI plugin, or dockerd, would hand it to the runtime; what its process then says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from harness.bundle import APPLETS, containerd_annotations, usual_spec
from harness.paths import BUSYBOX

from e2e.innocents.node import InnocentNode
from e2e.innocents.rows import EXCLUDED, Row

CAPABILITIES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
]  # as below
"""What containerd and dockerd give (containerd, pkg/oci; moby, oci/caps)."""

_NAMES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
]  # a list of so many strings would be one line for each
"""By their numbers (linux/capability.h)."""

HOSTILE = {"PYTHONHTTPSVERIFY": "0", "REQUESTS_CA_BUNDLE": "/image.pem", "KEPT": "by the image"}
"""What the image of each row sets: the policies take two of them back."""

OWN = (
    "/etc/reassert",
    "/opt/reassert",
    "/run/reassert",
    "/opt/reassert/reassert-runc",
    "/var/lib/reassert",
    "/var/log/reassert",
)
"""reassert's files on the node."""

_PROPAGATION = {"HostToContainer": "rslave", "Bidirectional": "rshared"}
_KUBELETS = {"/etc/hosts": "etc-hosts", "/dev/termination-log": "containers/main/0a"}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
CA = "/etc/ssl/certs/ca-certificates.crt"


@dataclass
class Tried:
    """How a start ended.

    `said`: the lines that the container's process wrote. `env`: its environment. `authorities`: what it read as the
    image's file of CAs.
    """

    status: int
    output: str
    events: list[dict[str, Any]]
    said: list[str] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    authorities: str = ""

    @property
    def started(self) -> bool:
        """Whether the container's process ran."""
        return "innocent begins" in self.output

    def reasons(self) -> list[str]:
        """Why it was refused, or would be, by the event log."""
        return sorted(one["message"] for event in self.events for one in event.get("denials", ()))


def uid(row: Row) -> str:
    """Of the row's pod."""
    return f"1111-{row.name}"


def script(row: Row, excluded: bool = False) -> str:
    """What the container's process does: it reads and writes as the agent must, and tries what it must not.

    A volume of /run/containerd has the container's own root file system below it, with copies of its volumes.
    `excluded`: by the policy, so that it may write to reassert's files.
    """
    paths = [shlex.quote(volume["mountPath"]) for volume in row.volumes]
    lines = ["echo innocent begins"]
    lines += [f"[ -e {path} ] || echo lacks {path}" for path in paths]
    lines += [f"/bin/cat {path} > /dev/null || [ -d {path} ] || echo cannot read {path}" for path in row.reads]
    lines += [f"(echo x >> {path}) || echo cannot write {path}" for path in row.writes]
    for path in () if excluded else reached(row):
        lines += [f"if [ -d {path} ]; then (: > {path}/written) && echo OPEN {path}"]
        lines += [f"elif [ -e {path} ]; then (: >> {path}) && echo OPEN {path}; fi"]
    if not excluded:
        copies = "/bin/grep -o ' /[^ ]*/rootfs/[^ ]*' /proc/self/mountinfo"
        below = "$p/reassert $p/etc/reassert $p/lib/reassert $p/log/reassert $p/opt/reassert $p/run/reassert"
        lines += [f"for p in $({copies}); do for d in {below}; do"]
        lines += ['if [ -d "$d" ]; then (: > "$d/written") && echo OPEN "$d"; fi; done; done']
    lines += ["echo environment", "/bin/cat /proc/self/environ | /bin/tr '\\0' '\\n'", "echo authorities"]
    return "\n".join([*lines, f"/bin/cat {CA}"])


def reached(row: Row) -> list[str]:
    """Where the row's container has reassert's files, if a link does not hide them."""
    return [
        volume["mountPath"].rstrip("/") + path[len(source) :]
        for volume in row.volumes
        for source in [volume["hostPath"].rstrip("/").replace("/var/run", "/run", 1)]
        for path in OWN
        if path.startswith(source + "/")
    ]


def prepare(node: InnocentNode, row: Row) -> None:
    """What kubelet makes before the container: directories of hostPaths, volumes of the pod."""
    for volume in row.volumes:
        path, kind = node.path(volume["hostPath"]), volume.get("type", "")
        if not os.path.lexists(path) and not volume["hostPath"].startswith(("/proc/", "/sys/")):
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind in ("FileOrCreate", "File") or path.suffix in (".crt", ".lock", ".conf"):
                path.touch()
            else:
                path.mkdir()
    for path in row.writes:
        volume = max(
            (one for one in row.volumes if f"{path}/".startswith(one["mountPath"].rstrip("/") + "/")),
            key=lambda one: len(one["mountPath"]),
            default=None,
        )
        if volume and volume["mountPath"] != path:
            below = path.removeprefix(volume["mountPath"].rstrip("/")).rpartition("/")[0]
            node.path(volume["hostPath"] + below).mkdir(parents=True, exist_ok=True)
    pod = node.path(_pod(row))
    for path in ("etc-hosts", "containers/main/0a", "volumes/kubernetes.io~projected/token/token"):
        (pod / path).parent.mkdir(parents=True, exist_ok=True)
        (pod / path).write_text("x\n")
    for number, _ in enumerate(row.emptyDirs):
        directory = pod / f"volumes/kubernetes.io~empty-dir/e{number}"
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)


def _pod(row: Row) -> str:
    return f"/var/lib/kubelet/pods/{uid(row)}" if row.is_pod else f"/var/lib/docker/containers/{row.name}"


def mounts(row: Row) -> list[dict[str, Any]]:
    """The volumes, with those that kubelet adds, in containerd's order: by the depth of their paths."""
    made = []
    if row.is_pod:
        made = [_bind(f"{_pod(row)}/{name}", path, "rprivate", "rw") for path, name in _KUBELETS.items()]
        if row.automountServiceAccountToken:
            made.append(_bind(f"{_pod(row)}/volumes/kubernetes.io~projected/token", TOKEN, "rprivate", "ro"))
    for path, name in (("/etc/hostname", "hostname"), ("/etc/resolv.conf", "resolv.conf")):
        made.append(_bind(f"/etc/{name}", path, "rprivate", "rw"))
    for number, path in enumerate(row.emptyDirs):
        made.append(_bind(f"{_pod(row)}/volumes/kubernetes.io~empty-dir/e{number}", path, "rprivate", "rw"))
    for volume in row.volumes:
        source = volume["hostPath"] + ("/" + volume["subPath"] if "subPath" in volume else "")
        propagation = _PROPAGATION.get(volume.get("mountPropagation", ""), "rprivate")
        made.append(_bind(source, volume["mountPath"], propagation, "ro" if volume.get("readOnly") else "rw"))
    own = {mount["destination"].rstrip("/") for mount in made}
    usual = [one for one in usual_spec()["mounts"] if one["destination"] not in own]
    for mount in usual:
        if row.securityContext.get("privileged") and mount["destination"] in ("/sys", "/sys/fs/cgroup"):
            mount["options"] = [option for option in mount["options"] if option != "ro"]
    return usual + sorted(made, key=lambda one: one["destination"].rstrip("/").count("/"))


def _bind(source: str, destination: str, *options: str) -> dict[str, Any]:
    resolved = source.replace("/var/run/", "/run/", 1) if source.startswith("/var/run/") else source
    resolved = "/run" if resolved == "/var/run" else resolved  # containerd resolves links of the node
    return {"destination": destination, "type": "bind", "source": resolved, "options": ["rbind", *options]}


def capabilities(row: Row) -> list[str]:
    """As containerd's CRI plugin computes them."""
    asked = row.securityContext.get("capabilities", {})
    kept = [] if "ALL" in asked.get("drop", ()) else [one for one in CAPABILITIES if one not in asked.get("drop", ())]
    kept = _NAMES if row.securityContext.get("privileged") else [*kept, *asked.get("add", ())]
    return [f"CAP_{name}" for name in dict.fromkeys(kept) if name in _of_this_machine()]


def added(row: Row) -> list[str]:
    """The capabilities that the row adds, if this machine's root has them."""
    asked: list[str] = row.securityContext.get("capabilities", {}).get("add", [])
    return [name for name in asked if name in _of_this_machine()]


@cache
def _of_this_machine() -> set[str]:
    """The capabilities that root has here: fewer in a machine that is a container itself."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:")]
    bounding = int(line.split()[1], 16)
    return {name for number, name in enumerate(_NAMES) if bounding >> number & 1}


def cri_annotations(row: Row, namespace: str) -> dict[str, str]:
    """containerd's, of a container of the pod."""
    image = f"registry.example/{row.name}:1"
    return containerd_annotations(namespace, row.name, "main", uid=uid(row), image=image)


def environment(row: Row) -> list[str]:
    """Of the image, and of the row."""
    given = {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", **HOSTILE, **row.env}
    return [f"{name}={value}" for name, value in given.items()]


def spec(row: Row, namespace: str) -> dict[str, Any]:
    """config.json."""
    made: dict[str, Any] = usual_spec()
    asked, privileged = row.securityContext, bool(row.securityContext.get("privileged"))
    made["root"]["readonly"] = bool(asked.get("readOnlyRootFilesystem"))
    process = made["process"]
    process.update(args=["/bin/sh", "-c", script(row, namespace == EXCLUDED)], env=environment(row))
    process["user"] = {"uid": asked.get("runAsUser", 0), "gid": asked.get("runAsGroup", 0)}
    process["noNewPrivileges"] = asked.get("allowPrivilegeEscalation") is False
    process["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), capabilities(row))
    made["mounts"] = mounts(row)
    linux = made["linux"]
    shared = {"network": row.hostNetwork, "pid": row.hostPID, "ipc": row.hostIPC}
    linux["namespaces"] = [one for one in linux["namespaces"] if not shared.get(one["type"])]
    given = {volume.get("mountPropagation") for volume in row.volumes}
    for name in ("Bidirectional", "HostToContainer"):
        if name in given:
            linux["rootfsPropagation"] = _PROPAGATION[name]
            break
    if privileged:
        linux.pop("maskedPaths", None)
        linux.pop("readonlyPaths", None)
        linux["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        numbers = {"/dev/kmsg": (1, 11), "/dev/fuse": (10, 229)}
        taken = [volume["mountPath"] for volume in row.volumes]
        linux["devices"] = [
            {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666}
            for path, (major, minor) in numbers.items()
            if path not in taken
        ]
    if row.is_pod:
        made["annotations"] = cri_annotations(row, namespace)
    return made


_NUMBERS = count()


def start(node: InnocentNode, row: Row, runtime: str, config: dict[str, Any]) -> Tried:
    """Run the container to its end with a runtime, as its engine lays out the bundle."""
    name = f"innocent-{os.getpid()}-{next(_NUMBERS)}"
    engine = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
    if not row.is_pod:
        engine = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby"
    bundle = f"{engine}/{name}"
    image(node, bundle)
    node.write(f"{bundle}/config.json", json.dumps(config))
    node.events()
    done = node.run(runtime, "run", "--bundle", bundle, name, check=False)
    tried = read(done.returncode, done.stdout + done.stderr, node)
    shutil.rmtree(node.path(bundle))
    return tried


def read(status: int, output: str, node: InnocentNode) -> Tried:
    """What `script` wrote, and the events since the last look."""
    tried = Tried(status, output, node.events())
    said, _, rest = output.partition("environment\n")
    env, _, tried.authorities = rest.partition("authorities\n")
    tried.said, tried.env = said.splitlines(), env.splitlines()
    return tried


DIRECTORIES = ("bin", "dev", "etc/ssl/certs", "etc/pki", "proc", "run", "sys", "tmp", "usr", "var/log", "var/lib")
"""Of each row's image."""


def image(node: InnocentNode, bundle: str) -> None:
    """A root file system as Debian's, with busybox alone."""
    root = node.path(bundle) / "rootfs"
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True)
    (root / "var/run").symlink_to("/run")
    kept = node.path("/run/busybox")
    if not kept.exists():
        kept.write_bytes(Path(BUSYBOX).read_bytes())
        kept.chmod(0o755)
    os.link(kept, root / "bin/busybox")
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / CA.lstrip("/")).write_text("image\n")
    (root / "tmp").chmod(0o1777)
