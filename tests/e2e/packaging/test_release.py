"""The files of a release, made of this checkout's frozen program: reproducible, complete, and they install.

packaging/release.sh builds the program on Debian 11, which takes too long for each run. tests/lab/release.sh tries its
files on each Debian.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import marks
import pytest
from harness.paths import REASSERT, TOP
from harness.tools import need, remove_tree, run, scratch

from e2e.cri.client import wait_for
from e2e.packaging.chroot import Chroot
from e2e.packaging.conftest import BELOW_A_PREFIX, EPOCH, FAST, INSTALLED, PLACED
from hook import __version__

pytestmark = marks.promise(
    "The files of a release are reproducible, complete, and install without network, Python or compiler",
    about="Packages and cluster",
)

LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")
"""podman's own are above this machine's, if the tests run in a container."""
QUICK = os.environ | FAST | EPOCH | {"RPM_PAYLOAD": "w1.gzdio", "GZIP_LEVEL": "1"}
MACHINE = os.uname().machine
ARCHIVE = f"reassert-{__version__}-linux-{MACHINE}"
IMAGE = f"reassert:{__version__}"
RPM = f"reassert-{__version__}-1.{MACHINE}.rpm"


def pack(checkout: Path, output: Path, base: Path) -> dict[str, str]:
    """Makes all files of a release with the scripts of a checkout; their digests by name."""
    output.mkdir(exist_ok=True)
    for command in (["pack.sh", str(output)], ["image.sh", str(base), str(output)]):
        done = subprocess.run(
            [str(checkout / "packaging/release" / command[0]), *command[1:]], env=QUICK, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return {path.name: digest(path) for path in output.iterdir()}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A base for the image: busybox and the C library."""
    directory = scratch()
    (directory / "bin").mkdir()
    shutil.copy("/bin/busybox", directory / "bin")
    (directory / "bin/sh").symlink_to("busybox")
    for line in run("ldd", str(REASSERT)).stdout.splitlines():
        for word in line.split():
            if word.startswith("/lib"):
                (directory / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, directory / word[1:])
                for name in ("libm.so.6", "librt.so.1", "libutil.so.1"):
                    if Path(word).with_name(name).exists():
                        shutil.copy(Path(word).with_name(name), (directory / word[1:]).with_name(name))
    subprocess.run(["tar", "-C", directory, "-cf", directory / "base.tar", "bin", "lib", "lib64"], check=True)
    yield directory / "base.tar"
    remove_tree(directory)


@pytest.fixture(scope="module")
def release(base: Path) -> Iterator[Path]:
    """A directory with the files of a release."""
    for tool in ("rpmbuild", "umoci", "rpmlint", "dpkg-deb"):
        need(shutil.which(tool) is not None, tool)
    directory = scratch()
    pack(TOP, directory, base)
    yield directory
    remove_tree(directory)


def test_two_directories_give_the_same_bytes(release: Path, base: Path, directory: Path) -> None:
    other, output = directory / "another" / "checkout", directory / "output"
    for name in ("hook", "config", "packaging", "docs", "dist"):
        shutil.copytree(TOP / name, other / name, symlinks=True)
    for name in ("install.sh", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(TOP / name, other)
    (other / "build").mkdir()
    (other / "build/venv").symlink_to((TOP / "build/venv").resolve())
    first = {path.name: digest(path) for path in release.iterdir()}
    assert len(first) == 5
    assert pack(other, output, base) == first


def test_the_archive_installs_without_network_python_or_compiler(release: Path, directory: Path) -> None:
    node = Chroot(directory)
    shutil.copy(release / f"{ARCHIVE}.tar.gz", directory / "upper")
    node.run(f"tar -xzf /{ARCHIVE}.tar.gz")
    under = ("unshare", "--net")
    assert node.run("command -v python3 cc gcc pip || echo none").stdout == "none\n"
    plan = node.run(f"cd {ARCHIVE}; ./install.sh --dry-run --engine containerd", under=under).stdout
    assert "/etc/containerd/config.toml" in plan
    node.run(f"cd {ARCHIVE}; packaging/extras.sh install dist/reassert/reassert /usr/local", under=under)
    assert "reassert.8.gz" in node.run("ls /usr/local/share/man/man8").stdout
    assert node.run("ls /usr/share/reassert/policy.schema.json").returncode == 0
    unwired = node.run(f"cd {ARCHIVE}; ./install.sh --uninstall", under=under).stdout
    assert "nothing" in unwired
    demo = node.run(
        f"cd {ARCHIVE}; PATH=/none ./install.sh --demo || echo status $?; ls -d /var/lib/reassert* || :", under=under
    )
    assert "status" in demo.stdout  # a chroot has no cgroups, so no container; the words are those of a user's terminal
    assert "Traceback" not in demo.stdout


def test_the_archive_has_only_files_of_root_that_only_root_can_write(release: Path) -> None:
    with tarfile.open(release / f"{ARCHIVE}.tar.gz") as archive:
        for member in archive:
            assert (member.uid, member.gid, member.mtime) == (0, 0, int(EPOCH["SOURCE_DATE_EPOCH"])), member.name
            assert member.issym() or not member.mode & 0o022, (member.name, oct(member.mode))
            assert member.name.startswith(ARCHIVE)
        names = {name.removeprefix(f"{ARCHIVE}/") for name in archive.getnames()}
    assert {"install.sh", "README.md", "LICENSE", "dist/reassert/reassert", "dist/reassert/front"} <= names
    named = ("systemd/reassert-trust.path", "monitoring/alerts.yaml", "kubernetes/chart/Chart.yaml")
    assert {f"packaging/{path}" for path in named} <= names, "the pages in docs/ tell readers to use them"
    assert not [name for name in names if "__pycache__" in name]


def test_the_rpm_has_the_files_of_the_deb(release: Path) -> None:
    rpm = set(run("rpm", "-qlp", str(release / RPM)).stdout.split())
    (deb,) = release.glob("*.deb")
    listed = run("dpkg-deb", "--contents", str(deb)).stdout.splitlines()
    theirs = {line.split()[5].removeprefix(".").rstrip("/") for line in listed}
    only_deb = (
        "/usr/share/lintian",
        "/usr/share/doc/reassert/copyright",
        "/usr/share/doc/reassert/changelog.Debian.gz",
    )
    files = {line.split()[5].removeprefix(".") for line in listed if not line.startswith("d")}
    own = {
        path for path in theirs if path.startswith(("/usr/lib/reassert", "/usr/share/doc/reassert", "/etc/reassert"))
    }
    wanted = {path for path in files | own if not path.startswith(only_deb)}
    assert wanted == rpm - {"/usr/share/doc/reassert/LICENSES", "/etc/reassert/policy.yaml"}
    assert run("rpm", "-qcp", str(release / RPM)).stdout == "/etc/reassert/policy.yaml\n"
    requires = run("rpm", "-qp", "--requires", str(release / RPM)).stdout
    assert re.search(r"^glibc >= 2\.\d+$", requires, re.MULTILINE)


def test_rpmlint_finds_no_error(release: Path) -> None:
    done = subprocess.run(
        ["rpmlint", "-c", str(TOP / "packaging/release/rpmlint.toml"), str(release / RPM)],
        capture_output=True,
        text=True,
    )
    assert " E: " not in done.stdout, done.stdout
    assert "0 errors" in done.stdout


def test_the_rpms_scripts_upgrade_and_remove(release: Path, directory: Path) -> None:
    node = Chroot(directory)
    shutil.copy(release / RPM, directory / "upper")
    rpm = 'rpm --root "$PWD/root" --dbpath /var/lib/rpm --nodeps'
    node.run(f"{rpm} -i root/{RPM}", inside=False)
    assert node.run("reassert --version").stdout == f"reassert {__version__}\n"
    assert "valid" in node.run("reassert policy check").stdout
    node.put(
        "/etc/reassert/policy.yaml", node.read("/etc/reassert/policy.yaml").replace("mode: Audit", "mode: Enforce")
    )
    node.run("mkdir -p /var/lib/reassert; reassert policy compile > /dev/null")
    node.run(f"{rpm} -U --replacepkgs root/{RPM}", inside=False)
    assert "mode: Enforce" in node.read("/etc/reassert/policy.yaml")
    node.put("/usr/local/sbin/reassert-byhand", "#!/bin/sh\nexec /usr/lib/reassert/reassert runtime\n", 0o755)
    node.put(INSTALLED, BELOW_A_PREFIX)
    node.put(PLACED, "")
    refused = node.run(f"{rpm} -U --replacepkgs root/{RPM}", inside=False, check=False)
    assert refused.returncode != 0
    assert "this node is wired with /srv/own/reassert/reassert, and a node has one installation" in refused.stdout
    node.run(f"rm {INSTALLED}")
    kept = node.run(f"{rpm} -e reassert", inside=False, check=False)
    assert kept.returncode != 0
    assert "/usr/local/sbin/reassert-byhand still calls this program" in kept.stdout
    node.run("rm /usr/local/sbin/reassert-byhand")
    node.run(f"{rpm} -e reassert", inside=False)
    assert node.run("ls /usr/lib/reassert /usr/bin/reassert 2>&1 || :").stdout.count("No such file") == 2
    assert node.run("ls /etc/reassert").stdout == "policy.yaml.rpmsave\n"
    assert "mode: Enforce" in node.read("/etc/reassert/policy.yaml.rpmsave")


def test_the_image_is_loaded_and_runs(release: Path, directory: Path) -> None:
    (image,) = release.glob("*-image-*.tar")
    podman = [
        "podman",
        "--root",
        str(directory / "storage"),
        "--runroot",
        str(directory / "run"),
        "--storage-driver",
        "vfs",
    ]
    loaded = run(*podman, "load", "--input", str(image)).stdout
    name = f"localhost/reassert:{__version__}"
    assert name in loaded
    started = [*podman, "run", "--rm", "--network=none", "--cgroups=disabled", *LIMITS, name]
    assert run(*started, "/opt/reassert/reassert", "--version").stdout == f"reassert {__version__}\n"
    assert (
        "readiness probe"
        in subprocess.run([*started, "sh", "/usr/local/bin/node.sh"], capture_output=True, text=True).stderr
    )
    (shown,) = json.loads(run(*podman, "image", "inspect", name).stdout)
    assert shown["Labels"]["org.opencontainers.image.version"] == __version__
    assert shown["Created"].startswith("2023-11-14T")
    scripts = {path.name for path in (TOP / "packaging/kubernetes/image").glob("*.sh")}
    assert set(run(*started, "sh", "-c", "cd /usr/local/bin; echo *").stdout.split()) == scripts
    with tarfile.open(image) as archive:
        (index,) = [name for name in archive.getnames() if name.endswith("index.json")]
        file = archive.extractfile(index)
        assert file
        (manifest,) = json.load(file)["manifests"]
    assert manifest["annotations"]["org.opencontainers.image.ref.name"] == name  # ctr images import takes it as it is


class Registry:
    """Debian's registry, with the releases below a web server beside it."""

    def __init__(self, directory: Path, releases: Path) -> None:
        self.directory, self.releases = directory, releases
        self.host, self.web = (f"localhost:{port()}" for _ in range(2))
        (directory / "registry.json").write_text(
            json.dumps(
                {
                    "version": 0.1,
                    "log": {"accesslog": {"disabled": True}},
                    "storage": {"filesystem": {"rootdirectory": str(directory / "store")}},
                    "http": {"addr": self.host},
                }
            )
        )

    @contextmanager
    def serving(self) -> Iterator[None]:
        registry = [str(TOP / "build/docker-registry"), "serve", str(self.directory / "registry.json")]
        web = [sys.executable, "-m", "http.server", "--bind", "localhost", self.web.partition(":")[2]]
        with (
            (self.directory / "log").open("w") as log,
            subprocess.Popen(registry, stdout=log, stderr=log) as one,
            subprocess.Popen(web, cwd=self.releases, stdout=log, stderr=log) as other,
        ):
            try:
                for host in (self.host, self.web):
                    wait_for(lambda host=host: answers(host), host, (self.directory / "log").read_text)
                yield
            finally:
                one.terminate()
                other.terminate()

    def publish(self, release: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Without TLS, for which the certificate of the registry would have to be this machine's."""
        publish = str(TOP / "packaging/release/publish.py")
        return run(publish, str(release), f"{self.host}/platform", "--plain-http", check=check)

    def digest(self, name: str) -> str:
        """Of what the registry has under a name."""
        shown = run("skopeo", "inspect", "--tls-verify=false", "--raw", f"docker://{self.host}/platform/{name}")
        return f"sha256:{hashlib.sha256(shown.stdout.encode()).hexdigest()}"


def answers(host: str) -> bool:
    name, _, number = host.partition(":")
    with suppress(OSError), socket.create_connection((name, int(number))):
        return True
    return False


def port() -> int:
    """One that is free."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def with_sums(release: Path, directory: Path) -> Path:
    """The same release in a directory that is named as its version, with the checksums of packaging/release.sh."""
    named = directory / __version__
    shutil.copytree(release, named)
    (named / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in sorted(named.iterdir())))
    return named


@pytest.fixture
def registry(release: Path, directory: Path) -> Iterator[Registry]:
    need((TOP / "build/docker-registry").exists(), "build/docker-registry (tests/tool.sh)")
    need(shutil.which("skopeo") is not None, "skopeo")
    releases = directory / "releases"
    releases.mkdir()
    with_sums(release, releases)
    registry = Registry(directory, releases)
    with registry.serving():
        yield registry


HELM = """#!/usr/bin/env -S {python} -I
import sys, pathlib, helm_python
install, name, chart, version, number, namespace, where = sys.argv[1:]
assert (install, version, namespace) == ("install", "--version", "-n")
client = helm_python.RegistryClient(plain_http=True)
helm_python.pull(chart, client=client, version=number, destination=".", plain_http=True)
(archive,) = pathlib.Path().glob("*.tgz")
with helm_python.Chart.load_archive(archive.read_bytes()) as loaded:
    assert (loaded.name, loaded.version) == ("reassert", number)
    print("\\n".join(loaded.render({{}}, name=name, namespace=where).values()))
"""
"""helm of Helm's own library: it takes the chart from the registry, and prints what it would apply."""


def test_a_published_release_is_got_and_installed_as_the_page_says(registry: Registry, directory: Path) -> None:
    """docs/project/releases.md's own commands, with Debian's registry and Helm's library."""
    registry.publish(registry.releases / __version__)
    page = (TOP / "docs/project/releases.md").read_text()
    node, cluster = re.findall(r"```sh\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    places = {
        "RELEASES": f"http://{registry.web}",
        "REGISTRY": f"{registry.host}/platform",
        "VERSION": __version__,
        "ARCH": MACHINE,
        "install.sh": "install.sh --dry-run --engine containerd",  # a chroot has no engine to restart
    }
    node, cluster = (re.sub("|".join(places), lambda found: places[found[0]], each) for each in (node, cluster))
    machine = Chroot(directory)
    get, install = node.rsplit("\n", 2)[:2]
    subprocess.run(["sh", "-euc", get], cwd=directory / "upper", check=True)
    assert "/etc/containerd/config.toml" in machine.run(f"cd /; {install}").stdout
    helm = directory / "bin/helm"
    helm.parent.mkdir()
    helm.write_text(HELM.format(python=sys.executable))
    helm.chmod(0o755)
    path = {"PATH": f"{helm.parent}:{os.defpath}", "HOME": str(directory)}
    done = subprocess.run(["sh", "-euc", cluster], cwd=directory, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    digest = registry.digest(f"reassert:{__version__}")
    assert f"image: {registry.host}/platform/reassert@{digest}" in done.stdout


def test_the_index_names_each_file_of_each_release(registry: Registry) -> None:
    release = registry.releases / __version__
    older = {"version": "0.3.0", "directory": "0.3.0", "signed": True, "image": "i", "chart": "c", "files": []}
    index = registry.releases / "index.json"
    index.write_text(json.dumps({"version": 1, "releases": [older]}))
    registry.publish(release)
    ours, theirs = json.loads(index.read_text())["releases"]
    assert theirs == older
    assert (ours["version"], ours["directory"], ours["signed"]) == (__version__, __version__, False)
    assert {each["name"]: each["sha256"] for each in ours["files"]} == {
        path.name: digest(path) for path in release.iterdir() if path.name != "SHA256SUMS"
    }
    assert ours["image"].endswith(registry.digest(f"reassert:{__version__}"))
    assert ours["chart"].endswith(registry.digest(f"charts/reassert:{__version__}"))
    config = json.loads(run("skopeo", "inspect", "--tls-verify=false", "--raw", "--config", ours_chart(ours)).stdout)
    assert (config["name"], config["version"], config["apiVersion"]) == ("reassert", __version__, "v2")


def ours_chart(entry: dict[str, str]) -> str:
    return "docker://" + entry["chart"].removeprefix("oci://").partition("@")[0]


def test_the_image_has_each_architecture_of_the_release(registry: Registry, directory: Path) -> None:
    release = registry.releases / __version__
    (image,) = release.glob("*-image-*.tar")
    other = directory / "other"
    other.mkdir()
    run("tar", "-C", str(other), "-xf", str(image))
    run("umoci", "config", "--image", f"{other}:localhost/reassert:{__version__}", "--architecture", "riscv64")
    run("umoci", "gc", "--layout", str(other))
    run("tar", "-C", str(other), "-cf", str(release / f"reassert-{__version__}-image-riscv64.tar"), ".")
    registry.publish(release)
    shown = run("skopeo", "inspect", "--tls-verify=false", "--raw", f"docker://{registry.host}/platform/{IMAGE}").stdout
    own = run("dpkg", "--print-architecture").stdout.strip()
    assert [each["platform"]["architecture"] for each in json.loads(shown)["manifests"]] == sorted([own, "riscv64"])


def test_what_is_published_is_never_replaced(registry: Registry) -> None:
    release = registry.releases / __version__
    registry.publish(release)
    index = (registry.releases / "index.json").read_bytes()
    published = registry.digest(f"charts/reassert:{__version__}")
    assert "published already, the same" in registry.publish(release).stdout
    archive = release / f"{ARCHIVE}.tar.gz"
    changed = registry.publish(replaced(archive, release), check=False)
    assert (changed.returncode, "is published already, with another content" in changed.stderr) == (1, True)
    assert registry.digest(f"charts/reassert:{__version__}") == published
    assert (registry.releases / "index.json").read_bytes() == index
    archive.write_bytes(b"half of it")
    done = registry.publish(release, check=False)
    assert (done.returncode, f"{archive} has another checksum than in SHA256SUMS" in done.stderr) == (1, True)
    (release / "SHA256SUMS").unlink()
    assert "SHA256SUMS is missing" in registry.publish(release, check=False).stderr


@pytest.mark.parametrize("words", [["--publish"], ["--publish", ""], ["--key", "", "--publish", "x"]])
def test_an_option_without_its_value_builds_nothing(words: list[str]) -> None:
    """Such as --publish "$REGISTRY" with no such variable. A build takes half an hour."""
    done = run(str(TOP / "packaging/release.sh"), *words, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"packaging/release.sh: {words[0]} needs a value; see --help\n"


@pytest.mark.parametrize(
    "registry", ["https://registry.example", "Registry.example/Reassert", "registry.example/a b", "/x"]
)
def test_what_is_no_registry_is_said_to_be_none(registry: str) -> None:
    done = run(str(TOP / "packaging/release.sh"), "--publish", registry, check=False)
    assert (done.returncode, f"{registry!r} is no registry: write its host" in done.stderr) == (1, True)


def replaced(archive: Path, release: Path) -> Path:
    """The release with another chart in its archive."""
    work = release.parent / "work"
    work.mkdir()
    run("tar", "-C", str(work), "-xzf", str(archive))
    with (work / ARCHIVE / "packaging/kubernetes/chart/values.yaml").open("a") as values:
        values.write("# another line\n")
    run("tar", "-C", str(work), "-czf", str(archive), ARCHIVE)
    remove_tree(work)
    sums = release / "SHA256SUMS"
    sums.write_text(re.sub(rf"\w+(?=  {archive.name})", digest(archive), sums.read_text()))
    return release


def test_the_sbom_names_every_part(release: Path) -> None:
    bom = json.loads((release / f"{ARCHIVE}.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"], bom["metadata"]["component"]["version"]) == (
        "CycloneDX",
        "1.5",
        __version__,
    )
    found = {part["name"]: part for part in bom["components"]}
    pinned = re.findall(r"^([\w.-]+)==([\w.]+) \\$", (TOP / "packaging/requirements.txt").read_text(), re.MULTILINE)
    assert dict(pinned) == {name: found[name]["version"] for name, _ in pinned}
    assert {"cpython", "pyinstaller"} <= found.keys()
    for part in found.values():
        assert part["version"]
        assert part["purl"].startswith(("pkg:pypi/", "pkg:deb/debian/", "pkg:cargo/", "pkg:generic/")), part
    references = [part["bom-ref"] for part in bom["components"]]
    assert len(references) == len(set(references))
    libraries = [
        path.name for path in (REASSERT.parent / "lib").glob("*.so.*") if not path.name.startswith("libpython")
    ]
    debian = [part for part in found.values() if part["purl"].startswith("pkg:deb")]
    assert len(debian) >= len(libraries), (libraries, debian)
    bindings = (REASSERT.parent / "lib/cryptography/hazmat/bindings/_rust.abi3.so").read_bytes()
    (openssl,) = set(re.findall(rb"\0OpenSSL (\d+\.\d+\.\d+) \d", bindings))
    assert found["openssl"]["version"] == openssl.decode()
    assert "pkg:cargo/rpds@" in str(bom)


def test_a_signature_is_checked_as_the_page_says(directory: Path) -> None:
    """docs/project/releases.md's own commands."""
    need(shutil.which("ssh-keygen") is not None, "ssh-keygen")
    page = (TOP / "docs/project/releases.md").read_text()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key"))
    (directory / f"{ARCHIVE}.tar.gz").write_text("an archive")
    subprocess.run(f"sha256sum {ARCHIVE}.tar.gz > SHA256SUMS", shell=True, cwd=directory, check=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", "key", "-n", "reassert-release", "SHA256SUMS"],
        cwd=directory,
        check=True,
    )
    key = " ".join((directory / "key.pub").read_text().split()[:2])
    (directory / "allowed_signers").write_text(f"release@reassert.example {key}\n")
    (commands,) = re.findall(r"```sh\n(ssh-keygen.*?)```", page, re.DOTALL)
    done = subprocess.run(["sh", "-euc", commands], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'Good "reassert-release" signature' in done.stdout
    (directory / f"{ARCHIVE}.tar.gz").write_text("another archive")
    assert subprocess.run(["sh", "-euc", commands], cwd=directory, capture_output=True).returncode != 0
    (directory / "SHA256SUMS").write_text("")
    assert subprocess.run(["sh", "-euc", commands], cwd=directory, capture_output=True).returncode != 0
