"""The OCI hook: what it verifies, corrects and refuses at each stage, and what its runtime and the log are told."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.compile.in_force import refresh
from hook.core.base.errors import Usage
from hook.core.base.text import WHERE_TO_LOOK
from hook.core.linux.mountns import own_directories
from hook.core.policy.store import store_path
from hook.core.reserve.reserved_env import Reserved
from hook.entry import hook as hooks
from hook.entry.caller import Options
from hook.entry.write_spec import stamp
from unit.core.linux.mountnamespace import MountNamespace
from unit.nri.support import wait_until
from unit.support import CONTAINERD, ROOT, SYSTEMD_CGROUP, bind, config, document

pytestmark = pytest.mark.root

ENV: dict[str, Any] = {"name": "env", "env": [{"name": "CA", "value": "/ca.pem"}]}
STARTS = 0, ""
BY_HOOK = "a hook cannot set env; the runtime wrapper (reassert runtime) or the NRI plugin can"
WRONG_ENV = f"rule env: env CA is not what the policy wants, and {BY_HOOK}"
DRAFT = '{"adapter":"runtime","edits":[{"kind":"env","name":"CA"}]}'
"""The event that the wrapper leaves to the hook."""
CHANGED = "the policy was changed while the container was created: create it again"


class Runtime(hooks.HookCaller):
    """The runtime that calls the hook: what it gives on stdin, its own command line, and what it is told."""

    def __init__(self, options: Options, state: bytes, arguments: list[str] | OSError) -> None:
        super().__init__(options, {})
        self.given, self.arguments = state, arguments
        self.told: list[str] = []
        self.waits = 0

    def state(self) -> bytes:
        if not self.given:
            raise OSError(5, "Input/output error")
        return self.given

    def still_waits(self) -> None:
        self.waits += 1

    def parents_arguments(self) -> list[str]:
        if isinstance(self.arguments, OSError):
            raise self.arguments
        return self.arguments

    def say(self, text: str, is_hook: bool = False) -> None:
        assert is_hook
        self.told.append(text)


class Hooked:
    """A container in a bundle, and the hook on it. `asks`: the state, with what a test puts in its place."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bundle = directory, directory / "bundle"
        self.bundle.mkdir()
        self.ns: Any = None
        self.arguments: list[str] | OSError = ["create", "--bundle", str(self.bundle), "0a"]
        self.pid = os.getpid()
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(own_directories).result()
        self.write()

    def policy(self, *rules: dict[str, Any], **spec: Any) -> None:
        (self.directory / "policy").write_text(document(*rules, **spec))
        refresh(f"{self.directory}/policy", f"{self.directory}/store")

    def write(self, env: tuple[str, ...] = ("CA=/ca.pem",), name: str = "config.json", **fields: Any) -> None:
        annotations = {**CONTAINERD, **fields.pop("annotations", {})}
        root = {"path": str(self.ns.rootfs) if self.ns else "rootfs"}
        made = config(list(env), **{"annotations": annotations, "root": root, **fields})
        (self.bundle / name).write_text(json.dumps(made))

    def decided(
        self, env: dict[str, str | None], *mounts: str, draft: str = "", policy: str = "older", **fields: Any
    ) -> None:
        """As the wrapper handed the container on."""
        stamped = stamp({}, Reserved(env, []), fingerprint=policy, draft=draft, mounts=list(mounts))
        self.write(annotations=stamped, **fields)

    def where(self) -> list[str]:
        return [f"--{name}={self.directory}/{name}" for name in ("policy", "store", "events")]

    def command(self, stage: str) -> list[str]:
        """The hook as a process of its own."""
        return [sys.executable, str(ROOT / "hook" / "__main__.py"), "hook", *self.where(), stage]

    def run(self, *flags: str, stage: str = hooks.CREATE_RUNTIME, **state: Any) -> tuple[int, str]:
        """The exit status, and the line for the engine."""
        given = {"ociVersion": "1.0.2", "id": "0a", "pid": self.pid, "bundle": str(self.bundle), **state}
        return self.called(self.runtime(json.dumps(given).encode(), *flags, stage=stage))

    def runtime(self, state: bytes, *flags: str, stage: str = hooks.CREATE_RUNTIME) -> Runtime:
        return Runtime(hooks.options_of([*self.where(), *flags, stage]), state, self.arguments)

    def called(self, caller: Runtime) -> tuple[int, str]:
        status = self._thread.submit(hooks.run, caller).result()
        line = "".join(caller.told).removeprefix("refused team-a/web-1/app: ").removesuffix(WHERE_TO_LOOK)
        return status, line

    def event(self) -> dict[str, Any]:
        """The last event."""
        event: dict[str, Any] = json.loads((self.directory / "events").read_text().splitlines()[-1])
        return event

    def close(self) -> None:
        self._thread.shutdown()
        if self.ns:
            self.ns.close()


@pytest.fixture
def hooked(root_dir: Path) -> Iterator[Hooked]:
    made = Hooked(root_dir)
    yield made
    made.close()


@pytest.fixture
def mounted(root_dir: Path) -> Iterator[Hooked]:
    """The same, with a mount namespace of the container's own."""
    made = Hooked(root_dir)
    made.ns = MountNamespace(root_dir / "node")
    made.pid = made.ns.pid
    made.write()
    yield made
    made.close()


def ca(hooked: Hooked, **more: Any) -> dict[str, Any]:
    return {"name": "ca", "mounts": [{"hostPath": str(hooked.ns.source), "mountPath": "/etc/ssl", **more}]}


@pytest.fixture
def sentry(hooked: Hooked) -> Iterator[Hooked]:
    """The container's process is gVisor's, whose name it has."""
    (hooked.bundle / "rootfs/etc/ssl").mkdir(parents=True)
    (hooked.bundle / "rootfs/x").symlink_to("etc")
    hooked.policy({"name": "ca", "mounts": [{"hostPath": str(hooked.directory), "mountPath": "/etc/ssl"}]})
    with subprocess.Popen(["runsc-sandbox", "600"], executable="/bin/sleep") as process:
        hooked.pid = process.pid
        # execve(2) closes the pipe that Popen waits for before the new arguments can be read.
        wait_until(lambda: b"runsc-sandbox" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        yield hooked
        process.kill()


CANNOT_MOUNT = "mount /etc/ssl is not what the policy wants, and a hook cannot set mounts"


@pytest.mark.parametrize(
    ("options", "other", "reason"),
    [
        (["ro"], "/data", ""),
        (["ro"], "/x/ssl", "mount /x/ssl leads into the reserved mount /etc/ssl"),
        (["ro"], "/etc/ssl/below", CANNOT_MOUNT),
        (["rw"], "/data", CANNOT_MOUNT),
        (["ro", "rro"], "/data", CANNOT_MOUNT),
        ([], "/data", CANNOT_MOUNT),
    ],
)
def test_in_gvisor_config_json_and_links_are_judged(
    sentry: Hooked, options: list[str], other: str, reason: str
) -> None:
    """Whatever comes behind the reserved mount: NRI sorts them, and so does gVisor."""
    ours = {**bind("/etc/ssl", str(sentry.directory)), "options": ["rbind", "rprivate", *options]}
    sentry.write(mounts=[*([ours] if options else []), bind(other, "/var/empty")])
    status, line = sentry.run()
    assert (status, reason in line) == (int(bool(reason)), True)
    assert line or not (sentry.directory / "events").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["createRuntime", "prestart"], ["startContainer"], ["--real=/x", "prestart"]]
)
def test_other_words_than_one_stage_are_refused(arguments: list[str]) -> None:
    with pytest.raises(Usage):
        hooks.options_of(arguments)


def test_right_env_starts_without_an_event_and_wrong_env_is_refused(hooked: Hooked) -> None:
    hooked.policy(ENV)
    assert hooked.run() == STARTS
    assert not (hooked.directory / "events").exists()
    for env in ((), ("CA=/tmp/x",), ("CA=/ca.pem", "CA=/tmp/x"), ("CA",)):
        hooked.write(env)
        assert hooked.run() == (1, WRONG_ENV)
        assert hooked.run("--inject-env") == (1, WRONG_ENV)
        event = hooked.event()
        assert (event["event"], event["id"], event["edits"]) == ("container.denied", "0a", [])
        assert event["start"] == "cold"
    assert hooked.run("--mount-ca") == STARTS
    assert hooked.run("--mount-ca", "--inject-env") == (1, WRONG_ENV)
    assert hooked.run(stage=hooks.POSTSTOP) == STARTS
    for stage in (hooks.PRESTART, hooks.CREATE_CONTAINER):
        assert hooked.run(stage=stage) == (1, WRONG_ENV)


def test_hook_that_restores_mounts_alone_has_no_opinion_about_annotations(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked.write(annotations={"run.oci.handler": "wasm"})
    for flags in ((), ("--inject-env",)):
        assert "annotation run.oci.handler is not what the policy wants" in hooked.run(*flags)[1]
    assert hooked.run("--mount-ca") == STARTS


def test_of_a_name_that_stands_twice_the_last_value_counts(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked.write(("CA=/tmp/x", "CA=/ca.pem"))
    assert hooked.run() == STARTS
    assert not (hooked.directory / "events").exists()


def test_audit_mode_refuses_nothing_and_says_what_it_would_refuse(hooked: Hooked) -> None:
    hooked.policy(ENV, mode="Audit")
    hooked.write(("CA=/tmp/x",))
    assert hooked.run() == STARTS
    event = hooked.event()
    assert (event["event"], event["applied"], event["edits"]) == ("container.would-deny", False, [])
    assert BY_HOOK in event["denials"][0]["message"]


def test_rule_in_audit_mode_would_refuse_what_a_hook_cannot_make(hooked: Hooked) -> None:
    hooked.policy({**ENV, "mode": "Audit"}, {"name": "b", "env": [{"name": "B", "value": "1"}]})
    hooked.write(("CA=/tmp/x", "B=1"))
    assert hooked.run() == STARTS
    event = hooked.event()
    assert (event["event"], event["applied"]) == ("container.would-deny", False)
    assert [(denial["rule"], denial["mode"]) for denial in event["denials"]] == [("env", "Audit")]
    hooked.write(("CA=/tmp/x", "CA=/ca.pem", "B=1"))
    assert hooked.run() == STARTS
    assert hooked.event()["denials"] == []


def test_arguments_of_the_runtime_are_those_of_its_process() -> None:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from hook.entry.hook import HookCaller, options_of; "
    code += "print(HookCaller(options_of(['createRuntime']), {}).parents_arguments())"
    given = ["-c", '"$0" -c "$1"; :', sys.executable, code, "", "b"]
    done = subprocess.run(["sh", *given], capture_output=True, text=True)
    assert done.stdout == f"{given}\n"


def test_nothing_is_kept_busy_that_the_engine_unmounts(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked._thread.submit(os.chdir, hooked.bundle).result()
    assert hooked.run() == STARTS
    assert hooked._thread.submit(os.getcwd).result() == "/"


def test_caller_is_asked_whether_it_still_waits(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked.arguments = []
    caller = hooked.runtime(json.dumps({"pid": 1, "bundle": str(hooked.bundle)}).encode())
    assert hooked.called(caller) == STARTS
    assert caller.waits


def test_state_that_cannot_be_read_is_named(hooked: Hooked) -> None:
    hooked.policy(ENV)
    assert hooked.called(hooked.runtime(b"")) == (1, "refused a container: stdin: Input/output error")
    caller = hooked.runtime(json.dumps({"annotations": [0] * 100_001}).encode())
    assert "100000" in hooked.called(caller)[1]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"bundle": "b"}, "no absolute bundle and pid"),
        ({"bundle": None}, "no absolute bundle and pid"),
        ({"pid": "1"}, "no absolute bundle and pid"),
    ],
)
def test_state_that_no_runtime_gives_is_refused(hooked: Hooked, state: dict[str, Any], why: str) -> None:
    hooked.policy(ENV)
    status, line = hooked.run(**state)
    assert (status, why in line) == (1, True)
    assert hooked.event()["errors"][0]["message"].startswith("the OCI state on stdin has")


def test_config_that_is_missing_is_named(hooked: Hooked) -> None:
    hooked.policy(ENV)
    assert f"{hooked.directory}/none/config.json" in hooked.run(bundle=f"{hooked.directory}/none")[1]
    assert hooked.run(bundle=f"{hooked.bundle}/") == STARTS
    assert "\n" not in hooked.run(bundle="/two\nlines")[1]


def test_bundle_and_config_on_the_command_line_go_before_the_state(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked.write(("CA=/tmp/x",), name="other.json")
    assert hooked.run(f"--bundle={hooked.bundle}", bundle="/none") == STARTS
    assert hooked.run(f"--config={hooked.bundle}/other.json") == (1, WRONG_ENV)
    hooked.arguments = ["create", "--bundle", "/none", "0a"]
    assert hooked.run(f"--bundle={hooked.bundle}", bundle="/") == STARTS


def test_bundle_that_crun_does_not_say_is_on_its_command_line(hooked: Hooked) -> None:
    hooked.policy(ENV)
    assert hooked.run(bundle="/") == STARTS
    assert hooked.run(bundle=str(hooked.bundle)) == STARTS
    for arguments in (["create", "0a"], ["create", "--bundle", "bundle", "0a"], ["create", "--bundle", "/x", "0b"]):
        hooked.arguments = arguments
        assert hooked.run(bundle="/")[1].startswith("refused 0a: /config.json: ")
    hooked.arguments = ["create", "--bundle", str(hooked.bundle), "0b"]  # another container's
    assert hooked.run(bundle="/")[0] == 1
    hooked.arguments = OSError(2, "no such process")
    assert hooked.run(bundle="/")[0] == 1


def test_checkpoint_is_not_restored_where_a_rule_applies(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked.arguments = ["--root", "/r", "restore", "--bundle", str(hooked.bundle), "0a"]
    why = "a restored container has the env and mounts of its checkpoint, which reassert cannot correct"
    assert hooked.run() == (1, f"rule env: {why}")
    assert hooked.run("--handed-on") == STARTS
    hooked.policy({**ENV, "mode": "Audit"})
    assert hooked.run() == STARTS
    assert [denial["message"] for denial in hooked.event()["denials"]] == [why]
    for arguments in (
        ["create", "restore"],
        ["--root", "restore", "create", "0a"],
        OSError(2, "another pid namespace"),
    ):
        hooked.policy(ENV)
        hooked.arguments = arguments
        assert hooked.run() == STARTS


def test_what_create_decided_stays_when_the_policy_changes_meanwhile(hooked: Hooked) -> None:
    """Env names that create decided about keep their value; all else is held against the policy in force."""
    hooked.policy({"name": "env", "env": [{"name": "CA", "value": "/new.pem"}]})
    assert hooked.run("--handed-on")[0] == 1
    hooked.decided({"CA": "/ca.pem"})
    assert hooked.run("--handed-on") == STARTS
    assert hooked.run()[0] == 1, "without the flag, somebody else wrote the annotation"
    hooked.decided({"CA": "/ca.pem"}, process={"env": ["CA=/tmp/x", "CA=/ca.pem"]})
    assert hooked.run("--handed-on") == STARTS
    hooked.decided({"CA": "/older.pem"})
    why = "env CA is not what the policy wants, and a hook cannot set env"
    assert hooked.run("--handed-on") == (1, f"{why}; {CHANGED}")
    hooked.decided({}, draft="{}")
    assert hooked.run("--handed-on") == (1, f"rule env: {why}; {CHANGED}")
    hooked.decided({"CA": "/ca.pem"}, "/etc/ssl")
    reserved = "mount /etc/ssl was reserved at create, and the policy in force has no such mount"
    assert hooked.run("--handed-on") == (1, f"{reserved}; {CHANGED}")


@marks.hole(
    "A container that was edited had no event if the policy's mode became Audit before the look",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
    found="fuzz",
)
def test_event_of_what_create_edited_is_written_when_the_mode_becomes_audit_meanwhile(hooked: Hooked) -> None:
    hooked.policy({**ENV, "mode": "Audit"})
    hooked.decided({"CA": "/ca.pem"}, draft=DRAFT)
    assert hooked.run("--handed-on") == STARTS
    event = hooked.event()
    assert (event["event"], event["applied"], event["verified"]) == ("container.edited", True, "config.json")
    assert [(edit["name"], edit["applied"]) for edit in event["edits"]] == [("CA", True)]
    hooked.decided({"CA": "/ca.pem"}, "/etc/ssl", draft=DRAFT)
    assert hooked.run("--handed-on") == STARTS
    assert (hooked.event()["event"], hooked.event()["edits"][0]["applied"]) == ("container.would-deny", True)


def test_edits_that_audit_mode_left_unmade_are_not_told_as_made_when_the_mode_becomes_enforce(hooked: Hooked) -> None:
    hooked.policy({"name": "other", "env": [{"name": "OTHER", "absent": True}]})
    hooked.decided({}, draft=DRAFT[:-1] + ',"applied":false}')
    assert hooked.run("--handed-on") == STARTS
    assert not (hooked.directory / "events").exists()


def test_decision_of_the_policy_in_force_is_held_against_it(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked.write()
    assert hooked.run("--handed-on") == STARTS
    compiled = store_path(f"{hooked.directory}/policy", f"{hooked.directory}/store")
    fingerprint = json.loads(Path(compiled).read_text().splitlines()[0])["sha256"]
    hooked.decided({"CA": "/older.pem"}, "/etc/ssl", policy=fingerprint)
    assert hooked.run("--handed-on") == STARTS


def test_event_of_the_wrapper_is_completed(hooked: Hooked) -> None:
    hooked.policy(ENV)
    hooked.decided({"CA": "/ca.pem"}, draft=DRAFT)
    assert hooked.run("--handed-on") == STARTS
    event = hooked.event()
    assert (event["event"], event["adapter"], event["verified"]) == ("container.edited", "runtime", "config.json")
    assert [edit["name"] for edit in event["edits"]] == ["CA"]


@pytest.mark.users
def test_missing_mount_is_placed_looked_at_and_told(mounted: Hooked) -> None:
    mounted.policy(ca(mounted))
    assert mounted.run("--inject-env") == STARTS
    assert not mounted.ns.rows("/etc/ssl")
    assert mounted.run() == STARTS
    assert len(mounted.ns.rows("/etc/ssl")) == 1
    event = mounted.event()
    assert (event["event"], event["verified"], event["applied"]) == ("container.edited", "container", True)
    assert [edit["name"] for edit in event["edits"]] == ["/etc/ssl"]
    assert event["remountable"], "this container has CAP_SYS_ADMIN"
    none = {"args": [], "cwd": "/", "env": [], "capabilities": {"bounding": []}}
    mounted.write(process=none)
    (mounted.directory / "events").unlink()
    assert mounted.run("--mount-ca") == STARTS
    assert not (mounted.directory / "events").exists(), "it is in place"
    assert mounted.run(pid=0) == (1, "the OCI state on stdin has no pid of a container's process")
    mounted.write(process=none, linux={"namespaces": [{"type": "pid", "path": "/proc/7/ns/pid"}]})
    assert mounted.run("--mount-ca") == STARTS
    assert mounted.event()["remountable"], "one that shares its PID namespace may have CAP_SYS_ADMIN"


@pytest.mark.users
def test_relative_root_is_the_bundles(mounted: Hooked) -> None:
    mounted.policy(ca(mounted))
    mounted.write(root={"path": os.path.relpath(mounted.ns.rootfs, mounted.bundle)})
    assert mounted.run() == STARTS
    assert len(mounted.ns.rows("/etc/ssl")) == 1
    mounted.write(root={})
    assert mounted.run() == (1, "config.json has no root.path")


@pytest.mark.users
def test_mount_is_not_placed_in_audit_mode_nor_beside_wrong_env(mounted: Hooked) -> None:
    mounted.policy(ca(mounted), mode="Audit")
    assert mounted.run() == STARTS
    event = mounted.event()
    assert [edit["name"] for edit in event["edits"]] == ["/etc/ssl"]
    assert (event["event"], event["applied"]) == ("container.edited", False)
    mounted.policy(ca(mounted), ENV)
    mounted.write(("CA=/x",))
    assert mounted.run() == (1, WRONG_ENV)
    assert not mounted.ns.rows("/etc/ssl")


@pytest.mark.users
def test_mount_that_nothing_can_put_right_is_refused(mounted: Hooked) -> None:
    mounted.policy(ca(mounted))
    mounted.ns.within((mounted.ns.rootfs / "etc/ssl/sub").rmdir)
    mounted.ns.within((mounted.ns.rootfs / "etc/ssl").rmdir)
    mounted.ns.within(lambda: (mounted.ns.rootfs / "etc/ssl").symlink_to("/"))
    status, line = mounted.run()
    assert (status, line) == (1, "rule ca: /etc/ssl in the image leads to the container's root")
    assert mounted.event()["edits"] == []


@pytest.mark.users
def test_path_where_nothing_may_be_mounted_is_not_for_a_hook_to_clear(mounted: Hooked) -> None:
    mounted.policy({"name": "none", "mounts": [{"mountPath": "/etc/ssl", "absent": True}]})
    mounted.write(mounts=[bind("/etc/ssl")])
    status, line = mounted.run()
    assert status == 1
    assert "mount /etc/ssl is not what the policy wants, and a hook cannot set mounts" in line


@pytest.mark.users
def test_mount_that_was_reserved_at_create_and_still_is_starts(mounted: Hooked) -> None:
    mounted.policy(ca(mounted))
    for _ in range(2):  # the first time it is missing
        mounted.decided({"CA": "/ca.pem"}, "/etc/ssl", draft=DRAFT)
        assert mounted.run("--handed-on") == STARTS
        assert mounted.event()["adapter"] == "runtime"
        assert mounted.event()["edits"][0]["name"] == "CA"


@pytest.mark.users
def test_inside_the_container_there_is_no_process_to_enter(mounted: Hooked) -> None:
    mounted.policy(ca(mounted))
    state = json.dumps({"id": "0a", "bundle": str(mounted.bundle)}).encode()
    there = ["nsenter", f"--mount=/proc/{mounted.pid}/ns/mnt"]
    done = subprocess.run([*there, *mounted.command(hooks.CREATE_CONTAINER)], input=state, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(mounted.ns.rows("/etc/ssl")) == 1


@pytest.mark.users
def test_device_that_was_not_allocated_is_refused_by_config_and_by_what_is_there(mounted: Hooked) -> None:
    gpu = mounted.directory / "gpu0"
    os.mknod(gpu, stat.S_IFCHR | 0o600, os.makedev(240, 7))
    mounted.policy({"name": "gpu", "deviceAllocations": {"exclusive": [f"{mounted.directory}/gpu*"]}})
    rules = {"resources": {"devices": [{"allow": False, "access": "rwm"}]}}
    device = {"path": "/dev/x", "type": "c", "major": 240, "minor": 7}
    mounted.write(linux={"cgroupsPath": SYSTEMD_CGROUP, **rules, "devices": [device]})
    status, line = mounted.run()
    assert (status, line.startswith("rule gpu: not allocated: device /dev/x")) == (1, True)
    assert line.endswith("a hook cannot set devices; the runtime wrapper (reassert runtime) or the NRI plugin can")
    mounted.decided({"CA": "/ca.pem"}, draft=DRAFT, linux={"cgroupsPath": SYSTEMD_CGROUP, **rules})
    assert mounted.run("--handed-on") == STARTS
    assert (mounted.event()["adapter"], mounted.event()["verified"]) == ("runtime", "container")
    (mounted.ns.rootfs / "dev").mkdir()
    os.mknod(mounted.ns.rootfs / "dev/y", stat.S_IFCHR | 0o600, os.makedev(240, 7))
    status, line = mounted.run("--handed-on")
    assert (status, line.startswith("rule gpu: not allocated: /dev/y in the container is")) == (1, True)
    assert mounted.event()["adapter"] == "runtime"


@pytest.mark.users
def test_mount_that_shows_the_nodes_processes_is_refused(mounted: Hooked) -> None:
    mounted.policy({"name": "alone", "sharedProcesses": "Refuse", "env": [{"name": "CA", "value": "/ca.pem"}]})
    mounted.write(linux={"cgroupsPath": SYSTEMD_CGROUP, "namespaces": [{"type": "pid"}]})
    assert mounted.run() == STARTS
    mounted.ns.mount("/vol", "/proc")
    status, line = mounted.run()
    assert (status, line.startswith("rule alone: ")) == (1, True)


def test_the_stage_of_an_older_podman_hook_is_refused_with_what_to_do(hooked: Hooked) -> None:
    done = subprocess.run(hooked.command("precreate"), input=b"{}", capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"the stage precreate is removed: run `reassert install --engine podman`" in done.stderr
