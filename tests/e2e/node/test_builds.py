"""RUN steps: BuildKit of the real docker 28, podman build and buildah, on a node of Debian's newest suite."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import APPLETS
from harness.paths import BUSYBOX

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.files import differences
from e2e.node.test_today import SUITE, is_as_claimed
from e2e.node.wired import COMPANY, PACKAGED, POLICY_FILE, package

pytestmark = marks.promise(
    "A RUN step of `docker build` with BuildKit, of `podman build` and of buildah has the policy's env and mounts, and "
    "nothing of them stays in the image",
    about="Node",
)

DROP_IN = "/etc/systemd/system/docker.service.d/reassert.conf"
FILES = {
    **COMPANY,
    "/etc/docker/daemon.json": '{"bridge": "none", "iptables": false, "ip-forward": false}\n',
}
TOPS = ("/etc", "/opt", "/usr/local", "/root")
BARE, FULL = "reassert.test/bare:1", "reassert.test/full:1"
"""Images without and with /etc/ssl. No registry is reached."""

SHOW = "RUN echo ca=$REQUESTS_CA_BUNDLE; ls /etc/ssl\n"
WANTED = ["ca=/etc/ssl/certs/ca-certificates.crt", "company.crt"]


def base(*directories: str) -> bytes:
    """A root file system of busybox, for `import`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in ("bin", "tmp", *directories):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        files = {"bin/busybox": Path(BUSYBOX).read_bytes()}
        if "etc" in directories:
            files["etc/passwd"] = b"root:x:0:0::/:/bin/sh\n"
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return buffer.getvalue()


class Builder:
    """A command that builds: docker, podman or buildah."""

    def __init__(self, node: BootedNode, name: str) -> None:
        self.node, self.name = node, name
        self.directory = node.directory / "context"

    def command(self, *options: str, dockerfile: str) -> list[str]:
        """The command line, here, of a build of this Dockerfile."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / "Dockerfile").write_text(dockerfile)
        if self.name == "docker":
            line = ["env", "HOME=/tmp", "docker", "build", "--progress=plain"]
        else:
            manager = ["--cgroup-manager=cgroupfs"] if self.name == "podman" else []
            line = [self.name, *manager, "build", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"]
        return self.node.command(*line, "--no-cache", "--network=host", *options, str(self.directory))

    def build(self, dockerfile: str, *options: str, fails: bool = False) -> list[str]:
        """The lines that a build printed."""
        done = subprocess.run(
            self.command(*options, dockerfile=dockerfile),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout
        # docker's begin with the number of the step and the seconds.
        return [line.split(" ", 2)[-1] if line.startswith("#") else line for line in done.stdout.splitlines()]

    def paths(self, image: str) -> dict[str, list[str]]:
        """What each layer of an image has, by digest, as `save` writes it."""
        manager = ["--cgroup-manager=cgroupfs"] if self.name != "docker" else []
        archive = self.node.directory / "saved.tar"
        engine = ["docker"] if self.name == "docker" else ["podman", *manager]
        archive.unlink(missing_ok=True)
        form = [] if self.name == "docker" else ["--format=docker-archive"]
        self.node.run(*engine, "save", *form, "--output", str(archive), image)
        with tarfile.open(archive) as saved:
            manifest = json.load(saved.extractfile("manifest.json"))  # type: ignore[arg-type]
            found = {}
            for name in manifest[0]["Layers"]:
                member = saved.getmember(name)
                member = saved.getmember(f"{Path(name).parent}/{member.linkname}") if member.issym() else member
                with tarfile.open(fileobj=io.BytesIO(saved.extractfile(member).read())) as layer:  # type: ignore[union-attr]
                    found[name] = [path.strip("./") for path in layer.getnames()]
            return found


def reassert(node: BootedNode, *arguments: str, check: bool = True) -> str:
    accepted = ("--except=handler/runc", "--except=handler/crun-wasm") if arguments[0] == "install" else ()
    done = node.run(PACKAGED, *arguments, *accepted, check=check, timeout=600)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A node with docker, podman and buildah, and two images."""
    is_as_claimed()
    node: BootedNode = module_boot(SUITE, files=FILES, docker=True, images=False)
    package(node)
    for name, content in ((BARE, base()), (FULL, base("etc", "etc/ssl", "etc/ssl/certs"))):
        (node.directory / "base.tar").write_bytes(content)
        for engine in ("docker", "podman"):
            node.run(engine, "import", str(node.directory / "base.tar"), name)
    return node


def restart(node: BootedNode) -> None:
    node.run("systemctl", "reset-failed", "docker")
    node.run("systemctl", "restart", "docker")


@pytest.fixture
def docker(node: BootedNode) -> Iterator[Builder]:
    """Without reassert, before and after; dockerd has read its unit as it is then."""
    yield Builder(node, "docker")
    reassert(node, "uninstall", "--engine=docker", check=False)
    restart(node)
    reassert(node, "uninstall", "--engine=docker", check=False)


@pytest.fixture
def wired(docker: Builder) -> Builder:
    """Wired, and dockerd was started again."""
    reassert(docker.node, "install", "--engine=docker", "--no-probe")
    restart(docker.node)
    return docker


@pytest.fixture(params=["docker", "podman", "buildah"])
def each(request: pytest.FixtureRequest, node: BootedNode) -> Iterator[Builder]:
    """A builder, wired."""
    engine = "docker" if request.param == "docker" else "podman"
    reassert(node, "install", f"--engine={engine}", "--no-probe")
    if engine == "docker":
        restart(node)
    yield Builder(node, request.param)
    reassert(node, "uninstall", f"--engine={engine}", check=False)
    if engine == "docker":
        restart(node)
        reassert(node, "uninstall", "--engine=docker", check=False)


@marks.hole(
    "With docker 23 and later, RUN steps of `docker build` bypassed the policy, since BuildKit calls runc itself",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
    found="user",
)
def test_install_tells_dockerd_and_uninstall_leaves_every_byte(docker: Builder) -> None:
    node, before = docker.node, docker.node.snapshot(TOPS)
    show = f"FROM {FULL}\nENV REQUESTS_CA_BUNDLE=/tmp/evil\n{SHOW}"
    assert {"ca=/tmp/evil", "certs"} <= {*docker.build(show)}
    said = reassert(node, "install", "--engine=docker", "--no-probe")
    assert f"writing {DROP_IN}" in said
    assert f"until dockerd has read {DROP_IN}: systemctl restart docker, which ends containers" in said
    assert "ca=/tmp/evil" in docker.build(show), "dockerd was not started again"
    found = json.loads(reassert(node, "status", "-o", "json", check=False))
    [finding] = [each for each in found["findings"] if each["part"] == "handler/buildkit"]
    assert (finding["severity"], finding["remedy"]) == ("error", "systemctl restart docker.service")
    restart(node)
    assert {*WANTED} <= {*docker.build(show)}
    found = json.loads(reassert(node, "status", "-o", "json"))
    [handler] = [each for each in found["engines"]["docker"]["handlers"] if each["name"] == "buildkit"]
    assert (found["exitStatus"], handler["wired"]) == (0, ["runtime"])
    said = reassert(node, "uninstall", "--engine=docker")
    assert "/opt/reassert/reassert-runc: it stays" in said
    assert "ca=/tmp/evil" in docker.build(show), "a dockerd that was not started again builds"
    restart(node)
    reassert(node, "uninstall", "--engine=docker")
    assert differences(before, node.snapshot(TOPS)) == []
    assert "ca=/tmp/evil" in docker.build(show)


def test_verify_builds_and_says_where_it_cannot(wired: Builder) -> None:
    """It cancels each of its builds, and fails if the step then does not end."""
    node, before = wired.node, wired.node.snapshot(TOPS)
    excepted = ("--except=handler/runc", "--except=handler/reassert")
    found = json.loads(reassert(node, "verify", "--engine=docker", *excepted, "-o", "json", check=False))
    [handler] = [each for each in found["handlers"] if each["name"] == "buildkit"]
    assert (handler["result"], handler["exec"]) == ("protected", None), handler
    assert handler["saw"][0].startswith("put back: 1 env, ")
    plugin = node.path("/usr/libexec/docker/cli-plugins/docker-buildx")
    plugin.rename(plugin.with_name("away"))
    try:
        said = reassert(node, "verify", "--engine=docker", *excepted, check=False)
        assert "not there  handler/buildkit: docker has no buildx on this node" in said
    finally:
        plugin.with_name("away").rename(plugin)
    assert differences(before, node.snapshot(TOPS)) == []
    assert not wired.node.run("docker", "images", "--quiet", "reassert-verify").stdout


def test_a_step_has_the_nodes_values_and_leaves_nothing_of_them(each: Builder) -> None:
    """A runtime makes /etc/ssl for the mount where the image has none."""
    (each.node.directory / "secret").write_text("hidden\n")
    secret = f"--secret=id=token,src={each.node.directory}/secret"
    run = "RUN --mount=type=secret,id=token cat /run/secrets/token; echo made > /made; mkdir -p /etc/own\n"
    dockerfile = f"FROM {BARE}\nENV REQUESTS_CA_BUNDLE=/tmp/evil\n{SHOW}{run}"
    assert {*WANTED, "hidden"} <= {*each.build(dockerfile, secret, "--tag=reassert.test/built:1")}
    layers = [*each.paths("reassert.test/built:1").values()]
    assert not [path for layer in layers for path in layer if path.startswith("etc/ssl")], layers
    assert [path for layer in layers for path in layer if path in ("made", "etc/own")], layers


ALLOCATED = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  failurePolicy: Ignore
  rules:
  - {name: gpu, env: [{name: GPU, valueFrom: {deviceAllocation: {default: void}}}]}
  - {name: skips, match: {containerTypes: [container], ifUnknown: Skip}, env: [{name: TYPED, value: wanted}]}
"""
ID = "0a" * 32


@marks.claim("exclusion", "runtime")
@marks.claim("failure-policy", "runtime")
@marks.hole(
    "A RUN step of `podman build` or `docker build` with `--cgroup-parent` counted as a pod of which nothing is known: "
    "with `ifUnknown: Skip` or `failurePolicy: Ignore` it kept its values"
)
def test_no_cgroup_parent_makes_a_step_a_pods(each: Builder) -> None:
    """buildah takes it for the whole path; BuildKit adds its id to one with a colon at the end."""
    policy = each.node.path(POLICY_FILE)
    usual = policy.read_text()
    own = "" if each.name == "docker" else ID
    parents = [f"x.slice:cri-containerd:{own}", f"x.slice:crio:{own}", f"/x/crio-{own}"]
    dockerfile = f"FROM {FULL}\nENV GPU=all TYPED=mine\nRUN echo has=$GPU,$TYPED\n"
    policy.write_text(ALLOCATED)
    try:
        for parent in parents:
            assert "has=void,wanted" in each.build(dockerfile, f"--cgroup-parent={parent}"), parent
    finally:
        policy.write_text(usual)


@marks.claim("mounts", "runtime")
@marks.hole(
    "Of two `buildah run` at once in one container, the end of the first took the reserved mounts of the second away",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_the_end_of_one_step_takes_no_mount_of_another_in_the_same_root(node: BootedNode) -> None:
    reassert(node, "install", "--engine=podman", "--no-probe")
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000", "--network=host")
    container = node.run("buildah", "from", *limits, BARE).stdout.strip()
    show = "cat /etc/ssl/company.crt; read line; cat /etc/ssl/company.crt"
    line = node.command("buildah", "run", container, "--", "sh", "-c", show)
    try:
        with Step(line) as first, Step(line) as second:
            assert first.communicate("\n", timeout=600)[0] == "company\n"
            assert second.communicate("\n", timeout=600)[0] == "company\n"
    finally:
        node.run("buildah", "rm", container)
        reassert(node, "uninstall", "--engine=podman", check=False)


@pytest.mark.parametrize("runtime", ["crun", "runc"])
@marks.hole(
    "Under crun, a `buildah run` whose program is missing left the mount points in the container, and `buildah commit` "
    "then put them into the image",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_step_that_does_not_start_leaves_nothing(node: BootedNode, runtime: str) -> None:
    reassert(node, "install", "--engine=podman", "--no-probe")
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000", "--network=host")
    container = node.run("buildah", "from", *limits, BARE).stdout.strip()
    try:
        root = node.run("buildah", "mount", container).stdout.strip()
        done = node.run("buildah", "run", f"--runtime={runtime}", container, "--", "/missing", check=False)
        assert "/missing" in done.stderr
        assert "ssl" not in node.run("find", f"{root}/etc").stdout
    finally:
        node.run("buildah", "rm", container)
        reassert(node, "uninstall", "--engine=podman", check=False)


@marks.hole(
    "A directory above a reserved mount that the image lacked, and to which a RUN step gave an owner or a mode, was "
    "not in the image",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_directory_to_which_a_step_gives_an_owner_or_a_mode_stays(each: Builder) -> None:
    policy = each.node.path(POLICY_FILE)
    usual = policy.read_text()
    deep = "".join(f"    - {{hostPath: /etc/company, mountPath: /{top}/app/deep/ca}}\n" for top in ("a", "b", "c"))
    own = "mkdir -p /a/app /b/app && chown 5:6 /a/app && chmod 700 /b/app && ls -d /c/app/deep/ca"
    policy.write_text(usual + deep)
    try:
        each.build(f"FROM {BARE}\nRUN {own}\n", "--tag=reassert.test/built:1")
    finally:
        policy.write_text(usual)
    paths = {path for layer in each.paths("reassert.test/built:1").values() for path in layer}
    assert {"a", "a/app", "b", "b/app"} <= paths
    assert not {"a/app/deep", "b/app/deep", "c", "etc/ssl"} & paths


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_step_that_runs_during_an_uninstall_ends_as_it_would(node: BootedNode, runtime: str) -> None:
    """runc from 1.3 on fails to delete a container whose poststop hook fails."""
    reassert(node, "install", "--engine=podman", "--no-probe")
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000", "--network=host")
    container = node.run("buildah", "from", *limits, BARE).stdout.strip()
    show = "cat /etc/ssl/company.crt; read line; echo ended"
    line = node.command("buildah", "run", f"--runtime={runtime}", container, "--", "sh", "-c", show)
    try:
        with Step(line) as step:
            reassert(node, "uninstall", "--engine=podman", check=False)
            assert step.communicate("\n", timeout=600)[0] == "ended\n"
            assert step.returncode == 0
    finally:
        node.run("buildah", "rm", container)
        reassert(node, "uninstall", "--engine=podman", check=False)


class Step(subprocess.Popen[str]):
    """A step that has shown the first line, which it waits for."""

    def __init__(self, line: list[str]) -> None:
        super().__init__(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.stdout
        assert self.stdout.readline() == "company\n"


HOSTILE = f"FROM {FULL}\nENV REQUESTS_CA_BUNDLE=/tmp/evil\n"
USED = {
    "a secret": (
        HOSTILE + "RUN --mount=type=secret,id=token cat /run/secrets/token; echo ca=$REQUESTS_CA_BUNDLE\n",
        ["--secret=id=token,src=SECRET"],
        ["hidden", WANTED[0]],
    ),
    "a mount over the reserved one": (
        HOSTILE + "RUN --mount=type=tmpfs,target=/etc/ssl/certs --mount=type=bind,target=/etc/ssl ls /etc/ssl\n",
        [],
        ["company.crt"],
    ),
    "no network": (HOSTILE + f"RUN --network=none echo none\n{SHOW}", [], ["none", *WANTED]),
    "a script": (HOSTILE + "RUN <<END\necho one\necho ca=$REQUESTS_CA_BUNDLE\nEND\n", [], ["one", WANTED[0]]),
    "stages and a cache": (
        f"FROM {BARE} AS first\nRUN --mount=type=cache,target=/cache echo kept > /cache/x; cp /cache/x /copy\n"
        f"{HOSTILE}COPY --from=first /copy /copy\nRUN --mount=type=cache,target=/cache cat /cache/x /copy\n{SHOW}",
        [],
        ["kept", *WANTED],
    ),
    "another user and directory": (
        HOSTILE + f"USER 1000\nWORKDIR /work\nRUN echo $PWD\n{SHOW}",
        [],
        ["/work", *WANTED],
    ),
}


def test_what_dockerfiles_use_works_as_before(wired: Builder) -> None:
    (wired.node.directory / "secret").write_text("hidden\n")
    for name, (dockerfile, options, expected) in USED.items():
        given = [option.replace("SECRET", str(wired.node.directory / "secret")) for option in options]
        assert {*expected} <= {*wired.build(dockerfile, *given)}, name
    said = "\n".join(wired.build(f"FROM {BARE}\nRUN exit 42\n", fails=True))
    assert "exit code: 42" in said


def steps(token: str) -> list[str]:
    """Processes with this text in their command line, from outside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if token in path.read_text():
                found.append(path.parent.name)
    return found


def traces(node: BootedNode) -> set[str]:
    """The mounts that dockerd sees, and the directories that a step can leave."""
    dockerd = node.run("cat", "/run/docker.pid").stdout
    mounts = {row.split()[4] for row in node.path(f"/proc/{dockerd}/mountinfo").read_text().splitlines()}
    tops = ("/run/reassert", "/run/docker", "/run/runc", "/tmp", "/var/lib/docker/buildkit/executor", "/sys/fs/cgroup")
    directories = node.run("find", *tops, "-type", "d", check=False).stdout.splitlines()
    return mounts | {path for path in directories if not path.startswith("/sys") or "buildkit/" in path}


def cancel(builder: Builder, number: int, token: str) -> None:
    """Sends a signal to the client, as a terminal does to each of its processes, when the step runs."""
    line = builder.command(dockerfile=f"FROM {BARE}\nRUN echo begun; sleep 1000; : {token}\n")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as client:
        wait_for(lambda: bool(steps(token)), "the step begins", lambda: f"the build: {client.poll()}")
        os.killpg(client.pid, number)
        client.communicate(timeout=600)
    wait_for(lambda: not steps(token), "the step ends")


def test_a_cancelled_build_ends_its_step_and_leaves_nothing(wired: Builder) -> None:
    """By Ctrl-C, by what `timeout` sends, and by a client that is gone. BuildKit calls `kill` and `delete`."""
    show = f"{HOSTILE}{SHOW}"
    assert {*WANTED} <= {*wired.build(show)}
    before = traces(wired.node)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        cancel(wired, number, f"step-{number}-of-{wired.node.directory.name}")
        wait_for(
            lambda: traces(wired.node) == before, "nothing is left", lambda: str(sorted(traces(wired.node) ^ before))
        )
        assert {*WANTED} <= {*wired.build(show)}
