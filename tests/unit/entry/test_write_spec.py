"""What create decided travels in the bundle, and a pod cannot write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.errors import Undecided
from hook.core.reserve import Reserved
from hook.entry.write_spec import ANNOTATION, read, stamp

NOTHING = Reserved({}, [])


@given(st.dictionaries(st.text(), st.none() | st.text()), st.lists(st.text()))
def test_stamped_decision_is_read_back(values: dict[str, str | None], absent: list[str]) -> None:
    stamped = stamp({"x": "y"}, Reserved(values, absent), "fingerprint", mounts=["/m"])
    found = read(stamped)
    if values or absent:
        assert found is not None
        assert (found.policy, found.env.values, found.env.absent) == ("fingerprint", values, absent)
        assert found.mounts == ["/m"]
    else:
        assert (found, stamped) == (None, {"x": "y"})


@pytest.mark.parametrize("reserved", [NOTHING, Reserved({"A": "1"}, [])])
def test_annotation_that_a_pod_brought_along_is_overwritten_or_removed(reserved: Reserved) -> None:
    forged = {ANNOTATION: json.dumps({"version": 1, "policy": "", "env": {"LD_PRELOAD": "/x"}, "absent": []}), "x": "y"}
    stamped = stamp(forged, reserved, "fingerprint")
    found = read(stamped)
    assert (found.env.values if found else {}) == reserved.values
    assert stamped["x"] == "y"
    assert ANNOTATION in forged, "the given annotations are not changed in place"


def test_container_without_a_decision_has_none() -> None:
    assert read({"x": "y"}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version":2,"env":{},"absent":[]}',
        '{"version":1}',
        '{"version":1,"env":[3],"absent":[]}',
        '{"version":1,"env":{},"absent":[],"mounts":1}',
    ],
)
def test_decision_that_cannot_be_read_is_undecided(text: str) -> None:
    with pytest.raises(Undecided, match="annotation reassert/decision cannot be read"):
        read({ANNOTATION: text})
