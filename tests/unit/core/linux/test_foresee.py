"""Audit mode's look at a container, beside that of Enforce mode at the same container: both say the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.base.mountinfo import mount_table
from hook.core.container.spec import Spec
from hook.core.facts import Container
from hook.core.linux.foresee import foresee
from hook.core.plan import Plan, plan
from hook.core.reserve.place_mount import PlaceMount
from hook.core.verdict import Verdict
from hook.inside.running import NextStart
from hook.inside.running import Node as NodeInside
from unit.core.linux.mountnamespace import MountNamespace
from unit.support import POD, bind, policy, spec

pytestmark = [
    pytest.mark.users,  # setns(2) ends a chroot, which rootless.sh makes
    marks.promise("What a link of the image leads to a reserved mount is said in Audit mode too", about="Trials"),
]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[MountNamespace, MountNamespace]]:
    """One whose container is as its author asked for it, and one with the same container, corrected."""
    made = MountNamespace(tmp_path / "audit"), MountNamespace(tmp_path / "enforce")
    try:
        yield made
    finally:
        for ns in made:
            ns.close()


Volume = tuple[str, str, str]
"""Where config.json has it, where links lead it, and a source of `Node`."""

OVER_EACH_OTHER = [{"mountPath": "/etc/ssl"}, {"mountPath": "/x", "hostPath": "sub"}]


def decided_for(ns: MountNamespace, start: Spec, mounts: list[dict[str, Any]]) -> Plan:
    listed = [{**mount, "hostPath": str(ns.source / mount.get("hostPath", ""))} for mount in mounts]
    listed = [{"mountPath": mount["mountPath"], "absent": True} if "absent" in mount else mount for mount in listed]
    return plan(policy({"name": "ca", "mounts": listed}), Container(POD, start))


@pytest.mark.parametrize(
    ("mounts", "links", "volumes", "linux", "why"),
    [
        ([], {}, [], {}, ""),
        ([], {}, [("/etc/ssl", "/etc/ssl", "tmpfs")], {}, ""),  # Enforce mode removes it
        ([], {}, [("/etc/ssl/sub", "/etc/ssl/sub", "tmpfs")], {"maskedPaths": ["/proc/acpi", "/etc/other"]}, ""),
        ([], {"x": "/etc/ssl"}, [("/x", "/etc/ssl", "tmpfs")], {}, "mount /etc/ssl is a volume above"),
        ([], {"x": "/etc/ssl"}, [("/x/sub", "/etc/ssl/sub", "tmpfs")], {}, ""),  # the reserved mount hides it
        (
            [],
            {"x": "/etc/ssl"},
            [("/etc/ssl", "/etc/ssl", "tmpfs"), ("/x", "/etc/ssl", "share")],
            {},
            "mount /etc/ssl is a volume above",
        ),
        ([{"mountPath": "/etc/ssl", "volumesAbove": "Allow"}], {"x": "etc/ssl"}, [("/x", "/etc/ssl", "tmpfs")], {}, ""),
        ([], {"x": "/etc"}, [("/x", "/etc", "tmpfs")], {}, "mount /etc is a volume above"),
        ([{"mountPath": "/new/place"}], {}, [("/vol", "/vol", "tmpfs")], {}, ""),
        ([], {}, [], {"maskedPaths": ["/etc/ssl"]}, "masked path /etc/ssl of the container leads to the reserved"),
        ([], {}, [], {"readonlyPaths": ["/etc"]}, "read-only path /etc of the container leads to the reserved"),
        ([], {"x": "/etc"}, [], {"maskedPaths": ["/x/ssl/sub"]}, "masked path /x/ssl/sub of the container leads"),
        ([], {"etc/ssl/away": "/vol"}, [], {"maskedPaths": ["/etc/ssl/away"]}, "masked path /etc/ssl/away of the"),
        ([{"mountPath": "/new/place"}], {}, [], {"readonlyPaths": ["/new/place/x"]}, "read-only path /new/place/x of"),
        ([], {}, [("/vol", "/vol", "source")], {"maskedPaths": ["/vol/a/x"]}, "is in the volume /vol, in which others"),
        ([{"mountPath": "/x"}], {"x": "/vol/.."}, [], {}, "/x in the image leads to the container's root"),
        (OVER_EACH_OTHER, {"x": "/etc/ssl"}, [], {}, "mount /etc/ssl is a volume above the reserved mount"),
        ([{"mountPath": "/etc/ssl"}, {"mountPath": "/x"}], {"x": "/etc/ssl"}, [], {}, ""),  # the same twice
        ([{"mountPath": "/vol", "absent": True}], {}, [("/vol", "/vol", "tmpfs")], {}, ""),
        (
            [{"mountPath": "/vol", "absent": True}],
            {"x": "/vol"},
            [("/x", "/vol", "tmpfs")],
            {},
            "/vol is mounted, and nothing may be mounted at /vol",
        ),
    ],
)
def test_audit_mode_says_what_enforce_mode_finds(
    nodes: tuple[MountNamespace, MountNamespace],
    mounts: list[dict[str, Any]],
    links: dict[str, str],
    volumes: list[Volume],
    linux: dict[str, Any],
    why: str,
) -> None:
    said = []
    for ns in nodes:
        for path, target in links.items():
            (ns.rootfs / path).symlink_to(target)
        sources = {name: str(getattr(ns, name)) for _, _, name in volumes if name != "tmpfs"}
        start = spec(mounts=[bind(at, sources.get(name, "/pod")) for at, _, name in volumes], linux=linux)
        decided = decided_for(ns, start, mounts or [{"mountPath": "/etc/ssl"}])
        assert not decided.denials, "config.json alone does not show it"
        is_corrected = ns is nodes[1]
        corrected = decided.applied(start)
        stay = {id(mount) for mount in corrected.mounts}
        for mount, (_, place, name) in zip(start.mounts, volumes, strict=True):
            if id(mount) in stay or not is_corrected:
                ns.mount(place, sources.get(name, name))
        if is_corrected:
            for edit in decided.mounts:
                place = next((edit.name.replace(f"/{link}", to, 1) for link, to in links.items()), edit.name)
                if edit.mount:
                    ns.mount(place.replace("/vol/..", "/").replace("//", "/"), edit.source())
            said.append(ns.look(*decided.mounts, of=corrected))
        else:
            before = mount_table(ns.pid).keys()
            said.append(foreseen(ns, start, decided))
            assert mount_table(ns.pid).keys() == before, "nothing is mounted"
            for path in linux.get("maskedPaths", ()):
                place = next((path.replace(f"/{link}", to, 1) for link, to in links.items()), path)
                if (ns.rootfs / place[1:]).is_dir():
                    ns.mount(place)  # the runtime does, afterwards
            said.append(at_the_next_start(ns, start, decided))
    assert said[0] == said[1] == said[2]
    assert (why in "".join(said[0])) == bool(said[0] or not why)
    assert bool(said[0]) == bool(why)


def foreseen(ns: MountNamespace, start: Spec, decided: Plan) -> list[str]:
    call = ns._caller.submit(foresee, Verdict(), pid=ns.pid, rootfs=str(ns.rootfs), decided=decided, spec=start)
    return [reason.message for reason in call.result().denials]


def at_the_next_start(ns: MountNamespace, start: Spec, decided: Plan) -> list[str]:
    """What `audit` says of it, once it runs."""
    root = ns.within(lambda: os.open(ns.rootfs, os.O_PATH))
    try:
        view = NextStart(root, mount_table(ns.pid), start, NodeInside(), decided, str(ns.rootfs))
        return [reason.message for reason in view.reasons()]
    finally:
        os.close(root)


def test_an_emptydir_that_is_not_made_yet_is_foreseen_too(ns: MountNamespace) -> None:
    (ns.rootfs / "x").symlink_to("etc/ssl")
    ns.mount("/etc/ssl")
    start = spec(mounts=[bind("/x")])
    decided = decided_for(ns, start, [{"mountPath": "/etc/ssl"}])
    [edit] = decided.mounts
    assert isinstance(edit, PlaceMount)
    edit.volume = (str(ns.source), "hash", -1)
    assert edit.mount
    edit.mount.oci["source"] = str(ns.source / "not-made")
    assert foreseen(ns, start, decided) == [
        "mount /etc/ssl is a volume above the reserved mount /etc/ssl; others who write to the volume could remove the "
        "reserved mount (volumesAbove: Allow permits it)"
    ]


def test_what_cannot_be_looked_at_is_not_said(ns: MountNamespace) -> None:
    start = spec(linux={"maskedPaths": ["/etc/ssl"]})
    decided = decided_for(ns, start, [{"mountPath": "/etc/ssl"}])
    assert len(foreseen(ns, start, decided)) == 1
    ns.source.rename(ns.source.with_name("away"))
    assert foreseen(ns, start, decided) == []
