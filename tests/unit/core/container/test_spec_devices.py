"""Devices are added to config.json, and the rest of `linux` is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.errors import Unacceptable
from hook.core.base.jsontext import fold
from hook.core.container.spec import Spec
from unit.support import config

DEVICE = {"path": "/dev/gpu", "type": "c", "major": 1, "minor": 3}
RULE = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}
text = st.text().filter(lambda text: "\0" not in text)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=5,
)
others = st.dictionaries(
    text.filter(lambda name: fold(name) not in ("devices", "resources", "namespaces")), json_values, max_size=3
)


def read(linux: object, **more: Any) -> Spec:
    return Spec(json.dumps(config(**more, linux=linux)).encode(), "/b/config.json")


@given(others, others, st.booleans(), st.booleans())
def test_unknown_members_of_linux_survive_new_devices(
    linux: dict[str, Any], resources: dict[str, Any], both: bool, with_resources: bool
) -> None:
    given = {**linux, **({"resources": {**resources, "devices": []}} if with_resources else {})}
    spec = read(given, **{"x-unknown": 1})
    spec.devices = [DEVICE]
    if both:
        spec.device_rules = [RULE]
    assert spec.changed()
    data = json.loads(spec.render())
    kept = resources if with_resources else {}
    assert data["linux"] == {**linux, "devices": [DEVICE], "resources": {**kept, "devices": [RULE] * both}}
    del data["linux"]
    assert data == config(**{"x-unknown": 1})


@pytest.mark.parametrize("text", ['{"process":{}}', '{"process":{},"linux":null}', '{"linux":{},"process":{}}'])
def test_spec_without_linux_or_devices_gets_them(text: str) -> None:
    spec = Spec(text.encode(), "c")
    assert (spec.devices, spec.device_rules, spec.changed()) == ([], [], False)
    assert spec.render().decode() == text
    spec.devices, spec.device_rules = [DEVICE], [RULE]
    again = Spec(spec.render(), "c")
    assert (again.devices, again.device_rules) == ([DEVICE], [RULE])


def test_all_parts_at_once() -> None:
    spec = read({"resources": {"cpu": {"shares": 2}}}, env=["A=1"])
    spec.env, spec.mounts, spec.annotations = ["A=2"], [{"destination": "/m"}], {"n": "v"}
    spec.devices, spec.device_rules = [DEVICE], [RULE]
    again = Spec(spec.render(), "c")
    assert (again.env, again.mounts, again.annotations) == (["A=2"], [{"destination": "/m"}], {"n": "v"})
    assert json.loads(spec.render())["linux"]["resources"] == {"cpu": {"shares": 2}, "devices": [RULE]}


@pytest.mark.parametrize(
    ("linux", "complaint"),
    [
        ([], "linux is not an object"),
        ({"devices": {}}, "linux.devices is not a list of objects"),
        ({"devices": ["/dev/null"]}, "linux.devices is not a list of objects"),
        ({"resources": []}, "linux.resources is not an object"),
        ({"resources": {"devices": {}}}, "linux.resources.devices is not a list of objects"),
        ({"resources": {"devices": [1]}}, "linux.resources.devices is not a list of objects"),
    ],
)
def test_devices_of_no_oci_shape_are_unacceptable(linux: object, complaint: str) -> None:
    with pytest.raises(Unacceptable) as caught:
        read(linux)
    assert str(caught.value) == f"/b/config.json: {complaint}"
