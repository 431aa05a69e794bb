"""What is asked of NRI, and that what it cannot do is a reason to refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import marks
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook.core.container import oci
from hook.core.container.oci import Device, Mount
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.facts.exclusive import Devices
from hook.core.plan import Plan, plan
from hook.core.reserve.edits import Edit
from hook.core.reserve.listed_annotations import DropAnnotation
from hook.core.reserve.place_device import PlaceDevice
from hook.core.reserve.place_mount import PlaceMount
from hook.nri.adjust import Adjustment, adjust, in_order, mount_leftovers, own_parts, predicted_mounts
from unit.nri.support import RESPONSE
from unit.support import POD, bind, policy


def planned(container: Container, *rules: dict[str, Any]) -> Plan:
    return plan(policy(*rules), container)


def gpu(value: str | None = "void") -> dict[str, Any]:
    want = {"absent": True} if value is None else {"value": value}
    return {"name": "gpu", "env": [{"name": "GPU", **want}]}


def predicted_env(env: list[str], wanted: dict[str, str]) -> list[str]:
    """process.env after the adjustment, step by step as generate.AdjustEnv goes."""
    if not wanted:
        return list(env)
    left = dict(wanted)
    final: dict[str, str] = {}
    for entry in env:
        name, equals, value = entry.partition("=")
        if equals:
            final[name] = left.pop(name) if name in left else value
    final.update(left)
    return [f"{name}={value}" for name, value in final.items()]


@pytest.mark.parametrize(
    ("env", "wanted", "final"),
    [
        (["A=1", "GPU=all"], {"GPU": "void"}, ["A=1", "GPU=void"]),
        (["GPU=x", "A=1", "GPU=all"], {"GPU": "void"}, ["GPU=all", "A=1"]),
        (["A=1", "A=2", "BARE"], {"GPU": "void"}, ["A=2", "GPU=void"]),
        (["A=1", "A=2", "BARE"], {}, ["A=1", "A=2", "BARE"]),
    ],
)
def test_env_after_an_adjustment_as_recorded_on_containerd(
    env: list[str], wanted: dict[str, str], final: list[str]
) -> None:
    assert predicted_env(env, wanted) == final


names = st.sampled_from(["GPU", "A"])
entries = st.lists(st.tuples(names, st.sampled_from(["void", "all", None])), max_size=5)


@example([("GPU", None)], None, False)
@given(entries, st.sampled_from(["void", None]), st.booleans())
def test_a_container_either_gets_what_the_policy_wants_or_is_refused(
    pairs: list[tuple[str, str | None]], value: str | None, more: bool
) -> None:
    env = [name if given is None else f"{name}={given}" for name, given in pairs]
    container = Container(POD, Start(env, []))
    other = {"name": "other", "env": [{"name": "OTHER", "value": "1"}]}
    adjustment, denials = adjust(planned(container, gpu(value), *[other] * more), container, True)
    final = [entry for entry in predicted_env(env, adjustment.env) if entry.partition("=")[0] == "GPU"]
    assert bool(denials) == (final != ([] if value is None else [f"GPU={value}"]))
    assert all("GPU" in denial.message and denial.rule == "gpu" for denial in denials)


def test_absent_name_without_a_value_goes_with_what_else_is_set() -> None:
    """NRI drops entries without `=` as soon as it sets a name; a name that must be absent it cannot be asked for."""
    other = {"name": "other", "env": [{"name": "OTHER", "value": "1"}]}
    container = Container(POD, Start(["GPU"], []))
    adjustment, denials = adjust(planned(container, gpu(None), other), container, True)
    assert (adjustment.env, denials) == ({"OTHER": "1"}, [])


def test_name_that_nri_takes_for_a_removal_is_refused() -> None:
    rule = {"name": "gpu", "env": [{"name": "-GPU", "value": "1"}]}
    container = Container(POD, Start(["GPU=all"], []))
    adjustment, [denial] = adjust(planned(container, rule), container, True)
    assert adjustment.env == {}
    assert "it takes a name that begins with - for a removal" in denial.message


class Rlimit(Edit):
    """Of a kind that NRI does not know."""

    kind = "rlimit"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"access": "rwm"}, "NRI cannot give the mknod access that /dev/gpu0 has"),
        ({"access": "rwm", "type": "b"}, ""),
        ({"before": "/dev/gpu0"}, ""),
        ({"before": "/dev//gpu0"}, "the container has device /dev/gpu0 under another spelling of its path"),
    ],
)
def test_device_is_asked_for_as_far_as_nri_can_give_it(more: dict[str, str], why: str) -> None:
    device = {"path": "/dev/gpu0", "type": more.get("type", "c"), "major": 240, "minor": 0}
    before = [Device({**device, "path": more["before"]})] if "before" in more else []
    edit = PlaceDevice(
        "gpu", "/dev/gpu0", Device(device), access=more.get("access", "rw"), before=before, origin="vendor.com/gpu"
    )
    decided: Any = SimpleNamespace(edits=[edit])
    adjustment, denials = adjust(decided, Container(POD, Start([], [])), True)
    assert (oci.objects(adjustment.devices), [denial.message for denial in denials]) == ([device], [why] if why else [])


def test_edit_of_another_kind_is_refused_and_an_annotation_is_not() -> None:
    decided: Any = SimpleNamespace(edits=[Rlimit("r", "NOFILE"), DropAnnotation("a", "x", "1")])
    adjustment, denials = adjust(decided, Container(POD, Start([], [])), True)
    assert adjustment.annotations == ["x"]
    assert [str(denial) for denial in denials] == [
        "rule r: rlimit NOFILE is not what the policy wants, and NRI cannot change it"
    ]


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    (tmp_path / "certs").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    return tmp_path


def company(ca: Path, **more: Any) -> dict[str, Any]:
    return {"name": "ca", "mounts": [{"hostPath": str(ca), "mountPath": "/etc/ssl", **more}]}


def mounts_after(paths: list[str], ca: Path, removes: bool, **more: Any) -> tuple[list[tuple[str, str]], list[str]]:
    there = [bind("/proc"), *(bind(path) for path in paths), bind("/var/run/secrets/token")]
    container = Container(POD, Start([], there))
    adjustment, denials = adjust(planned(container, company(ca, **more)), container, removes)
    final = predicted_mounts(container.start.mounts, adjustment)
    found = [(mount.destination, mount.source) for mount in final if "ssl" in mount.destination]
    return found, [denial.message for denial in denials]


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("paths", [[], ["/etc/ssl"], ["/etc/ssl/certs"], ["/etc//ssl/", "/etc/ssl"]])
def test_ours_is_what_the_container_sees(ca: Path, paths: list[str], removes: bool) -> None:
    found, denials = mounts_after(paths, ca, removes)
    assert denials == []
    assert ("/etc/ssl", str(ca)) in found
    wanted = {"/etc/ssl/certs": f"{ca}/certs"}
    assert all(source == wanted.get(at, str(ca)) for at, source in found)


def test_a_mount_below_goes_where_nri_can_remove_it(ca: Path) -> None:
    assert mounts_after(["/etc/ssl/missing"], ca, True) == ([("/etc/ssl", str(ca))], [])


@pytest.mark.parametrize("below", ["/etc/ssl/missing", "/etc/ssl/link"])
def test_where_it_cannot_and_we_have_no_such_part_the_container_is_refused(ca: Path, below: str) -> None:
    """Nor may a pod choose which of the node's symbolic links are followed."""
    _, [denial] = mounts_after([below], ca, False)
    assert denial == f"mount {below} conflicts with the reserved mount /etc/ssl, and NRI cannot remove it"


def test_below_a_mount_that_can_be_written_no_part_is_mounted(ca: Path) -> None:
    """Another container could have put a link in the part's place."""
    assert mounts_after(["/etc/ssl/certs"], ca, False)[1] == []
    _, [denial] = mounts_after(["/etc/ssl/certs"], ca, False, readOnly=False)
    assert denial == "mount /etc/ssl/certs conflicts with the reserved mount /etc/ssl, and NRI cannot remove it"


def test_mount_above_that_comes_later_hides_ours_and_only_our_own_part_is_ours(ca: Path) -> None:
    ours, part = Mount(bind("/etc/ssl", str(ca))), bind("/etc/ssl/certs", f"{ca}/certs")
    edit = PlaceMount("ca", "/etc/ssl", ours, companions=frozenset(), before=[])
    assert mount_leftovers(edit, [ours, *oci.mounts([bind("/etc"), bind("/opt")])], []) == ["/etc"]
    assert mount_leftovers(edit, [Mount(bind("/etc")), ours], []) == []
    there = [bind("/etc/ssl/certs", "/srv/evil"), part, bind("/etc/sslx", f"{ca}x")]
    assert [mount.source for mount in own_parts(edit, Container(POD, Start([], there)))] == [f"{ca}/certs"]


def test_two_mounts_of_the_very_same_text_are_refused(ca: Path) -> None:
    """NRI replaces the first; which of the others comes last is its sorting's affair."""
    assert mounts_after(["/etc/ssl", "/etc/ssl"], ca, True)[1]
    container = Container(POD, Start([], [bind("/etc/ssl/certs"), bind("/etc/ssl/certs")]))
    adjustment, [denial] = adjust(planned(container, company(ca)), container, True)
    assert adjustment.removed == ["/etc/ssl/certs"]
    assert "mount /etc/ssl/certs conflicts" in denial.message


def test_mounts_are_in_order_of_their_depth_and_then_of_their_text() -> None:
    paths = ["/b/../b/c", "/c", "d", "/a/b/c", "/a/b", "//a", "/"]
    assert [mount.destination for mount in in_order(oci.mounts([bind(path) for path in paths]))] == [
        "d",
        "/",
        "//a",
        "/c",
        "/a/b",
        "/b/../b/c",
        "/a/b/c",
    ]


def test_what_is_let_through_stays(ca: Path) -> None:
    found, denials = mounts_after(["/etc/ssl/private"], ca, True, allowBelow=["/etc/ssl/private"])
    assert (found, denials) == ([("/etc/ssl", str(ca)), ("/etc/ssl/private", "/pod")], [])


@pytest.mark.parametrize("removes", [True, False])
def test_a_path_where_nothing_may_be_mounted(removes: bool) -> None:
    container = Container(POD, Start([], [bind("/x")]))
    rule = {"name": "none", "mounts": [{"mountPath": "/x", "absent": True}]}
    adjustment, denials = adjust(planned(container, rule), container, removes)
    assert (adjustment.removed, bool(denials)) == ((["/x"], False) if removes else ([], True))


def test_the_message_has_what_was_asked_and_nothing_else() -> None:
    """Also at the second time, when the entries that containers share were encoded before."""
    adjustment = Adjustment()
    adjustment.env = {"A": "1", "B": "x" * 200}
    adjustment.mounts = oci.mounts([bind("/a", "/srv/a"), bind("/b", "/srv/b")])
    adjustment.removed = ["/x"]
    adjustment.annotations = ["gpu"]
    device: oci.Json = {"path": "/dev/d", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}
    adjustment.devices = [Device(device)]
    for _ in range(2):
        response = RESPONSE.FromString(adjustment.payload())
        assert {field.name for field, _ in response.ListFields()} == {"adjust"}
        made = response.adjust
        assert [(entry.key, entry.value) for entry in made.env] == [("A", "1"), ("B", "x" * 200)]
        assert [(mount.destination, mount.source) for mount in made.mounts] == [
            ("/a", "/srv/a"),
            ("/b", "/srv/b"),
            ("-/x", ""),
        ]
        assert made.mounts[0].options[:] == bind("/a", "/srv/a")["options"]
        assert dict(made.annotations) == {"-gpu": ""}
        [device] = made.linux.devices
        assert (device.path, device.major, device.minor, device.file_mode.value) == ("/dev/d", 1, 3, 0o666)
        assert {field.name for field, _ in made.ListFields()} == {"env", "mounts", "linux", "annotations"}


EXCLUSIVE = {"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/gpu*"]}}


def closed(mounts: list[dict[str, object]], **fields: Any) -> tuple[Plan, Container]:
    """A node with a device that was not allocated to the container."""
    container = Container(POD, Start([], mounts, **fields))
    found = container.facts.devices = Devices()
    found.nodes = {"/dev/gpu*": {("c", 240, 0): "/dev/gpu0"}}
    found.sources = {"/dev/gpu0": {("c", 240, 0)}, "/pod": set()}
    return planned(container, EXCLUSIVE), container


@marks.claim("exclusive", "nri")
@pytest.mark.parametrize(
    ("mounts", "removed", "refused"),
    [
        ([bind("/x", "/dev/gpu0"), bind("/a")], ["/x"], False),
        ([bind("/x", "/dev/gpu0"), bind("/x", "/dev/gpu0")], ["/x"], True),  # only the first of the same text
        ([bind("/x"), bind("/x", "/dev/gpu0")], ["/x"], True),
        ([bind("/a")], [], False),
    ],
)
def test_mount_of_a_device_that_was_not_allocated_is_removed_where_nri_can(
    mounts: list[dict[str, object]], removed: list[str], refused: bool
) -> None:
    decided, container = closed(mounts, device_rules=[{"allow": False, "access": "rwm"}])
    adjustment, denials = adjust(decided, container, removes_mounts=True)
    assert (adjustment.removed, bool(denials)) == (removed, refused)
    _, denials = adjust(decided, container, removes_mounts=False)
    assert bool(denials) == bool(removed)


def test_mount_of_a_device_in_the_place_of_a_reserved_one_is_replaced_and_not_removed_too(ca: Path) -> None:
    _, container = closed([bind("/etc/ssl", "/dev/gpu0")], device_rules=[{"allow": False, "access": "rwm"}])
    adjustment, denials = adjust(planned(container, EXCLUSIVE, company(ca)), container, removes_mounts=True)
    assert ([mount.source for mount in adjustment.mounts], adjustment.removed, denials) == ([str(ca)], [], [])


@marks.claim("exclusive", "nri")
@pytest.mark.parametrize(
    "fields",
    [
        {"devices": [{"path": "/dev/gpu0", "type": "c", "major": 240, "minor": 0}]},
        {"device_rules": [{"allow": True, "access": "rwm"}]},
    ],
    ids=["device", "privileged"],
)
def test_device_that_was_not_allocated_is_refused(fields: dict[str, Any]) -> None:
    decided, container = closed([], **{"device_rules": [{"allow": False, "access": "rwm"}], **fields})
    adjustment, denials = adjust(decided, container, removes_mounts=True)
    assert adjustment.devices == []
    [denial] = denials
    assert str(denial).startswith("rule gpu: not allocated: ")
    assert str(denial).endswith("NRI cannot remove it, the runtime wrapper (reassert runtime) can")
