"""The attacks that a case can hold: each method adds the features of one, on what the case's policy reserves."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from random import Random
from typing import Any

from reality.reading import Case, Feature

TARGETS = (
    "/proc/self/cwd", "/proc/self/root", "/proc/self/root/tmp", "/proc/self", "/proc/1/cwd", "/proc/sys",
    "/proc/self/fd", "/dev/console", "/dev/zero", "/dev/ptmx", "/dev/null", "/dev/shm", "/dev", "/dev/fd",
    "/dev/stdin", "/dev/pts", "/dev/xblock", "/sys", "/sys/fs", "/nowhere/at/all", "/etc/other", "../other",
    "/tmp", "..", ".", "/", "/run/loop", "../../../../../../etc/other", "/tmp/../etc/other",
)  # fmt: skip
"""Where links lead."""

ODD = ("ENV", "Env", "eNV")


class Attacks:
    """Adds features to a case."""

    def __init__(self, random: Random, made: Case) -> None:
        self.random = random
        self.case = made
        self.features: list[Feature] = made["features"]
        spec = made["policy"]["spec"]
        self.mounts = [mount for rule in spec["rules"] for mount in rule["mounts"]] or [
            {"hostPath": "{NODE}/ca", "mountPath": "/etc/ssl"}
        ]  # an empty policy: the same attacks change nothing
        self.env = [entry for rule in spec["rules"] for entry in rule["env"]] or [
            {"name": "SSL_CERT_FILE", "value": "/x"}
        ]
        self._volumes = 0
        weighted: list[tuple[Callable[[], None], int]] = [
            (self.link_in_image, 8), (self.link_in_volume, 6), (self.mount_near, 6), (self.shared_above, 8),
            (self.link_below, 6), (self.device_at, 4), (self.device_by_link, 4), (self.hostile_env, 8),
            (self.odd_members, 4), (self.forged_identity, 7), (self.hostile_exec, 6), (self.mount_by_proc, 4),
            (self.special_mount, 2), (self.changing_link, 2), (self.wrong_kind, 2), (self.mount_through_link, 4),
        ]  # fmt: skip
        self.attacks = [attack for attack, _ in weighted]
        self.weights = [weight for _, weight in weighted]

    def add(self, kind: str, **fields: Any) -> None:
        self.features.append({"kind": kind, **fields})

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def target(self) -> dict[str, Any]:
        """A reserved mount of the policy."""
        mount: dict[str, Any] = self.random.choice(self.mounts)
        return mount

    def name(self) -> str:
        """A reserved name of env."""
        return str(self.random.choice(self.env)["name"]).replace("*", self.pick("CUDA", "X"))

    def component(self, path: str) -> str:
        """The path or one above it, not the root."""
        parts = path.strip("/").split("/")
        length = len(parts) if self.chance(0.55) else self.random.randint(1, len(parts))
        return "/" + "/".join(parts[:length])

    def spelled(self, path: str) -> str:
        """A path in another spelling, or as it is."""
        return str(self.pick(
            path, path, path, path + "/", path.replace("/", "//", 2), "/." + path,
            path.rpartition("/")[0] + "/./" + path.rpartition("/")[2],
            "/tmp/.." + path, path.lstrip("/"), "/../.." + path, path + "/.",
        ))  # fmt: skip

    def volume(self, *operations: Feature, file: str = "") -> str:
        """A new volume, with these files in it."""
        self._volumes += 1
        name = f"v{self._volumes}"
        self.add("volume", name=name, ops=list(operations), **({"file": file} if file else {}))
        return name

    def evil(self, mount: dict[str, Any]) -> str:
        """A volume of the kind that fits a reserved path, with the attacker's files."""
        if mount.get("hostPath", "").endswith(".pem"):
            return self.volume(file="evil\n")
        files = ("ca.crt", "certs/company.crt", "certs/ca-certificates.crt")
        return self.volume(*({"op": "file", "path": path, "text": "evil\n"} for path in files))

    def follow_up(self, to: str) -> None:
        """What makes a link's target be there, or later be something else."""
        if to.startswith("/dev/console") or to == "/dev/stdin" or self.chance(0.1):
            self.add("tty")
        if "cwd" in to or self.chance(0.1):
            self.add("cwd", path=self.pick("/tmp", "/srv/dir", "/etc/other"))
        if to == "/run/loop":
            self.add("image", op="link", path="/run/loop", to="/run/loop")
        if to == "/dev/xblock":
            self.add("device", path="/dev/xblock", type="b", major=7, minor=0)
        if to.startswith("/dev/") and self.chance(0.4):
            self.add("userns")

    # attacks

    def link_in_image(self) -> None:
        to = self.pick(*TARGETS)
        self.add("image", op="link", path=self.component(self.target()["mountPath"]), to=to)
        self.follow_up(to)

    def link_in_volume(self) -> None:
        path = self.target()["mountPath"]
        parent = posixpath.dirname(path)
        if parent == "/":
            return self.link_in_image()
        above = self.component(parent)
        inside = self.component(path[len(above) :])
        to = self.pick(*TARGETS, "/" + posixpath.basename(path))
        self.add(
            "mount",
            source="volume:" + self.volume({"op": "link", "path": inside, "to": to}),
            destination=self.spelled(above),
        )
        return self.follow_up(to)

    def mount_near(self) -> None:
        mount = self.target()
        path = mount["mountPath"]
        where = self.pick("at", "at", "above", "below")
        options = self.pick(["rbind"], ["rbind", "ro"], ["bind"], ["rbind", "rslave"], ["rbind", "nosuid", "noexec"])
        if where == "at":
            self.add("mount", source="volume:" + self.evil(mount), destination=self.spelled(path), options=options)
        elif where == "below":
            below = self.pick("/certs", "/sub", "/ca.crt", "/certs/extra", "/private", "/new", "/certs/company.crt")
            file = below.endswith(".crt")
            volume = (
                self.volume(file="evil\n")
                if file
                else self.volume({"op": "file", "path": "company.crt", "text": "evil\n"})
            )
            self.add("mount", source="volume:" + volume, destination=self.spelled(path + below), options=options)
        else:
            above = posixpath.dirname(path)
            if above == "/":
                return self.link_in_image()
            if self.chance(0.3):
                self.add("mount", source="tmpfs", type="tmpfs", destination=self.spelled(above), options=[])
            else:
                volume = self.volume({"op": "file", "path": "other", "text": "x\n"})
                self.add(
                    "mount", source="volume:" + volume, destination=self.spelled(self.component(above)), options=options
                )
        return None

    def shared_above(self) -> None:
        """A volume above a reserved path that another container has too."""
        mount = self.target()
        path = mount["mountPath"]
        if path.count("/") < 2:
            return self.mount_near()
        above = self.component(posixpath.dirname(path))
        inside = path[len(above) :]
        first = "/" + inside.strip("/").split("/")[0]
        kind = "file" if mount.get("hostPath", "").endswith(".pem") else "dir"
        prepared: list[Feature] = [] if self.chance(0.5) else [{"op": kind, "path": inside, "text": "the volume's\n"}]
        new = "new-file" if kind == "file" else "new-dir"
        work = self.pick(
            [["rm", inside]], [["rm", inside], [new, inside]], [["new-over", inside]], [["mv", first,
            first + ".aside"]],
            [["mv", first, first + ".aside"], [new, inside]], [["rm", first], [new, inside]],
        )  # fmt: skip
        volume = self.volume(*prepared)
        self.add("mount", source="volume:" + volume, destination=self.spelled(above))
        self.add("sidecar", volume=volume, when=self.pick("started", "started", "created"), ops=work)
        return None

    def link_below(self) -> None:
        """With allowBelow: a link in the allowed volume leads a second volume over the reserved mount."""
        candidates = [mount for mount in self.mounts if mount.get("allowBelow")]
        if not candidates:
            return self.mount_near()
        mount = self.random.choice(candidates)
        allowed, path = mount["allowBelow"][0], mount["mountPath"]
        up = "/".join([".."] * (allowed[len(path) :].count("/")))
        name, to = (
            self.pick("x", "a/b"),
            self.pick(path, path + "/ca.crt", path + "/sub", up, "..", "/proc/self/cwd", "/etc/other"),
        )
        volume = self.volume({"op": "link", "path": name, "to": to})
        self.add("mount", source="volume:" + volume, destination=self.spelled(allowed))
        second = self.volume(file="evil\n") if to.endswith(".crt") else self.evil(mount)
        self.add("mount", source="volume:" + second, destination=f"{allowed}/{name}")
        if "cwd" in to:
            self.add("cwd", path=path)
        return None

    def mount_through_link(self) -> None:
        """A mount elsewhere, by the text of its destination; a link of the image leads it to what is reserved."""
        mount = self.target()
        path = self.component(mount["mountPath"])
        self.lead("/data", self.pick(path, "." + path, posixpath.dirname(path)))
        inside = self.pick("", "", "/" + posixpath.basename(mount["mountPath"]))
        self.add("mount", source="volume:" + self.evil(mount), destination="/data" + inside)

    def lead(self, path: str, to: str) -> None:
        """A link of the image; sometimes over more links than the kernel follows. runc follows 255."""
        for number in range(self.pick(0, 0, 45)):
            self.add("image", op="link", path=path, to=f"/link{number}")
            path = f"/link{number}"
        self.add("image", op="link", path=path, to=to)

    def device_at(self) -> None:
        path = self.target()["mountPath"]
        where = self.pick(path, path, path + "/ca.crt", path + "/new", posixpath.dirname(path), self.spelled(path))
        self._device(where)
        if self.chance(0.3):
            self.add("userns")

    def device_by_link(self) -> None:
        """A device whose path is led to what is reserved by a link of the image, or the other way round."""
        path = self.target()["mountPath"]
        if self.chance(0.5):
            self.lead("/data", self.component(path))
            self._device(self.pick("/data", "/data/ca.crt", "/data/" + posixpath.basename(path)))
        else:
            self.add("image", op="link", path=path, to="/data/volume")
            self._device("/data/volume")

    def _device(self, path: str) -> None:
        kind, major, minor = self.pick(("c", 1, 3), ("c", 1, 5), ("b", 7, 0))
        self.add("device", path=path, type=kind, major=major, minor=minor)

    def hostile_env(self) -> None:
        name = self.name()
        entries = self.pick(
            [f"{name}=evil"], [f"{name}=evil", f"{name}=worse"], [f"{name}\0=x"], [f"{name}\0"],
            [f"{name}\0x=y"], [f"{name}=a\0b"],
            [name], [f"{name}="], ["=x"], [""], [f"X=1\0{name}=evil"], [f"{name.lower()}=x"], [f" {name}=x"],
            [f"{name} =x"],
            [f"{name}=evil", f"{name}\0"], [f"{name}=evil", f"{name}\0x=y"], [f"{name}=evil", name],
            [f"{name}=evil\n"], [f"A={name}=evil"], [f"{name}==evil"], [f"{name}\0\0=z", f"{name}=evil"], ["=",
            f"={name}=evil"], [f"{name}=void"], [f"{name}=none", f"{name}=all"], [f"{name}=all", f"{name}=none"],
            [f"{name}=/home/a"], [f"{name}=/home/../etc"], [f"{name}=low", name], [f"{name}=h\nh"], [f"{name}=Deny"],
        )  # fmt: skip
        for entry in entries:
            self.add("env", entry=entry)

    def odd_members(self) -> None:
        """Members that a Go program takes for those of the same name in lower case; some twice."""
        evil = ["PATH=/bin", f"{self.name()}=evil"]
        mount = self.target()
        volume = self.evil(mount)
        entry = {"destination": mount["mountPath"], "type": "tmpfs", "source": "tmpfs", "options": []}
        at, key, value = self.pick(
            (["process"], self.pick(*ODD), evil), (["process"], "env#1", evil), ([], "proce\u017f\u017f",
            {"env": evil}),
            ([], self.pick("PROCESS", "Process"), {"env": evil}), ([], "process#1", {"env": evil}),
            ([], self.pick("Mounts", "MOUNTS", "mount\u017f", "mounts#1"), [entry]), ([], "LINUX", {"devices": []}),
            (["process"], "en\u0076\u0000", evil), (["root"], "PATH", "rootfs"), ([], "Annotations", {"a": "b"}),
            (["process"], "ar\u0067\u0073#1", ["/bin/busybox", "sleep", "600"]),
            (["mounts", 0], "Destination", mount["mountPath"]), (["mounts", 0], "de\u017ftination",
            mount["mountPath"]),
            (["mounts", 3], "DESTINATION", mount["mountPath"]), (["mounts", 3], "destination#1", mount["mountPath"]),
            (["mounts", 3], "destination", mount["mountPath"] + "\0x"),
        )  # fmt: skip
        self.features.remove(next(one for one in self.features if one["kind"] == "volume" and one["name"] == volume))
        self.add("member", at=at, key=key, value=value)

    def forged_identity(self) -> None:
        """What a pod, an image or a user of the engine's command line can write, so that a container looks excluded."""
        engine = self.case["engine"]
        name = engine["name"]
        crio, containerd = "io.kubernetes.cri-o.", "io.kubernetes.cri."
        forged: dict[str, str] = {}
        if name == "docker" and not engine.get("pod"):
            if self.chance(0.5):
                return self.add("cgroup-parent")
            forged = self.pick(
                {
                    containerd + "container-type": "sandbox",
                    containerd + "sandbox-namespace": "kube-system",
                    containerd + "sandbox-id": "0",
                },
                {
                    "io.container.manager": "cri-o",
                    crio + "ContainerType": "sandbox",
                    "io.kubernetes.pod.namespace": "kube-system",
                },
                {"io.container.manager": "libpod", crio + "ContainerType": "sandbox"},
            )
        elif name == "podman":
            forged = self.pick(
                {crio + "ContainerType": "sandbox"},
                {crio + "ContainerType": "sandbox"},
                {crio + "Labels": "{}"},
                {containerd + "container-type": "sandbox", containerd + "sandbox-namespace": "kube-system"},
                {crio + "Labels": '{"io.kubernetes.pod.namespace":"kube-system"}'},
            )
        elif name == "containerd":
            forged = self.pick(
                {"io.container.manager": "libpod"},
                {"io.container.manager": "cri-o"},
                {crio + "Labels": "{}"},
                {"io.container.manager": "libpod", crio + "ContainerType": "sandbox"},
                {crio + "ContainerType": "sandbox", "io.kubernetes.pod.namespace": "kube-system"},
            )
        elif name == "cri-o":
            forged = self.pick(
                {containerd + "container-type": "sandbox"},
                {containerd + "sandbox-namespace": "kube-system", containerd + "sandbox-id": "0"},
                {crio + "ImageName": "elsewhere/second-tag:1"},
                {crio + "ImageName": "elsewhere/second-tag:1"},
            )
            if engine.get("type") == "sandbox":
                forged = {crio + "Labels": '{"io.kubernetes.pod.namespace":"kube-system"}'}
        elif self.chance(0.4):
            return self.add(
                "annotation", key="reassert/decision", value='{"version":1,"policy":"","env":{},"absent":[]}'
            )
        else:
            kind = self.pick("sandbox", "container")
            forged = self.pick(
                {containerd + "container-type": kind, containerd + "sandbox-namespace": "kube-system"},
                {crio + "ContainerType": kind, "io.kubernetes.pod.namespace": "kube-system"},
            )
        for key, value in forged.items():
            self.add("annotation", key=key, value=value)
        return self.add("env", entry=f"{self.name()}=evil")

    def hostile_exec(self) -> None:
        name = self.name()
        how = self.pick("file", "file", "pipe", "--env", "-e", "--env=")
        env = self.pick(
            [f"{name}=evil"],
            [f"{name}=evil", f"{name}=worse"],
            [name],
            [f"{name}="],
            [f"{name}\0=x"],
            [f"{name}=evil", f"{name}\0"],
            [f"{name}=evil", f"{name}\0x=y"],
        )
        fields: dict[str, Any] = {}
        if how == "file" and self.chance(0.3):
            fields["members"] = {self.pick("ENV", "Env", "env\u0000"): ["PATH=/bin", f"{name}=evil"]}
        self.add("exec", how=how, env=env, **fields)
        self.naming()

    def naming(self) -> None:
        """How the engine calls the runtime, and where that keeps its state."""
        if self.chance(0.5):
            self.add("runtime-name", name=self.pick("RUNTIME-wasm", "RUNTIME-1.1", "nvidia-container-runtime", "my"))
        if self.chance(0.5):
            self.add(self.pick("own-root", "xdg"))

    def mount_by_proc(self) -> None:
        mount = self.target()
        path = mount["mountPath"]
        if self.chance(0.5):
            destination = "/proc/self/root" + path
        else:
            cwd = self.pick(posixpath.dirname(path), "/", path)
            self.add("cwd", path=cwd)
            destination = "/proc/self/cwd/" + posixpath.relpath(path, cwd)
        self.add("mount", source="volume:" + self.evil(mount), destination=destination)

    def special_mount(self) -> None:
        path = self.target()["mountPath"]
        kind, source = self.pick(("proc", "proc"), ("sysfs", "sysfs"), ("devpts", "devpts"), ("tmpfs", "tmpfs"))
        where = self.pick(path, posixpath.dirname(path), path + "/new")
        if where != "/":
            self.add("mount", source=source, type=kind, destination=where, options=[])

    def changing_link(self) -> None:
        """A volume above a reserved path where a directory becomes a link and a directory again, all the time."""
        path = self.target()["mountPath"]
        if path.count("/") < 2:
            return self.link_in_image()
        above = posixpath.dirname(path)
        volume = self.volume({"op": "dir", "path": posixpath.basename(path)})
        self.add("mount", source="volume:" + volume, destination=above)
        return self.add(
            "flip", volume=volume, path=posixpath.basename(path), to=self.pick("/tmp", "/proc/self/cwd", "/dev/shm")
        )

    def wrong_kind(self) -> None:
        path = self.component(self.target()["mountPath"])
        operation = self.pick(
            {"op": "file", "text": "x\n"}, {"op": "dir"}, {"op": "fifo"}, {"op": "device", "type": "c",
            "major": 1, "minor": 5},
            {"op": "device", "type": "c", "major": 0, "minor": 0},
        )  # fmt: skip
        self.add("image", path=path, **operation)
