"""Correcting what a container would start with: exactly what was reserved, and nothing else."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, cast

import marks
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.compare import glob_match, is_pattern
from hook.core.base.jsontext import Strings, strings_at
from hook.core.container import oci
from hook.core.container.oci import Mount
from hook.core.plan import plan
from hook.core.reserve.place_device import DropMount
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import Reserved, SetEnv
from unit.support import bind, container, name_of, policy

pytestmark = marks.promise(
    "Planning a corrected container again gives no edits, and entries that are not reserved keep their order"
)

if TYPE_CHECKING:
    from hook.core.container.start import Entries

NAMES = st.sampled_from(["A", "AB", "B", "a", ""])
nul_entries = st.lists(st.text("AB=\0", max_size=6), max_size=8)
entries = st.lists(st.builds("{}={}".format, NAMES, st.sampled_from(["1", "2", "", "a=b"])) | NAMES, max_size=8)


def others(env: list[str]) -> list[str]:
    return [entry for entry in env if name_of(entry) != "A"]


@given(entries, st.text())
def test_one_entry_is_left_where_the_name_first_stood_and_others_keep_their_order(env: list[str], value: str) -> None:
    reserved = Reserved({"A": value}, [])
    corrected = reserved.correct(env)
    assert reserved.differences(corrected) == []
    assert [entry for entry in corrected if name_of(entry) == "A"] == [f"A={value}"]
    assert others(corrected) == others(env)
    first = next((at for at, entry in enumerate(env) if name_of(entry) == "A"), len(env))
    assert corrected[:first] == env[:first]


@given(entries)
def test_every_entry_of_an_absent_name_goes_and_no_other(env: list[str]) -> None:
    reserved = Reserved({"A": None}, [])
    assert reserved.correct(env) == others(env)
    assert bool(reserved.differences(env)) == (others(env) != env)


@given(entries | nul_entries)
def test_few_and_many_reserved_names_are_found_alike(env: list[str]) -> None:
    """A few names are looked for in the text of all entries; over NRI, an entry may hold a NUL."""
    few: dict[str, str | None] = {"A": "1", "B": None, "": None}
    many = {**few, **{f"Z{number}": None for number in range(20)}}
    assert Reserved(dict(few), []).correct(env) == Reserved(dict(many), []).correct(env)
    found = [[(e.name, e.before) for e in Reserved(dict(v), []).differences(env)] for v in (few, many)]
    assert found[0] == found[1]


ODD = st.sampled_from([",", "]", "[", '"', '","', "", "A", "B", "A B", "\u00e9"])
NEAR = st.builds("{}={}".format, ODD, st.text('A=,"]\\ \u00e9\n', max_size=5)) | ODD


PLAIN = st.builds("{}={}".format, ODD.filter(str.isidentifier), st.text("A=,]", max_size=3))


@given(
    st.lists(NEAR, max_size=8) | st.lists(PLAIN, max_size=8),
    st.dictionaries(ODD, st.none() | st.text('A,"]\\\u00e9', max_size=3), max_size=3),
    st.booleans(),
)
def test_env_is_corrected_alike_as_a_list_and_as_a_text(
    env: list[str], values: dict[str, str | None], ascii_only: bool
) -> None:
    """Names and values hold what JSON has between strings, so that nothing but an entry's own name may be found."""
    found, _ = strings_at(json.dumps(env, separators=(",", ":"), ensure_ascii=ascii_only), 0)
    reserved = Reserved(values, [])
    text = cast("Entries", found)
    corrected = reserved.correct(text)
    assert corrected == reserved.correct(env)
    if isinstance(corrected, Strings):
        assert json.loads(corrected.text) == list(corrected)
    assert [vars(edit) for edit in reserved.differences(text)] == [vars(edit) for edit in reserved.differences(env)]
    assert reserved.differences(corrected) == []


def test_bare_entry_counts_as_one_of_its_name() -> None:
    """crun's putenv unsets the variable for it."""
    [edit] = Reserved({"A": "1"}, []).differences(["A=1", "A", "AB"])
    assert edit.before == ["1", None]
    [edit] = Reserved({"A": None}, []).differences(["A"])
    assert edit.before == [None]


@marks.hole(
    "Thousands of env names under an `absent` pattern cost minutes of CPU time",
    since="0.1.0",
    fixed="0.2.0",
    severity="low",
)
def test_many_names_cost_one_pass() -> None:
    """10,000 names under a pattern once cost minutes. This is bounded by steps, not by a clock."""
    steps = 0

    class Counting(str):
        def partition(self, separator: str, /) -> tuple[str, str, str]:
            nonlocal steps
            steps += 1
            return super().partition(separator)

        def find(self, *wanted: Any) -> int:
            nonlocal steps
            steps += 1
            return super().find(*wanted)

    env: list[str] = [Counting(f"N_{n}={n}") for n in range(10_000)]
    reserved = Reserved({"N_1": "x"}, ["N_*"])
    reserved.differences(env)
    assert reserved.correct(env) == ["N_1=x"]
    assert steps == 2 * len(env)


PATTERNS = st.lists(st.text("AB*?", min_size=1, max_size=4).filter(is_pattern), min_size=1, max_size=4)


@given(PATTERNS, st.text("AB", max_size=4))
def test_names_are_told_apart_for_all_patterns_at_once_and_none_is_lost(patterns: list[str], name: str) -> None:
    matching = [pattern for pattern in dict.fromkeys(patterns) if glob_match(pattern, name)]
    assert Reserved({}, patterns).owner(name) == (matching[0] if matching else "")


def test_patterns_whose_literal_no_name_has_are_not_tried_one_by_one() -> None:
    tried: list[str] = []
    reserved = Reserved({}, ["N_*", "*_TOKEN", "N?_X", "*x*"])
    sys.setprofile(lambda frame, event, _: event == "call" and tried.append(frame.f_code.co_name))
    try:
        assert not any(map(reserved.owner, [f"A{number}" for number in range(100)]))
        assert "glob_match" not in tried
        assert reserved.owner("N_") == "N_*"
        assert "glob_match" in tried
    finally:
        sys.setprofile(None)


def test_conflict_is_what_the_container_asked_for_and_never_its_value() -> None:
    assert SetEnv("", "A", "x", []).conflict() == ""
    assert SetEnv("", "A", "x", ["x", "x"]).conflict() == ""
    assert SetEnv("", "A", "x", ["x", "secret"]).conflict() == "env A is reserved and was set to something else"
    assert SetEnv("", "A", None, ["secret"]).conflict() == "env A must be absent and was set"
    assert PlaceMount("r", "/m", Mount(bind("/m")), companions=frozenset(), before=[]).conflict() == ""
    there = oci.mounts([bind("/m/b"), bind("/m//a")])
    assert PlaceMount("r", "/m", Mount(bind("/m")), companions=frozenset(), before=there).conflict() == (
        "mount /m is reserved and /m//a, /m/b was mounted"
    )


MOUNT: dict[str, Any] = {"hostPath": "/node", "mountPath": "/m/n", "volumesAbove": "Allow"}
OURS: oci.Json = {"destination": "/m/n", "type": "bind", "source": "/node", "options": ["rbind", "rprivate", "ro"]}


def test_mount_is_not_in_place_where_another_comes_after_it() -> None:
    node = policy({"name": "r", "mounts": [{**MOUNT, "allowBelow": ["/m/n/x"]}]})

    def is_in_place(*mounts: dict[str, object]) -> bool:
        return not plan(node, container(mounts=list(mounts))).edits

    assert is_in_place(bind("/a"), OURS)
    assert is_in_place(OURS, bind("/m/n/x"))
    assert not is_in_place(OURS, bind("/m")), "it shadows ours"
    assert not is_in_place({**OURS, "options": ["rbind", "ro"]})


def test_a_right_mount_goes_behind_all_others_and_that_is_no_edit() -> None:
    """Another one could be a link to what lies above."""
    node = policy({"name": "r", "mounts": [MOUNT], "onConflict": "Deny"})
    for there in ([OURS, bind("/a")], [OURS, bind("/a"), OURS]):
        target = container(mounts=there).start
        decided = plan(node, container(mounts=there))
        decided.apply(target)
        assert (decided.is_empty(), oci.objects(target.mounts)) == (True, [bind("/a"), OURS])


def test_more_mounts_at_a_reserved_path_than_anybody_needs_are_refused() -> None:
    node = policy({"name": "r", "mounts": [MOUNT]})
    decided = plan(node, container(mounts=[bind(f"/m/n/{number}") for number in range(1001)]))
    assert decided.refusal() == "rule r: more than 1000 mounts of the container are at /m/n or below it"
    assert not plan(node, container(mounts=[bind(f"/m/{number}") for number in range(1001)])).refusal()


def test_descriptions_hold_what_an_event_shows() -> None:
    edit = SetEnv("", "A", "x", ["y", None])
    edit.rule = "r"
    assert edit.describe() == {"rule": "r", "kind": "env", "name": "A", "before": [{"bytes": 1}, None], "after": "x"}
    assert SetEnv("", "A", "x", ["x", "x"]).describe()["before"] == ["x", "x"], "the policy's value is no secret"
    assert SetEnv("", "A", None, ["y"]).describe()["after"] is None
    assert PlaceMount(
        "r", "/m/n", Mount(OURS), companions=frozenset(), before=[Mount(bind("/m", "/evil"))]
    ).describe() == {
        "rule": "r",
        "kind": "mount",
        "name": "/m/n",
        "before": [{"destination": "/m", "source": "/evil"}],
        "after": {"source": "/node", "options": ["rbind", "rprivate", "ro"]},
    }


def test_options_of_a_mount_are_not_described() -> None:
    there = Mount({"destination": "/m", "type": "cifs", "source": "/s", "options": ["password=x"]})
    assert DropMount("r", "what", there).describe()["before"] == [{"destination": "/m", "source": "/s"}]
