"""Properties of all containers and policies: a corrected container needs no further edit, the rest is unchanged."""

from __future__ import annotations

import json
from typing import Any

import marks
from hypothesis import assume, given
from hypothesis import strategies as st

from hook.compile.compiler import compile_bytes
from hook.compile.source import PolicyInvalid
from hook.core.base.compare import glob_match, is_below
from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.facts import Container
from hook.core.plan import plan
from hook.core.policy.model import Policy
from hook.core.policy.sources import Allowed
from unit.support import POD, config, document, examples, name_of, values_of

pytestmark = marks.promise(
    "Planning a corrected container again gives no edits, and entries that are not reserved keep their order",
    about="Decision",
)

NAMES = ["A", "AB", "B", "a", "N_A", "N_B", "PATH"]
PATHS = ["/m", "/m/n", "/m/n/o", "/m/nx", "/z", "/z/y"]
SPELLINGS = [*PATHS, "/", "/m/", "//m/n", "/m/./n", "m/n/o", "/m/n/x", "/m/n/ok", "/m/n/ok/x", "/q", "/etc/../z"]

env_entries = st.lists(
    st.sampled_from(NAMES).flatmap(lambda name: st.sampled_from([f"{name}=1", f"{name}=2", f"{name}=", name])),
    max_size=8,
)
pod_mounts = st.lists(
    st.fixed_dictionaries(
        {"destination": st.sampled_from(SPELLINGS)},
        optional={"source": st.sampled_from(["/s1", "/s2"]), "x-unknown": st.integers()},
    ),
    max_size=6,
)
values = st.sampled_from(["1", "2", ""])
rule_env = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from(NAMES), values)
    | st.builds(lambda name: {"name": name, "absent": True}, st.sampled_from([*NAMES, "N_*", "A?", "*B"]))
    | st.builds(
        lambda name, values, instead: {"name": name, "oneOf": values, **instead},
        st.sampled_from(NAMES),
        st.lists(values, min_size=1, max_size=2),
        st.sampled_from([{}, {"else": "1"}, {"else": "2", "default": ""}]),
    ),
    max_size=4,
    unique_by=lambda env: env["name"],
)
rule_mounts = st.lists(
    st.builds(
        lambda path, source, allowed: {
            "hostPath": source,
            "mountPath": path,
            "allowBelow": [path + "/ok"] * allowed,
            "volumesAbove": "Allow",
        },
        st.sampled_from(PATHS),
        st.sampled_from(["/s1", "/s2"]),
        st.integers(0, 1),
    ),
    max_size=3,
    unique_by=lambda mount: mount["mountPath"],
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """A valid policy of one or two rules that both match."""
    rules = [
        {"name": f"r{number}", "env": draw(rule_env), "mounts": draw(rule_mounts)}
        for number in range(draw(st.integers(1, 2)))
    ]
    rules = [rule for rule in rules if rule["env"] or rule["mounts"]]
    try:
        return compile_bytes("p", document(*rules).encode()).policy()
    except PolicyInvalid:
        assume(False)
        raise


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A config.json, with fields that no runtime-spec has, in the layouts that engines use."""
    data = config(draw(env_entries), draw(pod_mounts), **{"x-unknown": {"z": [1.5, None], "a": "é"}})
    return Spec(json.dumps(data, indent=draw(st.sampled_from([None, 2]))).encode(), "config.json")


def container(spec: Spec) -> Container:
    return Container(POD, spec)


def corrected(policy: Policy, spec: Spec) -> Spec:
    """The corrected spec, written and parsed again."""
    plan(policy, container(spec)).apply(spec)
    return Spec(spec.render(), "config.json")


@examples(150)
@given(policies(), specs())
def test_planning_a_corrected_spec_gives_an_empty_plan(policy: Policy, spec: Spec) -> None:
    again = plan(policy, container(corrected(policy, spec)))
    assert again.is_empty()


@examples(150)
@given(policies(), specs())
def test_env_is_as_reserved_and_all_other_entries_keep_their_order(policy: Policy, spec: Spec) -> None:
    before = list(spec.env)
    after = corrected(policy, spec).env
    reserved = [env for rule in policy.candidates(None) for env in rule.env]
    wanted = {env.name: env.constant for env in reserved if not env.is_pattern()}
    for env in reserved:
        if isinstance(env, Allowed):
            own = values_of(before, env.name)
            wanted[env.name] = env.choice(own) if own else env.default
    patterns = [env.name for env in reserved if env.is_pattern()]
    for name, value in wanted.items():
        assert [entry for entry in after if name_of(entry) == name] == ([] if value is None else [f"{name}={value}"])

    def is_free(entry: str) -> bool:
        name = name_of(entry)
        return name not in wanted and not any(glob_match(pattern, name) for pattern in patterns)

    assert [entry for entry in after if name_of(entry) not in wanted] == [entry for entry in before if is_free(entry)]


@examples(150)
@given(policies(), specs())
def test_reserved_mounts_are_last_and_unshadowed_and_others_keep_their_order(policy: Policy, spec: Spec) -> None:
    before = list(spec.mounts)
    after = list(corrected(policy, spec).mounts)
    mounts = [mount for rule in policy.candidates(None) for mount in rule.mounts]
    reserved = {mount.destination: mount for mount in mounts}

    def is_let_through(path: str) -> bool:
        """Every rule has to let it through, those that reserve the same mount too."""
        above = [mount for mount in mounts if is_below(path, mount.destination)]
        return all(any(path == ok or is_below(path, ok) for ok in mount.allow_below) for mount in above)

    def stays(mount: Mount) -> bool:
        return mount.path not in reserved and is_let_through(mount.path)

    ours = {path: Mount(mount.as_oci()) for path, mount in reserved.items()}
    rest = [mount for mount in after if mount not in ours.values()]
    kept = [mount for mount in before if stays(mount)]
    assert sorted(map(str, rest)) == sorted(map(str, kept))
    for free in (lambda path: any(is_below(path, r) for r in reserved), lambda path: not is_below_any(path, reserved)):
        assert [m for m in rest if free(m.path)] == [m for m in kept if free(m.path)]
    for path, mount in ours.items():
        assert after.count(mount) == 1
        for at in [later.path for later in after[after.index(mount) + 1 :]]:
            assert at in reserved or is_below_any(at, reserved), "something else comes after a reserved mount"
            assert not is_below(path, at), "something is mounted above a reserved mount, after it"


def is_below_any(path: str, parents: dict[str, Any]) -> bool:
    return any(is_below(path, parent) for parent in parents)


@examples(60)
@given(policies(), specs())
def test_everything_but_env_and_mounts_is_untouched(policy: Policy, spec: Spec) -> None:
    before = json.loads(spec.render())
    after = json.loads(corrected(policy, spec).render())
    for data in (before, after):
        del data["mounts"], data["process"]["env"]
    assert after == before
    assert list(after) == list(before)


@examples(60)
@given(policies(), specs())
def test_there_are_edits_where_and_only_where_something_is_changed(policy: Policy, spec: Spec) -> None:
    before = spec.render()
    decided = plan(policy, container(spec))
    decided.apply(spec)
    assert bool(decided.edits) == (spec.render() != before)
