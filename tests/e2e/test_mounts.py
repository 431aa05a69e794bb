"""Ways past a reserved mount: each test is one of them, named after its way in, on every real runtime and adapter.

What counts is what the container's own process reads, never what reassert says about it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.node import Node
from harness.paths import RUNTIMES
from harness.tools import remove_tree, run

from e2e.hostile_mounts import (
    DIRECTORY,
    FILE,
    HEAD,
    IN_PROC,
    NOT_INSIDE,
    RESERVED,
    above,
    cwd,
    holds,
    hostile_image,
    in_user_namespace,
    link,
    terminal,
    volume,
)
from e2e.runtimes import guarded
from e2e.table import POLICIES, WORDS, place


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    return hostile_image(bundle)


# The image leads the path elsewhere


ROOT = (
    "leads to the container's root",
    "another mount lies over the container's root",
    "`/dev/null`: Read-only",
    "procfd",
    "openat2 `dev`: No such file",  # crun 1.29
)
LINKS: dict[tuple[str, str], tuple[str, ...]] = {
    ("image-link", "directory"): IN_PROC,
    ("image-link-above", "directory"): IN_PROC,
    ("image-link-above", "file"): IN_PROC,
    ("image-link-proc-root", "directory"): IN_PROC,
    ("image-link-thread-self", "directory"): IN_PROC,
    ("image-link-fd", "file"): (),
    ("image-link-zero", "file"): (),
    ("image-link-null", "file"): (),
    ("image-link-ptmx", "file"): ("setting up ptmx",),
    ("image-link-pts", "directory"): (),
    ("image-link-shm", "directory"): (),
    ("image-link-sys-masked", "directory"): (),
    ("image-link-proc-masked", "directory"): ("it is inside /proc",),
    ("image-link-root", "directory"): (*ROOT, "is on the top of rootfs"),
    ("image-link-root-dots", "directory"): (*ROOT, "is on the top of rootfs"),
    ("image-link-itself", "directory"): ("oo many levels of symbolic links",),
    ("image-link-file", "directory"): (
        "in the image is a file, and a directory has to be there",
        "ot a directory",
        "/etc/ssl cannot be reached inside the image",
    ),
}
"""Rows of the table and what is reserved; and how runtimes refuse it, or we in other words than that it leads there."""


@marks.claim("links", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "An image's link led a reserved mount elsewhere (`/proc/self/cwd`, `/dev`, `/sys`)",
    since="0.1.0",
    fixed="0.2.0",
    severity="high",
)
@pytest.mark.parametrize(("row", "reserved"), LINKS)
def test_link_in_the_image_leads(way: tuple[str, str], node: Node, bundle: Bundle, row: str, reserved: str) -> None:
    node.compile(POLICIES[reserved])
    target = next(iter(place(row, bundle, reserved)["image"].values()))["link"]
    leads = f"company-ca: {WORDS[reserved]['path']} in the image leads to {target}"
    holds(way, node, bundle, leads, *LINKS[row, reserved])


@marks.claim("links", "runtime@wrapper", "hook@createRuntime")
@marks.hole("An image's link led a reserved mount elsewhere (`/proc/self/cwd`, `/dev`, `/sys`)")
def test_link_in_the_image_leads_to_the_console(way: tuple[str, str], node: Node, bundle: Bundle) -> None:
    node.compile(FILE)
    link(bundle, RESERVED, "/dev/console")
    terminal(bundle)
    holds(way, node, bundle, f"company-ca: {RESERVED} in the image leads to /dev/console")


@marks.claim("links", "runtime@wrapper")
@marks.hole(
    "With a user namespace, an image's link led a reserved mount to a device",
    since="0.1.0",
    fixed="0.2.0",
    severity="high",
)
@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "/dev/tty", "/dev/full"])
def test_link_leads_to_a_device_that_is_bound_in_a_user_namespace(
    way: tuple[str, str], node: Node, bundle: Bundle, target: str
) -> None:
    node.compile(FILE)
    link(bundle, RESERVED, target)
    in_user_namespace(bundle)
    leads = (f"company-ca: {RESERVED} in the image leads to {target}", f"{target}: read-only file system")
    holds(way, node, bundle, *(NOT_INSIDE if way[1] == "createContainer" else leads))


DISKS = {
    ("device-at", "file"): True,
    ("device-at", "directory"): True,
    ("device-below", "directory"): True,
    ("device-behind-link", "file"): False,
    ("innocent-device", "file"): False,
    ("innocent-device", "directory"): False,
}
"""Rows, what is reserved, and whether that refuses them."""


@marks.claim("links", "runtime@wrapper")
@marks.hole(
    "A block volume's `devicePath` took the place of a reserved mount", since="0.1.0", fixed="0.2.0", severity="high"
)
@pytest.mark.parametrize(("row", "reserved"), DISKS)
def test_device_path_of_a_block_volume(
    way: tuple[str, str], node: Node, bundle: Bundle, row: str, reserved: str
) -> None:
    """`volumeDevices[].devicePath` is the pod author's."""
    node.compile(POLICIES[reserved])
    at = place(row, bundle, reserved)["spec"]["linux"]["devices"][0]["path"]
    made = f"company-ca: device {at} would be made in the reserved mount"
    holds(way, node, bundle, *[made][: DISKS[row, reserved]])


@marks.claim("links", "runtime@wrapper")
@marks.hole("An image's link led a reserved mount elsewhere (`/proc/self/cwd`, `/dev`, `/sys`)")
@pytest.mark.parametrize(
    ("name", "target", "refusals"),
    [
        ("dev", "/etc/ssl/certs", (above("/etc/ssl/certs"), "error setting up ptmx", "open /dev directory in")),
        ("dev", "etc", (above("/etc"),)),
        ("proc", "/etc/ssl", ("must be mounted on ordinary directory", "the target `/proc` is invalid")),
    ],
)
def test_tree_of_the_runtime_is_a_link_of_the_image(
    way: tuple[str, str], node: Node, bundle: Bundle, name: str, target: str, refusals: tuple[str, ...]
) -> None:
    node.compile(FILE)
    link(bundle, name, target)
    terminal(bundle)
    holds(way, node, bundle, *refusals)


@pytest.fixture
def part_of_dev() -> Iterator[Path]:
    """A directory of the node's /dev, such as /dev/mapper."""
    path = Path("/dev") / f"reassert-{uuid.uuid4().hex[:8]}"
    for name in ("firmware", "pts", "shm", "mqueue"):
        (path / name).mkdir(parents=True)
    yield path
    remove_tree(path)


CONSOLE = "company-ca: the console /dev/console of the container"


@marks.claim("links", "runtime@wrapper")
@marks.cve("CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579, CVE-2026-47766")
@marks.hole(
    "With a terminal, a link in a volume at /dev led the console over a reserved mount",
    since="0.1.0",
    fixed="0.2.0",
    severity="high",
)
@pytest.mark.parametrize("target", [RESERVED, "/etc/ssl/certs", "/proc/self/root/etc/ssl/certs/company.crt"])
def test_console_is_a_link_in_a_volume_at_dev(way: tuple[str, str], node: Node, bundle: Bundle, target: str) -> None:
    node.compile(FILE)
    pods = volume(bundle, "dev")
    (pods / "console").symlink_to(target)
    bundle.bind(pods, "/dev")
    terminal(bundle)
    refusals = [f"{CONSOLE} leads to the reserved mount", f"{CONSOLE} cannot be reached"]
    holds(way, node, bundle, *refusals[: 1 + target.startswith("/proc")])


@marks.claim("links", "runtime@wrapper")
@marks.hole("With a terminal, a link in a volume at /dev led the console over a reserved mount")
@pytest.mark.parametrize("source", ["a volume", "a part of the node's /dev"])
def test_console_is_in_a_volume_at_dev_where_it_may_become_a_link(
    way: tuple[str, str], node: Node, bundle: Bundle, part_of_dev: Path, source: str
) -> None:
    node.compile(FILE)
    dev = next(mount for mount in bundle.spec["mounts"] if mount["destination"] == "/dev")
    from_ = volume(bundle, "dev") if source == "a volume" else part_of_dev
    dev.update(type="bind", source=str(from_), options=["rbind", "nosuid"])
    terminal(bundle)
    holds(way, node, bundle, f"{CONSOLE} is in the volume /dev")


MASKED = ["mount-masked", "masked-above", "masked-by-link", "readonly-path", "readonly-above"]


@marks.claim("links", "runtime@wrapper", "hook@createRuntime")
@marks.cve("CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579, CVE-2026-47766")
@pytest.mark.parametrize("row", MASKED)
@pytest.mark.parametrize("reserved", POLICIES)
def test_masked_path(way: tuple[str, str], node: Node, bundle: Bundle, row: str, reserved: str) -> None:
    node.compile(POLICIES[reserved])
    [(member, [path])] = place(row, bundle, reserved)["spec"]["linux"].items()
    if "crun" in way[0] and way[1] == "createContainer":  # crun has masked it by then
        holds(way, node, bundle, above(path.replace("/x", WORDS[reserved]["above"])))
        return
    what = {"maskedPaths": "masked path", "readonlyPaths": "read-only path"}[member]
    holds(way, node, bundle, f"company-ca: {what} {path} of the container leads to the reserved mount")


@marks.claim("links", "runtime@wrapper")
@marks.hole(
    "With `volumesAbove: Allow`, a link in any shared volume led a masked path over the reserved mount",
    since="0.2.0",
    fixed="0.4.0",
    severity="medium",
)
@marks.hole(
    "With a hostPath below /dev, a link led a masked path or the console over the reserved mount",
    since="0.2.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("source", ["a part of the node's /dev", "a volume that is not above"])
def test_masked_path_in_a_volume(
    way: tuple[str, str], node: Node, bundle: Bundle, part_of_dev: Path, source: str
) -> None:
    """Another container that shares it can make the path a link after the look, whatever `volumesAbove` says."""
    allow = "readOnly: true, volumesAbove: Allow" if "not above" in source else "readOnly: true"
    node.compile(DIRECTORY.replace("readOnly: true", allow))
    bundle.spec["mounts"] = [mount for mount in bundle.spec["mounts"] if not mount["destination"].startswith("/sys")]
    pods = volume(bundle, "sys")
    (pods / "firmware").mkdir()
    bundle.bind(pods if "not above" in source else part_of_dev, "/sys")
    bundle.spec["linux"].update(maskedPaths=["/sys/firmware"], readonlyPaths=[])
    holds(way, node, bundle, "company-ca: masked path /sys/firmware of the container is in the volume /sys")


@marks.claim("links", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "Under runc, a read-only tmpfs that a link in a volume led to a reserved mount took `nosuid`, `nodev`, "
    "`noexec` off it",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("kind", ["tmpfs", "dev"])
def test_read_only_mount_of_the_pod_that_a_later_volume_leads_to_the_reserved_one(
    way: tuple[str, str], node: Node, bundle: Bundle, kind: str
) -> None:
    """runc sets `ro` of a tmpfs and of /dev by the path, after all hooks, and takes other options off what is there."""
    node.compile(DIRECTORY.replace("true}", "true, options: [rbind, rprivate, nosuid, nodev, noexec]}"))
    pods = volume(bundle, "data")
    (pods / "x").symlink_to("/etc/ssl")
    (bundle.rootfs / "a/b/x").mkdir(parents=True)
    at = "/l" if kind == "tmpfs" else "/dev"
    if kind == "tmpfs":
        bundle.spec["mounts"].append({"destination": at, "type": "tmpfs", "source": "tmpfs", "options": ["ro"]})
    else:
        bundle.spec["mounts"] = [m for m in bundle.spec["mounts"] if not m["destination"].startswith("/dev")]
        bundle.bind(volume(bundle, "dev"), at, "ro")
    link(bundle, at, "/a/b/x")
    bundle.bind(pods, "/a/b")
    others = ["/dev/ptmx", "/dev, in which devices are made, may be in the volume /a/b"] if kind == "dev" else []
    holds(way, node, bundle, f"company-ca: the mount {at} of the container leads to the reserved mount", *others)


def test_read_only_tmpfs_above_that_the_rule_lets_through_starts(each: str, node: Node, bundle: Bundle) -> None:
    node.compile(DIRECTORY.replace("readOnly: true", "readOnly: true, volumesAbove: Allow"))
    bundle.spec["mounts"].append({"destination": "/etc", "type": "tmpfs", "source": "tmpfs", "options": ["ro"]})
    holds((each, "wrapper"), node, bundle)


OPTIONS = ("nosuid", "nodev", "noexec")


@marks.hole(
    "With the hook alone under crun before 1.28, a user's own read-only mount of the reserved hostPath lacked"
    " the rule's `noexec`",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("own", [["ro"], ["ro", "nosuid"], ["rro"], ["rw"]], ids="-".join)
def test_mount_of_the_same_directory_with_fewer_options(
    way: tuple[str, str], node: Node, bundle: Bundle, own: list[str]
) -> None:
    """A hook alone finds the node's directory there already. crun before 1.28 sets `ro` later, without the others."""
    node.compile(DIRECTORY.replace("true}", f"true, options: [rbind, rprivate, {', '.join(OPTIONS)}]}}"))
    bundle.bind(node.ca, "/etc/ssl", *own)
    with guarded(way[1], way[0], node, bundle) as container:
        assert {"ro", *OPTIONS} <= set(container.mounts("/etc/ssl")[-1].options)
        assert container.exec("/bin/cat", RESERVED) == "company\n"


# Volumes


def reserved_mount_that_can_be_written(bundle: Bundle, node: Node) -> None:
    """Another container with the same mounts takes the directory away, and the mount on it."""
    more = f"mounts: [{{hostPath: {volume(bundle, 'etc')}, mountPath: /etc, readOnly: false}}, "
    node.compile(DIRECTORY.replace("mounts: [", more))


ABOVE = {
    "image-link-volume": "/data",
    "image-link-step": "/data",
    "volume-link-usr": "/etc",
    "volume-link-cwd": "/etc",
    "volume-link-shm": "/etc",
}
"""Rows, and the volume that is above."""


@marks.claim("volumes-above", "runtime@wrapper", "hook@createRuntime")
@marks.hole("A link in a volume led a reserved mount elsewhere", since="0.1.0", fixed="0.2.0", severity="high")
@marks.hole(
    "A container took another one's reserved mount in a hostPath with `readOnly: false` away",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("row", [*ABOVE, ""])
def test_reserved_path_is_in_a_volume_that_others_write_to(
    way: tuple[str, str], node: Node, bundle: Bundle, row: str
) -> None:
    """Another container of the pod may change it after the start. "": it is a reserved mount that can be written."""
    node.compile(DIRECTORY)
    if row:
        place(row, bundle)
    else:
        reserved_mount_that_can_be_written(bundle, node)
    holds(way, node, bundle, above(ABOVE.get(row, "/etc"), "/etc/ssl"))


@marks.claim("volumes-above", "runtime@wrapper")
@pytest.mark.parametrize("at", ["/etc", "/etc/ssl", "/etc/ssl/certs", RESERVED, "/x", "/x/ssl", "/x/ssl/certs"])
def test_volume_at_above_or_below_the_path_or_by_a_link(
    way: tuple[str, str], node: Node, bundle: Bundle, at: str
) -> None:
    node.compile(FILE)
    (bundle.rootfs / "x").symlink_to("etc")
    pods = volume(bundle, "data")
    bundle.bind(pods / "certs/company.crt" if at == RESERVED else pods, at)
    replaced = at == RESERVED and way[1] == "wrapper"
    holds(way, node, bundle, *[above(at.replace("/x", "/etc"), RESERVED)][replaced:])


VOLUMES = {
    "mount-at": "/etc/ssl",
    "mount-below": "",
    "mount-above": "/etc",
    "mount-by-link": "/etc/ssl",
    "mount-by-link-above": "/etc",
    "mount-below-link": "/etc/ssl",
}
"""Rows, and the volume that refuses them. The wrapper replaces a mount at the path; one below it lies beneath."""


@marks.claim("volumes-above", "runtime@wrapper")
@pytest.mark.parametrize("row", VOLUMES)
def test_volume_at_above_or_below_a_directory(way: tuple[str, str], node: Node, bundle: Bundle, row: str) -> None:
    node.compile(DIRECTORY)
    place(row, bundle)
    starts = row == "mount-below" or (row, way[1]) == ("mount-at", "wrapper")
    holds(way, node, bundle, *[above(VOLUMES[row], "/etc/ssl")][starts:])


@marks.hole("A link led a shared volume over the container's root", since="0.1.0", fixed="0.2.0", severity="high")
def test_link_leads_a_volume_over_the_root(way: tuple[str, str], node: Node, bundle: Bundle) -> None:
    """Whoever shares the volume could take everything away."""
    node.compile(FILE)
    place("mount-over-root", bundle, "file")
    shutil.copytree(bundle.rootfs, bundle.directory.parent / "volumes/evil", symlinks=True, dirs_exist_ok=True)
    lies_over = f"company-ca: {RESERVED}: another mount lies over the container's root"
    holds(way, node, bundle, lies_over, "is on the top of rootfs")


@marks.claim("links", "runtime@wrapper")
@marks.hole(
    "A link in a volume of `allowBelow` led a second volume over the reserved mount",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
)
@pytest.mark.parametrize("target", ["../certs", "/etc/ssl", "/etc/ssl/certs", "/etc"])
def test_allow_below_with_a_link_that_leads_a_second_volume_over_the_reserved_mount(
    way: tuple[str, str], node: Node, bundle: Bundle, target: str
) -> None:
    node.compile(DIRECTORY.replace("readOnly: true", "readOnly: true, allowBelow: [/etc/ssl/private]"))
    (node.ca / "private").mkdir()
    private, second = volume(bundle, "private"), volume(bundle, "second")
    (private / "x").symlink_to(target)
    bundle.bind(private, "/etc/ssl/private")
    bundle.bind(second / ("certs" if target.endswith("certs") else ""), "/etc/ssl/private/x")
    if target.endswith("certs"):
        holds(way, node, bundle, "company-ca: /etc/ssl/certs is mounted below the reserved mount /etc/ssl")
    else:
        itself = ("etc/ssl/private/x`: No such file", "etc/ssl/private/x: no such file")
        holds(way, node, bundle, above(target, "/etc/ssl"), *itself)


@marks.claim("read-only-below", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "`readOnly` did not hold for what was mounted below the hostPath", since="0.1.0", fixed="0.2.0", severity="medium"
)
def test_read_only_reaches_what_is_mounted_below_the_host_path(
    way: tuple[str, str], node: Node, bundle: Bundle
) -> None:
    node.compile(DIRECTORY)
    (node.ca / "below").mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=777", "tmpfs", str(node.ca / "below"))
    try:
        (node.ca / "below/file").write_text("node\n")
        container = guarded(way[1], way[0], node, bundle)
        with container:
            command = ("/bin/sh", "-c", "echo evil > /etc/ssl/below/file; cat /etc/ssl/below/file")
            assert container.exec(*command) == "node\n"
            assert container.exec("/bin/cat", RESERVED) == "company\n"
        assert (node.ca / "below/file").read_text() == "node\n"
    finally:
        run("umount", "-l", str(node.ca / "below"))


ALLOW = FILE.replace("readOnly: true", "readOnly: true, volumesAbove: Allow")
SIDECAR: dict[str, Callable[[Path], None]] = {
    "rm": lambda pods: (pods / "certs/company.crt").unlink(),
    "mv -f": lambda pods: (pods / "new").rename(pods / "certs/company.crt"),
    "rename": lambda pods: (pods / "certs").rename(pods / "old"),
}


@marks.claim("volumes-above", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "A sidecar renamed a directory above the reserved mount in a shared volume",
    since="0.1.0",
    fixed="0.2.0",
    severity="high",
)
@pytest.mark.parametrize(("at", "name"), [*(("/etc/ssl", name) for name in SIDECAR), ("/etc", "rename")])
def test_sidecar_takes_the_mount_away_in_a_volume_above(
    way: tuple[str, str], node: Node, bundle: Bundle, name: str, at: str
) -> None:
    """Refused unless the policy allows it; then it starts right, and nobody can hold it."""
    pods = volume(bundle, "shared")
    inside = pods if at == "/etc/ssl" else pods / "ssl"
    (inside / "new").write_text("evil\n")
    bundle.bind(pods, at)
    node.compile(FILE)
    holds(way, node, bundle, above(at, RESERVED))
    node.compile(ALLOW)
    node.events.unlink()
    with guarded(way[1], way[0], node, bundle) as container:
        assert container.exec("/bin/cat", RESERVED) == "company\n"
        [event] = node.logged()
        assert (event["event"], event["verified"]) == ("container.edited", "container")
        SIDECAR[name](inside)
        assert run(container.runtime, "exec", container.id, "/bin/cat", RESERVED, check=False).stdout != "company\n"


def test_a_file_system_above_that_holds_no_mount_point_is_named(node: Node, bundle: Bundle) -> None:
    """The runtime would only say that it cannot make a file, and the event log nothing."""
    bundle.spec["mounts"].append({"destination": "/etc/ssl/certs", "type": "devpts", "source": "devpts"})
    node.compile(ALLOW)
    refusal = f"company-ca: mount /etc/ssl/certs is above the reserved mount {RESERVED} and of type devpts"
    holds((RUNTIMES["crun"], "wrapper"), node, bundle, f"{refusal}: no mount point can be made in it")


@marks.hole("A sidecar renamed a directory above the reserved mount in a shared volume")
@pytest.mark.parametrize("policy", [DIRECTORY, FILE], ids=["directory", "file"])
def test_sidecar_takes_away_the_sub_path_on_which_the_mount_lies(
    way: tuple[str, str], node: Node, bundle: Bundle, policy: str
) -> None:
    """A link of the image leads the volume's subPath to the reserved path, where the reserved mount covers it."""
    node.compile(policy)
    pods = volume(bundle, "shared")
    link(bundle, "/x", "/etc/ssl" if policy == DIRECTORY else RESERVED)
    bundle.bind(pods / ("ssl" if policy == DIRECTORY else "certs/company.crt"), "/x")
    at = "/etc/ssl" if policy == DIRECTORY else RESERVED
    holds(way, node, bundle, above(at, at))


@marks.claim("links", "runtime@wrapper")
@marks.hole(
    "With `failurePolicy: Ignore`, a mount point with a newline let the container start unchecked",
    since="0.2.0",
    fixed="0.2.0",
    severity="medium",
)
@pytest.mark.parametrize("name", ["a\rb", "a\u2028b", "a\x0bb", "a b", "a\\b", "a\\040b", "ünicode", "a\nb"])
def test_mount_point_with_a_character_that_ends_a_line(
    way: tuple[str, str], node: Node, bundle: Bundle, name: str
) -> None:
    """mountinfo has it as it is. A pod that makes the reading fail is not let through by failurePolicy."""
    node.compile(DIRECTORY.replace("spec:", "spec:\n  failurePolicy: Ignore", 1))
    link(bundle, "/etc/ssl", "/proc/self/cwd")
    cwd(bundle)
    bundle.bind(volume(bundle, "data"), f"/mnt/{name}")
    holds(way, node, bundle, "company-ca: /etc/ssl in the image leads to /proc/self/cwd", *IN_PROC)


def test_three_hundred_mounts_and_a_hundred_reserved_ones(each: str, node: Node, bundle: Bundle) -> None:
    mounts = ", ".join(f"{{hostPath: CA, mountPath: /r/{number}/ssl}}" for number in range(100))
    node.compile(HEAD + f"    mounts: [{mounts}]\n".replace("hostPath: CA", f"hostPath: {node.ca}"))
    pods = volume(bundle, "data")
    for number in range(200):
        bundle.bind(pods, f"/v/{number}")
    with guarded("wrapper", each, node, bundle) as container:
        assert container.exec("/bin/cat", "/r/99/ssl/certs/company.crt") == "company\n"
    [event] = node.logged()
    assert (event["event"], event["verified"]) == ("container.edited", "container")


@pytest.mark.parametrize("stage", ["createRuntime", "prestart"])
def test_hook_of_another_mounts_over_the_path(each: str, node: Node, bundle: Bundle, stage: str) -> None:
    """What covered it could be taken away with what it covers, so the container does not start."""
    node.compile(DIRECTORY)
    script = bundle.directory / "hook"
    at = bundle.rootfs / "etc/ssl"
    number = "tr -dc 'a-z0-9:,\"' | sed 's/.*\"pid\"://; s/[^0-9].*//'"
    script.write_text(f"#!/bin/sh\nexec nsenter -t $({number}) -m mount --bind {bundle.rootfs}/evil {at}\n")
    script.chmod(0o755)
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    bundle.spec["hooks"] = {stage: [{"path": str(script), "args": ["hook"], "env": env}]}
    holds((each, "wrapper"), node, bundle, above("/etc/ssl", "/etc/ssl"))
