"""A case's image, volumes and config.json on disk. What each kind of feature does to them is here, and only here."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

from harness import proc
from harness.bundle import UID, as_engines_write, containerd_annotations
from harness.paths import REASSERT

from reality.hostile import chain, many, set_traps
from reality.node import WatchedNode, mount, unmount
from reality.reading import Case, Feature, features

SLEEP = ["/bin/busybox", "sleep", "600"]
MAPPED = 100000
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID"]
DEFAULT_MOUNTS = [
    ("/proc", "proc", "proc", []),
    ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
    ("/dev/shm", "tmpfs", "shm", ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    ("/sys", "sysfs", "sysfs", ["nosuid", "noexec", "nodev", "ro"]),
]


def fifo_in_image(case: Case) -> bool:
    """Whether crun 1.21 may hang: it opens a FIFO that an image has as a directory of a mount's path, any mount's."""
    return any(feature.get("op") == "fifo" for feature in features(case, "image"))


def make(top: Path, operations: list[Feature], owner: int) -> None:
    """Make files below a directory; an operation that collides with an earlier one is left out, as a layer would be.

    No link that an earlier operation made is followed: the real path of the parent has to stay below `top`.
    """
    for operation in operations:
        path = top / operation["path"].strip("/")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(top.resolve()):
                continue
            _make_one(path, operation)
            os.chown(path, owner, owner, follow_symlinks=False)
        except OSError:
            continue


def _files(feature: Feature) -> list[Feature]:
    """The files that a feature puts into the image."""
    return [feature] if feature["kind"] == "image" else chain(feature) if feature["kind"] == "chain" else []


def _make_one(path: Path, operation: Feature) -> None:
    what = operation["op"]
    if what != "dir":
        _remove(path)
    if what == "link":
        path.symlink_to(operation["to"])
    elif what == "dir":
        path.mkdir(parents=True, exist_ok=True)
    elif what == "file":
        path.write_text(operation["text"])
    elif what == "device":
        kind = stat.S_IFCHR if operation["type"] == "c" else stat.S_IFBLK
        os.mknod(path, kind | 0o666, os.makedev(operation["major"], operation["minor"]))
    elif what == "fifo":
        os.mkfifo(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


BUNDLES = {"containerd": "k8s.io/{}", "podman": "{}/userdata", "cri-o": "{}/userdata", "docker": "moby/{}"}
"""Where engines make a bundle: the last two directories."""


class Bundle:
    """The bundle of one start of a case, in a directory where its volumes are too. `close` removes it."""

    def __init__(self, node: WatchedNode, case: Case, name: str) -> None:
        self.node = node
        self.case = case
        self.name = name
        self.directory = node.work / name
        self.path = self.directory / BUNDLES.get(case["engine"]["name"], "{}").format(name)
        self.rootfs = self.path / "rootfs"
        self.volumes = self.directory / "volumes"
        self.config = self.path / "config.json"
        self.owner = MAPPED if features(case, "userns") else 0
        self.rootfs.mkdir(parents=True)
        self.volumes.mkdir()
        self._overlay = False
        self._make_volumes()
        self._make_image()
        self.spec = self._spec()
        self.cgroup = self.spec["linux"]["cgroupsPath"]

    def write(self, hook: dict[str, Any] | None) -> None:
        """config.json. `hook`: a createRuntime hook in it."""
        spec = dict(self.spec)
        if hook:
            spec["hooks"] = {"createRuntime": [hook]}
        self.config.write_text(render(spec))

    def _make_volumes(self) -> None:
        for feature in features(self.case, "volume"):
            path = self.volumes / feature["name"]
            if feature.get("file"):
                path.write_text(feature["file"])
                os.chown(path, self.owner, self.owner)
            else:
                path.mkdir(exist_ok=True)
                os.chown(path, self.owner, self.owner)
                make(path, feature["ops"], self.owner)

    def _make_image(self) -> None:
        image = self.rootfs
        whiteouts = features(self.case, "whiteout")
        if whiteouts or features(self.case, "overlay"):
            image = self.directory / "image"
            for name in ("image", "upper", "overlay-work", "layer"):
                (self.directory / name).mkdir()
                os.chown(self.directory / name, self.owner, self.owner)
        base = [{"op": "dir", "path": path} for path in ("bin", "etc", "proc", "sys", "dev", "tmp", "usr", "run")]
        base.append({"op": "file", "path": "etc/passwd", "text": "root:x:0:0::/:/bin/sh\n"})
        files = [one for feature in self.case["features"] for one in _files(feature)]
        make(image, base + files, self.owner)
        if features(self.case, "audit"):
            set_traps(image, REASSERT.parent)
        self._own_directories(image)
        program = image / "bin/busybox"
        if not program.exists():
            os.link(self.node.directory / "busybox", program)
        if image != self.rootfs:
            layer = self.directory / "layer"
            make(
                layer,
                [
                    {"op": "device", "type": "c", "major": 0, "minor": 0, **one}
                    for one in [{"path": whiteout["path"]} for whiteout in whiteouts]
                ],
                self.owner,
            )
            self._own_directories(layer)
            data = f"lowerdir={layer}:{image},upperdir={self.directory}/upper,workdir={self.directory}/overlay-work"
            mount("overlay", self.rootfs, "overlay", 0, data)
            self._overlay = True

    def _own_directories(self, top: Path) -> None:
        os.chown(top, self.owner, self.owner)
        for path, directories, _ in os.walk(top):
            for name in directories:
                os.chown(os.path.join(path, name), self.owner, self.owner, follow_symlinks=False)

    def _spec(self) -> dict[str, Any]:
        case = self.case
        process: dict[str, Any] = {
            "terminal": bool(features(case, "tty")),
            "user": {"uid": 0, "gid": 0},
            "args": SLEEP,
            "env": ["PATH=/bin", *(feature["entry"] for feature in features(case, "env"))],
            "cwd": "/",
            "capabilities": {kind: [*CAPABILITIES] for kind in ("bounding", "effective", "permitted")},
        }
        for feature in features(case, "cwd"):
            process["cwd"] = feature["path"]
        for feature in features(case, "user"):
            process["user"] = {"uid": feature["uid"], "gid": feature["uid"]}
        mounts = [
            {"destination": destination, "type": kind, "source": source, "options": list(options)}
            for destination, kind, source, options in DEFAULT_MOUNTS
        ]
        mounts += [self._mount(feature) for feature in features(case, "mount")]
        for feature in features(case, "many"):
            mounts += many(feature, str(self.node.directory / "empty"))
        linux: dict[str, Any] = {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "maskedPaths": ["/proc/kcore", "/sys/firmware"],
            "readonlyPaths": ["/proc/sys", "/proc/bus"],
        }
        spec: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "process": process,
            "root": {"path": "rootfs", "readonly": bool(features(case, "readonly-root"))},
            "mounts": mounts,
            "annotations": {},
            "linux": linux,
        }
        self._apply_security(spec)
        self._apply_identity(spec)
        for feature in features(case, "annotation"):
            value = self.node.placed(feature["value"]).replace("{VOLUMES}", str(self.volumes))
            spec["annotations"][feature["key"]] = value
        for feature in features(case, "member"):
            target: Any = spec
            for step in feature["at"]:
                target = target[step]
            target[feature["key"]] = feature["value"]
        return spec

    def _mount(self, feature: Feature) -> dict[str, Any]:
        source = feature["source"]
        if source.startswith("volume:"):
            source = str(self.volumes / source.removeprefix("volume:"))
        made = {
            "destination": feature["destination"],
            "type": feature.get("type", "bind"),
            "source": self.node.placed(source),
            "options": feature.get("options", ["rbind", "rprivate"]),
        }
        if feature.get("idmap"):
            same = [{"containerID": 0, "hostID": 0, "size": 65536}]
            made.update(uidMappings=same, gidMappings=same)
        return made

    def _apply_security(self, spec: dict[str, Any]) -> None:
        case, linux, process = self.case, spec["linux"], spec["process"]
        if features(case, "userns"):
            linux["namespaces"] += [{"type": "user"}, {"type": "network"}]
            mapping = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
            linux["uidMappings"], linux["gidMappings"] = mapping, mapping
        if features(case, "unmasked"):  # securityContext.procMount: Unmasked
            linux["maskedPaths"], linux["readonlyPaths"] = [], []
        if features(case, "privileged"):
            process["capabilities"] = {
                kind: [*CAPABILITIES, "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"]
                for kind in ("bounding", "effective", "permitted")
            }
            linux["maskedPaths"], linux["readonlyPaths"] = [], []
            linux["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
            for one in spec["mounts"]:
                if one["destination"] == "/sys":
                    one["options"].remove("ro")
        for feature in features(case, "device"):
            device = {key: feature[key] for key in ("path", "type", "major", "minor")}
            linux.setdefault("devices", []).append({**device, "fileMode": 0o666, "uid": 0, "gid": 0})
        for feature in features(case, "devices"):  # many of them, each with the numbers that follow
            for number in range(feature["count"]):
                device = {"path": f"/dev/x{number}", "type": "c", "major": 240, "minor": 100 + number}
                linux.setdefault("devices", []).append({**device, "fileMode": 0o666, "uid": 0, "gid": 0})
        for feature in features(case, "rules"):
            rule = {"allow": True, "access": "rwm", **feature["rule"]}
            linux["resources"]["devices"] += [dict(rule) for _ in range(feature["count"])]
        if features(case, "sysadmin"):
            for held in process["capabilities"].values():
                held.append("CAP_SYS_ADMIN")
        for feature in features(case, "propagation"):
            linux["rootfsPropagation"] = feature["value"]

    def _apply_identity(self, spec: dict[str, Any]) -> None:
        """What the engine itself writes of who a container is."""
        engine, notes = self.case["engine"], spec["annotations"]
        run = os.environ.get("REALITY_RUN", "0")
        prefix = {"cri-o": "crio-", "podman": "libpod-"}.get(engine["name"], "")
        number = self.name.encode().hex() if prefix else self.name
        spec["linux"]["cgroupsPath"] = f"/reassert-reality-{run}/{prefix}{number}"
        kind, namespace = engine.get("type", "container"), engine.get("namespace", "team-a")
        if engine["name"] == "containerd":
            spec["linux"]["cgroupsPath"] = f"/reassert-reality-{run}/kubepods/besteffort/pod{UID}/{self.name}"
            notes.update(containerd_annotations(namespace, kind=kind, image=engine.get("image", "")))
        elif engine["name"] == "cri-o":
            labels = {
                "io.kubernetes.pod.name": "p",
                "io.kubernetes.pod.namespace": namespace,
                "io.kubernetes.pod.uid": UID,
                "io.kubernetes.container.name": "c" if kind == "container" else "POD",
            }
            notes.update(
                {
                    **labels,
                    "io.container.manager": "cri-o",
                    "io.kubernetes.cri-o.ContainerType": kind,
                    "io.kubernetes.cri-o.Image": "0f" * 32 if engine.get("by-id") else engine["image"],
                    "io.kubernetes.cri-o.ImageName": engine["image"],
                    "io.kubernetes.cri-o.Labels": json.dumps(labels),
                }
            )
        elif engine["name"] == "podman":
            notes.update({"io.container.manager": "libpod", "org.opencontainers.image.stopSignal": "15"})
        elif engine["name"] == "docker" and engine.get("pod"):
            spec["linux"]["cgroupsPath"] = f"/reassert-reality-{run}/kubepods/besteffort/pod{UID}/{self.name}"
            log = self.directory / f"kubelet/pods/{UID}/containers/c/0badcafe"
            log.parent.mkdir(parents=True)
            log.touch()
            spec["mounts"].append(
                {
                    "destination": "/dev/termination-log",
                    "type": "bind",
                    "source": str(log),
                    "options": ["rbind", "rprivate"],
                }
            )
        for _ in features(self.case, "outside"):  # containerd's path for a container of no pod
            spec["linux"]["cgroupsPath"] = f"/reassert-reality-{run}/k8s.io/{self.name}"
        for _ in features(self.case, "cgroup-parent"):
            spec["linux"]["cgroupsPath"] = f"/kubepods/podreality-{run}/{self.name}"

    def sidecar(self, when: str) -> bool:
        """What another container that shares the volumes does. Whether it did anything.

        It acts on the volume's directory on the node, where nothing of the container's mounts is in the way.
        """
        acted = False
        for feature in features(self.case, "sidecar"):
            if feature["when"] != when:
                continue
            top = self.volumes / feature["volume"]
            for what, *names in feature["ops"]:
                try:
                    _act(top, what, [top / name.strip("/") for name in names])
                    acted = True
                except OSError:
                    continue
        return acted

    def mounted(self) -> list[str]:
        """What is mounted below the bundle in the node's own namespace, but for an overlay root."""
        points = [mount.point for mount in proc.read_mounts(below=str(self.directory))]
        return [one for one in points if one not in (str(self.directory), str(self.rootfs))]

    def close(self) -> None:
        """Remove it, and nothing of the node's that a runtime left mounted in it."""
        for point in reversed(self.mounted()):
            unmount(Path(point))
        if self._overlay:
            unmount(self.rootfs)
        shutil.rmtree(self.directory, ignore_errors=True)


def _act(top: Path, what: str, paths: list[Path]) -> None:
    for path in paths:
        if not path.parent.resolve().is_relative_to(top.resolve()):
            return
    if what == "rm":
        _remove(paths[0])
    elif what == "mv":
        os.rename(paths[0], paths[1])
    elif what == "new-over":  # mv -f of a new file
        new = top / ".new"
        new.write_text("the sidecar's\n")
        os.rename(new, paths[0])
    elif what == "new-dir":
        paths[0].mkdir()
        (paths[0] / "ca.crt").write_text("the sidecar's\n")
    elif what == "new-file":
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        paths[0].write_text("the sidecar's\n")


def render(spec: dict[str, Any]) -> str:
    """JSON text, compact as Go writes it. A member `NAME#N` is written as `NAME`: so a case can have one twice."""
    return re.sub(r'"([^"#]*)#[0-9]":', r'"\1":', as_engines_write(spec).decode())
