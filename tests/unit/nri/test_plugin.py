"""The plugin against a runtime that behaves, one that does not, and decisions that take long."""

from __future__ import annotations

import os
import shutil
import struct
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import marks
import pytest
from e2e.stalled import stalling
from harness.tools import need

from hook.nri import ttrpc
from hook.nri.plugin import DEADLINE, SERVICE, TICK
from hook.nri.ttrpc import PLUGIN, frames
from unit.nri.support import RESPONSE, Running, create_request, running, wait_until
from unit.ownmachine import Machine
from unit.podresources import PodResources, answer
from unit.support import document

pytestmark = marks.promise(
    "Recorded requests of containerd are read, split at any byte; no size, speed or malformed data "
    "disconnects the plugin or delays others"
)

GPU = {"name": "gpu", "env": [{"name": "GPU", "value": "void"}]}
POLICY = document(GPU)


def env(response: Any) -> dict[str, str]:
    """What an answer sets."""
    return {entry.key: entry.value for entry in RESPONSE.FromString(response.payload).adjust.env}


def test_a_container_is_adjusted_and_the_next_one_left_alone(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        assert env(plugin.create(["A=1", "GPU=all"])) == {"GPU": "void"}
        assert not plugin.create(["GPU=void"]).status.code
        event = next(line for line in plugin.logged() if line["event"] == "container.edited")
        assert event["container"] == {"namespace": "team-a", "pod": "web-1", "uid": "1-2-3", "container": "app"}
        assert (event["adapter"], event["applied"], event["asked"], event["id"]) == ("nri", False, True, "c0")
        assert event["verified"] == ""  # nobody has looked yet
        assert plugin.metric("reassert_containers_total", outcome="adjusted") == 1
        assert plugin.metric("reassert_containers_total", outcome="unchanged") == 1
        assert plugin.metric("reassert_edits_total", rule="gpu", kind="env", result="asked") == 1
        assert plugin.metric("reassert_nri_connected") == 1
        assert plugin.metric("reassert_decision_seconds_count") == 2


def test_it_is_connected_once_the_runtime_has_listed_its_containers(root_dir: Path) -> None:
    """A runtime creates none while it waits for that answer; one that is created before it is not asked about."""
    synchronize = ttrpc.get("SynchronizeRequest")
    with running(root_dir, POLICY, take_in=False) as plugin:
        plugin.peer.take_in(ends=True)
        plugin.peer.call("Synchronize", synchronize(more=True))
        assert plugin.metric("reassert_nri_connected") == 0
        assert "nri.connected" not in [line["event"] for line in plugin.logged()]
        plugin.peer.call("Synchronize", synchronize())
        assert plugin.metric("reassert_nri_connected") == 1
        assert [line["event"] for line in plugin.logged()].count("nri.connected") == 1


def test_in_audit_mode_nothing_is_changed_or_refused(root_dir: Path) -> None:
    for rule, event in ((GPU, "container.edited"), ({**GPU, "onConflict": "Deny"}, "container.would-deny")):
        with running(root_dir, document(rule, mode="Audit")) as plugin:
            response = plugin.create(["GPU=all"])
            assert (response.status.code, env(response)) == (0, {})
            assert (plugin.logged()[-1]["event"], plugin.logged()[-1]["applied"]) == (event, False)
            assert plugin.metric("reassert_containers_total", outcome="audited") == 1
            assert plugin.metric("reassert_edits_total", rule="gpu", kind="env", result="audited") == 1
            refusals = plugin.metric("reassert_refusals_total", rule="gpu", result="audited")
            assert refusals == (1 if event == "container.would-deny" else None)


@pytest.mark.parametrize(("given", "outcome"), [([], "adjusted"), (["B=1"], "audited")])
def test_what_a_rule_in_audit_mode_would_do_is_counted_beside_what_is_done(
    root_dir: Path, given: list[str], outcome: str
) -> None:
    tried = {**GPU, "mode": "Audit", "onConflict": "Deny"}
    with running(root_dir, document(tried, {"name": "set", "env": [{"name": "B", "value": "1"}]})) as plugin:
        assert env(plugin.create(["GPU=all", *given])) == ({} if given else {"B": "1"})
        assert plugin.metric("reassert_containers_total", outcome=outcome) == 1
        assert plugin.metric("reassert_edits_total", rule="gpu", kind="env", result="audited") == 1
        assert plugin.metric("reassert_refusals_total", rule="gpu", result="audited") == 1
        asked = plugin.metric("reassert_edits_total", rule="set", kind="env", result="asked")
        assert asked == (None if given else 1)


def test_a_refusal_is_an_error_answer(root_dir: Path) -> None:
    with running(root_dir, document({**GPU, "onConflict": "Deny"})) as plugin:
        status = plugin.create(["GPU=all"]).status
        assert status.code == 7
        assert status.message.startswith("reassert: refused team-a/web-1/app: rule gpu: env GPU is reserved")
        assert plugin.metric("reassert_refusals_total", rule="gpu", result="refused") == 1
        assert plugin.metric("reassert_edits_total", rule="gpu", kind="env", result="refused") == 1


def test_a_probe_is_marked_and_counted_apart(root_dir: Path, machine: Machine) -> None:
    """So that a `verify` alarms nobody, and is no proof that pods are corrected."""
    mark = machine.file("/run/reassert/probes/1-2-3")  # the pod's UID, which a runtime says
    with running(root_dir, POLICY) as plugin:
        assert env(plugin.create(["GPU=all"])) == {"GPU": "void"}
        assert plugin.logged()[-1]["probe"] is True
        assert plugin.metric("reassert_probes_total", outcome="adjusted") == 1
        assert plugin.metric("reassert_containers_total", outcome="adjusted") is None
        assert plugin.metric("reassert_edits_total", rule="gpu", kind="env", result="asked") is None
        mark.unlink()
        plugin.create(["GPU=all"])
        assert "probe" not in plugin.logged()[-1]
        assert plugin.metric("reassert_containers_total", outcome="adjusted") == 1


@marks.claim("exclusion", "nri")
def test_kubelet_alone_tells_the_type_of_a_container(root_dir: Path) -> None:
    """No annotation of a pod or a container does. Without kubelet's answer the type is unknown."""
    spec = {"exclude": {"containerTypes": ["init", "ephemeral"]}, "kubelet": {"root": str(root_dir)}}
    kind = {"io.kubernetes.container.type": "init"}
    with closing(PodResources(root_dir)) as kubelet, running(root_dir, document(GPU, **spec)) as plugin:
        for listed, wanted in ((["another"], {}), (["app"], {"GPU": "void"}), (None, {"GPU": "void"})):
            kubelet.answers.clear()
            if listed:
                kubelet.add(answer("team-a", "web-1", {name: [] for name in listed}))
            assert env(plugin.create(["GPU=all"], pod={"annotations": kind}, annotations=kind)) == wanted
        assert kubelet.asked == ["team-a/web-1"] * 3


def test_both_questions_about_a_container_have_one_answer_of_kubelet(root_dir: Path) -> None:
    """The second one, about all plugins' changes, is judged by the type that the first one learned."""
    by_type = [
        {"name": kind, "match": {"containerTypes": types}, "env": [{"name": "GPU", "value": kind}]}
        for kind, types in (("app", ["container"]), ("others", ["init", "ephemeral"]))
    ]
    source = document(*by_type, kubelet={"root": str(root_dir)})
    with (
        closing(PodResources(root_dir, answer("team-a", "web-1", {"app": []}))) as kubelet,
        running(root_dir, source, version="v2.3.0") as plugin,
    ):
        create = create_request(["GPU=all"])
        assert env(plugin.peer.call("CreateContainer", create)) == {"GPU": "app"}
        kubelet.answers.clear()
        assert not plugin.validate(create, adjust={"env": [{"key": "GPU", "value": "app"}]}).reject


@marks.claim("last-good-policy", "nri")
def test_a_changed_policy_is_in_force_for_the_next_container_and_a_broken_one_never(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        plugin.policy.write_text(POLICY.replace("void", "none"))
        # The first may get the one before, on a busy machine.
        wait_until(lambda: env(plugin.create(["GPU=all"])) == {"GPU": "none"})
        plugin.policy.write_text("broken: [")

        def held_back() -> bool:
            assert env(plugin.create(["GPU=all"])) == {"GPU": "none"}
            return "the last good policy stays in force" in str(plugin.logged()[-1].get("warning"))

        wait_until(held_back)


def slow(plugin: Running, name: str) -> threading.Event:
    """Let containers of this name wait for an event, as a hanging file system would."""
    plugin.decider.slow = name
    return plugin.decider.go


def test_a_slow_decision_holds_up_nobody_and_is_refused_in_time(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        go = slow(plugin, "slow")
        late = plugin.peer.send("CreateContainer", create_request(["GPU=all"], name="slow"))
        assert env(plugin.create(["GPU=all"])) == {"GPU": "void"}  # before the one that was there first
        stream, response = plugin.peer.response()
        assert (stream, response.status.code) == (late, 7)
        assert "no decision in time" in response.status.message
        assert plugin.plugin.stuck, "it was answered before it was decided"
        assert DEADLINE + 2 * TICK < 2  # what a runtime waits
        go.set()  # the late decision is not sent, and nobody is told that it was applied
        wait_until(lambda: not plugin.plugin.stuck)
        assert env(plugin.create(["GPU=all"])) == {"GPU": "void"}
        wait_until(lambda: any(line["event"] == "nri.slow" for line in plugin.logged()))
        events = [line for line in plugin.logged() if line["event"].startswith("container.")]
        assert sorted((line["event"], line.get("asked")) for line in events) == [
            ("container.denied", None),
            ("container.edited", True),
            ("container.edited", True),
        ]
        assert plugin.metric("reassert_errors_total", kind="deadline") == 1
        assert plugin.metric("reassert_containers_total", outcome="adjusted") == 2
        assert plugin.metric("reassert_containers_total", outcome="failed") == 1


def test_what_a_runtime_waits_for_sets_the_deadline_if_it_is_less(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        go = slow(plugin, "app")
        for timeout, limit in ((0.4, 0.3), (1000.0, DEADLINE)):
            plugin.peer.send("CreateContainer", create_request(["GPU=all"]), timeout=timeout)
            wait_until(lambda: bool(plugin.plugin.stuck))
            [job] = plugin.plugin.stuck
            assert job.deadline - job.started == pytest.approx(limit)
            assert plugin.peer.response()[1].status.code == 7
            go.set()
            wait_until(lambda: not plugin.plugin.stuck)
            go.clear()
        go.set()


def test_systemd_is_told_of_life_only_while_somebody_reads(root_dir: Path) -> None:
    with running(root_dir, POLICY, threads=1) as plugin:
        told: list[bool] = []
        plugin.plugin.on_tick = told.append
        go = slow(plugin, "app")
        wait_until(lambda: told[-1:] == [True])
        for _ in range(2):
            plugin.peer.send("CreateContainer", create_request(["GPU=all"]))
        wait_until(lambda: told[-1:] == [False])
        for _ in range(2):
            assert plugin.peer.response()[1].status.code == 7
        assert sum(thread.name == "reader" for thread in threading.enumerate()) == 2, "one is stuck, one reads"
        go.set()
        wait_until(lambda: told[-1:] == [True])
        assert plugin.plugin.stuck == []


@marks.hole(
    "With `exclusive`, 64 containers with a volume that does not answer ended the NRI plugin",
    since="0.3.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.users  # a mount of FUSE by the machine's own root
@pytest.mark.parametrize("source", ["volume", "volume/below", "link"])
def test_a_volume_that_does_not_answer_holds_no_thread(root_dir: Path, source: str) -> None:
    """A rule with `exclusive` looks at the sources of mounts, which the pod's author chooses."""
    need(os.path.exists("/dev/fuse"), "/dev/fuse")
    rule = {"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/gpu*"]}}
    text = document(rule, kubelet={"root": str(root_dir)})
    with stalling(root_dir) as volume, running(root_dir, text) as plugin:
        (root_dir / "link").symlink_to("volume/below")
        volume.stall()
        for _ in range(3):
            response = plugin.create(
                [], mounts=[{"source": f"{root_dir}/{source}", "destination": "/v", "type": "bind"}]
            )
            assert response.status.code == 0, response.status.message
        assert plugin.plugin.stuck == []


@pytest.mark.parametrize(
    ("hangs", "policy", "code", "event"),
    [
        ("hook.core.decide.gather", "Fail", 7, "container.error"),
        ("hook.core.decide.gather", "Ignore", 0, "container.error"),
        ("hook.core.decide.plan", "Ignore", 7, "container.denied"),
        ("hook.nri.creation.adjust", "Ignore", 7, "container.denied"),
    ],
)
def test_a_node_that_hangs_is_the_failure_policys_and_what_a_pod_made_slow_is_refused(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch, hangs: str, policy: str, code: int, event: str
) -> None:
    go = threading.Event()
    # plan() and adjust() are pure: nothing that a test could make hang is read there.
    monkeypatch.setattr(hangs, lambda *_, **__: go.wait(20))
    with running(root_dir, document(GPU, failurePolicy=policy)) as plugin:
        response = plugin.create(["GPU=all"])
        assert (response.status.code, env(response)) == (code, {})
        wait_until(lambda: any(line["event"] == "nri.slow" for line in plugin.logged()))  # it follows
        [told] = [line for line in plugin.logged() if line["event"].startswith("container.")]
        assert (told["event"], told["container"]["pod"]) == (event, "web-1")
        go.set()


@marks.hole(
    "With NRI and `failurePolicy: Ignore`, hundreds of volumes at long paths made the answer late",
    since="0.1.0",
    fixed="0.3.0",
    severity="medium",
)
def test_very_long_paths_below_a_reserved_mount_are_refused_for_what_they_are(root_dir: Path) -> None:
    """Looking for each of their names on the node took longer than the runtime waits, which `Ignore` let start."""
    rule = {"name": "ca", "mounts": [{"hostPath": str(root_dir), "mountPath": "/etc/ssl"}]}
    mounts = [{"destination": f"/etc/ssl/{at}{'/a' * 1990}", "type": "bind", "source": "/v"} for at in range(350)]
    with running(root_dir, document(GPU, rule, failurePolicy="Ignore"), version="1.7.24") as plugin:
        response = plugin.create(["GPU=all"], mounts=mounts)
        assert response.status.code == 7
        assert "conflicts with the reserved mount /etc/ssl" in response.status.message


def called(method: str, service: str = SERVICE, payload: bytes = b"") -> bytes:
    """A call of the plugin as it is on the wire."""
    call = ttrpc.get("Request")(service=service, method=method, payload=payload).SerializeToString()
    return frames(PLUGIN, struct.pack(">IIBB", len(call), 1, 1, 0) + call)


VIOLATIONS = {
    "a frame of 1073741824 bytes": struct.pack(">II", PLUGIN, 1 << 30),
    "a message of 1073741824 bytes": frames(PLUGIN, struct.pack(">IIBB", 1 << 30, 1, 1, 0)),
    "4 bytes do not decode as Request": frames(PLUGIN, struct.pack(">IIBB", 4, 1, 1, 0) + b"\xff\xff\xff\xff"),
    "expected a request": frames(PLUGIN, struct.pack(">IIBB", 0, 2, 2, 0)),
    "unknown method 'Explode'": called("Explode"),
    "unknown service 'other.Service'": called("Configure", "other.Service"),
    "1 bytes do not decode as CreateContainerRequest": called("CreateContainer", payload=b"\xff"),
}


@pytest.mark.parametrize("why", VIOLATIONS)
def test_a_hostile_runtime_is_dropped_with_an_event(root_dir: Path, why: str) -> None:
    with running(root_dir, POLICY) as plugin:
        plugin.peer.socket.sendall(VIOLATIONS[why])
        with pytest.raises(EOFError):
            plugin.peer.receive()
        event = plugin.ended()
        assert (event["event"], event["level"]) == ("nri.violation", "error")
        assert why in event["message"]
        assert plugin.metric("reassert_errors_total", kind="violation") == 1
        assert plugin.metric("reassert_nri_connected") == 0


def test_a_call_of_a_later_nri_is_told_to_be_unknown(root_dir: Path) -> None:
    """Its runtimes then do as with older plugins."""
    with running(root_dir, POLICY) as plugin:
        for method in ("PostCreateContainer", "StartContainer"):
            assert plugin.peer.call(method, ttrpc.get("Empty")()).status.code == 12
        assert env(plugin.create(["GPU=all"])) == {"GPU": "void"}


def test_an_answer_that_no_runtime_takes_is_a_failed_decision(root_dir: Path) -> None:
    long = {"name": "long", "env": [{"name": f"LONG_{at}", "value": "x" * 100_000} for at in range(6)]}
    with running(root_dir, document(long)) as plugin:
        status = plugin.create([]).status
        assert (status.code, "an answer of 6" in status.message) == (7, True)
        assert plugin.logged()[-1]["event"] == "container.error"


def long_env(env: list[str]) -> list[str]:
    """With more beside it than ttrpc takes; containerd 1.7 sends it all the same."""
    return [*env, *(f"LONG_{number}=" + "x" * 100_000 for number in range(45))]


@pytest.mark.parametrize(("more", "code"), [({}, 7), ({"failurePolicy": "Ignore"}, 7), ({"mode": "Audit"}, 0)])
def test_a_container_with_too_much_env_is_refused_and_the_plugin_stays(
    root_dir: Path, more: dict[str, str], code: int
) -> None:
    """A pod's author must not be able to send the plugin away."""
    with running(root_dir, document(GPU, **more)) as plugin:
        response = plugin.create(long_env(["GPU=all"]))
        assert (response.status.code, env(response)) == (code, {})
        assert bool(code) == response.status.message.startswith("reassert: refused a container: a message of 45")
        assert plugin.logged()[-1]["event"] == ("container.denied" if code else "container.would-deny")
        assert env(plugin.create(["GPU=all"])) == ({"GPU": "void"} if code else {})


def test_containers_with_too_much_env_do_not_keep_the_plugin_away(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        create = create_request(long_env(["GPU=all"]), state=3)
        synchronize = ttrpc.get("SynchronizeRequest")(pods=[create.pod], containers=[create.container])
        answer = plugin.peer.call("Synchronize", synchronize)
        assert (answer.status.code, answer.payload) == (0, b"")
        assert env(plugin.create(["GPU=all"])) == {"GPU": "void"}


def test_a_list_in_parts_is_asked_for_to_its_end(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        for more in (True, True, False):
            answer = plugin.peer.call("Synchronize", ttrpc.get("SynchronizeRequest")(more=more))
            assert ttrpc.get("SynchronizeResponse").FromString(answer.payload).more is more


@marks.hole(
    "A process that took all descriptors of a node made the NRI plugin lose its policy",
    since="0.1.0",
    fixed="0.1.0",
    severity="medium",
)
def test_a_policy_in_force_stays_when_nothing_can_be_read_any_more(root_dir: Path) -> None:
    """The store has gone: what was good once is in memory."""
    with running(root_dir, POLICY) as plugin:
        shutil.rmtree(root_dir / "store")
        (root_dir / "store").touch()
        plugin.policy.write_text("broken: [")

        def held_back() -> bool:
            assert env(plugin.create(["GPU=all"])) == {"GPU": "void"}
            return "the last good policy stays in force" in str(plugin.logged()[-1].get("warning"))

        wait_until(held_back)


def test_a_policy_is_looked_at_again_when_there_was_no_thread_for_it(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(root_dir, POLICY) as plugin:
        plugin.policy.write_text(POLICY.replace("void", "none"))
        with monkeypatch.context() as patch:
            patch.setattr(threading, "Thread", no_thread)
            assert env(plugin.create(["GPU=all"])) == {"GPU": "void"}
        wait_until(lambda: env(plugin.create(["GPU=all"])) == {"GPU": "none"})


def no_thread(**_: object) -> threading.Thread:
    """As Thread.start says it."""
    raise RuntimeError("can't start new thread")


def test_a_runtime_that_never_configures_is_given_up(root_dir: Path) -> None:
    with running(root_dir, POLICY, take_in=False, registration=0.2) as plugin:
        assert "did not configure" in plugin.ended()["message"]


def test_an_orderly_end_is_told(root_dir: Path) -> None:
    with running(root_dir, POLICY) as plugin:
        plugin.peer.socket.close()
        assert plugin.ended()["event"] == "nri.disconnected"
