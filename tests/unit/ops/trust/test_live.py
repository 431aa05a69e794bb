"""A reader beside a rotation finds every certificate of both generations, at each step."""

from __future__ import annotations

import marks
from hypothesis import given
from hypothesis import strategies as st

from hook.ops.trust.generation import Moves, moves
from unit.support import examples

pytestmark = marks.promise(
    "A reader finds the CAs of both generations at every moment of a rotation; a build that is killed is "
    "completed by the next",
    about="Trust store",
)

HASHES = ("00000000", "certs/abcdef01", "extracted/pem/directory-hash/abcdef01")


def directory(groups: list[list[bytes]]) -> dict[str, bytes]:
    """Files of a hashed directory."""
    pairs = zip(HASHES, groups, strict=True)
    return {f"{name}.{number}": content for name, group in pairs for number, content in enumerate(group)}


def found(files: dict[str, bytes], name: str) -> set[bytes]:
    """What OpenSSL finds by a hash: .0, .1 and so on, until a file is missing."""
    contents, number = set(), 0
    while f"{name}.{number}" in files:
        contents.add(files[f"{name}.{number}"])
        number += 1
    return contents


def steps(files: dict[str, bytes], change: Moves) -> list[dict[str, bytes]]:
    """The directory after each rename and each removal."""
    states, now = [dict(files)], dict(files)
    for path, content in change.written:
        now[path] = content
        states.append(dict(now))
    for path in change.removed:
        now.pop(path, None)
        states.append(dict(now))
    return states


GROUPS = st.lists(
    st.lists(st.sampled_from([b"A", b"B", b"C", b"D", b"E"]), unique=True, max_size=5), min_size=3, max_size=3
)
OTHERS = st.dictionaries(st.sampled_from(["bundle", "a.pem", "b.pem", "x/README"]), st.binary(max_size=1))


@given(GROUPS, GROUPS, OTHERS, OTHERS)
@examples(150)
def test_a_certificate_of_both_generations_is_found_at_every_step(
    old: list[list[bytes]], new: list[list[bytes]], other: dict[str, bytes], another: dict[str, bytes]
) -> None:
    before, after = directory(old) | other, directory(new) | another
    states = steps(before, moves(before, after))
    assert states[-1] == after
    for state in states:
        for number, name in enumerate(HASHES):
            assert found(state, name) >= set(old[number]) & set(new[number])
    for path in other.keys() & another.keys():
        assert all(state[path] in (other[path], another[path]) for state in states)


@given(GROUPS, GROUPS, st.integers(0, 60), GROUPS)
@examples(100)
def test_a_rotation_that_was_killed_is_completed_by_the_next(
    old: list[list[bytes]], new: list[list[bytes]], kill: int, last: list[list[bytes]]
) -> None:
    states = steps(directory(old), moves(directory(old), directory(new)))
    left = states[min(kill, len(states) - 1)]
    again = steps(left, moves(left, directory(last)))
    assert again[-1] == directory(last)
    for state in again:
        for number, name in enumerate(HASHES):
            common = set(old[number]) & set(new[number]) & set(last[number])
            assert found(state, name) >= common
