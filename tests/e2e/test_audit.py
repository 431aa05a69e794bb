"""`reassert audit` under the real runc and crun: what a container really has, whatever its records say."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, Node
from harness.paths import BUSYBOX, REASSERT, RUNTIMES, TOP
from harness.tools import need, run

from e2e.cri.client import wait_for
from e2e.hostile_mounts import in_user_namespace
from e2e.runtimes import guarded
from e2e.test_exclusive import Machine
from hook.core.base.system import stat_of
from hook.core.policy.store import load
from hook.inside import containers
from hook.inside.containers import chosen, running
from hook.node.engines.facts import TRACES
from hook.ops.audit.audit import Audit, audit, read_round
from hook.ops.audit.audit import draft as audit_of_draft
from hook.ops.audit.judge import STALE
from hook.ops.audit.stale import stale

pytestmark = marks.promise(
    "`audit` says of every running container, of each engine, whether the policy is in force in it and why "
    "not; no container hides",
    about="In force",
)

FILE = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  rules:
  - name: one-file
    mounts:
    - {hostPath: CA/certs/company.crt, mountPath: /etc/company.crt}
"""

OTHER = POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/other.crt")
NONE = POLICY.partition("  rules:\n")[0] + "  rules: []\n"
"""Drafts beside POLICY."""

RESERVED = ("env REQUESTS_CA_BUNDLE", "env PYTHONHTTPSVERIFY", "mount /etc/ssl")
"""By POLICY."""


def listed(container: Running) -> list[containers.Running]:
    """The container as audit finds it on this machine; [] if it does not run."""
    return [each for each in running(TRACES) if each.id == container.id]


def started(container: Running) -> list[containers.Running]:
    """The same, once it executes: `runc start` can return before `runc init` executes the container's process."""
    for _ in range(10000):
        there = listed(container)
        if there and Path(f"/proc/{there[0].pid}/cmdline").read_bytes().split(b"\0")[0] in (b"/bin/sleep", b"sleep"):
            break
        time.sleep(0.05)
    return there


def seen(node: Node, container: Running) -> dict[str, Any]:
    """What one round says of one container, by the program's own code in this process."""
    started(container)
    (found,) = round_of(node, container).findings
    assert found.state != "unknown", found.because
    return asdict(found)


def round_of(node: Node, container: Running) -> Audit:
    return audit(read_round(str(node.policy), str(node.store)), listed(container))


def differences(finding: dict[str, Any]) -> dict[str, str]:
    """Why, by kind and name."""
    return {f"{d['kind']} {d['name']}": d["why"] for d in finding["differences"]}


@pytest.fixture
def pod(compiled_node: Node, bundle: Bundle) -> Bundle:
    """A hostile one: it forges what the wrapper writes, too."""
    forged = {"version": 1, "policy": "0" * 64, "env": {}, "absent": [], "mounts": ["/etc/ssl"]}
    bundle.pod(**{"reassert/decision": json.dumps(forged, separators=(",", ":"))})
    bundle.spec["process"]["env"].append("REQUESTS_CA_BUNDLE=/tmp/mine")
    return bundle


@marks.hole(
    "A container that started without reassert had an annotation `reassert/decision` of its user, and `audit` called it"
    " one of an earlier policy or one that was changed from inside: a warning in place of an error",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("adapter", ["wrapper", "none"])
def test_a_corrected_container_is_in_policy_and_one_past_the_wrapper_is_not(
    compiled_node: Node, pod: Bundle, each: str, adapter: str
) -> None:
    pod.save()
    with guarded("wrapper", each, compiled_node, pod) if adapter == "wrapper" else Running(each, pod) as container:
        finding = seen(compiled_node, container)
        assert (finding["title"], finding["engine"], finding["pod"]) == ("default/p/c", "containerd", "p")
        done = run(str(REASSERT), "audit", *compiled_node.options()[:4], container.id, check=False)
        if adapter == "wrapper":
            assert (finding["state"], finding["differences"], finding["rules"]) == ("in policy", (), ("company-ca",))
            assert (done.returncode, "1 containers: 1 in policy." in done.stdout) == (0, True), done.stdout
            return
        assert finding["state"] == "drifted"
        assert set(differences(finding)) == {"env REQUESTS_CA_BUNDLE", "mount /etc/ssl"}
        assert all(why.startswith("created without reassert") for why in differences(finding).values())
        assert done.returncode == 1
        assert "/tmp/mine" not in done.stdout, "no value is shown"
        compiled_node.compile(compiled_node.policy.read_text() + "# another content\n")
        assert "before this policy" in seen(compiled_node, container)["differences"][0]["why"]


@marks.promise("`policy diff` says what a change means, and `audit --policy DRAFT` which running containers it affects")
@pytest.mark.parametrize(
    ("wrapped", "draft", "status", "state", "changes", "unreserved"),
    [
        (True, POLICY, 0, "in policy", (), ()),
        (True, OTHER, 1, "drifted", ("env REQUESTS_CA_BUNDLE",), ()),
        (True, NONE, 1, "in policy", (), RESERVED),
        (False, POLICY, 0, "drifted", (), ()),
        (False, OTHER, 1, "drifted", ("env REQUESTS_CA_BUNDLE",), ()),
        (False, NONE, 1, "in policy", ("env REQUESTS_CA_BUNDLE", "mount /etc/ssl"), ()),
    ],
    ids=lambda value: {POLICY: "same", OTHER: "another value", NONE: "no rules"}.get(value, ""),
)
def test_a_draft_names_the_running_containers_that_it_would_start_otherwise(
    compiled_node: Node,
    pod: Bundle,
    real: str,
    wrapped: bool,
    draft: str,
    status: int,
    state: str,
    changes: tuple[str, ...],
    unreserved: tuple[str, ...],
) -> None:
    """One that the wrapper corrected, and one that started past it, which the policy in force would correct too.

    The latter forges that it was corrected, which nobody believes.
    """
    file = compiled_node.directory / "draft.yaml"
    file.write_text(draft.replace("CA,", f"{compiled_node.ca},"))
    was = sorted(path.name for path in compiled_node.store.iterdir())
    in_force = load(str(compiled_node.policy), str(compiled_node.store))
    pod.save()
    with guarded("wrapper", real, compiled_node, pod) if wrapped else Running(real, pod) as container:
        found = audit(audit_of_draft(str(file), in_force), started(container))
    [one] = found.findings
    assert (one.state, one.changes, one.unreserved, found.exit_status()) == (state, changes, unreserved, status)
    assert sorted(path.name for path in compiled_node.store.iterdir()) == was


def test_what_a_hook_mounted_is_seen_though_config_json_does_not_have_it(
    compiled_node: Node, pod: Bundle, real: str
) -> None:
    pod.spec["process"]["env"] = ["PATH=/bin", "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"]
    with guarded("createRuntime", real, compiled_node, pod) as container:
        assert not any(mount["destination"] == "/etc/ssl" for mount in pod.saved()["mounts"])
        assert seen(compiled_node, container)["state"] == "in policy"


def test_a_change_from_inside_is_named_as_that(compiled_node: Node, pod: Bundle, real: str) -> None:
    script = "export REQUESTS_CA_BUNDLE=/tmp/mine; exec /bin/sleep 600"
    pod.spec["process"]["args"] = ["/bin/sh", "-c", script]
    with guarded("wrapper", real, compiled_node, pod) as container:
        finding = seen(compiled_node, container)
        pid = finding["pid"]
        assert set(differences(finding)) == {"env REQUESTS_CA_BUNDLE"}
        run("nsenter", "-t", str(pid), "-m", "/bin/busybox", "umount", "/etc/ssl")
        finding = seen(compiled_node, container)
        assert set(differences(finding)) == {"env REQUESTS_CA_BUNDLE", "mount /etc/ssl"}
        assert all(why.startswith("changed from inside") for why in differences(finding).values())


@pytest.mark.parametrize("how", ["replaced", "moved away", "another generation"])
def test_a_file_that_the_node_replaced_is_stale(compiled_node: Node, bundle: Bundle, real: str, how: str) -> None:
    bundle.pod()
    file = compiled_node.ca / how / "current" / "company.crt"
    for number in (1, 2):
        (file.parent.parent / f"generation-{number}").mkdir(parents=True)
        (file.parent.parent / f"generation-{number}/company.crt").write_text(f"company {number}\n")
    file.parent.symlink_to("generation-1")
    compiled_node.compile(FILE.replace("CA/certs/company.crt", f'"{file}"'))
    with guarded("wrapper", real, compiled_node, bundle) as container:
        assert seen(compiled_node, container)["state"] == "in policy"
        assert stale(load(str(compiled_node.policy), str(compiled_node.store)), listed(container)) == []
        if how == "another generation":
            file.parent.unlink()
            file.parent.symlink_to("generation-2")
        else:
            if how == "moved away":
                file.rename(file.with_name("old"))
            file.with_name("new").write_text("company 2\n")
            file.with_name("new").rename(file)
        (difference,) = seen(compiled_node, container)["differences"]
        assert container.exec("/bin/cat", "/etc/company.crt") == "company 1\n", "the old one, truly"
        assert difference["kind"] == STALE
        assert "/etc/company.crt" in difference["message"]
        old = stale(load(str(compiled_node.policy), str(compiled_node.store)), listed(container))
        assert [(each.container.id, each.source) for each in old] == [(container.id, str(file))]
    shutil.rmtree(compiled_node.ca / how)


def test_an_exempt_container_names_the_line(compiled_node: Node, bundle: Bundle) -> None:
    bundle.pod(namespace="kube-system")
    with guarded("wrapper", RUNTIMES["runc"], compiled_node, bundle) as container:
        finding = seen(compiled_node, container)
        assert (finding["state"], finding["because"]) == ("exempt", "namespace kube-system is excluded")
        assert finding["line"] == f"{compiled_node.policy}:5"


def test_no_container_hides_from_it(compiled_node: Node, pod: Bundle, real: str) -> None:
    """Paused, in a user namespace, with 1 MB of env, in a root of its own making, with hostile mount points."""
    big = [f"FILLER{number}={'x' * 100_000}" for number in range(10)]
    pod.spec["process"]["env"] += big
    pod.spec["process"]["args"] = ["/bin/busybox", "chroot", "/tmp/jail", "/bin/sleep", "600"]
    jail = pod.rootfs / "tmp/jail"
    (jail / "bin").mkdir(parents=True)
    (jail / "bin/sleep").write_bytes(Path(BUSYBOX).read_bytes())
    (jail / "bin/sleep").chmod(0o755)
    odd = pod.rootfs / "tmp/a\n36 1 0:1 / \\040/etc/ssl rw - x"
    odd.mkdir(parents=True)
    capabilities = pod.spec["process"]["capabilities"]
    for kind in capabilities:
        capabilities[kind] = [*capabilities[kind], "CAP_SYS_CHROOT"]
    pod.bind(compiled_node.ca, "/" + str(odd.relative_to(pod.rootfs)))
    pod.save()
    with Running(real, pod) as container:
        assert set(differences(seen(compiled_node, container))) == {"env REQUESTS_CA_BUNDLE", "mount /etc/ssl"}
        run(real, "pause", container.id)
        assert set(differences(seen(compiled_node, container))) == {"env REQUESTS_CA_BUNDLE", "mount /etc/ssl"}
        run(real, "resume", container.id)


def test_a_container_in_a_user_namespace(compiled_node: Node, pod: Bundle, real: str) -> None:
    in_user_namespace(pod)
    with guarded("wrapper", real, compiled_node, pod) as container:
        assert seen(compiled_node, container)["state"] == "in policy"
        run("nsenter", "-t", str(listed(container)[0].pid), "-m", "/bin/busybox", "umount", "/etc/ssl")
        assert set(differences(seen(compiled_node, container))) == {"mount /etc/ssl"}


def test_what_does_not_run_is_not_listed(compiled_node: Node, pod: Bundle, real: str) -> None:
    """A container that is created and not started, a zombie's, and one whose number is another process's by now."""
    pod.save()
    container = Running(real, pod)
    assert container.create() == 0
    try:
        assert listed(container) == []
        run(real, "start", container.id)
        (found,) = listed(container)
        state = Path(found.state) / ("state.json" if "runc" in real else "status")
        record = json.loads(state.read_text())
        key = "init_process_start" if "runc" in real else "process-start-time"
        state.write_text(json.dumps({**record, key: record[key] + 1}))
        assert listed(container) == [], "another process has its number"
        state.write_text(json.dumps(record))
        assert chosen(container.id, running(TRACES)).pid == found.pid
        run(real, "kill", container.id, "KILL")
        for _ in range(10000):
            if not listed(container):
                break
            time.sleep(0.05)
        assert round_of(compiled_node, container).findings == []
        assert audit(read_round(str(compiled_node.policy), str(compiled_node.store)), [found]).findings == []
    finally:
        run(real, "delete", "--force", container.id, check=False)


@marks.promise("`explain` shows the adapter's decision, finds a running container, and changes nothing")
def test_explain_finds_a_running_container(compiled_node: Node, pod: Bundle, real: str) -> None:
    pod.pod(name="p-" + pod.directory.parent.parent.name)
    pod.save()
    explain = (str(REASSERT), "explain", "--store", str(compiled_node.store))
    with guarded("wrapper", real, compiled_node, pod) as container:
        for word in (container.id, container.id[:-1], f"{chosen(container.id, running(TRACES)).pod}/c"):
            done = run(*explain, "--policy", str(compiled_node.policy), word)
            assert "corrected by reassert at create" in done.stdout
            assert f"config     {pod.config}" in done.stdout
    with Running(real, pod) as container:
        again = run(*explain, "--policy", str(compiled_node.policy), container.id).stdout
        assert "corrected by reassert at create" in again, "the same bundle"
    missing = run(*explain, container.id, check=False)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no running container has the id or name" in missing.stderr


def test_a_container_without_a_record_is_seen_in_proc_and_what_it_starts_is_its_own(
    compiled_node: Node, pod: Bundle, real: str
) -> None:
    """As with a state directory that only the engine knows; and docker in docker is no container of this node."""
    script = "/bin/busybox unshare -m /bin/sleep 600 & exec /bin/sleep 600"
    pod.spec["process"]["args"] = ["/bin/sh", "-c", script]
    capabilities = pod.spec["process"]["capabilities"]
    for kind in capabilities:
        capabilities[kind] = [*capabilities[kind], "CAP_SYS_ADMIN"]
    pod.save()
    container = Running(real, pod, "--root", str(pod.directory / "state"))
    container.id = uuid.uuid4().hex * 2
    assert container.create() == 0, container.output()
    try:
        run(real, *container.options, "start", container.id)
        pid = json.loads(run(real, *container.options, "state", container.id).stdout)["pid"]
        wait_for(lambda: len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) == 1, "the inner one starts")
        found = listed(container)
        assert [(each.pid, each.problem) for each in found] == [(pid, "no state directory of a runtime has it")]
        finding = audit(read_round(str(compiled_node.policy), str(compiled_node.store)), found)
        assert (finding.exit_status(), finding.findings[0].state) == (4, "unknown")
    finally:
        run(real, *container.options, "delete", "--force", container.id, check=False)


def test_a_device_that_was_made_inside_is_seen(node: Node, bundle: Bundle, real: str) -> None:
    machine = Machine(node, bundle)
    machine.give("/dev/gpu1", 1)
    with guarded("wrapper", real, node, bundle) as container:
        finding = seen(node, container)
        assert (finding["state"], finding["differences"]) == ("in policy", ())
        machine.opens(container, "/dev/shm-gpu0", minor=0)
        (difference,) = seen(node, container)["differences"]
        assert (difference["kind"], difference["rule"]) == ("device", "gpu")
        assert difference["why"].startswith("changed from inside")
        assert "/dev/shm-gpu0 in the container is" in difference["message"]


def test_a_node_that_the_container_cannot_open_at_its_usual_place_is_no_drift(
    node: Node, bundle: Bundle, real: str
) -> None:
    """NVIDIA's library makes such nodes of /dev/nvidia-caps in each container that uses it."""
    machine = Machine(node, bundle)
    node.compile(node.policy.read_text().replace('"/dev/gpu*"', "/dev/kmsg"))
    machine.give("/dev/gpu1", 1)
    with guarded("wrapper", real, node, bundle) as container:
        container.exec("/bin/mknod", "/dev/kmsg", "c", "1", "11")
        assert seen(node, container)["state"] == "in policy"
        container.exec("/bin/mknod", "/dev/mine", "c", "1", "11")
        (difference,) = seen(node, container)["differences"]
        assert "/dev/mine in the container is /dev/kmsg" in difference["message"]


HIDING = """\
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <linux/prctl.h>

static void *go_on(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

/* The command line is 64 GiB of zeros: the address space is the process's own (prctl(2), PR_SET_MM_MAP). */
static int endless(void)
{
	const size_t size = 64UL << 30;
	unsigned long long of[53] = {0};
	char text[4096] = "", *at = mmap(0, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	FILE *stat = fopen("/proc/self/stat", "r");
	if (at == MAP_FAILED || !stat || !fgets(text, sizeof text, stat))
		return 1;
	char *field = strrchr(text, ')') + 3;
	for (int number = 4; number < 53 && (field = strchr(field, ' ')); number++)
		sscanf(++field, "%llu", &of[number]);
	struct prctl_mm_map map = {.start_code = of[26], .end_code = of[27], .start_stack = of[28], .start_data = of[45],
		.end_data = of[46], .start_brk = of[47], .brk = (unsigned long)sbrk(0), .arg_start = (unsigned long)at,
		.arg_end = (unsigned long)at + size, .env_start = of[50], .env_end = of[51], .exe_fd = -1};
	return prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
}

int main(int count, char **arguments)
{
	pthread_t thread;
	if (count > 1 && !strcmp(arguments[1], "endless") && endless())
		return perror("prctl"), 1;
	if (count > 1 && !strcmp(arguments[1], "sentry"))
		strcpy(arguments[0], "runsc-sandbox");
	puts("hidden");
	fflush(stdout);
	if (count > 1 && !strcmp(arguments[1], "headless") && !pthread_create(&thread, 0, go_on, 0))
		pthread_exit(0);
	for (;;)
		pause();
}
"""


def hiding(pod: Bundle, how: str) -> None:
    """Make a container's program one that hides from who looks at it."""
    need(shutil.which("gcc") is not None, "gcc")
    program = pod.rootfs / "bin/a-name-that-is-as-long-as-gVisors"
    run("gcc", "-static", "-pthread", "-x", "c", "-o", str(program), "-", input=HIDING)
    pod.spec["process"]["args"] = [f"/bin/{program.name}", how]
    pod.save()


def audited(node: Node, container: Running) -> tuple[int, list[str]]:
    """The exit status of the frozen program, and the state that it shows. It gets 1 GiB: a node has not much more."""
    command = ["prlimit", f"--as={1 << 30}", str(REASSERT), "audit", *node.options()[:4], "-o", "json", container.id]
    done = run(*command, check=False)
    assert done.stdout, done.stderr
    return done.returncode, [each["state"] for each in json.loads(done.stdout)["containers"]]


@marks.hole(
    "A command line without an end took all memory of `audit`, `doctor`, `status` and its timer, and of `install`",
    since="0.2.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_command_line_without_an_end_stops_nobody_who_looks_for_containers_or_starts(
    compiled_node: Node, pod: Bundle, real: str
) -> None:
    hiding(pod, "endless")
    with Running(real, pod) as container:
        container.wait_for("hidden")
        assert audited(compiled_node, container) == (1, ["drifted"])
        upgrade = "from hook.node.change.tree import let_starts_end; let_starts_end(0)"
        run("prlimit", f"--as={1 << 30}", sys.executable, "-c", upgrade, cwd=TOP)


@marks.hole(
    "A drifted container that called itself gVisor's kernel was `unknown` to `audit`, without an event",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_container_that_calls_itself_gvisors_kernel_is_looked_at(compiled_node: Node, pod: Bundle, real: str) -> None:
    hiding(pod, "sentry")
    with Running(real, pod) as container:
        container.wait_for("hidden")
        assert audited(compiled_node, container) == (1, ["drifted"])


@marks.hole(
    "A container whose first process had ended its main thread was not listed by `audit`, which was green",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_container_whose_main_thread_has_ended_is_listed(compiled_node: Node, pod: Bundle, real: str) -> None:
    """It is a zombie to the eye, and its other threads run."""
    hiding(pod, "headless")
    container = Running(real, pod)
    assert container.create() == 0, container.output()
    try:
        (pid,) = [container.pid()]
        run(real, "start", container.id)
        container.wait_for("hidden")
        wait_for(lambda: stat_of(pid)[0] == "Z", "the main thread ends")
        assert audited(compiled_node, container) == (4, ["unknown"])
        (found,) = [each for each in running(TRACES) if each.id == container.id]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: container.id not in [each.id for each in running(TRACES)], "all threads end")
        assert audit(read_round(str(compiled_node.policy), str(compiled_node.store)), [found]).findings == []
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        run(real, "delete", "--force", container.id, check=False)
