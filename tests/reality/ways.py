"""The attacks of a case on what runtimes have beside the OCI specification: annotations, verbs, ways of their own."""

from __future__ import annotations

import json
import posixpath
from random import Random
from typing import Any

from reality.attacks import Attacks
from reality.reading import Case

TARGETS = ("/etc/profile.d/reality.sh", "/run/reality", "{NODE}/ca/new.crt", "{NODE}/bundle.pem", "/usr/local/bin/ls")
"""Files of the node that nobody but root writes."""

CRUN = {
    "run.oci.hooks.stderr": TARGETS,
    "run.oci.hooks.stdout": TARGETS,
    "run.oci.keep_original_groups": ("1",),
    "run.oci.mount_context_type": ("context", "rootcontext"),
    "run.oci.systemd.force_cgroup_v1": ("/sys/fs/cgroup", "/etc/ssl"),
    "run.oci.systemd.subgroup": ("x", "../x"),
    "run.oci.delegate-cgroup": ("x", "../../x"),
    "run.oci.seccomp.receiver": ("/run/reality", "/nowhere"),
    "run.oci.seccomp_fail_unknown_syscall": ("1",),
    "run.oci.timens_offset": ("0 1 0",),
    "run.oci.handler": ("krun", "wasm", "x"),
    "run.oci.pidfd_receiver": ("/run/reality",),
    "run.oci.dont_chroot": ("1",),
}
RUNC = {
    "bundle": ("/nowhere", "/", "{NODE}/victim"),
    "org.criu.config": ("/etc/passwd", "{NODE}/gpu"),
    "org.systemd.property.ExecStartPost": ("['/bin/true']",),
    "io.kubernetes.cri-o.Devices": ("/dev/kmsg", "{NODE}/dev/gpu0"),
    "io.podman.annotations.privileged": ("TRUE",),
    "cdi.k8s.io/x": ("vendor.example/class=all",),
}

NUMBERS: tuple[dict[str, Any], ...] = ({}, {"type": "c"}, {"type": "c", "major": 240})


class Ways(Attacks):
    """Adds features to a case."""

    def __init__(self, random: Random, made: Case) -> None:
        super().__init__(random, made)
        rules = made["policy"]["spec"]["rules"]
        self.exclusive = any("deviceAllocations" in rule for rule in rules)
        # only where something is there to be given back
        own = 12 if self.exclusive else 1
        weighted = (
            (self.annotation_of_a_runtime, 9), (self.update, own), (self.restore, 4), (self.unknown_option, 5),
            (self.gpu, own), (self.many_volumes, 2), (self.long_links, 2), (self.dev_is_elsewhere, 6),
            (self.device_at_a_link, 6), (self.many_devices, own // 2 + 1), (self.remount, 5), (self.trap, own // 2 + 1),
            (self.caller, 3), (self.own_mount_of_the_source, 4), (self.read_only_tmpfs, 2),
        )  # fmt: skip
        self.attacks += [attack for attack, _ in weighted]
        self.weights += [weight for _, weight in weighted]

    def annotation_of_a_runtime(self) -> None:
        table = self.pick(CRUN, CRUN, RUNC)
        key = self.pick("run.oci.hooks.stderr", "run.oci.hooks.stdout", *table) if table is CRUN else None
        key = key or self.pick("bundle", "bundle", *table)
        value = self.pick(*table[key])
        if key == "bundle":  # runc reads the config.json there for `exec ID COMMAND`
            evil = f"{self.name()}=evil"
            process = {"env": [evil], "args": ["x"], "cwd": "/"}
            spec = {"ociVersion": "1.0.2", "process": process, "root": {"path": "rootfs"}}
            own = "{VOLUMES}/" + self.volume({"op": "file", "path": "config.json", "text": json.dumps(spec)})
            value = self.pick(own, own, value)
            how = self.pick("plain", "plain", "--env", "-e", "file")
            self.add("exec", how=how, env=[] if how == "plain" else [evil])
            if self.chance(0.5):
                self.add("env", entry=evil)
        self.add("annotation", key=key, value=value)
        if self.chance(0.4):  # a refusal that quotes it
            path = self.target()["mountPath"]
            volume = self.volume({"op": "dir", "path": "x"})
            above = posixpath.dirname(path) if path.count("/") > 1 else path
            self.add("mount", source="volume:" + volume, destination=above + "/x;echo PWNED>$W;#")

    def update(self) -> None:
        devices = [{"allow": True, "access": "rwm", **self.pick(*NUMBERS)} for _ in range(self.pick(1, 1, 2))]
        more: dict[str, Any] = {} if self.chance(0.2) else {"devices": devices}
        self.add("verb", verb="update", resources={"pids": {"limit": 1000}, **more})
        if self.chance(0.3):
            self.gpu()

    def restore(self) -> None:
        self.add("verb", verb=self.pick("restore", "restore", "restore", "frobnicate"))
        self.add("env", entry=f"{self.name()}=evil")

    def unknown_option(self) -> None:
        """A global option of another runtime takes the next word, which looks like a verb."""
        option = self.pick("--platform", "--strange")
        word = self.pick("ptrace", "ptrace", "kvm", "state", "delete", "run", "create", "--root")
        self.add("global", words=[option, word], first=self.chance(0.5))
        self.add("env", entry=f"{self.name()}=evil")
        if self.chance(0.4):
            self.add("exec", how=self.pick("file", "--env"), env=[f"{self.name()}=evil"])

    def gpu(self) -> None:
        """A device that only an allocation gives: its node, a rule of its number, a volume with it."""
        minor = self.pick(0, 1)
        if self.chance(0.7):
            self.add("device", path=self.pick("/dev/xgpu", "/srv/gpu"), type="c", major=240, minor=minor)
        if self.chance(0.7):
            self.add("rules", count=1, rule=self.pick(*NUMBERS, {"type": "c", "major": 240, "minor": minor}))
        if self.chance(0.2):
            volume = self.volume({"op": "device", "path": "gpu", "type": "c", "major": 240, "minor": minor})
            self.add("mount", source="volume:" + volume, destination="/data")

    def many_volumes(self) -> None:
        sizes = ((150, 0, 1), (400, 1, 1), (250, 150, 1), (250, 200, 1), (60, 300, 10), (100, 38, 100))
        count, depth, length = self.pick(*sizes)
        self.add("many", at=self.pick("/data", "/data", "/opt/x", "/dev/shm"), count=count, depth=depth, length=length)
        if self.chance(0.4):  # a device outside /dev has its path walked with them
            self.add("device", path="/srv/xdev", type="c", major=1, minor=3)
        elif self.chance(0.5):
            self.add("image", op="dir", path="/elsewhere")
            self.add("image", op="link", path="/dev", to="/elsewhere")
        elif self.chance(0.5):
            self.add("mount", source="volume:" + self.volume({"op": "dir", "path": "x"}), destination="/dev")

    def long_links(self) -> None:
        """Links with long ways, one after the other, that end at a reserved path or lead to it.

        Linux follows 40. A walk that it begins again, from RCU-walk to ref-walk, goes on counting (fs/namei.c,
        total_link_count). So 20 to 40 links sometimes fail with ELOOP, up to 19 never, and more than 40 always.
        """
        path = self.target()["mountPath"]
        count, length = self.pick((8, 4000), (19, 4000), (19, 100), (41, 1000), (200, 100))
        start = self.pick("/data", self.component(path))
        self.add("chain", path=start, to=self.pick("/etc/other", path, "/tmp"), count=count, length=length)
        self.add("many", at=self.pick(start, start, path), count=self.pick(1, 10, 30), depth=self.pick(0, 3))

    def with_options(self) -> dict[str, Any]:
        """A reserved mount, with options that can be lost."""
        mount = self.target()
        if "hostPath" in mount:
            mount.setdefault("options", ["rbind", "rprivate", "nosuid", "noexec"])
        return mount

    def own_mount_of_the_source(self) -> None:
        """The node's reserved directory, at the reserved path, as the container's author wants it."""
        mount = self.with_options()
        if "hostPath" in mount:
            more = self.pick([], ["ro"], ["ro"], ["rro"], ["ro", "nosuid"], ["ro", "noexec"])
            options = [self.pick("rbind", "rbind", "bind"), "rprivate", *more]
            idmap = {"idmap": True} if self.chance(0.3) else {}
            self.add("mount", source=mount["hostPath"], destination=mount["mountPath"], options=options, **idmap)
            if self.chance(0.3):
                self.add("sysadmin")

    def read_only_tmpfs(self) -> None:
        """Its path leads elsewhere once a volume with a link is mounted; runc sets `ro` by the path after its hooks."""
        path = self.with_options()["mountPath"]
        self.add("image", op="dir", path="/a/b/x")
        self.add("image", op="link", path="/l", to="/a/b/x")
        self.add("mount", source="tmpfs", type="tmpfs", destination="/l", options=["ro"])
        volume = self.volume({"op": "link", "path": "x", "to": self.pick(path, path, posixpath.dirname(path))})
        self.add("mount", source="volume:" + volume, destination="/a/b")

    def dev_is_elsewhere(self) -> None:
        """/dev is a link of the image, or a volume lies over it, with links where the runtime makes devices."""
        path = self.lent()
        to = self.pick(path, path + "/new", posixpath.dirname(path), "/elsewhere", "../elsewhere", "/proc/self/cwd")
        device = self.pick("/dev/xdev", "/dev/sub/x", "/dev/xover/xdev", "/dev/xover/sub/x")
        if self.chance(0.3):
            self.add("image", op="link", path="/dev", to=to)
        else:
            self.volume_over_dev(self.pick("xdev", "sub", "ptmx", "fd", "console", "shm", "zero"), to)
        if self.chance(0.6):
            self.add("device", path=device, type="c", major=1, minor=5)

    def volume_over_dev(self, name: str, to: str) -> None:
        """A volume with a link, over /dev by its path or by a link of the image that the runtime follows."""
        null = {"op": "device", "path": "null", "type": "c", "major": 1, "minor": 3}
        volume = self.volume(null, {"op": "link", "path": name, "to": to})
        over = self.pick("/dev", "/./dev", "/devices", "/devices", "/dev/xover")
        if over == "/devices":
            self.add("image", op="link", path=over, to=self.pick("/dev", "dev", "tmp/../dev"))
        self.add("mount", source="volume:" + volume, destination=over)

    def lent(self) -> str:
        """The path of a directory that the container may write to, if there is one."""
        lent = [one for one in self.mounts if one.get("readOnly") is False and one.get("hostPath", "")[-4:] != ".pem"]
        return str(self.pick(*lent or self.mounts)["mountPath"])

    def device_at_a_link(self) -> None:
        """The last name of a device's path is a link, which leads to a new name in the node's directory."""
        path = self.lent()
        to = self.pick(path + "/new", path + "/new", path + "/certs/new", path, "/etc/other")
        where, name = self.pick(("/data", "x"), ("/dev", "xdev"), ("/dev/sub", "x"), ("/srv", "x"))
        if where != "/dev" and self.chance(0.4):
            self.add("image", op="link", path=f"{where}/{name}", to=to)
        elif where == "/dev":
            self.volume_over_dev(name, to)
        else:
            volume = self.volume({"op": "link", "path": name, "to": to})
            self.add("mount", source="volume:" + volume, destination=where)
        self.add("device", path=f"{where}/{name}", type="c", major=1, minor=5)

    def many_devices(self) -> None:
        self.add("devices", count=self.pick(50, 300, 1000))
        self.add("rules", count=self.pick(50, 300, 1000), rule=self.pick(*NUMBERS))

    def remount(self) -> None:
        self.add("sysadmin")

    def trap(self) -> None:
        """The image has modules at the paths of the program, and somebody audits the container."""
        nodes = self.pick(["nvidiactl"], ["nvidiactl", "gpux"])  # names that have to be compared with a glob
        self.add("audit", command=self.pick("audit", "audit", "doctor"), nodes=nodes)

    def caller(self) -> None:
        """A process calls the agent's socket; without an agent nothing happens."""
        kinds = [["mnt"], ["user"], ["mnt", "user"], ["pid"], ["mnt", "pid", "net", "ipc", "uts"], ["chroot"], ["net"]]
        self.add(
            "caller", namespaces=self.pick([], *kinds), capabilities=self.chance(0.3),
            log=self.pick(*TARGETS), bundle=self.pick("/nowhere;echo PWNED>$W;#", "{NODE}/victim"),
        )  # fmt: skip
