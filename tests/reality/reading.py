"""A plain reading of a policy for one case: what must be there, and whether the pod's author tried to prevent it.

Written from docs/policy.md alone; it shares no code with the program.
"""

from __future__ import annotations

import fnmatch
import json
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any

from reality.node import GPUS

Feature = dict[str, Any]
Case = dict[str, Any]

SPECIAL = ("/proc", "/dev", "/sys")


@dataclass
class Reserved:
    """What a case's container must have. `env`: None for a name that must be absent. `patterns`: globs of such names.

    `allowed`: the entry of the policy for a name of which the container may choose the value.
    `undecidable`: for a fault of the node what must be there is unknown.
    `deny`: names and paths for which a conflict means no start.
    """

    enforced: bool = True
    env: dict[str, str | None] = field(default_factory=dict)
    patterns: list[str] = field(default_factory=list)
    allowed: dict[str, dict[str, Any]] = field(default_factory=dict)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    undecidable: bool = False
    deny: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    """Names of the node's device nodes that only an allocation gives."""
    applies: bool = False
    """Whether any rule applies, also one of whose devices and files the node has none: `restore` is refused then."""

    def is_empty(self) -> bool:
        """Whether nothing is reserved."""
        return not (self.has_env() or self.mounts or self.devices)

    def has_env(self) -> bool:
        """Whether a name of env is reserved."""
        return bool(self.env or self.patterns or self.allowed)

    def wanted(self, name: str) -> tuple[bool, str | None]:
        """Whether one value of a name is reserved, and which."""
        if name in self.env:
            return True, self.env[name]
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns), None

    def may_choose(self, name: str, value: str) -> bool:
        """Whether the container may choose this value of a name with allowed ones."""
        entry = self.allowed[name]
        glob = entry.get("pattern")
        by_glob = glob is not None and fnmatch.fnmatchcase(value, glob) and ".." not in value.split("/")
        named = [
            *entry.get("oneOf", []),
            entry.get("default"),
            None if entry.get("else") == "Deny" else entry.get("else"),
        ]
        return by_glob or value in named

    def chosen(self, name: str, entries: list[str]) -> str | None:
        """What a container with these entries of env has for a name with allowed values; None if it lacks the name."""
        default, other = (self.allowed[name].get(key) for key in ("default", "else"))
        *_, (_, equals, value) = [
            ("", "", ""),
            *(one.partition("=") for one in entries if one.partition("=")[0] == name),
        ]
        if not equals:
            return default
        return value if self.may_choose(name, value) else other if isinstance(other, str) else default


def features(case: Case, *kinds: str) -> list[Feature]:
    """The features of these kinds, in order."""
    return [feature for feature in case["features"] if feature["kind"] in kinds]


def clean(path: str) -> str:
    """A path without what says nothing: `//`, `/./`, a slash at the end, `..` at the root."""
    return re.sub("^//", "/", posixpath.normpath("/" + path))


def within(path: str, above: str) -> bool:
    """Whether a cleaned path is another or lies below it."""
    return path == above or path.startswith(above.rstrip("/") + "/")


def read(case: Case) -> Reserved:
    """What the policy wants of the container, by who the container really is."""
    spec = case["policy"]["spec"]
    reserved = Reserved(enforced=spec.get("mode", "Enforce") == "Enforce")
    engine = {**case["engine"], "ambiguous": is_ambiguous(case)}
    if _excluded(spec.get("exclude", {}), engine):
        return reserved
    for rule in spec["rules"]:
        if not _matches(rule.get("match", {}), engine):
            continue
        reserved.applies = True
        deny = rule.get("onConflict") == "Deny"
        for glob in rule.get("deviceAllocations", {}).get("exclusive", []):
            reserved.devices |= {name for name in GPUS if fnmatch.fnmatchcase("{NODE}/dev/" + name, glob)}
        for entry in rule.get("env", []):
            if deny or entry.get("else") == "Deny":
                reserved.deny.add(entry["name"])
            _add_env(entry, reserved)
        for mount in rule.get("mounts", []):
            if mount.get("hostPath", "").endswith("/missing"):
                if mount.get("onMissingSource") == "Skip":
                    continue
                reserved.undecidable = True
            reserved.mounts.append(mount)
            if deny:
                reserved.deny.add(mount["mountPath"])
    return reserved


def _add_env(entry: dict[str, Any], reserved: Reserved) -> None:
    if "oneOf" in entry or "pattern" in entry:
        reserved.allowed[entry["name"]] = entry
    elif "*" in entry["name"]:
        reserved.patterns.append(entry["name"])
    else:
        reserved.env[entry["name"]] = _value(entry, reserved)


def every_reserved(case: Case) -> Reserved:
    """The same, had every rule matched: what a container that wants no trouble keeps away from."""
    policy = {
        **case["policy"],
        "spec": {
            **case["policy"]["spec"],
            "exclude": {},
            "rules": [
                {key: value for key, value in rule.items() if key != "match"}
                for rule in case["policy"]["spec"]["rules"]
            ],
        },
    }
    return read({**case, "policy": policy})


def is_ambiguous(case: Case) -> bool:
    """Whether annotations claim a pod and nothing shows which engine wrote them."""
    claims = ("io.kubernetes.cri.", "io.kubernetes.cri-o.", "io.container.manager")
    return case["engine"]["name"] == "none" and any(
        one["key"].startswith(claims) for one in features(case, "annotation")
    )


def is_odd(case: Case) -> bool:
    """Whether config.json holds what no engine writes: a NUL, or a member twice or in another spelling."""
    rest = [one for one in case["features"] if one["kind"] != "exec"]
    return bool(features(case, "member")) or "\\u0000" in json.dumps(rest)


def is_odd_exec(one: Feature) -> bool:
    """The same of a process file."""
    return one["how"] in ("file", "pipe") and ("members" in one or "\0" in "".join(one["env"]))


def keeps_all(case: Case, reserved: Reserved) -> bool:
    """Whether nothing at all of the container may be changed: Audit, or nothing is reserved in it."""
    if not reserved.enforced:
        return True
    forged = any(not one["key"].startswith("org.opencontainers.") for one in features(case, "annotation"))
    unclear = forged or features(case, "cgroup-parent")
    return reserved.is_empty() and not unclear


def is_left_alone(case: Case, reserved: Reserved) -> bool:
    """Whether not even what steers the runtime is taken away: Audit, or the container is excluded."""
    return not reserved.enforced or _excluded(case["policy"]["spec"].get("exclude", {}), case["engine"])


def is_innocent_update(one: Feature) -> bool:
    """Whether an `update` is of limits alone."""
    return one["verb"] == "update" and "devices" not in one["resources"]


def may_be_gone(case: Case, mount: dict[str, Any], later: bool) -> bool:
    """Whether the policy lets others take this mount away, and they did; `later`: when the container runs already."""
    others = [one for one in features(case, "sidecar") if later or one["when"] == "created"]
    return mount.get("volumesAbove") == "Allow" and bool(others or features(case, "flip"))


def forbidden_above(case: Case, reserved: Reserved) -> str:
    """A volume that config.json puts above a reserved mount without `volumesAbove: Allow`, or ""."""
    covers = [clean(mount["mountPath"]) for mount in reserved.mounts]
    for mount in reserved.mounts:
        path = clean(mount["mountPath"])
        if "hostPath" not in mount or mount.get("volumesAbove") == "Allow":
            continue
        for feature in features(case, "mount"):
            above = clean(feature["destination"])
            if within(path, above) and not any(within(above, cover) for cover in covers):
                return f"{feature['destination']} above {path}"
    return ""


def _excluded(exclude: dict[str, Any], engine: dict[str, Any]) -> bool:
    named = engine["name"] in ("containerd", "cri-o")
    if named and _any(exclude.get("namespaces", []), engine.get("namespace", "team-a")):
        return True
    # no file of dockershim shows that docker's pause is no container that a user put into a pod's cgroup: never certain
    return (
        engine.get("type") == "sandbox"
        and engine["name"] != "docker"
        and "sandbox" in exclude.get("containerTypes", [])
    )


def _matches(match: dict[str, Any], engine: dict[str, Any]) -> bool:
    unknown = match.get("ifUnknown", "Enforce") == "Enforce"
    if engine["ambiguous"] or (engine["name"] == "docker" and engine.get("pod")):
        return True  # the bundle of docker has none of the files that prove a pod: ifUnknown does not count
    if "namespaces" in match:
        if engine["name"] in ("containerd", "cri-o"):
            if not _any(match["namespaces"], engine.get("namespace", "team-a")):
                return False
        else:
            return False  # of no pod
    if "images" in match:
        known = engine["name"] in ("containerd", "cri-o") and "by-id" not in engine
        if known and engine.get("type") != "sandbox":
            return _any(match["images"], engine["image"])
        return unknown
    return True


def _any(globs: list[str], text: str) -> bool:
    return any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def _value(entry: dict[str, Any], reserved: Reserved) -> str | None:
    if "value" in entry:
        return str(entry["value"])
    if entry.get("absent"):
        return None
    source = entry["valueFrom"]
    if "deviceAllocation" in source:
        return str(source["deviceAllocation"]["default"])
    if not source["file"].endswith("/gpu"):
        reserved.undecidable = True
    return "GPU-of-the-node"


def innocent(case: Case) -> bool:
    """Whether nothing in a case is in the way of what is reserved, and the node has what the policy names.

    That is: no name in env and no mount, device, or file of the wrong kind of the image at, above or below what any
    rule reserves, but for a volume above where `volumesAbove: Allow` lets it be; no link of the image there either,
    unless it leads to a directory of the image (as /etc/ssl/certs does in Fedora's); a well-formed config.json with
    the annotations of the one engine that wrote it. A terminal, user namespace, read-only or overlay root, another
    user or working directory, privilege, volumes elsewhere, any `exec` that keeps to other names, any file name of the
    runtime: all innocent.
    """
    reserved = every_reserved(case)
    paths = [clean(mount["mountPath"]) for mount in reserved.mounts]
    if "PATH" in reserved.deny:  # every image has one
        return False
    if any(_is_written_above(mount, reserved) for mount in reserved.mounts):
        return False
    return not reserved.undecidable and all(_is_innocent(one, case, reserved, paths) for one in case["features"])


def _is_written_above(mount: dict[str, Any], reserved: Reserved) -> bool:
    """Whether a reserved mount lies in another reserved one to which containers write: refused, says docs/policy.md."""
    path = clean(mount["mountPath"])
    writable = [clean(other["mountPath"]) for other in reserved.mounts if other.get("readOnly") is False]
    return mount.get("volumesAbove") != "Allow" and any(within(path, above) and path != above for above in writable)


def _near(path: str, paths: list[str]) -> bool:
    return any(within(path, other) or within(other, path) for other in paths)


def _is_innocent(one: Feature, case: Case, reserved: Reserved, paths: list[str]) -> bool:
    kind = one["kind"]
    if kind == "env":
        return innocent_entry(one["entry"], reserved)
    if kind == "exec":
        return True  # the container's start is; the exec is asked by itself
    if kind == "mount":
        if one.get("type") == "tmpfs" and "ro" in one["options"]:
            return False  # runc makes it read-only by its path, which can lead to a reserved mount by then
        path = clean(one["destination"])
        if _allowed_above(one, case, reserved):
            return True
        return not _near(path, paths) and not any(within(path, above) for above in (*SPECIAL, "/bin")) and path != "/"
    if kind == "device":
        is_gpu = reserved.devices and (one["major"], one["minor"]) in GPUS.values()
        return not _near(clean(one["path"]), paths) and one["path"].startswith("/dev/x") and not is_gpu
    if kind == "image":
        return _innocent_file(one, case, reserved)
    if kind == "cwd":
        return not _near(clean(one["path"]), [path for path in paths if one["path"] != "/"])
    if kind == "annotation":
        return str(one["key"]).startswith("org.opencontainers.")
    if kind == "userns":  # the kernel refuses to bind a directory there without what is mounted below it
        return not any(
            "bind" in mount.get("options", []) and mount.get("hostPath", "").endswith(("/ca", "/linked"))
            for mount in reserved.mounts
        )
    if kind == "privileged":  # a hook alone cannot take devices away
        return not reserved.devices
    if kind == "whiteout":
        return not within("/bin/busybox", clean(one["path"]))
    return kind not in ("member", "cgroup-parent", "flip", "global", "many", "chain", "devices", "rules")


def _allowed_above(one: Feature, case: Case, reserved: Reserved) -> bool:
    """Whether a mount is a volume above reserved ones, all of which allow that, and has nothing there in the way."""
    path = clean(one["destination"])
    below = [mount for mount in reserved.mounts if within(clean(mount["mountPath"]), path)]
    allowed = all(
        mount.get("volumesAbove") == "Allow"
        and "hostPath" in mount
        and clean(mount["mountPath"]) != path
        and mount["mountPath"] not in reserved.deny
        for mount in below
    )
    others = [mount for mount in reserved.mounts if mount not in below]
    if not below or not allowed or any(within(path, clean(mount["mountPath"])) for mount in others):
        return False
    if path == "/" or "ro" in one.get("options", []) or one["destination"].startswith("/proc/"):
        return False
    if one.get("type") in ("proc", "sysfs", "devpts"):
        return False  # nobody can make a mount point in it
    if one["source"] == "tmpfs" and features(case, "userns"):
        return False  # a hook alone cannot make the mount point: the node's root has no id in such a tmpfs
    volume = one["source"].removeprefix("volume:")
    operations = [step for made in features(case, "volume") if made["name"] == volume for step in made["ops"]]
    return all(not _near(clean(path + step["path"]), [clean(m["mountPath"]) for m in below]) for step in operations)


def innocent_entry(entry: str, reserved: Reserved) -> bool:
    """Whether an entry of env keeps away from every reserved name, and is of the values that are allowed."""
    name, equals, value = entry.partition("=")
    if name in reserved.allowed and not reserved.may_choose(name, value):
        return False
    return bool(name and equals) and "\0" not in entry and not reserved.wanted(name)[0]


def _innocent_file(one: Feature, case: Case, reserved: Reserved) -> bool:
    path = clean(one["path"])
    mounts = [mount for mount in reserved.mounts if "hostPath" in mount]
    paths = [clean(mount["mountPath"]) for mount in reserved.mounts]
    if one["op"] == "link":
        target = clean(posixpath.join(posixpath.dirname(path), one["to"]))
        made = [clean(other["path"]) for other in features(case, "image") if other["op"] == "dir"]
        if _near(target, paths) or any(within(target, above) for above in (*SPECIAL, "/nowhere")) or target == path:
            return False
        is_above = any(within(other, path) and other != path for other in paths)
        return not _near(path, paths) or (target in made and is_above)
    if one["op"] == "dir":
        return not any(
            within(path, clean(mount["mountPath"])) and mount["hostPath"].endswith(".pem") for mount in mounts
        )
    if one["op"] == "file":
        wrong = [mount for mount in mounts if within(clean(mount["mountPath"]), path)]
        return all(clean(mount["mountPath"]) == path and mount["hostPath"].endswith(".pem") for mount in wrong)
    return not _near(path, paths)
