"""Root file systems with the CA files of a distribution, and programs that make TLS connections.

The programs are Debian's: of this machine, or of the root that REASSERT_TRUST_ROOT names (tests/lab/trust/run.sh). It
has Node.js and Java too. The layouts of other distributions are laid out in an overlay, with the links that their
packages have, and the paths that are compiled into OpenSSL lead there as in those distributions. The image's own CA
files all hold the attacker's CA.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pip
from harness.bundle import Bundle
from harness.tools import run

ROOT = Path(os.environ.get("REASSERT_TRUST_ROOT", "/"))
"""The Debian root below the overlays."""

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_KUBECTL = "/usr/bin/kubectl"
"""A program in Go that tests/run.sh installs."""

_PIP = Path(pip.__file__).parent
"""It has requests and certifi as they are on PyPI."""

PROGRAMS = {
    "openssl": "openssl s_client -connect localhost:{port} -verify_return_error -verify_hostname localhost -brief",
    "openssl verify": "openssl verify /servers/{who}.pem",
    "curl": "curl -fsS --max-time 15 https://localhost:{port}/",
    "wget": "wget -nv -O- -T 15 -t 1 https://localhost:{port}/",
    "urllib": "python3 -c 'import urllib.request as u; u.urlopen(\"https://localhost:{port}/\", timeout=15)'",
    "requests": "python3 -c 'from pip._vendor import requests as r; r.get(\"https://localhost:{port}/\", timeout=15)'",
    "git": "git ls-remote https://localhost:{port}/git",
    "go": "kubectl --server=https://localhost:{port} --token=x get --raw /",
}
if ROOT.name:
    get = 'require("https").get("https://localhost:{port}/", r => r.resume()).on("error", e => {{ throw e }})'
    PROGRAMS["node"] = f"node --use-bundled-ca -e '{get}'"  # the default of nodejs.org's builds, not of Debian's
    PROGRAMS["java"] = "java /Get.java https://localhost:{port}/"
"""Each exits with 0 if it trusts the server. `{port}`, `{who}`: the server's."""

JAVA = """\
public class Get {
  public static void main(String[] a) throws Exception { new java.net.URL(a[0]).openStream().readAllBytes(); }
}
"""

_HASHED = {"/etc/ssl/certs": "hashed", "/usr/lib/ssl/certs": "-> /etc/ssl/certs"}
LAYOUTS: dict[str, dict[str, str]] = {
    "debian": {**_HASHED, BUNDLE: "bundle"},
    "alpine": {
        **_HASHED,
        BUNDLE: "bundle",
        "/etc/ssl/cert.pem": "-> certs/ca-certificates.crt",
        "/usr/lib/ssl/cert.pem": "-> /etc/ssl/cert.pem",
    },
    "rhel": {
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "bundle",
        "/etc/pki/tls/certs/ca-bundle.crt": "-> /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        "/etc/pki/tls/cert.pem": "-> certs/ca-bundle.crt",
        "/etc/pki/java/cacerts": "-> /etc/pki/ca-trust/extracted/java/cacerts",
        "/etc/ssl/certs": "-> ../pki/tls/certs",
        "/etc/ssl/cert.pem": "-> /etc/pki/tls/cert.pem",
        "/usr/lib/ssl/cert.pem": "-> /etc/pki/tls/cert.pem",
        "/usr/lib/ssl/certs": "-> /etc/pki/tls/certs",
    },
    "suse": {
        "/var/lib/ca-certificates/ca-bundle.pem": "bundle",
        "/var/lib/ca-certificates/pem": "hashed",
        "/etc/ssl/certs": "-> ../../var/lib/ca-certificates/pem",
        "/etc/ssl/ca-bundle.pem": "-> ../../var/lib/ca-certificates/ca-bundle.pem",
        "/usr/lib/ssl/certs": "-> /etc/ssl/certs",
    },
    "distroless": {BUNDLE: "bundle", "/usr/lib/ssl/certs": "-> /etc/ssl/certs"},
    "scratch": {},
}
"""By distribution: paths that are links, bundles, or hashed directories."""

READ_THERE = {
    "debian": [BUNDLE, "/etc/ssl/certs", "/usr/lib/ssl/certs"],
    "alpine": [BUNDLE, "/etc/ssl/certs", "/etc/ssl/cert.pem"],
    "rhel": [
        *("/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/tls/certs/ca-bundle.trust.crt", "/etc/pki/tls/cert.pem"),
        *("/etc/pki/tls/certs", "/etc/ssl/certs", "/etc/ssl/cert.pem", BUNDLE),
        *("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/directory-hash"),
        "/etc/pki/ca-trust/extracted/openssl/ca-bundle.trust.crt",
    ],
    "suse": ["/etc/ssl/certs", "/var/lib/ca-certificates/pem", BUNDLE],
    "distroless": [BUNDLE],
    "scratch": [BUNDLE],
}
"""The files and directories that programs of the distribution read without any variable."""


def lay_out(bundle: Bundle, layout: str, pem: Path) -> None:
    """Make the bundle's root an overlay of ROOT with the CA files of a distribution, which hold one CA."""
    scratch = bundle.directory.parent / "overlay"
    for name in ("upper", "work"):
        (scratch / name).mkdir(parents=True)
    options = f"lowerdir={ROOT},upperdir={scratch}/upper,workdir={scratch}/work"
    run("mount", "-t", "overlay", "overlay", "-o", options, str(bundle.rootfs))
    root = bundle.rootfs
    for path in ("etc/ssl", "etc/pki", "usr/lib/ssl", "var/lib/ca-certificates"):
        shutil.rmtree(root / path, ignore_errors=True)
    (root / "usr/lib/ssl").mkdir()
    for path, what in LAYOUTS[layout].items():
        there = root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        if what == "hashed":
            there.mkdir(exist_ok=True)
            shutil.copy(pem, there / "own.pem")
            run("openssl", "rehash", str(there))
        elif what == "bundle":
            shutil.copy(pem, there)
        else:
            there.symlink_to(what.removeprefix("-> "))
    for cacerts in (ROOT / "usr/lib/jvm").glob("*/lib/security/cacerts"):
        own = root / cacerts.relative_to(ROOT)
        own.unlink()
        own.symlink_to("/etc/pki/java/cacerts" if layout == "rhel" else "/etc/ssl/certs/java/cacerts")
    (root / "Get.java").write_text(JAVA)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")  # a root of debootstrap has none
    bundle.bind(_PIP, "/python/pip", "ro")
    bundle.bind(_KUBECTL, "/usr/local/bin/kubectl", "ro")


def probe(ports: dict[str, int], programs: dict[str, str]) -> str:
    """A shell script that tries each program with each server and prints `PROGRAM: SERVER yes|no`."""
    lines = ["export HOME=/root PYTHONPATH=/python GIT_TERMINAL_PROMPT=0"]
    for name, command in programs.items():
        for who, port in ports.items():
            attempt = command.format(port=port, who=who)
            lines.append(f"if timeout 30 {attempt} </dev/null >/said 2>&1; then echo '{name}: {who} yes'; else")
            lines.append(f"echo '{name}: {who} no'; sed 's/^/   /' /said; fi")
    return "\n".join([*lines, "echo done"])


def answers(output: str) -> dict[str, dict[str, bool]]:
    """What the script printed: by program, whether it trusts each server."""
    found: dict[str, dict[str, bool]] = {}
    for line in output.splitlines():
        if line.endswith((" yes", " no")) and not line.startswith(" "):
            name, _, rest = line.partition(": ")
            who, _, answer = rest.partition(" ")
            found.setdefault(name, {})[who] = answer == "yes"
    return found
