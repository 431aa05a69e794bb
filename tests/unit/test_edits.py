"""Each edit does its own thing and no other, says what was there, and knows when it is done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hook.edits import PlaceMount, SetEnv, UnsetEnv, name_of, values_of
from unit.support import bind, container

NAMES = ("A", "AB", "a", "")
entries = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["=x", "=y", "=", "=a=b", ""])).map("".join))


def others(env: list[str]) -> list[str]:
    """The entries of other names."""
    return [entry for entry in env if name_of(entry) != "A"]


@given(entries, st.sampled_from(["x", "", "=", "a=b"]))
def test_set_env_leaves_one_entry_and_the_order_of_all_others(env: list[str], value: str) -> None:
    target, edit = container(env), SetEnv("r", "A", value, [])
    edit.apply(target)
    assert edit.verify(target)
    assert values_of(target.env, "A") == [value]
    assert others(target.env) == others(env)


def test_set_env_stands_where_the_name_first_stood_else_at_the_end() -> None:
    for env, expected in (
        (["B=1", "A=1", "C=1", "A=2"], ["B=1", "A=x", "C=1"]),
        (["B=1", "A", "C=1"], ["B=1", "A=x", "C=1"]),
        (["B=1", "AB=1", "a=1"], ["B=1", "AB=1", "a=1", "A=x"]),
    ):
        target = container(env)
        SetEnv("r", "A", "x", []).apply(target)
        assert target.env == expected


@given(entries)
def test_unset_env_takes_every_entry_of_the_name_and_no_other(env: list[str]) -> None:
    target, edit = container(env), UnsetEnv("r", "A", [])
    edit.apply(target)
    assert edit.verify(target)
    assert target.env == others(env)


def test_bare_entry_counts_as_one_of_its_name() -> None:
    """crun's putenv unsets the variable for it."""
    assert values_of(["A=1", "A", "AB"], "A") == ["1", None]
    assert not SetEnv("r", "A", "1", []).verify(container(["A=1", "A"]))
    assert not UnsetEnv("r", "A", []).verify(container(["A"]))


def test_conflict_is_what_the_container_asked_for_and_never_its_value() -> None:
    assert SetEnv("r", "A", "x", []).conflict() == ""
    assert SetEnv("r", "A", "x", ["x", "x"]).conflict() == ""
    assert SetEnv("r", "A", "x", ["x", "secret"]).conflict() == "env A is reserved and was set to something else"
    assert UnsetEnv("r", "A", ["secret"]).conflict() == "env A must be absent and was set"
    assert PlaceMount("r", "/m", bind("/m"), frozenset(), []).conflict() == ""
    assert PlaceMount("r", "/m", bind("/m"), frozenset(), [bind("/m/b"), bind("/m//a")]).conflict() == (
        "mount /m is reserved and /m//a, /m/b was mounted"
    )


OURS = bind("/m/n", "/node")


def placed(*destinations: str, companions: tuple[str, ...] = ()) -> list[object]:
    """Sources after OURS was placed among pod mounts at these destinations; each source is its destination."""
    target = container(mounts=[bind(path, path) for path in destinations])
    edit = PlaceMount("r", "/m/n", OURS, frozenset(companions), [])
    assert not edit.verify(target)
    edit.apply(target)
    assert edit.verify(target)
    return [mount["source"] for mount in target.mounts]


def test_mount_is_placed_last_and_what_stood_at_it_or_below_is_gone() -> None:
    assert placed("/a", "/m/n", "/m/n/x", "/z") == ["/a", "/z", "/node"]
    assert placed("/m/n/", "//m/./n/x", "m/n", "/m/o/../n") == ["/node"]


def test_mount_lands_on_top_of_what_is_mounted_above_it() -> None:
    assert placed("/m", "/", "/m/") == ["/m", "/", "/m/", "/node"]


def test_mounts_beside_it_stay_in_their_order() -> None:
    assert placed("/m/nx", "/m/o", "/b", "/a") == ["/m/nx", "/m/o", "/b", "/a", "/node"]


def test_companions_below_come_on_top_of_it() -> None:
    assert placed("/m/n/x", "/a", "/m/n/y", companions=("/m/n/x",)) == ["/a", "/node", "/m/n/x"]


def test_mount_is_not_in_place_where_another_comes_after_it() -> None:
    edit = PlaceMount("r", "/m/n", OURS, frozenset({"/m/n/x", "/q", "/m"}), [])
    assert edit.verify(container(mounts=[bind("/a"), OURS]))
    assert edit.verify(container(mounts=[OURS, bind("/m/n/x"), bind("/q")]))
    assert not edit.verify(container(mounts=[OURS, bind("/m")])), "a companion above shadows it all the same"
    assert not edit.verify(container(mounts=[OURS, bind("/a")])), "/a could be a link to what lies above"
    assert not edit.verify(container(mounts=[OURS, OURS]))
    assert not edit.verify(container(mounts=[{**OURS, "options": ["rbind", "ro"]}]))


def test_descriptions_hold_what_an_event_shows() -> None:
    assert SetEnv("r", "A", "x", ["y", None]).describe() == {
        "rule": "r",
        "kind": "env",
        "name": "A",
        "before": ["y", None],
        "after": "x",
    }
    assert UnsetEnv("r", "A", ["y"]).describe()["after"] is None
    assert PlaceMount("r", "/m/n", OURS, frozenset(), [bind("/m", "/evil")]).describe() == {
        "rule": "r",
        "kind": "mount",
        "name": "/m/n",
        "before": [{"destination": "/m", "source": "/evil"}],
        "after": {"source": "/node", "options": ["rbind", "rw"]},
    }
