"""A real kaniko (tests/lab/builders/run.sh) in a container of the wrapper with runc: what its RUN steps get."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.conftest import node
from e2e.cri.client import wait_for
from e2e.packaging.test_release import answers, port
from e2e.trust.conftest import Company, company
from e2e.trust.images import LAYOUTS
from harness.bundle import APPLETS, Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import BUSYBOX, RUNTIMES, TOP
from harness.tools import need, remove_tree, run, scratch

__all__ = ["company", "node"]

EXECUTOR = Path(os.environ["REASSERT_TEST_BUILDERS"], "executor")
REGISTRY = TOP / "build/docker-registry"
CAPS = (
    "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT MKNOD AUDIT_WRITE"
)
GPU = """\
  - name: gpu-allowlist
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]
"""
IMAGES_OWN = "the image's own"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
READS = {
    "debian": BUNDLE,
    "alpine": "/etc/ssl/cert.pem",
    "rhel": "/etc/pki/tls/certs/ca-bundle.crt",
    "suse": "/etc/ssl/ca-bundle.pem",
    "scratch": BUNDLE,
}
"""The file that programs of a distribution read without a variable."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """Debian's registry, empty."""
    need(REGISTRY.exists(), "build/docker-registry (tests/tool.sh)")
    directory = scratch()
    host = f"127.0.0.1:{port()}"
    storage = {"filesystem": {"rootdirectory": str(directory / "store")}}
    (directory / "registry.json").write_text(
        json.dumps(
            {"version": 0.1, "storage": storage, "http": {"addr": host}, "log": {"accesslog": {"disabled": True}}}
        )
    )
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen([str(REGISTRY), "serve", str(directory / "registry.json")], stdout=log, stderr=log) as served,
    ):
        wait_for(lambda: answers(host), host, (directory / "log").read_text)
        yield host
        served.terminate()
    remove_tree(directory)


def base(layout: str) -> bytes:
    """A root file system with the CA files of a distribution, which say that they are the image's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(path: str, content: bytes = b"", link: str = "", kind: bytes = tarfile.REGTYPE) -> None:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type = tarfile.SYMTYPE if link else kind
            entry.size, entry.mode, entry.linkname = len(content), 0o755, link
            tar.addfile(entry, io.BytesIO(content))

        for directory in ("bin", "etc", "tmp", "etc/ssl"):
            add(directory, kind=tarfile.DIRTYPE)
        add("bin/busybox", Path(BUSYBOX).read_bytes())
        for applet in APPLETS:
            add(f"bin/{applet}", link="busybox")
        add("etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        for path, what in LAYOUTS[layout].items():
            if what == "bundle":
                add(path, f"{IMAGES_OWN}\n".encode())
            elif what == "hashed":
                add(path, kind=tarfile.DIRTYPE)
                add(f"{path}/own.pem", f"{IMAGES_OWN}\n".encode())
            else:
                add(path, link=what.removeprefix("-> "))
    return buffer.getvalue()


class Kaniko:
    """Builds in containers, behind the dispatcher."""

    def __init__(self, node: Node, registry: str) -> None:
        self.node, self.registry = node, registry
        self.runtime = node.dispatcher(RUNTIMES["runc"])
        self.count = 0

    @contextmanager
    def building(
        self, runtime: str, dockerfile: str, options: tuple[str, ...], files: dict[str, bytes]
    ) -> Iterator[Running]:
        """A container whose process is kaniko. Its image has the executor and nothing else, as kaniko's own."""
        self.count += 1
        bundle = Bundle(self.node.directory / f"kaniko{self.count}")
        remove_tree(bundle.rootfs)
        (bundle.rootfs / "kaniko").mkdir(parents=True)
        os.link(self._executor(), bundle.rootfs / "kaniko/executor")
        context = bundle.directory / "context"
        context.mkdir()
        (context / "Dockerfile").write_text(dockerfile)
        for name, content in files.items():
            (context / name).write_bytes(content)
        bundle.bind(context, "/workspace")
        spec, process = bundle.spec, bundle.spec["process"]
        spec["linux"]["namespaces"] = [each for each in spec["linux"]["namespaces"] if each["type"] != "network"]
        capabilities = [f"CAP_{each}" for each in CAPS.split()]
        process["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), capabilities)
        process["env"] = ["PATH=/usr/local/bin:/kaniko", "HOME=/root", "DOCKER_CONFIG=/kaniko/.docker"]
        process["args"] = ["/kaniko/executor", "--context=dir:///workspace", "--force", "--insecure", "--insecure-pull"]
        process["args"] += ["--log-format=text", *options]
        bundle.save()
        with Running(runtime, bundle) as container:
            yield container

    def _executor(self) -> Path:
        copy = self.node.directory / "executor"
        if not copy.exists():
            copy.write_bytes(EXECUTOR.read_bytes())
            copy.chmod(0o755)
        return copy

    def build(self, dockerfile: str, *options: str, runtime: str = "", base_tar: bytes = b"") -> str:
        """What it prints, when it has ended."""
        files = {"base.tar": base_tar} if base_tar else {}
        with self.building(runtime or self.runtime, dockerfile, options, files) as container:
            wait_for(lambda: '"stopped"' in run("runc", "state", container.id).stdout, "its end", container.output, 120)
            said = container.output()
        assert "error building image" not in said, said
        return said

    def pushed(self, layout: str) -> str:
        """An image with the files of a distribution, built without reassert."""
        name = f"{self.registry}/{layout}:1"
        options = ("FROM scratch\nADD base.tar /\n", f"--destination={name}")
        self.build(*options, runtime=RUNTIMES["runc"], base_tar=base(layout))
        return name

    def layers(self, name: str) -> list[dict[str, int]]:
        """The paths in each layer of a pushed image, with the sizes of files."""
        repository, tag = name.removeprefix(f"{self.registry}/").split(":")
        at = f"http://{self.registry}/v2/{repository}"
        accept = (
            "Accept: application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
        )
        manifest = json.loads(run("curl", "-fsS", "-H", accept, f"{at}/manifests/{tag}").stdout)
        found = []
        for layer in manifest["layers"]:
            file = self.node.directory / "layer"
            run("curl", "-fsS", "--output", str(file), f"{at}/blobs/{layer['digest']}")
            with tarfile.open(file) as tar:
                found.append({entry.name.strip("./"): entry.size for entry in tar})
        return found


@pytest.fixture
def kaniko(node: Node, registry: str) -> Kaniko:
    return Kaniko(node, registry)


SHOW = (
    "RUN echo env=$SSL_CERT_FILE.$NVIDIA_VISIBLE_DEVICES; head -n 1 {reads}; ls /.reassert-trust; echo made > /made\n"
)
ASIDE = "/.reassert-trust/ca-certificates.crt"


@pytest.mark.parametrize("layout", READS)
@pytest.mark.parametrize("mount", ["Directories", "Files", "Aside"])
def test_a_run_step_has_the_mounts_and_no_reserved_env_and_the_image_has_neither(
    mount: str, layout: str, kaniko: Kaniko, company: Company, node: Node
) -> None:
    image = kaniko.pushed(layout)
    node.compile(company.policy(f", mount: {mount}", GPU))
    name = f"{kaniko.registry}/built-{layout}-{mount.lower()}:1"
    if mount == "Files" and layout in ("rhel", "suse"):
        with pytest.raises(AssertionError, match="etc/ssl/certs to make way for new symlink"):
            kaniko.build(f"FROM {image}\nRUN true\n", f"--destination={name}")
        return
    said = kaniko.build(f"FROM {image}\n{SHOW.format(reads=READS[layout])}", f"--destination={name}").splitlines()
    assert "env=." in said, "kaniko gives a RUN step the env of the image, not its own"
    first = (company.store / "live/ca-certificates.crt").read_text().splitlines()[0]
    own = [] if layout == "scratch" else [IMAGES_OWN]
    keeps = mount == "Aside" or layout == "suse"  # no directory has SUSE's bundle
    assert [line for line in said if line in (IMAGES_OWN, first)] == (own if keeps else [first])
    assert ("ca-certificates.crt" in said) == (mount == "Aside")
    assert sorted(kaniko.layers(name)[-1]) == ["", "made"]


def test_with_aside_a_declared_build_argument_gives_a_run_step_the_variable(
    kaniko: Kaniko, company: Company, node: Node
) -> None:
    image = kaniko.pushed("debian")
    node.compile(company.policy(", mount: Aside"))
    dockerfile = f"FROM {image}\nARG SSL_CERT_FILE\nRUN echo env=$SSL_CERT_FILE; head -n 1 $SSL_CERT_FILE\n"
    said = kaniko.build(dockerfile, f"--build-arg=SSL_CERT_FILE={ASIDE}", "--no-push").splitlines()
    assert f"env={ASIDE}" in said
    assert (company.store / "live/ca-certificates.crt").read_text().splitlines()[0] in said


@pytest.mark.parametrize("mount", ["Directories", "Files", "Aside"])
def test_what_is_copied_over_a_mounted_path(mount: str, kaniko: Kaniko, company: Company, node: Node) -> None:
    """kaniko does not write there. Of a mounted directory the image gets the node's file, of a mounted file none."""
    node.compile(company.policy(f", mount: {mount}"))
    name = f"{kaniko.registry}/added-{mount.lower()}:1"
    kaniko.build("FROM scratch\nADD base.tar /\n", f"--destination={name}", base_tar=base("debian"))
    stored = (company.store / "live/ca-certificates.crt").stat().st_size
    sizes = {path: size for layer in kaniko.layers(name) for path, size in layer.items()}
    assert sizes.get(BUNDLE[1:]) == {"Aside": len(IMAGES_OWN) + 1, "Directories": stored, "Files": None}[mount]


@pytest.mark.parametrize("mount", ["Directories", "Files", "Aside"])
def test_stages(mount: str, kaniko: Kaniko, company: Company, node: Node) -> None:
    """Between them kaniko deletes the file system, but for what is mounted."""
    debian, alpine = kaniko.pushed("debian"), kaniko.pushed("alpine")
    node.compile(company.policy(f", mount: {mount}", GPU))
    name = f"{kaniko.registry}/stages-{mount.lower()}:1"
    dockerfile = (
        f"FROM {debian} AS one\nRUN echo one > /one\nFROM {alpine}\nCOPY --from=one /one /two\nRUN cat /two > /made\n"
    )
    kaniko.build(dockerfile, f"--destination={name}", "--cleanup")
    assert [sorted(layer) for layer in kaniko.layers(name)[-2:]] == [["", "two"], ["", "made"]]
