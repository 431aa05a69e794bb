"""The decision about devices that no allocation accounts for: pure, from facts that are written here."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook.core.container import oci
from hook.core.container.oci import Mount
from hook.core.facts import Container, Facts
from hook.core.facts.exclusive import Devices
from hook.core.plan import Plan, plan
from hook.core.reserve.exclusive import Closed
from unit.allocated import spec
from unit.support import POD, bind, examples, policy

Json = dict[str, Any]
GPUS = {("c", 195, 0): "/dev/nvidia0", ("c", 195, 1): "/dev/nvidia1", ("c", 1, 7): "/dev/nvidia-full"}
OURS = ("c", 195, 1)
DENY_ALL, ALLOW_ALL = {"allow": False, "access": "rwm"}, {"allow": True, "access": "rwm"}


def facts(**more: Any) -> Facts:
    """A node with two GPUs, one of them allocated to the container, and a CDI spec that places a library."""
    found = Devices()
    found.nodes = {"/dev/nvidia*": dict(GPUS), "v/gpu": {("c", 240, 0): "/dev/other"}}
    found.placed = {"v/gpu": {("/lib/cuda.so", "/usr/lib/cuda.so"), ("/lib/ours.so", "/usr/lib/ours.so")}}
    found.allocated = {OURS}
    found.allocated_mounts = {"/lib/ours.so", "/srv/allocated"}
    found.directories = {(5, 1): {("c", 195, 0), OURS}}
    found.sources = {
        "/dev": {("c", 195, 0), OURS},
        "/dev/nvidia0": {("c", 195, 0)},
        "/dev/nvidia1": {OURS},
        "/dev/full": {("c", 1, 7)},
        "/dev/vda": {("b", 195, 0)},
        "/srv/allocated": {("c", 195, 0)},
    }
    for name, value in more.items():
        setattr(found, name, value)
    result = Facts()
    result.devices = found
    return result


def rule(*patterns: str, **more: Any) -> Json:
    return {"name": "gpu", "deviceAllocations": {"exclusive": list(patterns or ("/dev/nvidia*", "v/gpu"))}, **more}


def device(path: str, kind: str = "c", major: Any = 195, minor: Any = 0) -> Json:
    return {"path": path, "type": kind, "major": major, "minor": minor}


def allow(
    major: int | None = 195, minor: int | None = 0, kind: str = "c", access: str = "rw", yes: bool = True
) -> Json:
    numbers = {"major": major, "minor": minor}
    return {"allow": yes, "type": kind, **{k: v for k, v in numbers.items() if v is not None}, "access": access}


def container(target: Any, at: Facts) -> Container:
    return Container(POD, target, at)


def test_mount_that_the_policy_reserves_is_ours_in_any_spelling() -> None:
    closed = Closed([], Devices(), container(spec(), Facts()), [Mount(bind("/dev/..//gpu"))])
    assert [closed.is_ours(path) for path in ("/gpu", "/gpu/x", "/other")] == [True, False, False]


def decide(*rules: Json, at: Facts | None = None, **fields: Any) -> tuple[Plan, Any]:
    """The plan, and the spec with its edits in it; planned a second time, nothing is left to do."""
    at = at or facts()
    target = spec(**{"device_rules": [DENY_ALL], **fields})
    first = plan(policy(*(rules or (rule(),))), container(target, at))
    before = [list(target.devices), list(target.mounts), list(target.device_rules)]
    first.apply(target)
    if not first.refusal():
        assert plan(policy(*(rules or (rule(),))), container(target, at)).is_empty()
        assert (before == [target.devices, target.mounts, target.device_rules]) == (not first.edits)
    return first, target


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        (device("/dev/nvidia0"), False),
        (device("/dev/null2"), False),  # by its number, under any name
        (device("/dev/x", minor=1), True),  # allocated
        (device("/dev/nvidia1", minor=1), True),
        (device("/dev/nvidia0", minor=1), True),  # allocated, under another's name
        (device("/dev/nvidia9", minor=77), False),  # by its name: the node has no such node yet
        (device("/dev//x/../nvidia9", minor=77), False),
        (device("/dev/x", minor=77), True),
        (device("/dev/x", "b"), True),  # another device: block
        (device("/dev/nvidia-full", major=1, minor=7), True),  # /dev/full is everybody's
        (device("/dev/nvidia-pty", major=136, minor=4), True),
        (device("/dev/nvidia5", "b", 1, 7), False),
        (device("/dev/x", "u"), False),
        (device("/dev/x", major=195 + (1 << 12)), False),  # mknod(2) takes 12 bits
        (device("/dev/x", minor=1 << 20), False),  # and 20
        (device("/dev/x", major=240), False),  # of a CDI spec
        (device("/dev/nvidia0", "p"), True),
    ],
    ids=str,
)
def test_device(there: Json, stays: bool) -> None:
    decided, target = decide(devices=[there])
    assert oci.objects(target.devices) == ([there] if stays else [])
    assert [edit.kind for edit in decided.edits] == ([] if stays else ["device"])
    assert bool(decide(rule(onConflict="Deny"), devices=[there])[0].refusal()) is not stays


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        (bind("/host", "/dev"), False),
        (bind("/x", "/dev/nvidia0"), False),
        (bind("/dev/nvidia9", "/dev/vda"), False),  # a device under a closed name
        (bind("/x", "/dev/vda"), True),
        (bind("/x", "/dev/nvidia1"), True),
        (bind("/dev/nvidia0", "/dev/full"), True),
        (bind("/x", "/srv"), True),
        (bind("/x", "/srv/allocated/"), True),
        (bind("/usr/lib/cuda.so", "/lib/cuda.so"), False),
        (bind("/usr/lib/../lib/cuda.so", "/lib//cuda.so"), False),
        (bind("/usr/lib/ours.so", "/lib/ours.so"), True),
        (bind("/opt/cuda.so", "/lib/cuda.so"), True),  # the pod's own
        (bind("/x", "dev"), False),  # from the bundle: nobody can tell
        ({"destination": "/x", "type": "tmpfs", "source": "/dev"}, True),
        ({"destination": "/x", "type": "none", "source": "/dev", "options": ["rbind"]}, False),
        ({"destination": "/x", "type": "bind", "source": "/dev"}, False),
        ({"destination": "/x", "type": "devtmpfs", "source": "none"}, False),
    ],
    ids=lambda value: f"{value['source']} at {value['destination']}" if isinstance(value, dict) else None,
)
def test_mount(there: Json, stays: bool) -> None:
    _, target = decide(mounts=[bind("/a"), there])
    assert oci.objects(target.mounts) == ([bind("/a"), there] if stays else [bind("/a")])
    assert bool(decide(rule(onConflict="Deny"), mounts=[there])[0].refusal()) is not stays


def test_the_policys_own_mounts_stay() -> None:
    own = rule(mounts=[{"hostPath": "/dev/nvidia0", "mountPath": "/opt/gpu"}])
    _, target = decide(own, mounts=[bind("/opt/gpu", "/dev/nvidia0")])
    assert [mount.path for mount in target.mounts] == ["/opt/gpu"]


ZERO = allow(access="rw", yes=False)
OTHER = allow(240, 0, yes=False)


@pytest.mark.parametrize(
    ("rules", "after"),
    [
        ([DENY_ALL], [DENY_ALL]),
        ([DENY_ALL, allow()], [DENY_ALL]),
        ([DENY_ALL, allow(access="r")], [DENY_ALL]),
        ([DENY_ALL, allow(access="m")], [DENY_ALL, allow(access="m")]),  # runtimes let everybody make nodes
        ([DENY_ALL, allow(), ZERO], [DENY_ALL, allow(), ZERO]),
        ([DENY_ALL, allow(minor=1), allow(5, 5)], [DENY_ALL, allow(minor=1), allow(5, 5)]),
        ([DENY_ALL, allow(kind="b")], [DENY_ALL, allow(kind="b")]),
        # A privileged container: what follows its rule is taken away.
        ([ALLOW_ALL], [ALLOW_ALL, ZERO, OTHER]),
        ([DENY_ALL, ALLOW_ALL], [DENY_ALL, ALLOW_ALL, ZERO, OTHER]),
        ([{**ALLOW_ALL, "type": "a", "major": -1}], [{**ALLOW_ALL, "type": "a", "major": -1}, ZERO, OTHER]),
        ([{"allow": True, "access": "m"}], [{"allow": True, "access": "m"}, ZERO, OTHER]),  # the kernel: everything
        ([ALLOW_ALL, ZERO], [ALLOW_ALL, ZERO, OTHER]),
        ([ALLOW_ALL, ZERO, OTHER], [ALLOW_ALL, ZERO, OTHER]),
        ([ALLOW_ALL, ZERO, OTHER, allow(minor=None)], [ALLOW_ALL, ZERO, OTHER, allow(minor=None), ZERO]),
        ([ALLOW_ALL, DENY_ALL], [ALLOW_ALL, DENY_ALL]),
        ([], [ZERO, OTHER]),  # crun allows everything then
        # A rule for many, of which cgroup v1 takes none away: exact ones for what the container may have.
        ([DENY_ALL, allow(minor=None)], [DENY_ALL, allow(minor=1), allow(minor=8)]),
        ([DENY_ALL, {**allow(), "minor": -1}], [DENY_ALL, allow(minor=1), allow(minor=8)]),
        ([DENY_ALL, allow(None, None), ZERO], [DENY_ALL, allow(minor=1), allow(minor=8), ZERO]),
        ([DENY_ALL, allow(minor=None), ZERO], [DENY_ALL, allow(minor=1), allow(minor=8), ZERO]),
        ([DENY_ALL, allow(None, 1)], [DENY_ALL, allow(None, 1)]),
    ],
)
def test_cgroup_rules(rules: list[Json], after: list[Json]) -> None:
    decided, target = decide(devices=[device("/dev/x", minor=8)], device_rules=rules)
    assert oci.objects(target.device_rules) == after
    assert [edit.name for edit in decided.edits] == (["linux.resources.devices"] if rules != after else [])


MAJORS = {("c", 1), ("c", 195), ("c", 240), ("c", 10), ("b", 7)}
OF_SYSTEMD = {"cgroupsPath": "system.slice:cri-containerd:x"}


@pytest.mark.parametrize("first", [[ALLOW_ALL], [DENY_ALL, ALLOW_ALL], [ALLOW_ALL, allow(5, 5)]])
def test_systemd_gets_a_list_of_what_is_allowed(first: list[Json]) -> None:
    """It has no rules that deny; none of the block devices is closed."""
    _, target = decide(at=facts(majors=MAJORS), devices=[device("/dev/x", minor=8)], device_rules=first, **OF_SYSTEMD)
    drivers = [allow(major, None, access="rwm") for major in (1, 10)]
    blocks = {"allow": True, "type": "b", "access": "rwm"}
    single = [allow(*number, access="rwm") for number in ((5, 0), (5, 1), (5, 2), (195, 1), (195, 8))]
    assert oci.objects(target.device_rules) == [DENY_ALL, *drivers, blocks, *single]


@pytest.mark.parametrize("rules", [[], [ALLOW_ALL, allow(5, 5, yes=False)]], ids=["none", "one denied by the engine"])
def test_rules_that_give_systemd_no_more_than_before(rules: list[Json]) -> None:
    """runc allows nothing without a rule; what the engine denies stays denied."""
    _, target = decide(at=facts(majors=MAJORS), device_rules=rules, **OF_SYSTEMD)
    assert oci.objects(target.device_rules) == [*rules, ZERO, OTHER]


def test_a_device_under_a_closed_name_loses_its_cgroup_rule_unless_it_is_there_under_another() -> None:
    block = allow(7, 3, "b")
    _, target = decide(devices=[device("/dev/nvidia9", "b", 7, 3)], device_rules=[DENY_ALL, block])
    assert oci.objects(target.device_rules) == [DENY_ALL]
    both = [device("/dev/nvidia9", "b", 7, 3), device("/dev/xvda", "b", 7, 3)]
    _, target = decide(devices=both, device_rules=[DENY_ALL, block])
    assert (oci.objects(target.devices), oci.objects(target.device_rules)) == (both[1:], [DENY_ALL, block])


@pytest.mark.parametrize("with_device", [True, False], ids=["a device", "a mount of a device"])
def test_what_is_taken_out_at_a_path_hides_no_volume_there(with_device: bool) -> None:
    """Kubernetes compares a pod's paths as they are written: /dev/nvidia0 and /dev/nvidia0/ are two."""
    volume = bind("/dev/nvidia0/", "/etc/reassert")
    more = {"devices": [device("/dev/nvidia0")]} if with_device else {}
    there = [volume] if with_device else [bind("/dev/nvidia0", "/dev/nvidia0"), volume]
    decided = plan(policy(rule()), container(spec(mounts=there, device_rules=[DENY_ALL], **more), facts()))
    assert "nodePaths.reassert is Refuse" in decided.refusal()


def test_each_refusal_names_the_rule_and_the_device() -> None:
    deny = rule(onConflict="Deny")
    for fields, message in (
        ({"devices": [device("/dev/x")]}, "device /dev/x (c 195:0) is in the container"),
        ({"mounts": [bind("/h", "/dev")]}, "mount /h from /dev shows /dev/nvidia0 (c 195:0)"),
        (
            {"device_rules": [ALLOW_ALL]},
            "cgroup rules let the container use /dev/nvidia0 (c 195:0), /dev/other (c 240:0)",
        ),
    ):
        assert decide(deny, **fields)[0].refusal() == f"rule gpu: not allocated: {message}"


def test_of_two_rules_the_one_that_denies_counts() -> None:
    mild, strict = rule("/dev/nvidia*"), {**rule("/dev/nvidia*", onConflict="Deny"), "name": "strict"}
    for rules in ([mild, strict], [strict, mild]):
        assert decide(*rules, devices=[device("/dev/nvidia0")])[0].refusal().startswith("rule strict: ")


def test_what_cannot_be_found_out_changes_nothing_and_is_for_the_failure_policy() -> None:
    at = facts()
    at.allocation_problem = "kubelet's record cannot be read"
    at.devices = None
    for failure, refused in (("Fail", True), ("Ignore", False)):
        target = spec(devices=[device("/dev/nvidia0")])
        decided = plan(policy(rule(), failurePolicy=failure), container(target, at))
        assert (bool(decided.refusal()), list(decided.edits)) == (refused, [])
        assert [str(error) for error in decided.errors] == ["rule gpu: kubelet's record cannot be read"]


def test_more_devices_than_any_honest_pod_has() -> None:
    decided, _ = decide(devices=[device(f"/dev/nvidia{n}", minor=n + 2) for n in range(1001)])
    assert "more than 1000 device entries" in decided.refusal()


numbers = st.sampled_from([None, 195, 240, 0, 1])
cgroup_rules = st.lists(
    st.one_of(
        st.sampled_from([DENY_ALL, ALLOW_ALL]),
        st.builds(
            allow, numbers, numbers, st.sampled_from("cb"), st.sampled_from(["r", "rw", "rwm", "m"]), st.booleans()
        ),
    ),
    max_size=6,
)
devices = st.lists(
    st.builds(
        device,
        st.sampled_from(["/dev/nvidia0", "/dev/x"]),
        st.sampled_from("cb"),
        numbers.filter(bool),
        numbers.filter(bool),
    ),
    max_size=3,
)


def kernel(rules: list[Json], kind: str, major: int, minor: int) -> set[str]:
    """What cgroup v1 lets a container do (Linux, security/device_cgroup.c), of rules as crun writes them."""
    everything, exceptions = True, {}  # type: bool, dict[Any, set[str]]
    for one in rules:
        if one.get("type", "a") == "a":
            everything, exceptions = one["allow"], {}
            continue
        key = (one["type"], one.get("major"), one.get("minor"))
        access = set(one["access"])
        if one["allow"] == everything:
            exceptions[key] = exceptions.get(key, set()) - access
        else:
            exceptions[key] = exceptions.get(key, set()) | access
    found = set()
    for (k, a, i), access in exceptions.items():
        if k == kind and a in (None, major) and i in (None, minor):
            found |= access
    return {"r", "w"} - found if everything else {"r", "w"} & found


@examples(300)
@given(cgroup_rules, devices)
@example([DENY_ALL, allow(195, None, "c", "r"), allow(None, None, "c", "r", False)], [])
def test_no_rules_let_a_closed_device_be_opened_nor_close_what_was_open(rules: list[Json], there: list[Json]) -> None:
    decided, target = decide(devices=there, device_rules=rules)
    assert decided.refusal() == ""
    for number in (("c", 195, 0), ("c", 240, 0)):
        assert kernel(oci.objects(target.device_rules), *number) == set()
    assert kernel(oci.objects(target.device_rules), *OURS) == kernel(rules, *OURS)
    for entry in target.devices:
        number = entry.oci["type"], entry.oci["major"], entry.oci["minor"]
        assert kernel(oci.objects(target.device_rules), *number) == kernel(rules, *number)


def several(count: int) -> tuple[Plan, Any]:
    """Devices that stay, devices that go, and rules for all, for one and against one: each `count` times."""
    rules = [DENY_ALL]
    for number in range(count):
        rules += [allow(None, None), allow(7, number), allow(7, number, yes=False), allow(number, None)]
    devices = [device(f"/dev/d{number}", major=7, minor=number) for number in range(count)]
    devices += [device(f"/dev/nvidia{number}", major=8, minor=number) for number in range(min(count, 900))]
    return decide(device_rules=rules, devices=devices)


def test_each_device_gets_one_rule() -> None:
    _, target = several(50)
    given = [rule for rule in oci.objects(target.device_rules) if rule["allow"] and rule["major"] == 7]
    assert len(given) <= 2 * 50 + 1, "one of the container's own is for all of the type"


def calls(count: int) -> int:
    """How many calls and lines of Python a decision takes, which grows as its time does."""
    number = 0

    def counted(frame: Any, event: str, argument: Any) -> Any:
        nonlocal number
        number += event in ("line", "call")
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        several(count)
    finally:
        sys.settrace(before)
    return number


def test_time_grows_with_devices_plus_rules() -> None:
    assert calls(400) < 5 * calls(100)


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from([None, 195, 7]),
            st.sampled_from([None, 0, 1]),
            st.sampled_from(["r", "w", "rw", "rwm", "m"]),
        )
    )
)
@examples(200)
def test_devices_that_stay_keep_the_access_that_the_rules_give_in_their_order(
    said: list[tuple[bool, int | None, int | None, str]],
) -> None:
    """As cgroup v2 has it: of the rules about a device the last one about a letter counts."""

    def access(rules: list[Json], number: tuple[int, int]) -> set[str]:
        given: set[str] = set()
        for one in rules:
            if all(one.get(key, -1) in (-1, wanted) for key, wanted in zip(("major", "minor"), number, strict=True)):
                letters = set(one.get("access", "rwm"))
                given = given | letters if one["allow"] else given - letters
        return given

    rules = [DENY_ALL, *(allow(major, minor, access=letters, yes=yes) for yes, major, minor, letters in said)]
    stays = [device("/dev/a", major=7, minor=0), device("/dev/b", major=195, minor=1)]
    first, target = decide(device_rules=list(rules), devices=stays)
    for number in ((7, 0), (195, 1)):
        assert access(oci.objects(target.device_rules), number) == access(rules, number)
    if first.edits:
        assert access(oci.objects(target.device_rules), (195, 0)).isdisjoint("rw")


def test_an_exclusive_device_is_looked_for_in_the_container_too() -> None:
    """A link of the image, or a mount of a directory, can lead to one."""
    assert decide()[0].is_seen_in_the_container()


# -- a CDI spec that cannot be read: which devices are of its kind is not known

UNREAD = "CDI spec /etc/cdi/v.json: it is writable by others; correct or remove the file"
FREE = [allow(1, 3, access="rwm"), allow(136, None, access="rwm"), allow(None, None, access="m")]


def unread(*rules: Json, **fields: Any) -> list[str]:
    """Why a container cannot be decided about, on such a node."""
    fields = {"device_rules": [DENY_ALL, *FREE], **fields}
    target = spec(**fields)
    found = plan(policy(*(rules or (rule(),))), container(target, facts(unread={"v/gpu": UNREAD})))
    return [str(error) for error in found.errors]


def test_a_spec_that_cannot_be_read_refuses_no_container_that_opens_no_device() -> None:
    assert unread() == []
    assert unread(device_rules=[DENY_ALL, *FREE, allow(*OURS[1:])], devices=[device("/dev/nvidia1", minor=1)]) == []
    assert unread(mounts=[bind("/srv/allocated"), bind("/data")]) == []
    assert unread(annotations={"cdi.k8s.io/x": "w/nic=0"}) == []
    assert unread(rule("/dev/nvidia*"), device_rules=[]) == [], "a rule that names no CDI kind"


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"devices": [device("/dev/npu0", major=240, minor=7)]}, "device /dev/npu0"),
        ({"device_rules": [ALLOW_ALL]}, "its cgroup rules"),
        ({"device_rules": []}, "its cgroup rules"),
        ({"device_rules": [DENY_ALL, allow(240, 7, access="r")]}, "its cgroup rules"),
        ({"device_rules": [DENY_ALL, allow(240, None)]}, "its cgroup rules"),
        ({"device_rules": [DENY_ALL, allow(None, 3)]}, "its cgroup rules"),
        ({"device_rules": [DENY_ALL, allow(1, 3), allow(1, 3, "b")]}, "its cgroup rules"),
        ({"annotations": {"cdi.k8s.io/x": "w/nic=0,v/gpu=0"}}, "annotation cdi.k8s.io/x"),
        ({"annotations": {"nvidia.cdi.k8s.io/pod": "v/gpu=0"}}, "annotation nvidia.cdi.k8s.io/pod"),
    ],
)
def test_what_may_be_for_a_device_of_it_is_undecided(fields: Json, what: str) -> None:
    assert unread(**fields) == [f"rule gpu: {UNREAD}; {what} may be for a device of it"]


def test_the_hook_finds_what_others_added_for_it() -> None:
    at = facts(unread={"v/gpu": UNREAD})
    decided = plan(policy(rule()), container(spec(device_rules=[DENY_ALL]), at))
    assert decided.exclusive is not None
    assert decided.is_seen_in_the_container()
    for number, path, refused in (
        (("c", 240, 7), "/dev/npu0", True),
        (("c", 1, 3), "/dev/null", False),
        (OURS, "/dev/nvidia1", False),
    ):
        assert (decided.exclusive.rule_for(number, path) is not None) is refused
    assert decided.exclusive.path(("c", 240, 7)) == f"a device, of which nothing is known ({UNREAD})"
