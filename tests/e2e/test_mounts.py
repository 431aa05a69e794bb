"""Ways past a reserved mount: each test is one of them, named after its way in, on every real runtime and adapter.

What counts is what the container's own process reads, never what reassert says about it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
from e2e.support import RUNTIMES, Bundle, Node, run

Change = Callable[[Bundle], None]


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    return hostile_image(bundle)


# The image leads the path elsewhere


ROOT = (
    "leads to the container's root",
    "another mount lies over the container's root",
    "`/dev/null`: Read-only",
    "procfd",
)
LINKS: dict[str, tuple[str, str, str, Change | None, tuple[str, ...]]] = {
    "last component, to proc self cwd": (DIRECTORY, "/etc/ssl", "/proc/self/cwd", cwd, IN_PROC),
    "earlier component, to proc self cwd": (DIRECTORY, "/etc", "/proc/self/cwd", cwd, IN_PROC),
    "a file's directory, to proc self cwd": (FILE, "/etc/ssl", "/proc/self/cwd", cwd, IN_PROC),
    "to proc self root": (DIRECTORY, "/etc/ssl", "/proc/self/root/evil", None, IN_PROC),
    "to proc thread-self": (DIRECTORY, "/etc/ssl", "/proc/thread-self/cwd", cwd, IN_PROC),
    "to dev fd": (FILE, RESERVED, "/dev/fd/0", None, ()),
    "to dev console, with a terminal": (FILE, RESERVED, "/dev/console", terminal, ()),
    "to dev zero": (FILE, RESERVED, "/dev/zero", None, ()),
    "to dev null": (FILE, RESERVED, "/dev/null", None, ()),
    "to dev ptmx": (FILE, RESERVED, "/dev/ptmx", None, ("setting up ptmx",)),
    "to dev pts": (DIRECTORY, "/etc/ssl", "/dev/pts", None, ()),
    "to dev shm": (DIRECTORY, "/etc/ssl", "/dev/shm", None, ()),
    "to a masked directory of sys": (DIRECTORY, "/etc/ssl", "/sys/firmware", None, ()),
    "to a masked directory of proc": (DIRECTORY, "/etc/ssl", "/proc/acpi", None, ("it is inside /proc",)),
    "to the root": (DIRECTORY, "/etc/ssl", "/", None, (*ROOT, "is on the top of rootfs")),
    "to the root through a directory": (DIRECTORY, "/etc/ssl", "/evil/..", None, (*ROOT, "is on the top of rootfs")),
    "to itself": (DIRECTORY, "/etc/ssl", "ssl", None, ("oo many levels of symbolic links",)),
    "to a file": (
        DIRECTORY,
        "/etc/ssl",
        "/bin/busybox",
        None,
        ("cannot be reached inside the image", "ot a directory"),
    ),
}
"""And how runtimes refuse it, or we in other words than that it leads to its target."""


@pytest.mark.parametrize("name", LINKS)
def test_link_in_the_image_leads(way: tuple[str, str], node: Node, bundle: Bundle, name: str) -> None:
    policy, path, target, change, refusals = LINKS[name]
    node.compile(policy)
    link(bundle, path, target)
    if change:
        change(bundle)
    reserved = RESERVED if policy == FILE else "/etc/ssl"
    holds(way, node, bundle, f"company-ca: {reserved} in the image leads to {target}", *refusals)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "/dev/tty", "/dev/full"])
def test_link_leads_to_a_device_that_is_bound_in_a_user_namespace(
    way: tuple[str, str], node: Node, bundle: Bundle, target: str
) -> None:
    node.compile(FILE)
    link(bundle, RESERVED, target)
    in_user_namespace(bundle)
    leads = (f"company-ca: {RESERVED} in the image leads to {target}", f"{target}: read-only file system")
    holds(way, node, bundle, *(NOT_INSIDE if way[1] == "createContainer" else leads))


@pytest.mark.parametrize("at", [RESERVED, "/opt/disk", "/etc/ssl/certs/new"])
@pytest.mark.parametrize("policy", [DIRECTORY, FILE], ids=["directory", "file"])
def test_device_path_of_a_block_volume(way: tuple[str, str], node: Node, bundle: Bundle, at: str, policy: str) -> None:
    """`volumeDevices[].devicePath` is the pod author's."""
    node.compile(policy)
    if at == "/opt/disk":
        link(bundle, "/etc/ssl/certs/company.crt", at)
    disk = {"path": at, "type": "c", "major": 1, "minor": 5, "fileMode": 0o666}
    bundle.spec["linux"]["devices"] = [disk]
    inside = at == RESERVED or (policy == DIRECTORY and at != "/opt/disk")
    holds(way, node, bundle, *[f"company-ca: device {at} would be made in the reserved mount"][:inside])


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
    shutil.rmtree(path)


CONSOLE = "company-ca: the console /dev/console of the container"


@pytest.mark.parametrize("target", [RESERVED, "/etc/ssl/certs", "/proc/self/root/etc/ssl/certs/company.crt"])
def test_console_is_a_link_in_a_volume_at_dev(way: tuple[str, str], node: Node, bundle: Bundle, target: str) -> None:
    node.compile(FILE)
    pods = volume(bundle, "dev")
    (pods / "console").symlink_to(target)
    bundle.bind(pods, "/dev")
    terminal(bundle)
    refusals = [f"{CONSOLE} leads to the reserved mount", f"{CONSOLE} cannot be reached"]
    holds(way, node, bundle, *refusals[: 1 + target.startswith("/proc")])


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


MASKED = [("maskedPaths", path) for path in ("/etc/ssl", "/etc/ssl/certs", RESERVED, "/etc", "/x/ssl")]


@pytest.mark.parametrize(("member", "path"), [*MASKED, ("readonlyPaths", "/etc/ssl"), ("readonlyPaths", RESERVED)])
def test_masked_path(way: tuple[str, str], node: Node, bundle: Bundle, member: str, path: str) -> None:
    node.compile(FILE)
    (bundle.rootfs / "x").symlink_to("etc")
    bundle.spec["linux"][member] = [path]
    if "crun" in way[0] and way[1] == "createContainer":  # crun has masked it by then
        holds(way, node, bundle, above(path.replace("/x", "/etc")))
        return
    what = {"maskedPaths": "masked path", "readonlyPaths": "read-only path"}[member]
    holds(way, node, bundle, f"company-ca: {what} {path} of the container leads to the reserved mount")


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


@pytest.mark.parametrize("own", [["ro"], ["ro", "nosuid"], ["rro"], ["rw"]], ids="-".join)
def test_mount_of_the_same_directory_with_fewer_options(
    way: tuple[str, str], node: Node, bundle: Bundle, own: list[str]
) -> None:
    """A hook alone finds the node's directory there already. crun before 1.28 sets `ro` later, without the others."""
    node.compile(DIRECTORY.replace("true}", f"true, options: [rbind, rprivate, {', '.join(OPTIONS)}]}}"))
    bundle.bind(node.ca, "/etc/ssl", *own)
    with guarded(way[1], way[0], node, bundle) as container:
        assert {"ro", *OPTIONS} <= set(container.mounts("/etc/ssl")[-1][2].split(","))
        assert container.exec("/bin/cat", RESERVED) == "company\n"


# Volumes


def link_into_a_volume(bundle: Bundle, node: Node) -> str:
    """Another container of the pod may change it after the start."""
    link(bundle, "/etc/ssl", "/data/ssl")
    bundle.bind(volume(bundle, "data"), "/data")
    return "/data"


def link_through_a_link_in_a_volume(bundle: Bundle, node: Node) -> str:
    link(bundle, "/etc/ssl", "/data/step")
    pods = volume(bundle, "data")
    (pods / "step").symlink_to("/usr/ssl")
    (bundle.rootfs / "usr/ssl/certs").mkdir(parents=True)
    bundle.bind(pods, "/data")
    return "/data"


def reserved_mount_that_can_be_written(bundle: Bundle, node: Node) -> str:
    """Another container with the same mounts takes the directory away, and the mount on it."""
    more = f"mounts: [{{hostPath: {volume(bundle, 'etc')}, mountPath: /etc, readOnly: false}}, "
    node.compile(DIRECTORY.replace("mounts: [", more))
    return "/etc"


def init_container(target: str) -> Callable[[Bundle, Node], str]:
    """An init container makes a link in a volume above."""

    def link_of_an_init_container(bundle: Bundle, node: Node) -> str:
        pods = volume(bundle, "etc")
        shutil.rmtree(pods / "ssl")
        (pods / "ssl").symlink_to(target)
        (bundle.rootfs / "usr/ssl/certs").mkdir(parents=True)
        bundle.bind(pods, "/etc")
        return "/etc"

    return link_of_an_init_container


ABOVE = [
    *(link_into_a_volume, link_through_a_link_in_a_volume, reserved_mount_that_can_be_written),
    *map(init_container, ("/usr/ssl", "/proc/self/cwd", "/dev/shm")),
]


@pytest.mark.parametrize("made", ABOVE, ids=lambda made: made.__name__)
def test_reserved_path_is_in_a_volume_that_others_write_to(
    way: tuple[str, str], node: Node, bundle: Bundle, made: Callable[[Bundle, Node], str]
) -> None:
    node.compile(DIRECTORY)
    holds(way, node, bundle, above(made(bundle, node), "/etc/ssl"))


@pytest.mark.parametrize("at", ["/etc", "/etc/ssl", "/etc/ssl/certs", RESERVED, "/x", "/x/ssl", "/x/ssl/certs"])
def test_volume_at_above_or_below_the_path_or_by_a_link(
    way: tuple[str, str], node: Node, bundle: Bundle, at: str
) -> None:
    node.compile(FILE)
    (bundle.rootfs / "x").symlink_to("etc")
    pods = volume(bundle, "data")
    bundle.bind(pods / "certs/company.crt" if at == RESERVED else pods, at)
    replaced = at == RESERVED and way[1] in ("wrapper", "precreate")
    holds(way, node, bundle, *[above(at.replace("/x", "/etc"), RESERVED)][replaced:])


def test_link_leads_a_volume_over_the_root(way: tuple[str, str], node: Node, bundle: Bundle) -> None:
    """Whoever shares the volume could take everything away."""
    node.compile(FILE)
    link(bundle, "/top", "/")
    pods = bundle.directory.parent / "pods"
    shutil.copytree(bundle.rootfs, pods, symlinks=True)
    bundle.bind(pods, "/top")
    lies_over = f"company-ca: {RESERVED}: another mount lies over the container's root"
    holds(way, node, bundle, lies_over, "is on the top of rootfs")


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
