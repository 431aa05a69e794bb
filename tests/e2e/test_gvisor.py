"""The runtime wrapper with gVisor's real runsc: what the process in the sentry sees, and links that attack it.

The sentry makes the mounts, so its own /proc/mounts, asked through `runsc exec`, is the proof.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import WANTED, Node
from harness.paths import TOP
from harness.tools import need, run

from e2e.runtimes import hook_entry
from e2e.test_exclusive import MAJOR, Machine

RUNSC = "/usr/bin/runsc"
SID = TOP / "build/roots/sid"
RUNSCS = {
    "2022": f"{RUNSC} --platform=ptrace",
    "2024": f"{SID}/usr/bin/runsc --platform=systrap",
}
"""Debian 12's, and that of its newest suite, whose ptrace ends at once on newer kernels. Neither needs KVM."""
OPTIONS = "--network=none --ignore-cgroups"

each_runsc = pytest.mark.parametrize("real", RUNSCS, indirect=True)
"""For what the sentry decides. The other tests have Debian 12's."""


def image_link(bundle: Bundle, path: str, target: str) -> None:
    """Put a symbolic link into the image, in the place of what is there."""
    link = bundle.rootfs / path[1:]
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


@pytest.fixture
def real(request: pytest.FixtureRequest, node: Node) -> str:
    """A script that an operator wrote around runsc: its name does not tell what it is."""
    name = getattr(request, "param", "2022")
    need(os.access(RUNSC, os.X_OK), "runsc")
    need(name == "2022" or (SID / ".complete").exists(), f"{SID} (tests/roots.sh sid)")
    script = node.directory / "sandboxed"
    script.write_text(f'#!/bin/sh\nexec {RUNSCS[name]} {OPTIONS} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def runsc(real: str, node: Node) -> str:
    """The dispatcher in front of it."""
    node.compile()
    return node.dispatcher(real)


@pytest.fixture
def bundle(node: Node) -> Iterator[Bundle]:
    """A container's bundle with a volume of the pod's author."""
    made = Bundle(node.directory / "bundle")
    volume = made.directory / "evil"
    (volume / "certs").mkdir(parents=True)
    (volume / "certs/company.crt").write_text("evil\n")
    yield made


def unchanged(container: Running, node: Node) -> None:
    """The container has the company's file, and the node has it as it was."""
    assert container.exec("/bin/ls", "-l", "/etc/ssl/certs/company.crt").split()[4] == "8"
    assert (node.ca / "certs/company.crt").read_text() == "company\n"


def company(container: Running, node: Node) -> None:
    """The container has the company's files at /etc/ssl, and nothing can be written there."""
    unchanged(container, node)
    [mount] = [row for row in map(str.split, mounts(container)) if row[1] == "/etc/ssl"]
    assert (mount[2], mount[3].split(",")[0]) == ("9p", "ro")
    assert not [row for row in mounts(container) if " /etc/ssl/" in row]


@pytest.mark.parametrize("is_read_only", [False, True])
def test_trust_store_is_at_a_path_that_the_image_lacks(
    is_read_only: bool, runsc: str, bundle: Bundle, node: Node
) -> None:
    """`trust: {mount: Aside}`, also with a tmpfs at the usual places and a read-only root file system."""
    store = node.directory / "trust/live/certs"
    store.mkdir(parents=True)
    (store / "added.pem").write_text("company's CA\n")
    head = "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - name: company-ca\n"
    node.compile(f"{head}    trust: {{bundle: {node.directory}/trust, mount: Aside}}\n")
    bundle.spec["root"]["readonly"] = is_read_only
    for path in ("/run", "/var"):
        mount = {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}
        bundle.spec["mounts"].append(mount)
    bundle.save()
    with Running(runsc, bundle) as container:
        assert container.exec("/bin/cat", "/.reassert-trust/added.pem") == "company's CA\n"
        assert "NODE_EXTRA_CA_CERTS=/.reassert-trust/added.pem" in container.exec("/bin/env").splitlines()


@contextmanager
def second(runsc: str, app: Bundle, sandbox: Running, then: Callable[[], None] = lambda: None) -> Iterator[Running]:
    """A container in a pod's sandbox. `then`: called before it is started."""
    app.pod(**{"io.kubernetes.cri.sandbox-id": sandbox.id})
    app.save()
    container = Running(runsc, app)
    assert container.create() == 0, container.output()
    then()
    # A pod's second gofer, which `start` makes, keeps its standard output open.
    subprocess.run([runsc, "start", container.id], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    yield container
    run(runsc, "kill", container.id, "KILL", check=False)
    subprocess.run([runsc, "delete", "--force", container.id], stdout=subprocess.DEVNULL, check=False)


def mounts(container: Running) -> list[str]:
    """/proc/mounts in the container."""
    return container.exec("/bin/cat", "/proc/mounts").splitlines()


@marks.claim("env", "runtime")
@marks.claim("absent-env", "runtime")
@marks.claim("mounts", "runtime")
@each_runsc
def test_an_override_is_undone_in_the_process_in_exec_and_in_the_mounts(runsc: str, node: Node, bundle: Bundle) -> None:
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=/tmp/evil", "PYTHONHTTPSVERIFY=0", "OTHER=stays"]
    bundle.bind(bundle.directory / "evil/certs", "/etc/ssl/certs")
    bundle.save()
    with Running(runsc, bundle) as container:
        for env in (container.environ(), container.exec("/bin/env").split("\n")):
            assert {WANTED, "OTHER=stays"} <= set(env)
            assert not [entry for entry in env if entry.startswith("PYTHONHTTPSVERIFY")]
        company(container, node)
    [event] = node.logged()
    assert (event["event"], event["applied"], event["verified"]) == ("container.edited", True, "config.json")
    assert [edit["name"] for edit in event["edits"]] == ["REQUESTS_CA_BUNDLE", "PYTHONHTTPSVERIFY", "/etc/ssl"]
    assert "hooks" not in bundle.saved()


SPELLINGS = [
    "exec --process FILE ID",
    "exec -process=FILE ID",
    "--log-format json --root ROOT exec --process FILE ID",
    "-root=ROOT -debug exec --internal-pid-file PID --process=FILE ID",
    "exec ENV ID /bin/env",
]


@marks.claim("exec", "runtime")
@each_runsc
def test_each_spelling_of_exec_gets_the_decided_env(runsc: str, node: Node, bundle: Bundle) -> None:
    """Also one that names no reserved env: the process file has the engine's stored, wrong one."""
    file = bundle.directory / "process.json"
    evil = ["PATH=/bin", "REQUESTS_CA_BUNDLE=/tmp/evil", "PYTHONHTTPSVERIFY=0", "A=1"]
    given = {"FILE": str(file), "ROOT": "/run/runsc", "PID": f"{node.directory}/pid"}
    given["ENV"] = " ".join(f"-env {entry}" for entry in evil)
    with Running(runsc, bundle) as container:
        given["ID"] = container.id
        for spelling in SPELLINGS:
            file.write_text(json.dumps({**bundle.spec["process"], "args": ["/bin/env"], "env": evil}))
            words = reduce(lambda text, word: text.replace(word, given[word]), given, spelling).split()
            env = run(runsc, *words).stdout.splitlines()
            assert {WANTED, "A=1"} <= set(env), spelling
            assert not [entry for entry in env if entry.startswith("PYTHONHTTPSVERIFY") or "evil" in entry], spelling


@marks.claim("exec-of-unknown", "runtime")
@each_runsc
def test_exec_without_a_known_state_is_refused(runsc: str, bundle: Bundle) -> None:
    """As for runsc, which takes the beginning of an id for the id."""
    with Running(runsc, bundle) as container:
        done = run(runsc, "exec", container.id[:-1], "/bin/env", check=False)
    assert done.returncode == 255
    assert "state of the container is not in" in done.stderr
    assert "PATH=" not in done.stdout


Setting = Callable[[Bundle], None]


def _link_to_etc(bundle: Bundle) -> None:
    """A tmpfs: the sentry resolves the link, and the longer path makes it the later mount, whatever the order is."""
    image_link(bundle, "/a/very/long/way", "/etc")
    mount = {"destination": "/a/very/long/way/ssl", "type": "tmpfs", "source": "tmpfs", "options": ["rw"]}
    bundle.spec["mounts"].append(mount)


def _link_into_the_reserved_mount(bundle: Bundle) -> None:
    image_link(bundle, "/l", "/etc/ssl/certs")
    bundle.bind(bundle.directory / "evil/certs", "/l")


def _link_of_a_volume(bundle: Bundle) -> None:
    (bundle.directory / "evil/l").symlink_to("/etc/ssl/certs")
    bundle.bind(bundle.directory / "evil", "/v")
    bundle.bind(bundle.directory / "evil/certs", "/v/l")


def _volume_in_a_volume(bundle: Bundle) -> None:
    """Another process can make a link of /v/certs at any time."""
    bundle.bind(bundle.directory / "evil", "/v")
    bundle.bind(bundle.directory / "evil/certs", "/v/certs")


def _volume_listed_behind(bundle: Bundle) -> None:
    """The engine lists the volume behind the mount that a link leads through it: runsc resolves after all mounts."""
    (bundle.directory / "evil/inner").symlink_to("/etc/ssl")
    image_link(bundle, "/loooong", "/v/w/z/inner")
    bundle.bind(bundle.directory / "evil/certs", "/loooong/certs")
    bundle.bind(bundle.directory / "evil", "/v/w/z")


def _nodes_dev(bundle: Bundle) -> None:
    """In its shm each user can make a link."""
    bundle.bind("/dev", "/v")
    bundle.bind(bundle.directory / "evil/certs", "/v/shm")


def _name_of_dots(bundle: Bundle) -> None:
    (bundle.rootfs / "x/y/z").mkdir(parents=True)
    (bundle.rootfs / "x/y/ssl/certs").mkdir(parents=True)
    image_link(bundle, "/etc/...", "/x/y/z")
    image_link(bundle, "/etc/l", ".../../ssl/certs")
    bundle.bind(bundle.directory / "evil/certs", "/etc/l")


def _link_that_is_read_in_two_ways(bundle: Bundle) -> None:
    image_link(bundle, "/deep", "/etc/pki")
    image_link(bundle, "/l", "deep/../ssl/certs")
    bundle.bind(bundle.directory / "evil/certs", "/l")


def _dots(bundle: Bundle) -> None:
    image_link(bundle, "/deep", "/etc/pki")
    mount = {"destination": "/deep/../ssl", "type": "tmpfs", "source": "tmpfs", "options": ["rw"]}
    bundle.spec["mounts"].append(mount)


def _reserved_path_that_leads_below_tmp(bundle: Bundle) -> None:
    """gVisor mounts a tmpfs at an empty /tmp by itself."""
    image_link(bundle, "/etc/ssl", "/tmp")


ATTACKS: list[tuple[Setting, str]] = [
    (_link_to_etc, "leads into the reserved mount /etc/ssl"),
    (_link_into_the_reserved_mount, "leads into the reserved mount /etc/ssl"),
    (_link_of_a_volume, "is in the volume /v, in which a link"),
    (_volume_in_a_volume, "volumesAbove: Allow permits it"),
    (_volume_listed_behind, "is in the volume /v/w/z, in which a link"),
    (_nodes_dev, "is in the volume /v, in which a link"),
    (_link_that_is_read_in_two_ways, "gVisor reads in two ways"),
    (_name_of_dots, "gVisor reads in two ways"),
    (_dots, "it is uncertain where mount /deep/../ssl leads"),
    (_reserved_path_that_leads_below_tmp, "mount /tmp leads into the reserved mount /etc/ssl"),
]


@marks.claim("links", "runtime")
@marks.claim("volumes-above", "runtime")
@marks.hole(
    "Under gVisor, a mount listed before a volume, a link, or the node's /dev as a volume hid a reserved mount",
    since="0.4.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize(("attack", "reason"), ATTACKS, ids=[attack.__name__.strip("_") for attack, _ in ATTACKS])
def test_a_link_that_could_hide_a_reserved_mount_in_the_sentry_is_refused(
    runsc: str, node: Node, bundle: Bundle, attack: Setting, reason: str
) -> None:
    attack(bundle)
    bundle.save()
    before = bundle.config.read_bytes()
    assert reason in Running(runsc, bundle).refused()
    assert bundle.config.read_bytes() == before
    [event] = node.logged()
    assert event["event"] == "container.denied"


@each_runsc
def test_the_sentry_is_really_misled_without_reassert(real: str, node: Node, bundle: Bundle) -> None:
    """The control of the test above: the reserved mount is the last one in config.json, and is hidden."""
    _link_to_etc(bundle)
    bundle.bind(node.ca, "/etc/ssl", "ro")
    bundle.save()
    with Running(real, bundle) as container:
        assert container.exec("/bin/ls", "/etc/ssl") == ""


def test_usual_container_starts(runsc: str, bundle: Bundle) -> None:
    """With /var/run as in Debian's images, where kubelet mounts a token, the engine's files, and a link at our path."""
    image_link(bundle, "/var/run", "/run")
    image_link(bundle, "/etc/ssl", "../usr/ssl")
    (bundle.rootfs / "usr/ssl").mkdir(parents=True)
    for name in ("hosts", "hostname", "resolv.conf"):
        bundle.bind(bundle.directory / "evil/certs/company.crt", f"/etc/{name}")
    for path in ("/data", "/dev/termination-log"):
        bundle.bind(bundle.directory / "evil", path)
    bundle.bind(bundle.directory / "evil", "/var/run/secrets/kubernetes.io/serviceaccount", "ro")
    bundle.save()
    with Running(runsc, bundle) as container:
        assert container.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"


ALLOWED = "readOnly: true, volumesAbove: Allow"

WRITES = "echo evil > /etc/ssl/certs/company.crt; touch /etc/ssl/certs/new; cat /etc/ssl/certs/company.crt"


def _shared(bundle: Bundle) -> Path:
    """A volume of the pod that is mounted in another one, which another process can write to. Returns where."""
    sub = bundle.directory / "shared/sub"
    sub.mkdir(parents=True)
    bundle.bind(sub.parent, "/v")
    bundle.bind(bundle.directory / "evil/certs", "/v/sub")
    bundle.save()
    return sub


def _swap_late(sub: Path, real: str) -> None:
    """Let that process make a link there between reassert's look and runsc's."""
    script = Path(real)
    script.write_text(script.read_text().replace("exec", f"! rmdir {sub} || ln -s /etc/ssl/certs {sub}; exec", 1))


def _mounted(node: Node) -> list[str]:
    """The rows of the node's mount table with a path of this test."""
    rows = Path("/proc/self/mountinfo").read_text().split("\n")
    return [row for row in rows if node.directory.name in row]


def _unharmed(container: Running, node: Node, before: list[str]) -> None:
    done = run("runsc", "exec", container.id, "/bin/sh", "-c", WRITES, check=False)
    assert done.stdout == "company\n"
    assert "Read-only file system" in done.stderr
    assert os.listdir(node.ca / "certs") == ["company.crt"]
    assert (node.ca / "certs/company.crt").read_text() == "company\n"
    assert _mounted(node) == before, "nothing is mounted on the node"


@marks.claim("links", "runtime")
@marks.hole(
    "Under gVisor with `volumesAbove: Allow`, a link made during the start let a container write the node's file",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
def test_the_gofer_cannot_write_a_reserved_file_through_a_link_that_comes_late(
    runsc: str, real: str, node: Node, bundle: Bundle
) -> None:
    node.compile(node.policy.read_text().replace("readOnly: true", ALLOWED))
    before = _mounted(node)
    sub = _shared(bundle)
    _swap_late(sub, real)
    with Running(runsc, bundle) as container:
        assert sub.is_symlink()
        _unharmed(container, node, before)
    assert (bundle.directory / "evil/certs/company.crt").read_text() == "evil\n"


@marks.claim("links", "runtime")
@marks.hole(
    "Under gVisor with `volumesAbove: Allow`, a link made during the start let a container write the node's file"
)
def test_nor_can_the_gofer_of_a_pods_second_container_which_start_makes(
    runsc: str, real: str, node: Node, bundle: Bundle
) -> None:
    node.compile(node.policy.read_text().replace("readOnly: true", ALLOWED))
    pause = Bundle(node.directory / "pause")
    pause.pod(type="sandbox")
    pause.save()
    before = _mounted(node)
    sub = _shared(bundle)
    with (
        Running(runsc, pause) as sandbox,
        second(runsc, bundle, sandbox, lambda: _swap_late(sub, real)) as container,
    ):
        assert sub.is_symlink()
        _unharmed(container, node, before)


@marks.hole(
    "Under gVisor with `allowBelow`, a container's mount made files in the node's reserved directory",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
def test_no_mount_point_is_made_in_the_nodes_directory(runsc: str, node: Node, bundle: Bundle) -> None:
    node.compile(node.policy.read_text().replace("readOnly: true", "readOnly: true, allowBelow: [/etc/ssl/private]"))
    bundle.bind(bundle.directory / "evil", "/etc/ssl/private/as/the-pod/likes")
    bundle.save()
    assert Running(runsc, bundle).create() != 0
    assert os.listdir(node.ca) == ["certs"]


@marks.claim("unsafe-annotations", "runtime")
@each_runsc
def test_annotations_of_an_image_do_not_steer_the_sentry(runsc: str, node: Node, bundle: Bundle) -> None:
    hint = {"source": str(node.ca), "type": "tmpfs", "share": "pod", "options": "rw"}
    bundle.spec["annotations"] = {f"dev.gvisor.spec.mount.ca.{key}": value for key, value in hint.items()}
    bundle.save()
    with Running(runsc, bundle) as container:
        company(container, node)
    assert not [key for key in bundle.saved()["annotations"] if key.startswith("dev.gvisor.")]


@marks.claim("unsafe-annotations", "runtime")
def test_annotations_of_an_excluded_sandbox_do_not_steer_its_containers(runsc: str, node: Node) -> None:
    """GVisor takes those of the sandbox for all containers of a pod, and `exclude` leaves the rest of it alone."""
    node.compile(node.policy.read_text().replace("kube-system]", "kube-system], containerTypes: [sandbox]"))
    hint = {"source": str(node.ca), "type": "tmpfs", "share": "pod", "options": "rw"}
    pause, app = Bundle(node.directory / "pause"), Bundle(node.directory / "app")
    pause.pod(type="sandbox", **{f"dev.gvisor.spec.mount.ca.{key}": value for key, value in hint.items()})
    pause.save()
    with Running(runsc, pause) as sandbox, second(runsc, app, sandbox) as container:
        company(container, node)
        assert container.exec("/bin/env").split().count(WANTED) == 1
    assert [event["event"] for event in node.logged()] == ["container.edited"] * 2


@marks.claim("remount", "runtime")
@each_runsc
def test_a_process_with_all_capabilities_cannot_write_the_nodes_file(runsc: str, node: Node, bundle: Bundle) -> None:
    """The sentry of 2024 lets it remount, but the mount is read-only on the node."""
    for kind in ("bounding", "effective", "permitted"):
        bundle.spec["process"]["capabilities"][kind] += ["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]
    bundle.save()
    attempt = "mount -o remount,rw /etc/ssl; mount -o remount,bind,rw /etc/ssl; echo evil > /etc/ssl/certs/company.crt"
    with Running(runsc, bundle) as container:
        run(runsc, "exec", container.id, "/bin/sh", "-c", attempt, check=False)
        unchanged(container, node)


@marks.claim("verbs", "runtime")
@marks.claim("restore", "runtime")
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("restore --image-path DIR --bundle DIR ID", "env and mounts of its checkpoint"),
        ("restore -image-path=DIR -bundle=DIR ID", "env and mounts of its checkpoint"),
        ("create --fs-restore-image-path DIR --bundle DIR ID", "env and mounts of its checkpoint"),
        ("do /bin/true", "do can change env, mounts"),
        ("boot ID", "boot can change env, mounts"),
        ("gofer ID", "gofer can change mounts"),
        ("verity-prepare", "verity-prepare is not a known verb"),
        ("--unheard of create --bundle DIR ID", "unknown option --unheard"),
    ],
)
def test_verbs_that_start_or_change_what_reassert_cannot_correct_are_refused(
    runsc: str, bundle: Bundle, command: str, reason: str
) -> None:
    arguments = command.replace("DIR", str(bundle.directory)).replace("ID", "v1").split()
    done = run(runsc, *arguments, check=False)
    assert done.returncode == 1
    assert reason in done.stderr


@marks.claim("verbs", "runtime")
def test_every_global_option_of_a_runsc_is_known(runsc: str, bundle: Bundle) -> None:
    """An option with a value in the next argument does not make the verb uncertain: `flags` lists them all."""
    need((SID / ".complete").exists(), f"{SID} (tests/roots.sh sid)")
    ours = {}
    for command in RUNSCS.values():
        done = run(command.split()[0], "flags")
        names = [line.split() for line in (done.stdout + done.stderr).splitlines() if line.startswith("  -")]
        kinds = ("string", "int", "uint", "value", "duration")
        ours |= {name: kind[:1] in [[each] for each in kinds] or name == "-metric-server" for name, *kind in names}
    assert len(ours) > 80
    for option, takes in ours.items():
        if option.startswith(("-TESTONLY", "-EXPERIMENTAL", "-rootless", "-gvisor-gro")):
            continue
        done = run(runsc, option, *(["create"] if takes else []), "do", check=False, cwd=bundle.directory)
        assert "do can change" in done.stderr, option


@pytest.mark.parametrize(("value", "starts"), [("all", False), ("0,1", False), ("void", True)])
def test_nvproxy_gives_no_exclusive_gpu_by_env(
    runsc: str, node: Node, bundle: Bundle, value: str, starts: bool
) -> None:
    """With runsc --nvproxy, env alone says which GPUs the sentry has; no device is in config.json."""
    node.compile(node.policy.read_text() + '  - {name: gpu, deviceAllocations: {exclusive: ["/dev/nvidia*"]}}\n')
    bundle.spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={value}")
    bundle.save()
    if starts:
        with Running(runsc, bundle) as container:
            company(container, node)
    else:
        assert "asks for devices that are exclusive" in Running(runsc, bundle).refused()


def _as_reserved(bundle: Bundle) -> None:
    """What NRI or CDI asked for before."""
    bundle.spec["process"]["env"].append(WANTED)


def _without_env(bundle: Bundle) -> None:
    del bundle.spec["process"]["env"][1:]


def _mounted_below(bundle: Bundle) -> None:
    _as_reserved(bundle)
    bundle.bind(bundle.directory / "evil/certs", "/etc/ssl/certs")


def _behind_a_link(bundle: Bundle) -> None:
    _as_reserved(bundle)
    _link_to_etc(bundle)


@marks.claim("env", "hook")
@marks.claim("links", "hook")
@pytest.mark.parametrize(
    ("setting", "options", "reason"),
    [
        (_as_reserved, ["ro"], ""),
        (_as_reserved, ["rw"], "mount /etc/ssl is not what the policy wants, and a hook cannot set mounts"),
        (_as_reserved, [], "mount /etc/ssl is not what the policy wants, and a hook cannot set mounts"),
        (_mounted_below, ["ro"], "mount /etc/ssl is not what the policy wants, and a hook cannot set mounts"),
        (_without_env, ["ro"], "env REQUESTS_CA_BUNDLE is not what the policy wants, and a hook cannot set env"),
        (_behind_a_link, ["ro"], "leads into the reserved mount /etc/ssl"),
    ],
)
def test_the_hook_judges_by_config_json_and_links_what_it_cannot_look_at(
    real: str, node: Node, bundle: Bundle, setting: Setting, options: list[str], reason: str
) -> None:
    """As the second line behind NRI, without the wrapper: it can put nothing into the sentry."""
    node.compile()
    if options:
        bundle.bind(node.ca, "/etc/ssl", "rprivate", *options)
    setting(bundle)
    bundle.spec["hooks"] = {"createRuntime": [hook_entry(node, "createRuntime")]}
    bundle.save()
    if not reason:
        with Running(real, bundle) as container:
            company(container, node)
        assert node.logged() == []
        return
    assert Running(real, bundle).create() != 0
    [event] = node.logged()
    assert event["event"] == "container.denied"
    assert reason in json.dumps(event["denials"]).replace('\\"', "")


@each_runsc
def test_an_exclusive_device_is_not_in_the_sentry(real: str, node: Node, bundle: Bundle) -> None:
    """It opens the node's device that a mount shows. That of 2022 makes no node of linux.devices."""
    machine = Machine(node, bundle)
    bundle.spec["annotations"] = {}  # runsc starts a pod's container in its sandbox only
    machine.give("/dev/gpu0", 0)
    (machine.dev / "gpu-disk").unlink()  # runsc shows no block device, nor lists a directory with one
    os.mknod(machine.dev / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    bundle.bind(machine.dev, "/opt/dev")
    bundle.bind(machine.dev / "gpu0", "/opt/gpu0")
    bundle.save()
    with Running(real, bundle) as container:
        assert {"gpu0", "null"} <= set(container.exec("/bin/ls", "/opt/dev").split())
        for path in ("/opt/gpu0", "/opt/dev/gpu0"):
            assert machine.opens(container, path) == "No such device or address", "it has no driver"
        assert machine.opens(container, "/opt/dev/null") == ""
    with Running(node.dispatcher(real), bundle) as container:
        assert "gpu0" not in container.exec("/bin/ls", "/dev")
        assert container.exec("/bin/ls", "/opt/dev") == ""
        assert machine.opens(container, "/opt/gpu0") == "", "an empty file, the mount point"
        assert machine.opens(container, "/tmp/made", minor=0) == "No such device or address"
    assert machine.dropped() == ["/dev/gpu0", "/opt/dev", "/opt/gpu0", "linux.resources.devices"]


@marks.hole(
    "Under gVisor with `exclusive`, a device node in a volume or the image opened the device",
    since="0.4.0",
    fixed="0.4.0",
    severity="high",
)
def test_with_exclusive_devices_the_gofer_opens_no_device_node_of_a_volume(
    real: str, node: Node, bundle: Bundle
) -> None:
    """There are no device rules for it: it opens the node's device of any device node that it finds."""
    machine = Machine(node, bundle)
    bundle.spec["annotations"] = {}  # runsc starts a pod's container in its sandbox only
    volume = bundle.directory / "volume"
    (volume / "below").mkdir(parents=True)
    bundle.bind(volume, "/v")
    os.mknod(volume / "below/innocent", stat.S_IFCHR | 0o666, os.makedev(MAJOR, 0))
    bundle.bind("/dev/null", "/opt/null")
    bundle.save()

    def opened(runtime: str) -> dict[str, str]:
        found = {}
        (volume / "late").unlink(missing_ok=True)
        with Running(runtime, bundle) as container:
            os.mknod(volume / "late", stat.S_IFCHR | 0o666, os.makedev(MAJOR, 0))
            for path in ("/v/below/innocent", "/v/late", "/dev/null", "/opt/null"):
                found[path] = machine.opens(container, path)
        return found

    usable = {"/dev/null": "", "/opt/null": ""}
    reached = dict.fromkeys(("/v/below/innocent", "/v/late"), "No such device or address")
    assert opened(real) == {**reached, **usable}, "it has no driver"
    assert opened(node.dispatcher(real)) == {**dict.fromkeys(reached, "Permission denied"), **usable}


@marks.hole("Under gVisor with `exclusive`, a device node in a volume or the image opened the device")
def test_with_exclusive_devices_no_image_starts_that_holds_one(real: str, node: Node, bundle: Bundle) -> None:
    """Of a read-only root, runsc's own remount takes nodev off."""
    machine = Machine(node, bundle)
    bundle.spec["annotations"] = {}
    bundle.spec["root"]["readonly"] = True
    (bundle.rootfs / "x").mkdir()
    os.mknod(bundle.rootfs / "x/other", stat.S_IFCHR | 0o666, os.makedev(MAJOR, 9))
    os.mknod(bundle.rootfs / "x/innocent", stat.S_IFCHR | 0o666, os.makedev(MAJOR, 0))
    bundle.save()
    with Running(real, bundle) as container:
        assert machine.opens(container, "/x/innocent") == "No such device or address", "it has no driver"
    runsc = node.dispatcher(real)
    assert "/x/innocent in the container is" in Running(runsc, bundle).refused()
    (bundle.rootfs / "x/innocent").unlink()
    with Running(runsc, bundle) as container:
        assert machine.opens(container, "/x/other") == "No such device or address"


def test_the_demo_shows_it(real: str) -> None:
    """With the runtime's own choice of a platform."""
    done = run(str(TOP / "packaging/demo.sh"), "--runtime", "runsc")
    assert "All results are as expected." in done.stdout


def test_a_volume_of_the_log_is_reported_where_no_hook_can_cover_it(runsc: str, node: Node, bundle: Bundle) -> None:
    bundle.bind("/var/log", "/var/log")
    bundle.save()
    with Running(runsc, bundle) as container:
        company(container, node)
    [event] = node.logged()
    assert (event["event"], event["nodePaths"]) == ("container.edited", ["/var/log: /var/log/reassert"])
    assert "madeReadOnly" not in event
