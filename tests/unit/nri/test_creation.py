"""What is read of a request is all that the decision needs, at every request anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hook.core.base.compare import clean
from hook.core.base.errors import Unacceptable
from hook.core.base.text import WHERE_TO_LOOK
from hook.core.container.identity import APP_TYPES
from hook.core.policy.model import select
from hook.nri import ttrpc
from hook.nri.creation import REMOVES_MOUNTS, SENDS_CDI, identify, version_at_least
from hook.nri.requested import RequestedMount
from unit.kubelet import claim, entry, state, write_checkpoint
from unit.nri.support import RESPONSE, create_request, running, wait_until
from unit.ownmachine import Machine
from unit.support import document, policy

DEVICES = {"name": "devices", "deviceAllocations": {"devices": True}}
ANNOTATIONS = {"name": "annotations", "annotations": [{"name": "gpu.example/*", "absent": True}]}
REPLACED = {"path": "/dev/gpu0", "type": "c", "major": 1, "minor": 5}
ALLOCATED = {**REPLACED, "minor": 3}
RULE = {"allow": True, "type": "c", "major": {"value": 1}, "minor": {"value": 3}, "access": "rw"}


def adjusted(response: Any) -> Any:
    """The adjustment in an answer."""
    assert not response.status.code
    return RESPONSE.FromString(response.payload).adjust


def test_devices_matter_from_the_moment_that_kubelet_has_allocated_one(root_dir: Path) -> None:
    with running(root_dir, document(DEVICES, kubelet={"root": str(root_dir)})) as plugin:

        def devices(device: dict[str, Any], *rules: dict[str, Any]) -> list[tuple[str, int]]:
            answer = plugin.create([], linux={"devices": [device], "resources": {"devices": rules}})
            return [(device.path, device.minor) for device in adjusted(answer).linux.devices]

        assert devices(REPLACED) == []
        spec = {"container_path": "/dev/gpu0", "host_path": "/dev/null", "permissions": "rw"}
        write_checkpoint(root_dir, entry("1-2-3", "app", "GPU-4", devices=[spec]))
        assert devices(REPLACED, RULE) == [("/dev/gpu0", 3)]
        assert plugin.logged()[-1]["edits"][0]["before"] == [REPLACED]
        assert devices(ALLOCATED) == [("/dev/gpu0", 3)]  # for want of access
        assert devices(ALLOCATED, RULE) == []
        every = {"allow": True, "access": "rwm"}  # a rule without type and numbers is about all devices (runtime-spec)
        for rule, gives_access in (
            (every, True),
            ({**every, "type": "b"}, False),
            ({**every, "type": "c", "major": {"value": 1}}, True),
            ({**every, "type": "c", "minor": {"value": 3}}, True),
            ({**every, "type": "c", "major": {"value": 0}}, False),
            ({**every, "type": "c", "minor": {"value": 0}}, False),
            ({**RULE, "minor": {"value": 5}}, False),
            ({**RULE, "allow": False}, False),
            ({**RULE, "access": "r"}, False),
        ):
            assert devices(ALLOCATED, rule) == ([] if gives_access else [("/dev/gpu0", 3)]), rule
        write_checkpoint(root_dir, entry("1-2-3", "other", "GPU-4", devices=[spec]))
        assert devices(REPLACED, RULE) == []


@marks.claim("exclusive-claims", "nri")
@pytest.mark.parametrize(
    ("version", "asked", "stays"),
    [
        ("2.1.9", [], True),
        ("2.3.0", ["v.example/gpu=0"], True),
        ("2.3.0", ["v.example/gpu=1"], False),
        ("2.3.0", [], False),
    ],
)
def test_cdi_devices_that_kubelet_asked_for_are_exact(
    root_dir: Path, machine: Machine, version: str, asked: list[str], stays: bool
) -> None:
    """containerd hands them over from 2.3 on; before, each container of the pod may have its claims' devices."""
    edits = {"mounts": [{"hostPath": "/lib/gpu", "containerPath": "/usr/gpu"}]}
    devices = [{"name": "0", "containerEdits": edits}, {"name": "1", "containerEdits": {"env": ["A=1"]}}]
    machine.file("/etc/cdi/gpu.json", json.dumps({"kind": "v.example/gpu", "devices": devices}))
    owned = claim("mine", "1-2-3", devices={"d": ["v.example/gpu=0", "v.example/gpu=1"]})
    (root_dir / "dra_manager_state").write_bytes(state([owned]))
    rule = {"name": "r", "deviceAllocations": {"exclusive": ["v.example/gpu"]}, "onConflict": "Deny"}
    mount = {"destination": "/usr/gpu", "type": "bind", "source": "/lib/gpu", "options": ["bind"]}
    with running(root_dir, document(rule, kubelet={"root": str(root_dir)}), version=version) as plugin:
        answer = plugin.create([], mounts=[mount], CDI_devices=[{"name": name} for name in asked])
        assert ("not allocated: mount /usr/gpu" in answer.status.message) is not stays


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_mount_in_the_way_is_seen_wherever_it_stands(root_dir: Path, position: int) -> None:
    rule = {"name": "r", "mounts": [{"hostPath": str(root_dir), "mountPath": "/ca"}]}
    paths = ["/proc", "/data"]
    paths.insert(position, "/ca/mine")
    mounts = [{"destination": path, "type": "bind", "source": "/x", "options": ["rbind"]} for path in paths]
    with running(root_dir, document(rule)) as plugin:
        asked = [mount.destination for mount in adjusted(plugin.create([], mounts=mounts)).mounts]
        assert asked == ["/ca", "-/ca/mine"]
        assert plugin.logged()[-1]["edits"][0]["before"] == [{"destination": "/ca/mine", "source": "/x"}]


@pytest.mark.parametrize("conflict", ["Override", "Deny"])
def test_no_value_of_a_container_is_told(root_dir: Path, capsys: pytest.CaptureFixture[str], conflict: str) -> None:
    """Not in the log, on standard output, which goes to the journal, nor to the runtime."""
    secret = "pl4nted-s3cret"
    env = [{"name": "*_TOKEN", "absent": True}, {"name": "CA", "value": "/ca.pem"}]
    rule = {"name": "r", "env": env, "annotations": ANNOTATIONS["annotations"], "onConflict": conflict}
    given = [f"A_TOKEN={secret}", f"CA={secret}", f"CA={secret}"]
    with running(root_dir, document(rule)) as plugin:
        response = plugin.create(given, annotations={"gpu.example/a": secret})
        assert response.status.code, "NRI can remove no env"
        [event] = [event for event in plugin.logged() if event["event"] == "container.denied"]
    assert {edit["name"] for edit in event["edits"]} == {"A_TOKEN", "CA", "gpu.example/a"}
    assert all("hash" in str(edit["before"]) for edit in event["edits"])
    assert secret not in str(response) + (root_dir / "events.jsonl").read_text() + capsys.readouterr().out


def test_labels_that_the_engine_put_beside_the_pods_own_are_not_the_pods(root_dir: Path) -> None:
    key = "io.cri-containerd.kind"
    rule = {
        "name": "r",
        "match": {"podSelector": {"matchLabels": {key: "sandbox"}}},
        "env": [{"name": "A", "value": "1"}],
    }
    with running(root_dir, document(rule)) as plugin:
        assert not adjusted(plugin.create([], pod={"labels": {key: "sandbox", "app": "web"}})).env


ASKED: dict[str, dict[str, Any]] = {
    "env": {"env": ["A\0=1"]},
    "args": {"env": [], "args": ["/bin/sh", "a\0b"]},
    "mounts": {"env": [], "mounts": [{"destination": "/a\0b", "type": "bind", "source": "/x"}]},
    "mounts ": {"env": [], "mounts": [{"destination": "/a"}, {"destination": "/b", "source": "/x\0"}]},
    "mounts  ": {"env": [], "mounts": [{"destination": "/a", "options": ["ro", "rbind\0"]}]},
    "annotations": {"env": [], "annotations": {"a\0": "b"}},
}


@marks.hole("A NUL after a reserved env name made crun drop the variable")
@pytest.mark.parametrize("part", ASKED)
def test_a_nul_is_refused_whatever_the_failure_policy(root_dir: Path, part: str) -> None:
    """crun ends a string there: of an env entry NAME, NUL, `=x` it unsets NAME."""
    with running(root_dir, document(ANNOTATIONS, failurePolicy="Ignore")) as plugin:
        status = plugin.create(**ASKED[part]).status
        why = f"a string in the container's {part.strip()} holds a NUL"
        assert status.message == f"reassert: refused team-a/web-1/app: {why}{WHERE_TO_LOOK}"
        assert plugin.logged()[-1]["event"] == "container.denied"


@pytest.mark.parametrize("part", ["mounts", "destinations", "devices", "device rules"])
def test_what_does_not_decode_is_refused_whatever_the_failure_policy(root_dir: Path, part: str) -> None:
    """A text that is not UTF-8, in a field that is only decoded when a decision needs it."""
    create = create_request([])
    broken = {"mounts": b"\x0a\x05/ca/x\x1a\x01\xff", "destinations": b"\x0a\x01\xff"}.get(part, b"\x12\x01\xff")
    if part in ("mounts", "destinations"):
        create.container.mounts.append(broken)
    elif part == "devices":
        create.container.linux.devices.append(broken)
    else:
        create.container.linux.resources.devices.append(broken)
    rule = {"name": "r", "mounts": [{"hostPath": str(root_dir), "mountPath": "/ca"}]}
    with running(root_dir, document(rule, failurePolicy="Ignore")) as plugin:
        status = plugin.peer.call("CreateContainer", create).status
        assert "does not decode" in status.message


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.text(st.characters(codec="utf-8")))
def test_a_mounts_destination_is_read_as_the_message_has_it(destination: str, source: str) -> None:
    mount = ttrpc.get("Mount")(destination=destination, type="bind", source=source).SerializeToString()
    assume("\0" not in destination + source)
    assert RequestedMount(mount).path == clean(destination)
    for end in range(1, min(len(mount), 2 + len(destination.encode()))):  # cut within the destination
        with pytest.raises(Unacceptable):
            RequestedMount(mount[:end])


def test_mounts_are_decoded_only_where_one_may_matter(root_dir: Path) -> None:
    """One that does not decode is noticed only then."""
    broken = ttrpc.get("Mount")(destination="/data").SerializeToString() + b"\x1a\x01\xff"
    rule = {"name": "r", "mounts": [{"hostPath": str(root_dir), "mountPath": "/ca"}]}
    with running(root_dir, document(rule), version="2.0.0") as plugin:

        def refused(*paths: str) -> str:
            mounts = [{"destination": path, "type": "bind", "source": "/x", "options": ["rbind"]} for path in paths]
            create = create_request([], mounts=mounts)
            create.container.mounts.append(broken)
            message: str = plugin.peer.call("CreateContainer", create).status.message
            return message

        assert refused("/proc", "/cab", "/x/ca") == ""
        assert "does not decode" in refused("/proc", "//ca/below")


@pytest.mark.parametrize(
    "asked",
    [
        {"env": ["A"] * 100_001},
        {"env": [], "args": ["A"] * 100_001},
        {"env": [], "mounts": [{"destination": "/a"}] * 25_001},
        {"env": [], "annotations": {str(number): "" for number in range(100_001)}},
        {"env": [], "linux": {"devices": [{"path": "/a"}] * 25_001}},
        {"env": [], "linux": {"resources": {"devices": [{"allow": True}] * 25_001}}},
    ],
    ids=["env", "args", "mounts", "annotations", "devices", "device rules"],
)
def test_more_entries_than_a_config_may_have_are_refused(
    root_dir: Path, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hook.nri.plugin.DEADLINE", 600.0)  # to read them takes longer than that on a busy machine
    with running(root_dir, document(ANNOTATIONS, failurePolicy="Ignore")) as plugin:
        status = plugin.peer.call("CreateContainer", create_request(**asked), timeout=600).status
        assert "have more than the limit of 100000 entries together" in status.message
        wait_until(lambda: plugin.logged()[-1]["event"] == "container.denied")


@marks.cve("CVE-2026-50195")
@pytest.mark.parametrize("name", ["registry.example:5000/app:1", "registry.example:5000/app"])
def test_digest_of_an_image_counts_beside_its_name(name: str) -> None:
    """NRI 0.13 sends it; earlier versions have the name alone."""
    request = create_request([], annotations={"io.kubernetes.cri.image-name": name})
    request.container.image.digest = "sha256:" + "a" * 64
    for pattern, met in ((name, True), ("*@sha256:" + "a" * 64, True), ("*/other@*", False), ("*@sha256:b*", False)):
        made = policy({"name": "r", "match": {"images": [pattern]}, "env": [{"name": "A", "value": "1"}]})
        [match] = select(made, identify(request.pod, request.container, "containerd"))
        assert match.applies == met
    exact = "registry.example:5000/app@sha256:" + "a" * 64
    assert identify(request.pod, request.container, "containerd").digest == exact


@marks.hole("Under CRI-O, a second tag of an image bypassed a rule with `images`")
def test_of_cri_o_only_the_image_that_kubelet_asked_for_is_believed() -> None:
    notes = {"io.kubernetes.cri-o.ImageName": "registry.example/other:1"}
    request = create_request([], annotations=notes)
    assert identify(request.pod, request.container, "cri-o").image is None
    request.container.annotations["io.kubernetes.cri-o.Image"] = "registry.example/app:1"
    assert identify(request.pod, request.container, "cri-o").image == "registry.example/app:1"
    assert identify(request.pod, request.container, "containerd").image is None


def test_what_a_runtime_does_not_say_is_unknown() -> None:
    request = create_request([], name="", pod={"name": "", "namespace": "", "uid": ""})
    found = identify(request.pod, request.container, "containerd")
    assert (found.namespace, found.pod, found.uid, found.container, found.image) == (None,) * 5
    assert found.types == APP_TYPES
    assert (found.kubernetes, found.cdi) == (True, identify(request.pod, request.container, "cri-o").cdi)


def test_the_mounts_of_gvisors_handlers_alone_lack_the_option_that_runsc_refuses(root_dir: Path) -> None:
    rule = {"name": "ca", "mounts": [{"hostPath": str(root_dir), "mountPath": "/etc/ssl", "readOnly": True}]}
    with running(root_dir, document(rule)) as plugin:
        plugin.decider.gvisor = frozenset(("", "gvisor"))
        options = {}
        for handler in ("", "gvisor", "runc", "gvisor2"):
            [mount] = adjusted(plugin.create([], pod={"runtime_handler": handler})).mounts
            options[handler] = "rro" in mount.options, "ro" in mount.options
        assert options == dict.fromkeys(("", "gvisor"), (False, True)) | dict.fromkeys(
            ("runc", "gvisor2"), (True, True)
        )


@pytest.mark.parametrize(
    ("handler", "key", "allowed", "starts"),
    [
        ("gvisor", "dev.gvisor.spec.mount.ca.type", [], False),
        ("gvisor", "dev.gvisor.spec.mount.ca.type", ["dev.gvisor.spec.mount.ca.*"], True),
        ("gvisor", "dev.gvisor.spec.cgroup-parent", [], True),
        ("gvisor", "run.oci.hooks.stderr", [], True),
        ("runc", "dev.gvisor.spec.mount.ca.type", [], True),
    ],
)
def test_a_pods_annotation_that_steers_the_sentry_refuses_its_containers(
    root_dir: Path, handler: str, key: str, allowed: list[str], starts: bool
) -> None:
    """GVisor takes those of the sandbox, for which no plugin is asked; NRI cannot remove a pod's."""
    rule = {"name": "ca", "env": [{"name": "A", "value": "1"}]}
    with running(root_dir, document(rule, allowedAnnotations=allowed)) as plugin:
        plugin.decider.gvisor = frozenset(("gvisor",))
        answer = plugin.create([], pod={"runtime_handler": handler, "annotations": {key: "tmpfs"}})
        assert (answer.status.code == 0) == starts
        assert starts or f"annotation {key}" in answer.status.message


@pytest.mark.parametrize(
    ("engine", "version", "found"),
    [
        ("containerd", "1.7.24", (False, False)),
        ("containerd", "v2.0.0-rc.1", (True, False)),
        ("containerd", "2.2.9", (True, False)),
        ("containerd", "2.3.0", (True, True)),
        ("containerd", "10.0", (True, True)),
        ("containerd", "", (False, False)),
        ("cri-o", "2.3.0", (False, False)),
    ],
)
def test_what_a_runtimes_nri_can_do_is_known_of_its_version(
    engine: str, version: str, found: tuple[bool, bool]
) -> None:
    assert tuple(version_at_least(engine, version, what) for what in (REMOVES_MOUNTS, SENDS_CDI)) == found
    assert not version_at_least(engine, version, {})
