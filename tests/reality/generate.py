"""Random cases, by seed: mostly attacks on what the policy reserves, beside what ordinary containers have.

A case is JSON: `policy`, `engine` (who the container really is) and `features` (what its image, volumes, process,
mounts and `exec` calls hold). Features stand by themselves, so that a find shrinks by leaving them out.
"""

from __future__ import annotations

import posixpath
from random import Random
from typing import Any

from reality.policies import policy
from reality.reading import Case
from reality.ways import Ways

IMAGE = "registry.example/app:1"


def case(seed: int, number: int, policies_of: int = 4, attack: str = "") -> Case:
    """Case `number` of a seed. `policies_of`: so many cases share a policy; to compile one takes long.

    `attack`: the name of the one that it holds, else random ones, or none.
    """
    rules = policy(Random(f"{seed}/policy/{number // policies_of}"))
    random = Random(f"{seed}/case/{number}")
    made: Case = {"policy": rules, "engine": engine(random), "features": []}
    maker = _Maker(random, made)
    if attack:
        getattr(maker, attack)()
    elif random.random() < 0.75:
        for _ in range(random.choice((1, 1, 1, 2))):
            random.choices(maker.attacks, maker.weights)[0]()
    maker.ordinary()
    return made


def engine(random: Random) -> dict[str, Any]:
    """Who a container really is."""
    name = random.choice(
        ("containerd", "containerd", "containerd", "cri-o", "cri-o", "podman", "docker", "docker", "none")
    )
    one: dict[str, Any] = {"name": name}
    if name in ("containerd", "cri-o"):
        one["namespace"] = random.choice(("team-a", "team-a", "team-a", "other", "kube-system"))
        one["image"] = random.choice((IMAGE, IMAGE, "elsewhere/app:2"))
        if random.random() < 0.1:
            one["type"] = "sandbox"
    if name == "cri-o" and random.random() < 0.1:
        one["by-id"] = True
    if name == "docker" and random.random() < 0.5:
        one["pod"] = True
    return one


class _Maker(Ways):
    """Adds features to a case: attacks, and beside them what ordinary containers have."""

    def ordinary(self) -> None:
        """A few things that are no attack."""
        path = self.target()["mountPath"]
        if self.chance(0.5):
            self.add("image", op="dir", path=posixpath.dirname(path))
        if self.chance(0.25):
            self.add(
                "env", entry=self.pick("A=1", "TERM=xterm", "EMPTY_ONE=", "LONG=" + "x" * 5000, "UMLAUT=äöü", "A==b")
            )
        if self.chance(0.2):
            self.add(
                "mount",
                source="volume:" + self.volume({"op": "file", "path": "f", "text": "x\n"}),
                destination="/data/volume",
            )
        for kind, probability in (
            ("readonly-root", 0.1),
            ("privileged", 0.08),
            ("tty", 0.06),
            ("userns", 0.1),
            ("overlay", 0.1),
            ("sysadmin", 0.03),
        ):
            if self.chance(probability) and not any(one["kind"] == kind for one in self.features):
                self.add(kind)
        if self.chance(0.08):
            self.add("user", uid=1000)
        if self.chance(0.06):
            self.add("whiteout", path=self.pick(path, posixpath.dirname(path), "/etc/passwd"))
        if self.chance(0.08):
            self.add("propagation", value=self.pick("rslave", "rprivate"))
        if self.chance(0.1):
            self.add("annotation", key="org.opencontainers.image.title", value="app")
        if self.chance(0.1) and not any(one["kind"] == "cwd" for one in self.features):
            self.add("cwd", path=self.pick("/tmp", "/srv/new"))
        self._ordinary_links_and_execs(path)

    def _ordinary_links_and_execs(self, path: str) -> None:
        if self.chance(0.06) and posixpath.dirname(path) != "/":
            self.add("image", op="dir", path="/usr/elsewhere")
            self.add(
                "image", op="link", path=posixpath.dirname(path), to=self.pick("/usr/elsewhere", "../usr/elsewhere")
            )
        if self.chance(0.35):
            self.add("exec", how=self.pick("file", "pipe", "--env", "-e"), env=["B=2"])
            if self.chance(0.3):
                self.naming()
        self._of_user_namespaces()

    def _of_user_namespaces(self) -> None:
        """What a pod can ask for with `hostUsers: false` alone, and what containerd 2.0 then did (CVE-2025-47291)."""
        is_containerd = self.case["engine"]["name"] == "containerd"
        kinds = [kind for kind in ("unmasked", "outside") if self.chance(0.05) and (is_containerd or kind != "outside")]
        if kinds and not any(one["kind"] in ("userns", "sysadmin", "privileged") for one in self.features):
            self.add("userns")
        for kind in kinds if any(one["kind"] == "userns" for one in self.features) else ():
            self.add(kind)
