"""The decision about what all NRI plugins together ask for: recorded from containerd 2.4, and generated."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from e2e.stalled import stalling
from harness.tools import need
from hypothesis import assume, given
from hypothesis import strategies as st

from hook.core.base.concealed import concealed
from hook.core.base.text import WHERE_TO_LOOK
from hook.core.container import oci
from hook.nri import ttrpc
from hook.nri.creation import REMOVES_MOUNTS, Decider, version_at_least
from hook.nri.plugin import TICK
from hook.nri.report import Report
from hook.nri.request import CREATE, Request
from hook.nri.ttrpc import PLUGIN
from hook.nri.validation import Merged
from hook.resident.metrics import NoMetrics
from hook.resident.policy import Resident
from unit.nri.support import (
    KNOWN,
    REQUEST,
    RESPONSE,
    VALIDATE,
    create_request,
    events_of,
    running,
    wait_until,
)
from unit.nri.test_wire import fed
from unit.ownmachine import Machine
from unit.support import FIXTURES, document, examples, policy

GPU = {"name": "gpu", "env": [{"name": "GPU", "value": "void"}]}
POLICY = document(GPU)
ENV, MOUNTS, DEVICES, CDI = 6, 2, 4, 5


def owned(field: int, name: str, plugin: str = "20-late", container: str = "c0") -> Any:
    """Who asked for one part of an adjustment."""
    owners = ttrpc.get("OwningPlugins")()
    entry = owners.owners.add(key=container).value.compound.add(key=field)
    entry.value.owners[name] = plugin
    return owners


# -- the recorded question


@marks.claim("later-plugins", "nri")
def test_recorded_question_of_containerd_is_understood_and_refused(root_dir: Path) -> None:
    wire = (FIXTURES / "nri" / "containerd-2.4.bin").read_bytes()
    whole = fed([wire])
    for at in range(0, len(wire), 7):
        assert fed([wire[:at], wire[at:]]) == whole
    calls = {r.method: r.payload for stream, m in whole if stream == PLUGIN for r in [ttrpc.read_request(m)]}
    assert ttrpc.get("ConfigureRequest").FromString(calls["Configure"]).NRI_version == "v0.12.2"
    request = VALIDATE.FromString(calls["ValidateContainerAdjustment"])
    asked = REQUEST.FromString(calls["CreateContainer"])
    assert (request.container.env, request.container.id) == (asked.container.env, asked.container.id)
    merged = Merged(request)
    assert merged.owners["env", "NVIDIA_VISIBLE_DEVICES"] == "plugin 20-naive"
    assert merged.owners["env", "REQUESTS_CA_BUNDLE"] == "plugin 10-reassert"
    # Image and pod both set it: NRI replaces the first entry only, and then the second one counts.
    assert [entry for entry in merged.env if entry.startswith("NVIDIA")] == ["NVIDIA_VISIBLE_DEVICES=all"]
    assert [mount.oci for mount in merged.mounts if mount.path == "/etc/ssl/certs"] == [
        {"destination": "/etc/ssl/certs", "type": "bind", "source": "/srv/evil", "options": ["rbind", "ro"]}
    ]
    rules = {
        "name": "gpu",
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "mounts": [{"mountPath": "/etc/ssl", "hostPath": str(root_dir)}],
    }
    with running(root_dir, document(rules), version=KNOWN) as plugin:
        answer = plugin.validate(request, adjust=request.adjust, owners=request.owners)
        assert answer.reject
        assert "refused team-a/web-1/app: rule gpu: env NVIDIA_VISIBLE_DEVICES is not as reserved" in answer.reason
        assert "because of plugin 20-naive" in answer.reason
        assert "mount /etc/ssl is not as reserved" in answer.reason


# -- one event


def test_refused_container_has_one_event(root_dir: Path) -> None:
    with running(root_dir, POLICY, version=KNOWN) as plugin:
        plugin.create(["GPU=all"])
        adjust = {"env": [{"key": "GPU", "value": "evil"}]}
        answer = plugin.validate(create_request(["GPU=all"]), adjust=adjust, owners=owned(ENV, "GPU"))
        assert answer.reason.endswith(
            "rule gpu: env GPU is not as reserved after the changes of all NRI plugins, because of plugin 20-late"
            f"{WHERE_TO_LOOK}"
        )
        [event] = events_of(plugin)
        assert (event["event"], event["applied"], event["verified"]) == ("container.denied", False, "")
        [edit] = event["edits"]
        assert (edit["before"], edit["after"]) == (
            [{"bytes": 4, "hash": concealed("evil", None, str(root_dir / "store"))["hash"]}],
            "void",
        )
        assert plugin.metric("reassert_containers_total", outcome="refused") == 1
        assert plugin.metric("reassert_containers_total", outcome="adjusted") is None


def test_a_policy_that_is_changed_between_the_two_questions_refuses_nothing(root_dir: Path) -> None:
    """The container starts as it would have if it had been created a moment earlier."""
    with running(root_dir, POLICY, version=KNOWN) as plugin:
        plugin.create(["GPU=all"])
        before = plugin.resident.last.fingerprint
        plugin.policy.write_text(POLICY.replace("void", "none"))
        wait_until(lambda: plugin.resident.get().fingerprint != before)
        adjust = {"env": [{"key": "GPU", "value": "void"}]}
        assert not plugin.validate(create_request(["GPU=all"]), adjust=adjust, owners=owned(ENV, "GPU")).reject


def test_audit_mode_reports_a_later_plugin_once_and_refuses_nothing(root_dir: Path) -> None:
    with running(root_dir, document(GPU, mode="Audit"), version=KNOWN) as plugin:
        plugin.create(["GPU=all"])
        assert not plugin.validate(create_request(["GPU=all"]), adjust={}).reject
        plugin.create(["GPU=void"])
        adjust = {"env": [{"key": "GPU", "value": "evil"}]}
        assert not plugin.validate(create_request(["GPU=void"]), adjust=adjust).reject
        assert [event["event"] for event in events_of(plugin)] == ["container.edited", "container.would-deny"]


# -- what the adjustment makes


@marks.claim("later-plugins", "nri")
@pytest.mark.parametrize(
    ("env", "adjust", "owner", "holds"),
    [
        (["GPU=all"], {}, "", False),  # a later plugin took ours away
        (["GPU=void"], {}, "", True),
        (["GPU=void"], {"env": [{"key": "GPU", "value": "all"}]}, "plugin 20-late", False),
        (["GPU=all"], {"env": [{"key": "GPU", "value": "void"}]}, "", True),
        (["GPU=void", "GPU=all"], {"env": [{"key": "GPU", "value": "void"}]}, "", False),  # the second one stays
        (["GPU=all", "GPU=void"], {"env": [{"key": "GPU", "value": "void"}]}, "", True),
        (["GPU=all", "GPU=void"], {}, "", False),  # nobody adjusts env, so both stay
        ([], {"env": [{"key": "GPU", "value": "void"}, {"key": "OTHER", "value": "1"}]}, "", True),
        (["NVIDIA=all"], {"env": [{"key": "GPU", "value": "void"}]}, "", False),
    ],
)
def test_env(root_dir: Path, env: list[str], adjust: dict[str, Any], owner: str, holds: bool) -> None:
    rules = {"name": "gpu", "env": [{"name": "GPU", "value": "void"}, {"name": "NVIDIA*", "absent": True}]}
    with running(root_dir, document(rules), version=KNOWN) as plugin:
        answer = plugin.validate(create_request(env), adjust=adjust, owners=owned(ENV, "GPU"))
        assert answer.reject is not holds
        assert owner in answer.reason


def bind(destination: str, source: str, *options: str) -> dict[str, Any]:
    """A mount."""
    return {"destination": destination, "type": "bind", "source": source, "options": list(options)}


@marks.claim("later-plugins", "nri")
@pytest.mark.parametrize(
    ("there", "asked", "holds"),
    [
        ([], ["ours"], True),
        ([], [], False),
        (["ours"], [], True),
        (["/etc"], ["ours"], False),
        ([], ["ours", "/etc/ssl/certs"], False),
        ([], ["ours", "/etc/./ssl"], False),
        ([], ["ours", "/etc"], False),
        ([], ["ours", "/opt"], True),
        (["ours"], ["-/etc/ssl"], False),
        (["/etc/ssl/certs"], ["ours", "-/etc/ssl/certs"], True),
        (["/etc/ssl/certs", "/etc/ssl/certs"], ["ours", "-/etc/ssl/certs"], False),  # only the first one goes
        (["ours", "/opt"], [], True),
        (["/etc with volumesAbove", "ours"], [], True),
        (["ours", "/etc with volumesAbove"], [], False),  # it hides ours, and without an adjustment NRI sorts nothing
        (["ours", "/opt", "/etc with volumesAbove"], [], False),
        (["ours"], ["/etc with volumesAbove"], True),
    ],
)
def test_mounts(root_dir: Path, there: list[str], asked: list[str], holds: bool) -> None:
    source = root_dir / "company"
    source.mkdir()
    ours = bind("/etc/ssl", str(source), "rbind", "rprivate", "ro", "rro")

    def mounts(names: list[str]) -> list[dict[str, Any]]:
        return [ours if name == "ours" else bind(name.split()[0], "/srv/evil", "rbind") for name in names]

    above = "Allow" if any("volumesAbove" in name for name in there + asked) else "Refuse"
    rules = {"name": "ca", "mounts": [{"mountPath": "/etc/ssl", "hostPath": str(source), "volumesAbove": above}]}
    with running(root_dir, document(rules), version=KNOWN) as plugin:
        create = create_request([], mounts=mounts(there))
        answer = plugin.validate(
            create, adjust={"mounts": mounts(asked)}, owners=owned(MOUNTS, asked[-1] if asked else "/")
        )
        assert answer.reject is not holds, answer.reason


@marks.claim("other-plugins", "nri")
def test_annotations_that_must_be_absent(root_dir: Path) -> None:
    rules = {"name": "cdi", "annotations": [{"name": "cdi.k8s.io/*", "absent": True}]}
    with running(root_dir, document(rules), version=KNOWN) as plugin:
        create = create_request([], annotations={"cdi.k8s.io/a": "x"})
        assert plugin.validate(create, adjust={}).reject
        assert not plugin.validate(create, adjust={"annotations": {"-cdi.k8s.io/a": ""}}).reject
        # of a key that is removed and set the runtime makes either
        both = {"-cdi.k8s.io/a": "", "cdi.k8s.io/a": "y"}
        assert plugin.validate(create, adjust={"annotations": both}).reject


@marks.claim("later-plugins", "nri")
def test_cdi_devices_of_other_plugins_are_resolved(root_dir: Path, machine: Machine) -> None:
    """Both ways of setting env, appended and in place, end with the value of the CDI spec."""
    spec = machine.file("/etc/cdi/vendor.json")
    os.mkdir(root_dir / "ca")
    rules = {
        "name": "gpu",
        "env": [{"name": "GPU", "value": "void"}],
        "mounts": [{"mountPath": "/etc/ssl", "hostPath": str(root_dir / "ca")}],
    }
    ours = bind("/etc/ssl", str(root_dir / "ca"), "rbind", "rprivate", "ro", "rro")
    adjust = {"CDI_devices": [{"name": "vendor.com/gpu=0"}], "mounts": [ours]}
    mounts = {"mounts": [{"hostPath": "/srv/evil", "containerPath": "/etc/ssl/certs"}]}
    node = {"deviceNodes": [{"path": "/etc/ssl/null", "hostPath": "/dev/null"}]}
    for edits, why in (
        ({"env": ["GPU=void", "OTHER=1"]}, ""),
        ({"env": ["GPU=all"]}, "env GPU is not as reserved"),
        (mounts, "mount /etc/ssl is not as reserved"),
        (node, "device /etc/ssl/null would be made in the reserved mount /etc/ssl"),
    ):
        spec.write_text(
            json.dumps(
                {
                    "cdiVersion": "0.6.0",
                    "kind": "vendor.com/gpu",
                    "devices": [{"name": "0", "containerEdits": edits}],
                }
            )
        )
        with running(root_dir, document(rules), version=KNOWN) as plugin:
            answer = plugin.validate(create_request(["GPU=void"]), adjust=adjust, owners=owned(CDI, "vendor.com/gpu=0"))
            assert why in answer.reason
            assert answer.reject is bool(why)
            assert [event["event"] for event in events_of(plugin)] == ["container.denied"] * bool(why)
            assert plugin.metric("reassert_containers_total", outcome="refused") == (1 if why else None)
            plugin.events.unlink(missing_ok=True)
            if "not as reserved" in why:
                assert "because of CDI device vendor.com/gpu=0, which plugin 20-late injected" in answer.reason


@marks.claim("later-plugins", "nri")
def test_device_of_another_plugin_that_was_not_allocated_is_refused(root_dir: Path, machine: Machine) -> None:
    node = {"path": "/dev/gpu0", "type": "c", "major": 240, "minor": 7}
    nodes = [node, {**node, "path": "/dev/x", "permissions": "r"}, {"path": "/dev/y", "hostPath": "/dev/null"}]
    nodes.append({"path": "/dev/z", "hostPath": "/dev/null", "type": "c", "minor": 7})
    devices = [{"name": "0", "containerEdits": {"deviceNodes": nodes}}]
    machine.file("/etc/cdi/v.json", json.dumps({"cdiVersion": "0.6.0", "kind": "v.com/gpu", "devices": devices}))
    text = document({"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/gpu*"]}}, kubelet={"root": str(root_dir)})
    asked = {"CDI_devices": [{"name": "v.com/gpu=0"}]}, {"linux": {"devices": [node]}}
    owners = owned(CDI, "v.com/gpu=0"), owned(DEVICES, "/dev/gpu0")
    null = {"type": "c", "major": 1, "minor": 3}
    injected = [node, {**node, "path": "/dev/x"}, {"path": "/dev/y", **null}, {"path": "/dev/z", **null}]
    numbers = {key: node[key] for key in null}
    rules = [{**numbers, "access": "rwm"}, {**numbers, "access": "r"}, *[{**null, "access": "rwm"}] * 2]
    disk = {**node, "type": "b"}
    for adjust, made, allowed in (
        (asked[0], injected, rules),
        (asked[1], [node], [{**numbers, "access": "rw"}]),
        ({"linux": {"devices": [disk]}}, [disk], [{**numbers, "type": "b", "access": "rwm"}]),
    ):
        create = create_request([])
        merged = Merged(VALIDATE(pod=create.pod, container=create.container, adjust=adjust))
        assert (oci.objects(merged.devices), oci.objects(merged.device_rules)) == (
            made,
            [{"allow": True, **rule} for rule in allowed],
        )
    for adjust, owner in zip(asked, owners, strict=True):
        with running(root_dir, text, version=KNOWN) as plugin:
            assert not plugin.validate(create_request([]), adjust={}).reject
            answer = plugin.validate(create_request([]), adjust=adjust, owners=owner)
            assert "rule gpu: not allocated: device /dev/gpu0 (c 240:7) is in the container after the" in answer.reason
            assert "plugin 20-late" in answer.reason
            assert answer.reject


@pytest.mark.users  # mknod(2)
def test_block_device_of_a_cdi_spec_without_its_type_is_one(root_dir: Path, machine: Machine) -> None:
    os.mknod(root_dir / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    nodes = [{"path": "/dev/x", "hostPath": str(root_dir / "disk")}]
    devices = [{"name": "0", "containerEdits": {"deviceNodes": nodes}}]
    machine.file("/etc/cdi/v.json", json.dumps({"cdiVersion": "0.6.0", "kind": "v.com/gpu", "devices": devices}))
    create = create_request([])
    adjust = {"CDI_devices": [{"name": "v.com/gpu=0"}]}
    merged = Merged(VALIDATE(pod=create.pod, container=create.container, adjust=adjust))
    assert oci.objects(merged.devices) == [{"path": "/dev/x", "type": "b", "major": 7, "minor": 250}]


def test_cdi_spec_that_cannot_be_read_is_for_the_failure_policy(root_dir: Path, machine: Machine) -> None:
    machine.file("/etc/cdi/vendor.json", mode=0o666)
    adjust = {"CDI_devices": [{"name": "vendor.com/gpu=0"}]}
    for mode, rejected in (("Fail", True), ("Ignore", False)):
        with running(root_dir, document(GPU, failurePolicy=mode), version=KNOWN) as plugin:
            plugin.create(["GPU=all"])
            assert plugin.validate(create_request(["GPU=all"]), adjust=adjust).reject is rejected
            written = [event["event"] for event in events_of(plugin)]
            assert written == (["container.error"] if rejected else ["container.edited", "container.error"])
            plugin.events.unlink()


def test_cdi_device_of_no_spec_that_is_read_counts_only_where_a_rule_applies(root_dir: Path) -> None:
    """The engine may read other directories of specs."""
    adjust = {"CDI_devices": [{"name": "vendor.com/unheard-of=0"}]}
    for namespaces, rejected in ((["team-a"], False), (["other"], True)):
        with running(root_dir, document(GPU, exclude={"namespaces": namespaces}), version=KNOWN) as plugin:
            answer = plugin.validate(create_request(["GPU=void"]), adjust=adjust)
            assert answer.reject is rejected
            assert ("CDI device vendor.com/unheard-of=0" in answer.reason) is rejected


def test_nul_and_sizes_are_refused(root_dir: Path) -> None:
    with running(root_dir, POLICY, version=KNOWN) as plugin:
        adjust = {"env": [{"key": "GPU", "value": "void"}, {"key": "A", "value": "a\0b"}]}
        assert "holds a NUL" in plugin.validate(create_request(["GPU=all"]), adjust=adjust).reason
        many = create_request(["A=1"] * 100_001)
        assert "limit of 100000 entries" in plugin.validate(many, adjust={}).reason


def test_container_that_the_failure_policy_let_start_is_not_refused_afterwards(root_dir: Path) -> None:
    """The decision failed: no runtime takes an answer of this size."""
    long = {"name": "long", "env": [{"name": f"LONG_{at}", "value": "x" * 100_000} for at in range(6)]}
    with running(root_dir, document(GPU, long, failurePolicy="Ignore"), version=KNOWN) as plugin:
        assert plugin.create(["GPU=all"]).status.code == 0
        assert not plugin.validate(create_request(["GPU=all"]), adjust={}).reject
        assert [event["event"] for event in events_of(plugin)] == ["container.error"]


@marks.claim("later-plugins", "nri")
def test_late_answer_refuses(root_dir: Path) -> None:
    """The runtime's limit is for this question as for others."""
    with running(root_dir, POLICY, version=KNOWN) as plugin:
        plugin.create(["GPU=all"])
        plugin.decider.asked = True
        create = create_request(["GPU=all"])
        stream = plugin.peer.send(
            "ValidateContainerAdjustment", VALIDATE(pod=create.pod, container=create.container), timeout=4 * TICK
        )
        answered, response = plugin.peer.response()
        assert answered == stream
        assert ttrpc.get("ValidateContainerAdjustmentResponse").FromString(response.payload).reject
        plugin.decider.go.set()
        wait_until(lambda: len(events_of(plugin)) == 1)
        assert events_of(plugin)[0]["event"] == "container.denied"


@pytest.mark.users  # a mount of FUSE by the machine's own root
@pytest.mark.parametrize("another", [False, True])
def test_an_adjusted_container_that_starts_after_a_late_answer_has_its_event_once(
    root_dir: Path, machine: Machine, another: bool
) -> None:
    """`another`: a further container is created while the directory of CDI specs hangs."""
    need(os.path.exists("/dev/fuse"), "/dev/fuse")
    with (
        stalling(root_dir) as volume,
        running(root_dir, document(GPU, failurePolicy="Ignore"), version=KNOWN) as plugin,
    ):
        os.symlink(volume.path, "/etc/cdi")
        volume.stall()
        plugin.create(["GPU=all"])
        create = create_request(["GPU=all"])
        request = VALIDATE(pod=create.pod, container=create.container, adjust={"CDI_devices": [{"name": "a/b=0"}]})
        streams = [plugin.peer.send("ValidateContainerAdjustment", request, timeout=4)]
        if another:
            streams.append(plugin.peer.send("CreateContainer", create_request(["GPU=void"], id="c1")))
        answers = dict(plugin.peer.response() for _ in streams)
        assert not ttrpc.get("ValidateContainerAdjustmentResponse").FromString(answers[streams[0]].payload).reject
        volume.answer()
        wait_until(lambda: len(events_of(plugin)) == 2)
        plugin.peer.call("StateChange", ttrpc.get("Empty")())
        assert [event["event"] for event in events_of(plugin)] == ["container.edited", "container.error"]
        assert plugin.metric("reassert_edits_total", rule="gpu", kind="env", result="asked") == 1


# -- generated: what the plugin asks for itself is never refused afterwards

_NAMES = st.sampled_from(["GPU", "CA", "NVIDIA_X", "PATH", "A"])
_ENV = st.lists(st.builds("{}={}".format, _NAMES, st.sampled_from(["void", "all", ""])), max_size=6)
_PATHS = st.sampled_from(["/etc/ssl", "/etc/ssl/", "/etc//ssl", "/etc/ssl/certs", "/opt", "/etc/ssl/own/x", "/srv/a/b"])


@pytest.fixture(scope="module")
def deciders() -> Iterator[dict[str, Decider]]:
    """A decider for each version of containerd."""
    report = Report("/dev/null", NoMetrics())
    yield {version: _decider(version, report) for version in ("2.2.0", "2.4.0")}
    report.close()


@given(
    env=_ENV,
    mounts=st.lists(st.builds(bind, _PATHS, st.sampled_from(["/srv/evil", "/srv/other"])), max_size=4),
    version=st.sampled_from(["2.2.0", "2.4.0"]),
)
@examples(200)
def test_what_the_plugin_asks_for_is_not_refused_afterwards(
    deciders: dict[str, Decider], env: list[str], mounts: list[dict[str, Any]], version: str
) -> None:
    decider = deciders[version]
    create = create_request(env, mounts=mounts)
    reply = decider.create(Request(CREATE), create.pod, create.container)
    assume(not reply.refusal)
    adjust = RESPONSE.FromString(reply.payload).adjust
    asked = VALIDATE(pod=create.pod, container=create.container, adjust=adjust)
    assert decider.validate(Request("validate"), asked).refusal == ""
    # and without it, it is refused if it was needed
    without = decider.validate(Request("validate"), VALIDATE(pod=create.pod, container=create.container))
    assert bool(without.refusal) is bool(reply.payload), (env, mounts)


def _decider(version: str, report: Report) -> Decider:
    """One with a policy of its own, which needs no file of the node but a directory that is always there."""
    rules = {
        "name": "r",
        "env": [{"name": "GPU", "value": "void"}, {"name": "NVIDIA_*", "absent": True}],
        "mounts": [{"mountPath": "/etc/ssl", "hostPath": "/usr", "allowBelow": ["/etc/ssl/own"]}],
    }
    made = policy(rules)
    decider = Decider(Resident("/nowhere/policy.yaml", "/nowhere"), report)
    decider.resident.get = lambda patience=0.0: made  # type: ignore[method-assign]  # a policy without a file
    decider.removes_mounts = version_at_least("containerd", version, REMOVES_MOUNTS)
    return decider
