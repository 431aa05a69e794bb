"""What the differential fuzz (tests/reality) found: each test is one find, on every real runtime and adapter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import marks
import pytest
from harness import proc
from harness.bundle import Bundle
from harness.node import Node
from harness.tools import run

from e2e.hostile_mounts import (
    DIRECTORY,
    NOT_INSIDE,
    RESERVED,
    assert_refused,
    holds,
    hostile_image,
    in_user_namespace,
    link,
    seen,
    volume,
    why,
)
from e2e.runtimes import WAYS, guarded
from e2e.table import place


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    return hostile_image(bundle)


@pytest.fixture
def below(node: Node) -> Iterator[Path]:
    """A file in what the node has mounted below the hostPath."""
    (node.ca / "below").mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(node.ca / "below"))
    (node.ca / "below/file").write_text("node\n")
    yield node.ca / "below/file"
    run("umount", "-l", str(node.ca / "below"))


@marks.hole(
    "Under crun 1.8.1, a user namespace hid what the node had mounted below a reserved hostPath",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
    found="fuzz",
)
@pytest.mark.parametrize("users", ["the node's users", "user namespace"])
def test_mounts_below_the_host_path_are_in_the_container(
    way: tuple[str, str],
    node: Node,
    bundle: Bundle,
    below: Path,
    users: str,
) -> None:
    """crun 1.8.1 leaves them out in a user namespace."""
    node.compile(DIRECTORY)
    if users == "user namespace":
        in_user_namespace(bundle)
        if way[1] == "createContainer":  # it cannot look from inside a user namespace
            holds(way, node, bundle, *NOT_INSIDE)
            return
    with guarded(way[1], way[0], node, bundle) as container:
        assert container.exec("/bin/cat", "/etc/ssl/below/file") == "node\n"
        assert os.access(below, os.W_OK)
        writes = "echo evil > /etc/ssl/below/file || echo refused"
        assert container.exec("/bin/sh", "-c", writes) == "refused\n"
        [event] = node.logged()
        assert (event["applied"], event["verified"]) == (True, "container")


@pytest.fixture
def shared(node: Node) -> Iterator[Path]:
    """A volume whose mounts the node shares with containers (mountPropagation: Bidirectional; the node's default)."""
    directory = node.directory / "shared"
    (directory / "certs").mkdir(parents=True)
    (directory / "certs/company.crt").write_text("evil\n")
    run("mount", "--bind", str(directory), str(directory))
    run("mount", "--make-shared", str(directory))
    yield directory
    run("umount", "--recursive", "--lazy", str(directory))


def mounts_on_the_node(node: Node) -> list[str]:
    """Where the node has its reserved directory mounted. A mountinfo row names it from the root of its file system."""
    device = node.ca.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    points = [mount.point for mount in proc.read_mounts() if mount.device == number]
    return [point for point in points if os.path.exists(point) and os.path.samefile(point, node.ca)]


@marks.hole(
    "A volume with `mountPropagation: Bidirectional` above a reserved path left the reserved mount on the node",
    since="0.1.0",
    fixed="0.3.0",
    severity="medium",
    found="fuzz",
)
@pytest.mark.parametrize("at", ["/etc/ssl", "/etc"])
@pytest.mark.parametrize("options", [("rshared",), ()], ids=["rshared", "nothing said"])
@pytest.mark.parametrize("users", ["the node's users", "user namespace"])
def test_reserved_mount_never_appears_on_the_node(
    way: tuple[str, str], node: Node, bundle: Bundle, shared: Path, users: str, options: tuple[str, ...], at: str
) -> None:
    """crun gives mounts of a container with a user namespace the propagation that they have on the node."""
    node.compile(DIRECTORY.replace("readOnly: true", "readOnly: true, volumesAbove: Allow"))
    if users == "user namespace":
        in_user_namespace(bundle)
    (shared / "ssl/certs").mkdir(parents=True)
    if not options and at == "/etc" and way[1] == "wrapper":
        bundle.bind(shared, at, "rprivate")  # the runtime itself mounts there, and every engine says the propagation
    else:
        bundle.bind(shared, at, *options)
    if options:
        bundle.spec["linux"]["rootfsPropagation"] = "rshared"
    container = guarded(way[1], way[0], node, bundle)
    status = container.create()
    assert mounts_on_the_node(node) == []
    if not status:
        container.start()
        assert container.exec("/bin/cat", RESERVED) == "company\n"
    run(container.runtime, "delete", "--force", container.id, check=False)
    assert mounts_on_the_node(node) == []
    if status:
        assert at == "/etc" or way[1] == "createContainer", container.output()
        inside = (way[1], users) == ("createContainer", "user namespace")
        refusals = NOT_INSIDE if inside else ("would appear on the node (mountPropagation: Bidirectional)",)
        assert_refused(node, bundle, *refusals)


MADE_IN = "company-ca: a device's directory"


def files(node: Node) -> list[str]:
    return sorted(str(path.relative_to(node.ca)) for path in node.ca.rglob("*"))


def second_volume(bundle: Bundle) -> None:
    """Where allowBelow lets a volume be, at a path that the node's directory does not have."""
    bundle.bind(volume(bundle, "pods"), "/etc/ssl/private/deeper")


ITSELF = (
    "`/dev/null`: Read-only",
    "/dev/null: read-only",
    "for /etc/ssl mount",
    "procfd",
    "on the top of rootfs",
    "openat2 `dev`: No such file",  # crun 1.29
)
MADE: dict[str, tuple[Callable[[Bundle], None], tuple[str, ...]]] = {
    "link to dev": (
        lambda bundle: link(bundle, "/etc/ssl", "/dev"),
        ("company-ca: /etc/ssl in the image leads to /dev,", f"{MADE_IN} /dev of the container leads to", *ITSELF),
    ),
    "link to the root": (
        lambda bundle: link(bundle, "/etc/ssl", "/"),
        ("company-ca: /etc/ssl in the image leads to the container's root", *ITSELF),
    ),
    "volume below": (
        second_volume,
        (
            "company-ca: mount /etc/ssl/private/deeper has no place in the reserved mount /etc/ssl",
            "mkdir `/etc/ssl/private/deeper`: Read-only",
            'to rootfs at \\"/etc/ssl/private/deeper',
        ),
    ),
}
"""What a pod makes, and how it is refused: by us, or by the runtime itself."""


@marks.hole(
    "Under crun, a link made files in the node's directory",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
    found="fuzz",
)
@pytest.mark.parametrize("name", MADE)
def test_no_runtime_makes_files_in_the_node_s_directory(
    way: tuple[str, str], node: Node, bundle: Bundle, name: str
) -> None:
    """crun makes a bind mount read-only last of all, after devices, links in /dev and what later mounts need."""
    node.compile(DIRECTORY.replace("readOnly: true", "readOnly: true, allowBelow: [/etc/ssl/private]"))
    (node.ca / "private").mkdir(exist_ok=True)
    make, refusals = MADE[name]
    make(bundle)
    holds(way, node, bundle, *refusals)


ASTRAY = {
    "dev-link": "/dev",
    "device-by-link": "/evil/certs",
    "device-by-volume": "/volume/evil/certs",
    "device-by-dots": "/opt/../certs",
}
"""Rows, and the directory of a device that is led astray."""

BEFORE_THE_RUNTIME = [way for way in WAYS if way[1] == "wrapper"]


@marks.claim("links", "runtime@wrapper")
@marks.cve("CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579, CVE-2026-47766")
@marks.hole(
    "Under crun, a link made device nodes in the node's directory", since="0.1.0", fixed="0.2.0", severity="medium"
)
@pytest.mark.parametrize("way", BEFORE_THE_RUNTIME, ids="-".join, indirect=True)
@pytest.mark.parametrize("row", ASTRAY)
def test_no_link_lets_the_runtime_make_devices_in_the_nodes_directory(
    way: tuple[str, str], node: Node, bundle: Bundle, row: str
) -> None:
    """crun makes a mount read-only only after it has made the devices. `holds` looks at the node's directory."""
    node.compile(DIRECTORY)
    place(row, bundle)
    volumes = f": {ASTRAY[row]}, in which devices are made, may be in the volume /volume"
    images = f"company-ca: {ASTRAY[row]}, in which devices are made, leads into /etc/ssl"
    holds(way, node, bundle, volumes if "volume" in row else images)


AFTER_THE_DEVICES = [way for way in WAYS if way[1] == "createRuntime"]


@marks.claim("links", "hook@createRuntime")
@pytest.mark.parametrize("way", AFTER_THE_DEVICES, ids="-".join, indirect=True)
@pytest.mark.parametrize("row", ["dev-link", "device-by-link", "device-by-volume"])
@pytest.mark.parametrize(
    "options",
    [[], ["ro", "rro"], ["ro"], ["rw"]],
    ids=["hook alone", "read-only by NRI", "as NRI does it for gVisor", "writable by NRI"],
)
def test_hook_refuses_a_device_that_a_link_led_into_a_reserved_mount(
    way: tuple[str, str], node: Node, bundle: Bundle, row: str, options: list[str]
) -> None:
    """The device was made before. In the node's directory it is only where that is mounted writable by then."""
    node.compile(DIRECTORY.replace("readOnly: true", "readOnly: false") if options == ["rw"] else DIRECTORY)
    place(row, bundle)
    if options:
        bundle.bind(node.ca, "/etc/ssl", "rprivate", *options)
    before = files(node)
    assert seen(way, node, bundle) == "refused"
    assert files(node) == before or options in (["rw"], ["ro"])  # crun obeys `ro` too late
    leads = f"{MADE_IN} {ASTRAY[row]} of the container leads to the reserved mount /etc/ssl"
    assert_refused(node, bundle, *[leads, "ead-only file system"][: 1 + ("ro" in options)])


@marks.hole(
    "Under runc with `readOnly: false`, a device behind more than 40 links was made on the node",
    since="0.1.0",
    fixed="0.3.0",
    severity="medium",
)
@pytest.mark.parametrize("way", [("runc", "wrapper"), ("runc-forky", "wrapper")], ids="-".join, indirect=True)
def test_device_by_more_links_than_the_kernel_follows(way: tuple[str, str], node: Node, bundle: Bundle) -> None:
    """runc follows 255. The node's directory is writable, so the device would be made there."""
    node.compile(DIRECTORY.replace("readOnly: true", "readOnly: false"))
    for number in range(60):
        link(bundle, f"/l{number}", f"/l{number + 1}" if number < 59 else "/etc/ssl")
    bundle.spec["linux"]["devices"] = [{"path": "/l0/null", "type": "c", "major": 1, "minor": 3}]
    holds(way, node, bundle, ": /l0 of the container cannot be followed: Too many levels of symbolic links")


@pytest.mark.parametrize("way", BEFORE_THE_RUNTIME, ids="-".join, indirect=True)
@pytest.mark.parametrize("path", ["/opt/disk", "/dev/disk", "/var/run/disk", "/volume/disk", "/dev/dri/card0"])
def test_block_volume_elsewhere_starts(way: tuple[str, str], node: Node, bundle: Bundle, path: str) -> None:
    """The same paths where nothing leads into a reserved mount."""
    node.compile(DIRECTORY)
    (bundle.rootfs / "var").mkdir()
    (bundle.rootfs / "run").mkdir()
    link(bundle, "var/run", "/run")
    (bundle.directory.parent / "volume").mkdir()
    bundle.bind(bundle.directory.parent / "volume", "/volume")
    if path.startswith("/dev/"):
        bundle.bind(bundle.directory.parent / "volume", "/volume/nested")
    bundle.spec["linux"]["devices"] = [{"path": path, "type": "c", "major": 1, "minor": 5, "fileMode": 0o666}]
    holds(way, node, bundle)


@marks.hole(
    "Under runc, `maskedPaths` in another spelling masked a reserved mount",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
)
@pytest.mark.parametrize(("row", "member"), [("spelled-masked", "MaskedPaths"), ("spelled-readonly", "readonlypaths")])
def test_paths_of_the_runtime_in_another_spelling_are_refused(
    node: Node, bundle: Bundle, real: str, row: str, member: str
) -> None:
    """runc, in Go, read them, and the look at the container did not: a reserved mount could be masked unseen."""
    node.compile(DIRECTORY)
    place(row, bundle)
    holds((real, "wrapper"), node, bundle, f"config.json: member '{member}' is spelled")


@marks.claim("links", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "A link in a volume led a second volume over /dev, and a device onto the node",
    since="0.1.0",
    fixed="0.3.0",
    severity="medium",
)
@pytest.mark.parametrize(
    "policy", [DIRECTORY, DIRECTORY.replace("readOnly: true", "readOnly: false")], ids=["ro", "rw"]
)
@pytest.mark.parametrize("row", ["dev-volume-net", "dev-volume-dev"])
def test_link_in_a_volume_leads_a_second_volume_over_dev(
    way: tuple[str, str], node: Node, bundle: Bundle, policy: str, row: str
) -> None:
    """The second volume has a link where the runtime makes a device. Nobody sees it before the first one is mounted."""
    node.compile(policy)
    path = place(row, bundle)["spec"]["linux"]["devices"][0]["path"]
    before = ": /dev, in which devices are made, may be in the volume /data/x"
    after = f"company-ca: a device's directory {os.path.dirname(path)} of the container leads to the reserved mount"
    holds(way, node, bundle, *([before] if way[1] == "wrapper" else [after, "`data/x`: No such file"]))


WRITABLE = DIRECTORY.replace("readOnly: true", "readOnly: false")


def no_dev_at_all(bundle: Bundle) -> None:
    """The image's own /dev, with a link where every container has a device."""
    bundle.spec["mounts"] = [mount for mount in bundle.spec["mounts"] if not mount["destination"].startswith("/dev")]
    link(bundle, "/dev/zero", "/etc/ssl/certs/disk")


LAST_NAMES = [
    *("device-name", "device-name-dots", "device-name-volume"),
    *("dev-volume", "dev-volume-device", "dev-volume-twice"),
    "",
]
"""Rows; "" is `no_dev_at_all`."""


@marks.claim("links", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "Under runc with `readOnly: false`, a link at a device's path made the device on the node",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("row", LAST_NAMES)
@pytest.mark.parametrize("policy", [DIRECTORY, WRITABLE], ids=["ro", "rw"])
def test_link_at_the_end_of_a_device_s_path(
    way: tuple[str, str], node: Node, bundle: Bundle, policy: str, row: str
) -> None:
    """runc follows the last name of a device's path too. In a writable reserved mount it made the node's file.

    The hook comes after the devices: with it alone no container starts that has such a device, and the file stays.
    """
    node.compile(policy)
    before = files(node)
    if row:
        place(row, bundle)
    else:
        no_dev_at_all(bundle)
    result = seen(way, node, bundle)
    if result == "refused":
        said = why(node, bundle)
        if "o such file or directory" in said:  # the runtime's own, after ours: the volume over /dev is empty
            assert (row in ("dev-volume", "dev-volume-twice"), "/dev/null" in said) == (True, True), said
        else:
            ours = "leads into /etc/ssl", "lead it to a reserved mount", "to the reserved mount /etc/ssl"
            assert_refused(node, bundle, *ours, "/etc/ssl/certs/disk: read-only file system")
        assert files(node) == before or way[1] in ("createRuntime", "createContainer")
    else:
        assert (result, files(node)) == ("company\n", before)
