"""`mount: Aside`: the image keeps its CA files and can write to them, and programs that read a variable have the store.

What installs and updates the CA files of an image is started for real where Debian has it: Debian's own tools, rpm, and
`trust extract` of p11-kit, which update-ca-trust of RHEL, Fedora and Arch and update-ca-certificates of SUSE call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import RUNTIMES
from harness.tools import need, run

from e2e.runtimes import guarded
from e2e.trust.conftest import Company
from e2e.trust.images import PROGRAMS
from e2e.trust.test_trust import RUNC, YES_NO, tried

pytestmark = marks.promise(
    "With `mount: Aside`, programs that read a variable trust the added CA, and what installs or updates CA "
    "files in an image works; with the other mounts it fails",
    about="Trust store",
)

ASIDE = ", mount: Aside"
STORE = "/.reassert-trust"

_EXTRACT = "trust extract --overwrite --filter=ca-anchors --purpose=server-auth --format"
_PEM = f"{_EXTRACT}=pem-bundle"

INSTALLERS = {
    # update-ca-certificates(8): it writes ca-certificates.crt.new and renames it over ca-certificates.crt
    "Debian's update-ca-certificates": ("debian", "update-ca-certificates --fresh"),
    "dpkg": (
        "debian",
        "mkdir -p /etc/ssl/certs/java && DEBIAN_FRONTEND=noninteractive dpkg-reconfigure ca-certificates",
    ),
    # apk-tools, src/database.c: a file is unpacked as .apk.HASH beside its place, and renamed
    "apk's way, without apk": (
        "alpine",
        "cd /etc/ssl/certs && echo new > .apk.0a && mv -f .apk.0a ca-certificates.crt",
    ),
    # ca-certificates of Fedora, update-ca-trust
    "update-ca-trust": ("rhel", f"{_PEM} /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"),
    "rpm": ("rhel", "rpm -i --nodeps --force /servers/ca.rpm"),
    # openSUSE/ca-certificates, etc_ssl.run
    "SUSE's update-ca-certificates": ("suse", f"{_EXTRACT}=pem-directory-hash /var/lib/ca-certificates/pem"),
    # ca-certificates-utils of Arch, update-ca-trust
    "Arch's update-ca-trust": (
        "debian",
        f"mkdir -p /etc/ca-certificates/extracted && {_PEM} /etc/ca-certificates/extracted/tls-ca-bundle.pem && "
        "ln -fsT ../../ca-certificates/extracted/tls-ca-bundle.pem /etc/ssl/certs/ca-certificates.crt",
    ),
}
"""What writes to an image's CA files: a layout of images.py, and the command."""

SAID = {
    "Directories": ("Read-only file system", "Unknown error 30", "needs 4KB more space on the"),  # the last is rpm's
    "Files": ("Device or resource busy", "Unknown error 16", "cpio: rename failed"),
}
"""How they name EROFS and EBUSY. p11-kit has no words for these numbers."""

SPEC = """\
Name: ca-certificates
Version: 1
Release: 1
Summary: A bundle
License: none
BuildArch: noarch
%description
%install
mkdir -p %{buildroot}/etc/pki/ca-trust/extracted/pem
echo new > %{buildroot}/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
%files
/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
"""


@pytest.fixture(scope="module")
def rpm(company: Company) -> None:
    """A package of RHEL's kind with the bundle in it, beside the servers' files."""
    need(os.access("/usr/bin/trust", os.X_OK), "p11-kit")
    directory = company.directory
    (directory / "ca.spec").write_text(SPEC)
    run("rpmbuild", "-bb", "--define", f"_topdir {directory}/rpm", str(directory / "ca.spec"))
    [made] = (directory / "rpm").rglob("*.rpm")
    made.rename(directory / "ca.rpm")


def privileged_as_docker(bundle: Bundle) -> None:
    """The capabilities that docker and containerd give: package managers change owners."""
    names = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SYS_CHROOT", "MKNOD")
    caps = [f"CAP_{name}" for name in names]
    bundle.spec["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), caps)


@pytest.mark.parametrize("mount", ["Directories", "Files", "Aside"])
@pytest.mark.parametrize("installer", INSTALLERS)
def test_what_installs_cas_in_an_image_works_with_aside_alone(
    installer: str, mount: str, image: Callable[[str], Bundle], company: Company, node: Node, rpm: None
) -> None:
    layout, command = INSTALLERS[installer]
    bundle = image(layout)
    privileged_as_docker(bundle)
    script = f"({command}) >/said 2>&1; echo status $?; cat /said; echo done"
    bundle.spec["process"]["args"] = ["/bin/sh", "-c", script]
    bundle.save()
    node.compile(company.policy(trust=f", mount: {mount}"))
    with Running(node.dispatcher(RUNC), bundle) as container:
        for _ in range(1200):
            if "\ndone\n" in container.output():
                break
            time.sleep(0.1)
        said = container.output()
    works = mount == "Aside" or (installer, mount) == ("SUSE's update-ca-certificates", "Files")  # which warns
    assert ("status 0\n" in said) == works, said
    assert works or installer == "dpkg" or any(text in said for text in SAID[mount]), said
    assert [event["event"] for event in node.logged()] == ["container.edited"]


def test_programs_that_read_a_variable_trust_the_company_and_others_what_the_image_has(
    image: Callable[[str], Bundle], company: Company, node: Node
) -> None:
    """wget of Debian is GnuTLS', which reads no variable; of Java the same holds. libcurl reads /etc/ssl/certs too."""
    node.compile(company.policy(trust=ASIDE))
    found = tried(Running(node.dispatcher(RUNC), image("debian")), company, PROGRAMS)
    of_image = {"company": False, "attacker": True}
    both = {"company": True, "attacker": True}
    other = {"wget": of_image, "java": of_image, "curl": both, "git": both}
    assert found == {name: other.get(name, YES_NO) for name in PROGRAMS}


def hostile_places(bundle: Bundle) -> None:
    """What containers of systemd have, a volume at the path itself, and a link of the image there."""
    for path in ("/run", "/var", "/tmp"):
        mount = {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]}
        bundle.spec["mounts"].append(mount)


def own_volume(bundle: Bundle) -> None:
    volume = bundle.directory.parent / "volume"
    volume.mkdir()
    (volume / "added.pem").write_text("attacker\n")
    bundle.bind(volume, STORE)
    bundle.bind(volume / "added.pem", f"{STORE}/added.pem")


def own_link(bundle: Bundle) -> None:
    (bundle.rootfs / "own").mkdir()
    (bundle.rootfs / "own/added.pem").write_text("attacker\n")
    (bundle.rootfs / STORE[1:]).symlink_to("/own")


def left_by_a_build(bundle: Bundle) -> None:
    """As after `docker commit`: the mount point stays in the image, empty."""
    (bundle.rootfs / STORE[1:]).mkdir()


def nothing(bundle: Bundle) -> None:
    pass


@pytest.mark.parametrize("is_read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("change", [nothing, hostile_places, own_volume, own_link, left_by_a_build])
def test_store_is_at_a_path_that_no_image_has_and_the_image_keeps_its_files(
    change: Callable[[Bundle], None],
    is_read_only: bool,
    pair: tuple[str, str],
    company: Company,
    bundle: Bundle,
    node: Node,
) -> None:
    node.compile(company.policy(trust=f"{ASIDE}, stacks: []"))
    change(bundle)
    bundle.spec["root"]["readonly"] = is_read_only
    container = guarded(pair[1], pair[0], node, bundle)
    if change is own_volume and pair[1] != "wrapper":  # a hook cannot remove a mount
        assert container.create() != 0
        assert f"mount {STORE} is a volume above the reserved mount" in container.output()
        run(container.runtime, "delete", "--force", container.id, check=False)
        return
    with container:
        assert company.authority.pem.read_text() in container.exec("/bin/cat", f"{STORE}/added.pem")
        assert container.exec("/bin/cat", "/etc/ssl/certs/image.crt") == "image\n"
        written = "echo new > /etc/ssl/certs/new && mkdir /etc/pki/tls; echo $?"
        assert container.exec("/bin/sh", "-c", f"({written}) 2>/dev/null")[0] == "0" or is_read_only
        assert (
            container.exec("/bin/sh", "-c", f"(echo x > {STORE}/added.pem) 2>/dev/null || echo refused") == "refused\n"
        )
    [event] = node.logged()
    assert (event["applied"], event["verified"]) == (True, "container")


# -- images and volumes with which a reserved mount cannot be made: an event, and a refusal before the runtime's


def certs_is_a_file(bundle: Bundle) -> None:
    run("rm", "-r", str(bundle.rootfs / "etc/ssl/certs"))
    (bundle.rootfs / "etc/ssl/certs").write_text("roots, copied to a path without a slash at its end\n")


def pki_is_a_file(bundle: Bundle) -> None:
    (bundle.rootfs / "etc/pki").rmdir()
    (bundle.rootfs / "etc/pki").touch()


def link_to_a_file(bundle: Bundle) -> None:
    run("rm", "-r", str(bundle.rootfs / "etc/ssl/certs"))
    (bundle.rootfs / "etc/roots").touch()
    (bundle.rootfs / "etc/ssl/certs").symlink_to("../roots")


MISPLACED = {
    certs_is_a_file: "/etc/ssl/certs in the image is a file, and a directory has to be there",
    pki_is_a_file: "/etc/pki in the image is a file, and a directory has to be there",
    link_to_a_file: "/etc/roots in the image is a file, and a directory has to be there",
}


@pytest.mark.parametrize("real", RUNTIMES)
@pytest.mark.parametrize("change", MISPLACED)
def test_image_that_has_no_place_for_the_store_is_refused_with_an_event_and_starts_with_aside(
    change: Callable[[Bundle], None], real: str, company: Company, bundle: Bundle, node: Node
) -> None:
    change(bundle)
    bundle.save()
    runtime = node.dispatcher(RUNTIMES[real])
    node.compile(company.policy())
    refused = Running(runtime, bundle).refused()
    assert f"{MISPLACED[change]}; trust: {{mount: Aside}} mounts nothing there" in refused
    [event] = node.logged()
    assert (event["event"], event["denials"][0]["rule"]) == ("container.denied", "company-ca")
    node.compile(company.policy().replace("spec:\n", "spec:\n  mode: Audit\n"))
    Running(runtime, bundle).create()  # by the runtime's own error, or none: the mount is not made
    assert node.logged()[-1]["event"] == "container.would-deny"
    node.compile(company.policy(trust=ASIDE))
    with Running(runtime, bundle):
        pass


@pytest.fixture
def allowing(node: Node, company: Company) -> Iterator[Path]:
    """A directory of the node at /etc/ssl/certs, on top of which a pod may mount a file."""
    directory = node.directory / "certs"
    directory.mkdir()
    mount = f"{{hostPath: {directory}, mountPath: /etc/ssl/certs, allowBelow: [/etc/ssl/certs/db.pem]}}"
    head = "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - name: company-ca\n"
    node.compile(f"{head}    mounts: [{mount}]\n")
    yield directory


@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime"])
@pytest.mark.parametrize("real", RUNTIMES)
def test_mount_that_allow_below_lets_through_and_that_has_no_place_is_refused_with_an_event(
    real: str, adapter: str, allowing: Path, bundle: Bundle, node: Node
) -> None:
    own = node.directory / "db.pem"
    own.write_text("CA of the database\n")
    bundle.bind(own, "/etc/ssl/certs/db.pem", "ro")
    container = guarded(adapter, RUNTIMES[real], node, bundle)
    assert container.create() != 0
    assert "make db.pem, an empty file or directory, in" in container.output()
    assert [event["event"] for event in node.logged()] == ["container.denied"]
    run(container.runtime, "delete", "--force", container.id, check=False)
    (allowing / "db.pem").touch()
    with guarded(adapter, RUNTIMES[real], node, bundle) as started:
        assert started.exec("/bin/cat", "/etc/ssl/certs/db.pem") == "CA of the database\n"


@pytest.mark.parametrize("real", RUNTIMES)
def test_event_of_a_real_start_says_what_the_container_loses(
    real: str, company: Company, bundle: Bundle, node: Node
) -> None:
    """The image's own file, a volume to which the pod wrote, and a variable that names a file in it."""
    node.compile(company.policy())
    volume = node.directory / "volume"
    volume.mkdir()
    bundle.bind(volume, "/etc/pki/tls/certs", "rw")
    bundle.spec["process"]["env"].append("PGSSLROOTCERT=/etc/pki/tls/certs/orders-db.pem")
    bundle.save()
    with Running(node.dispatcher(RUNTIMES[real]), bundle):
        pass
    [event] = node.logged()
    assert event["loses"] == [
        "rule company-ca hides /etc/ssl/certs/image.crt of the image",
        "cannot write to /etc/pki/tls/certs: writable by the pod, read-only now",
        "env PGSSLROOTCERT names a file that rule company-ca hides, below /etc/pki/tls/certs",
    ]
    assert (event["applied"], event["verified"]) == (True, "container")
