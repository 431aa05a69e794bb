"""Package repositories with a package of CA files, as each distribution makes it, for its package manager."""

from __future__ import annotations

import hashlib
import shutil
import textwrap
from pathlib import Path

from e2e.trust.images import ROOT
from harness.tools import run

NEW = "# by the package"
"""A line in each bundle that the packages write."""

_EXTRACT = "trust extract --overwrite --filter=ca-anchors"

_RHEL = "/etc/pki/ca-trust/extracted/pem"
_SUSE = "/var/lib/ca-certificates"
_ARCH = "/etc/ca-certificates/extracted"
_ETC = "/etc/ssl/certs"

_SPEC = """\
Name: {name}
Version: 2
Release: 1
Summary: {name}
License: none
BuildArch: noarch
AutoReqProv: no
{more}
%description
"""

BASH = _SPEC.format(name="bash", more="Provides: /bin/sh glibc") + "%files\n"
"""What each scriptlet requires, and zypper."""

FEDORA = (
    _SPEC.format(name="ca-certificates", more="")
    + f"""\
%install
mkdir -p %{{buildroot}}{_RHEL} %{{buildroot}}/etc/pki/tls/certs
echo new > %{{buildroot}}{_RHEL}/README
ln -s {_RHEL}/tls-ca-bundle.pem %{{buildroot}}/etc/pki/tls/certs/ca-bundle.crt
%post
{_EXTRACT} --purpose=server-auth --format=pem-bundle {_RHEL}/tls-ca-bundle.pem
echo '{NEW}' >> {_RHEL}/tls-ca-bundle.pem
%files
{_RHEL}/README
/etc/pki/tls/certs/ca-bundle.crt
"""
)
"""As Fedora's and RHEL's: README files and links in the package, bundles by update-ca-trust."""

SUSE = (
    _SPEC.format(name="ca-certificates", more="")
    + f"""\
%install
mkdir -p %{{buildroot}}/etc/ssl
ln -s ../..{_SUSE}/pem %{{buildroot}}/etc/ssl/certs
ln -s ../..{_SUSE}/ca-bundle.pem %{{buildroot}}/etc/ssl/ca-bundle.pem
%post
{_EXTRACT} --format=pem-directory-hash {_SUSE}/pem || exit 1
{_EXTRACT} --purpose=server-auth --format=pem-bundle {_SUSE}/ca-bundle.pem || exit 1
echo '{NEW}' >> {_SUSE}/ca-bundle.pem
%files
/etc/ssl/certs
/etc/ssl/ca-bundle.pem
"""
)
"""As openSUSE's: links in the package, files by update-ca-certificates."""

ARCH_INSTALL = f"""\
post_install() {{
  mkdir -p {_ARCH}
  {_EXTRACT} --purpose=server-auth --format=pem-bundle {_ARCH}/tls-ca-bundle.pem
  echo '{NEW}' >> {_ARCH}/tls-ca-bundle.pem
  ln -sfT ../../..{_ARCH}/tls-ca-bundle.pem {_ETC}/ca-bundle.pem
}}
"""
"""As the update-ca-trust of Arch's ca-certificates-utils."""


def build(directory: Path, apk: Path | None) -> None:
    """Make DIRECTORY/rpm, suse, apt, arch, and with apk, of which the path is given, apk."""
    _rpm(directory / "rpm", FEDORA)
    _rpm(directory / "suse", SUSE)
    _apt(directory / "apt")
    _arch(directory / "arch")
    if apk:
        _apk(directory / "apk", apk)


def _in_root(directory: Path, script: str) -> None:
    """Run a shell script in the root, where the directory is /mnt and what the script changes elsewhere is lost."""
    inside = """
mount --bind "$1" "$2/mnt"; mount -t proc proc "$2/proc"; mount -t tmpfs tmpfs "$2/tmp"; mount -t tmpfs tmpfs "$2/root"
exec chroot "$2" sh -ec "cd /mnt; $3"
"""
    run("unshare", "--mount", "sh", "-ec", inside, "sh", str(directory), str(ROOT), script)


def _rpm(directory: Path, spec: str) -> None:
    directory.mkdir()
    for name, text in (("bash", BASH), ("ca-certificates", spec)):
        (directory / f"{name}.spec").write_text(text)
        _in_root(directory, f"rpmbuild -bb --define '_topdir /tmp/rpm' --define '_rpmdir /mnt' {name}.spec")
    _in_root(directory, "createrepo_c --quiet .")


def _apt(directory: Path) -> None:
    control = directory / "deb/DEBIAN/control"
    control.parent.mkdir(parents=True)
    fields = "Package: ca-certificates\nVersion: 99999999\nArchitecture: all\nMaintainer: Test <test@example.com>\n"
    control.write_text(f"{fields}Description: CA files\n")
    program = directory / "deb/usr/sbin/update-ca-certificates"
    program.parent.mkdir(parents=True)
    shutil.copy(ROOT / "usr/sbin/update-ca-certificates", program)
    postinst = control.with_name("postinst")
    postinst.write_text(
        f"#!/bin/sh\nset -e\nupdate-ca-certificates --fresh\necho '{NEW}' >> {_ETC}/ca-certificates.crt\n"
    )
    postinst.chmod(0o755)
    package = directory / "ca-certificates.deb"
    run("dpkg-deb", "--root-owner-group", "--build", str(control.parents[1]), str(package))
    content = package.read_bytes()
    index = f"{control.read_text()}Filename: ./{package.name}\nSize: {len(content)}\n"
    (directory / "Packages").write_text(f"{index}SHA256: {hashlib.sha256(content).hexdigest()}\n")


def _arch(directory: Path) -> None:
    directory.mkdir()
    (directory / "etc/ssl/certs").mkdir(parents=True)
    (directory / "etc/ssl/certs/ca-certificates.crt").symlink_to(f"../../..{_ARCH}/tls-ca-bundle.pem")
    fields = (
        "pkgname = ca-certificates",
        "pkgver = 2-1",
        "pkgdesc = CA files",
        "arch = any",
        "size = 1",
        "xdata = pkgtype=pkg",
    )
    (directory / ".PKGINFO").write_text("\n".join([*fields, ""]))
    (directory / ".INSTALL").write_text(ARCH_INSTALL)
    package = directory / "ca-certificates-2-1-any.pkg.tar.gz"
    _in_root(directory, f"bsdtar --uid 0 --gid 0 -czf {package.name} .PKGINFO .INSTALL etc")
    told = {"FILENAME": package.name, "NAME": "ca-certificates", "VERSION": "2-1", "ARCH": "any", "ISIZE": "1"}
    told["SHA256SUM"] = hashlib.sha256(package.read_bytes()).hexdigest()
    entry = directory / "ca-certificates-2-1"
    entry.mkdir()
    (entry / "desc").write_text("".join(f"%{name}%\n{value}\n\n" for name, value in told.items()))
    _in_root(directory, f"bsdtar -czf test.db {entry.name}")


def _apk(directory: Path, apk: Path) -> None:
    """Alpine's ca-certificates-bundle, and ca-certificates with its script."""
    files = directory / "files/etc/ssl/certs"
    files.mkdir(parents=True)
    (files / "ca-certificates.crt").write_text("from the package\n")
    (directory / "files/etc/ssl/cert.pem").symlink_to("certs/ca-certificates.crt")
    (directory / "post-install").write_text(
        f"#!/bin/sh\nupdate-ca-certificates --fresh >/dev/null && echo '{NEW}' >> {_ETC}/ca-certificates.crt\n"
    )
    (directory / "apk").write_bytes(apk.read_bytes())
    (directory / "apk").chmod(0o755)
    make = "./apk mkpkg --info version:2-r0 --info arch:noarch --info license:none --info description:CAs"
    script = f"""\
        {make} --info name:ca-certificates-bundle --files files --output ca-certificates-bundle-2-r0.apk
        mkdir none
        {make} --info name:ca-certificates --info depends:ca-certificates-bundle --script post-install:post-install \\
          --files none --output ca-certificates-2-r0.apk
        ./apk mkndx --allow-untrusted --output Packages.adb *.apk
        """
    _in_root(directory, textwrap.dedent(script))
