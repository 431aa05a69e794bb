"""Properties of all device allocations: a corrected container needs no further edit, and nothing else is changed."""

from __future__ import annotations

import json
from typing import Any

import marks
from hypothesis import given
from hypothesis import strategies as st

from hook.core.container.allocation import Allocation
from hook.core.container.spec import Spec
from hook.core.facts import Container, Facts
from hook.core.plan import Plan, plan
from hook.core.policy.model import Policy
from hook.core.policy.sources import Allocated
from unit.kubelet import Answer
from unit.support import POD, config, examples, name_of, policy, values_of

pytestmark = marks.promise(
    "Planning a corrected container again gives no edits, and entries that are not reserved keep their order"
)

NAMES, VALUES, PATHS = ["A", "B", "N_A"], ["1", "2", "void"], ["/m", "/m/n", "/dev/x", "/z"]
DEVICES = ["/dev/g0", "/dev/g1", "/dev//g0"]
NODES = {"/host/0": {"minor": 0}, "/host/1": {"minor": 1}, "/host/dir": None}
KEYS = ["cdi.k8s.io/x", "cdi.k8s.io/y", "own"]

pairs = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=3)
notes = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
answers = st.fixed_dictionaries(
    {
        "envs": pairs,
        "annotations": notes,
        "mounts": st.lists(
            st.fixed_dictionaries(
                {
                    "container_path": st.sampled_from(PATHS),
                    "host_path": st.sampled_from(["/s1", "/gone"]),
                    "read_only": st.booleans(),
                }
            ),
            max_size=2,
        ),
        "devices": st.lists(
            st.fixed_dictionaries(
                {
                    "container_path": st.sampled_from(DEVICES),
                    "host_path": st.sampled_from(list(NODES)),
                    "permissions": st.sampled_from(["rw", "mrw", ""]),
                }
            ),
            max_size=2,
        ),
    }
)


@st.composite
def node_facts(draw: st.DrawFn) -> Facts:
    """Facts of the node about the container."""
    facts = Facts()
    for number, answer in enumerate(draw(st.lists(answers, max_size=2))):
        facts.allocations.append(Allocation(f"r/{number}", [str(number)], Answer(**answer).SerializeToString()))
    facts.absent_sources = draw(st.sampled_from([set(), set(), {"/gone"}]))
    facts.cdi_env = draw(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(VALUES), min_size=1)))
    node = {"type": "c", "major": 9, "fileMode": 0o666, "uid": 0, "gid": 0}
    facts.device_nodes = {path: more and {**node, **more} for path, more in NODES.items()}
    return facts


defaults = st.sampled_from([{}, {"default": "void"}, {"default": "Keep"}, {"default": ""}])
rules = st.fixed_dictionaries(
    {
        "env": st.lists(
            st.builds(
                lambda name, origin: {"name": name, "valueFrom": {"deviceAllocation": origin}},
                st.sampled_from(NAMES),
                defaults,
            ),
            max_size=2,
            unique_by=lambda env: env["name"],
        ),
        "deviceAllocations": st.fixed_dictionaries({part: st.booleans() for part in ("env", "mounts", "devices")}),
        "annotations": st.sampled_from([[], [{"name": "cdi.k8s.io/*", "absent": True}]]),
        "mounts": st.sampled_from([[], [{"mountPath": "/m", "absent": True}]]),
    }
).map(lambda rule: policy({"name": "r", **rule, "env": [*rule["env"], {"name": "FIXED", "value": "1"}]}))


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A config.json with env of an engine and of a pod."""
    entries = st.sampled_from(NAMES).flatmap(lambda name: st.sampled_from([name, *(f"{name}={v}" for v in VALUES)]))
    mounts = st.fixed_dictionaries(
        {"destination": st.sampled_from([*PATHS, "/", "/m/", "/m/n/o"]), "source": st.sampled_from(["/s1", "/pod"])},
        optional={"options": st.permutations(["rbind", "rprivate", "ro"])},
    )
    devices = st.fixed_dictionaries(
        {"path": st.sampled_from(DEVICES), "type": st.just("c"), "major": st.just(9), "minor": st.integers(0, 1)}
    )
    access = st.fixed_dictionaries(
        {"allow": st.booleans()},
        optional={"type": st.sampled_from("abc"), "major": st.just(9), "access": st.sampled_from(["rwm", "w"])},
    )
    data = config(
        draw(st.lists(entries, max_size=6)),
        draw(st.lists(mounts, max_size=4)),
        draw(notes),
        linux={
            "devices": draw(st.lists(devices, max_size=3)),
            "resources": {"devices": draw(st.lists(access, max_size=3)), "x-unknown": 1},
            "x-unknown": {"a": "é"},
        },
    )
    return Spec(json.dumps(data).encode(), "config.json")


def decide(node: Policy, spec: Spec, facts: Facts) -> Plan:
    return plan(node, Container(POD, spec, facts))


def corrected(node: Policy, spec: Spec, facts: Facts) -> Spec | None:
    """The corrected spec; None if the container is refused."""
    decided = decide(node, spec, facts)
    if decided.refusal():
        return None
    decided.apply(spec)
    return Spec(spec.render(), "config.json")


@examples(150)
@given(rules, specs(), node_facts())
def test_planning_a_corrected_spec_gives_an_empty_plan(node: Policy, spec: Spec, facts: Facts) -> None:
    after = corrected(node, spec, facts)
    if after is not None:
        again = decide(node, after, facts)
        assert [str(edit.describe()) for edit in again.edits] == []
        assert again.is_empty()


@examples(100)
@given(rules, specs(), node_facts())
def test_env_is_what_one_of_the_plugins_or_a_cdi_spec_set_else_the_default(
    node: Policy, spec: Spec, facts: Facts
) -> None:
    before = list(spec.env)
    after = corrected(node, spec, facts)
    if after is None:
        return
    [rule] = node.candidates(None)
    asked = {env.name: env.given.get("default") for env in rule.env if isinstance(env, Allocated)}
    for name in NAMES:
        of_plugins = [a.env[name] for a in facts.allocations if name in a.env]
        of_cdi = facts.cdi_env.get(name, [])
        there, now = values_of(before, name), values_of(after.env, name)
        if (name in asked and (of_plugins or of_cdi)) or ("env" in rule.allocations and of_plugins):
            [value] = now
            assert value in of_plugins + of_cdi
            if value not in of_plugins and of_plugins:
                assert there[-1] == value
            if len(set(of_plugins)) > 1 and value in of_plugins and value not in of_cdi:
                assert next(v for v in there if v in of_plugins) == value
        elif name in asked and asked[name] != "Keep":
            assert now == ([] if asked[name] is None else [asked[name]])
        else:
            assert now == there
    assert [e for e in after.env if name_of(e) == "FIXED"] == ["FIXED=1"]


@examples(100)
@given(rules, specs(), node_facts())
def test_only_what_was_reserved_is_touched(node: Policy, spec: Spec, facts: Facts) -> None:
    before: dict[str, Any] = json.loads(spec.render())
    after_spec = corrected(node, spec, facts)
    if after_spec is None:
        return
    after = json.loads(after_spec.render())
    [rule] = node.candidates(None)
    if "devices" not in rule.allocations:
        assert after["linux"] == before["linux"]
    if not rule.mounts and "mounts" not in rule.allocations:
        assert after["mounts"] == before["mounts"]
    allocated = {key: value for a in facts.allocations for key, value in a.annotations.items()}
    dropped = {key for key in before["annotations"] if key not in after["annotations"]}
    if rule.raw:
        assert all(
            key.startswith("cdi.k8s.io/") and allocated.get(key) != before["annotations"][key] for key in dropped
        )
    else:
        assert not dropped
    for data in (before, after):
        del data["mounts"], data["process"]["env"], data["annotations"]
        data["linux"].pop("devices")
        data["linux"]["resources"].pop("devices")
    assert after == before
