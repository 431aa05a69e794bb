"""An edit of config.json changes only the edited parts; a text that is not an OCI spec is refused."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.errors import Unacceptable
from hook.core.base.jsontext import Malformed, Strings, fold
from hook.core.container import oci
from hook.core.container.spec import (
    _DEVICE,
    _DEVICE_RULE,
    _LINUX,
    _MOUNT,
    _ROOT,
    _ROOT_FILESYSTEM,
    _STAGES,
    PROCESS,
    RESOURCES,
    Spec,
    apply,
    splice,
)
from hook.entry.process import ProcessFile
from hook.nri.requested import nul_in
from unit.support import FIXTURES, ROOT, config

pytestmark = marks.promise("Only the needed parts of `config.json` change", about="Decision")

text = st.text().filter(lambda text: "\0" not in text)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
OURS = ("process", "mounts", "annotations", "env", "linux", "root", "hooks", "args", "cwd", "user")


others = st.dictionaries(text.filter(lambda name: fold(name) not in OURS), json_values, max_size=4)


def read(data: object) -> Spec:
    """A spec, from data or from a text."""
    text = data if isinstance(data, str) else json.dumps(data)
    return Spec(text.encode("utf-8", "surrogatepass"), "/b/config.json")


def replaced(spec: Spec) -> dict[str, Any]:
    """The data of the spec after env, mounts and annotations were replaced."""
    spec.env = Strings('["A=1"]') if isinstance(spec.env, Strings) else ["A=1"]
    spec.mounts, spec.annotations = oci.mounts([{"destination": "/x"}]), {"n": "v"}
    text = spec.render()
    data: dict[str, Any] = json.loads(text)
    assert spec.env_in(text) == data["process"].pop("env") == ["A=1"]
    assert data.pop("mounts") == [{"destination": "/x"}]
    assert data.pop("annotations") == {"n": "v"}
    return data


@given(others, others, st.sampled_from([None, 2, "\t"]), st.booleans(), st.data())
def test_all_that_was_not_replaced_survives(
    top: dict[str, Any], process: dict[str, Any], indent: Any, ascii_only: bool, data: st.DataObject
) -> None:
    """Also where env, mounts and annotations were missing, and whatever stands before or behind them."""
    process_members = list(process.items()) + [("env", ["B=2"])] * data.draw(st.booleans())
    process = dict(data.draw(st.permutations(process_members)))
    members = [*top.items(), ("process", process), *data.draw(st.lists(st.just(("mounts", [])), max_size=1))]
    text = json.dumps(dict(data.draw(st.permutations(members))), indent=indent, ensure_ascii=ascii_only)
    try:
        spec = read(text)
    except Unacceptable:  # a lone surrogate outside of an escape is no UTF-8
        assert not ascii_only
        return
    process.pop("env", None)
    assert replaced(spec) == {**top, "process": process}


@pytest.mark.parametrize("text", ['{"process":{"env":["B=2"]},"mounts":[]}', '{"mounts":[],"process":{"env":["B=2"]}}'])
def test_env_is_read_back_from_where_it_was_written(text: str) -> None:
    assert replaced(read(text)) == {"process": {}}
    spec = read(text)
    with pytest.raises(Malformed):
        spec.env_in(spec.render().replace(b'"env"', b'"env" '))


@pytest.mark.parametrize("text", ['{"process":{}}', '{"process":{ }}', '{"process":{"args":[]}}'])
def test_two_members_of_one_object_can_be_new(text: str) -> None:
    members = {"args": ([], 0, 0)} if "args" in text else {}
    start = text.index("{", 1)
    data = apply(text, [splice(members, start, name, value) for name, value in (("env", '["A=1"]'), ("n", "0"))])
    assert json.loads(data)["process"] == {"env": ["A=1"], "n": 0, **({"args": []} if members else {})}


def test_bytes_of_unknown_fields_stay_as_they_were() -> None:
    odd = '"x" : {"big":12345678901234567890123, "f":1.10e+0, "u":"\\u00e9é\\/", "dup":1,"dup":2 }'
    text = f'\n{{ {odd} ,"process":{{"env":[ "A=0" ],  "y":-0.0}}}}\n'
    spec = read(text)
    spec.env = ["A=1"]
    assert spec.render().decode() == text.replace('[ "A=0" ]', '["A=1"]')


def test_recorded_bundle_is_rendered_byte_for_byte_where_nothing_changes() -> None:
    data = (FIXTURES / "kubelet" / "containerd-container.json").read_bytes()
    spec = Spec(data, "c")
    spec.env = list(spec.env)
    assert not spec.changed()
    assert spec.render() == data
    spec.env = [*spec.env, "NEW=é"]
    assert spec.changed()
    assert spec.render() == data.replace(
        b'"COPY=all","NVIDIA_VISIBLE_DEVICES=all"]', b'"COPY=all","NVIDIA_VISIBLE_DEVICES=all","NEW=\\u00e9"]'
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a JSON object at the end of the text"),
        ("[]", "not a JSON object"),
        ("{}", "process is missing or not an object"),
        ('{"process": []}', "process is missing or not an object"),
        ('{"process": {}', "truncated"),
        ('{"process": {}, "process": {}}', "duplicate member 'process'"),
        ('{"process": {"env": [], "env": []}}', "duplicate member 'env'"),
        ('{"process": {}, "Process": {}}', "member 'Process' is spelled 'process' in an OCI spec"),
        ('{"process": {"ENV": []}}', "member 'ENV' is spelled 'env' in an OCI spec"),
        ('{"process": {}, "Mounts": []}', "member 'Mounts' is spelled 'mounts' in an OCI spec"),
        ('{"process": {"env": "A=1"}}', "process.env is not a list"),
        ('{"process": {"env": ["A=1", 2]}}', "process.env[1] is not a string"),
        ('{"process": {}, "mounts": {}}', "mounts is not a list"),
        ('{"process": {}, "mounts": [{"source": "/x"}]}', "mounts[0] is not an object with a destination"),
        ('{"process": {}, "mounts": [{"destination": 3}]}', "mounts[0] is not an object with a destination"),
        ('{"process": {}, "annotations": []}', "annotations is not an object"),
        ('{"process": {}, "annotations": {"a": 1}}', "annotation 'a' is not a string"),
        ('{"process": {"x": NaN}}', "NaN is not JSON"),
        ('{"process": {"x": "\ud800"}}', "not UTF-8"),
    ],
)
def test_what_is_no_oci_spec_is_unacceptable_with_its_file_and_reason(text: str, complaint: str) -> None:
    with pytest.raises(Unacceptable) as caught:
        read(text)
    assert str(caught.value).startswith("/b/config.json: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("text", ['{"process": {"env": null}, "mounts": null, "annotations": null}', '{"process":{}}'])
def test_missing_and_null_lists_are_empty_and_can_be_filled(text: str) -> None:
    spec = read(text)
    assert (spec.env, spec.mounts, spec.annotations) == ([], [], {})
    assert replaced(spec) == {"process": {}}


def test_process_file_keeps_all_but_env() -> None:
    text = ' {"terminal" : true,"env":["A=1"],"args":["sh"] }'
    target = ProcessFile(text.encode(), "/p")
    assert not target.changed()
    target.env = ["A=2", "B"]
    assert target.changed()
    assert target.render().decode() == text.replace('["A=1"]', '["A=2","B"]')


@pytest.mark.parametrize("text", ["{", "[]", '{"env": 3}', '{"Env": []}', '{"env": [], "env": []}'])
def test_what_is_no_process_is_unacceptable(text: str) -> None:
    with pytest.raises(Unacceptable, match=r"^/p: "):
        ProcessFile(text.encode(), "/p")


NULS = [
    '{"process": {"env": ["A\\u0000=1"]}}',
    '{"process": {"args": ["\\\\\\u0000"]}}',
    '{"process": {}, "mounts": [{"destination": "/x", "source": "\\u0000"}]}',
    '{"process": {}, "annotations": {"\\u0000": ""}}',
    '{"process": {"env": ["\\\\u0000", "\\u0000"]}}',
]


@pytest.mark.parametrize("text", NULS)
def test_escaped_nul_is_unacceptable_wherever_it_stands(text: str) -> None:
    assert "\0" in str(json.loads(text)).replace("\\x00", "\0")
    with pytest.raises(Unacceptable, match="a string holds a NUL"):
        read(text)


@pytest.mark.parametrize("entry", ["\\u0000", "\\\\u0000", "u0000", "\\u00000", "\\\\\\\\u0000x"])
def test_backslash_before_u0000_that_is_itself_escaped_is_no_nul(entry: str) -> None:
    spec = read({"process": {"env": [entry]}})
    assert spec.env == [entry]


@given(st.text(alphabet='\\\0u0x"', max_size=12))
def test_nul_is_found_if_and_only_if_there_is_one(entry: str) -> None:
    document = json.dumps({"process": {"env": [entry]}})
    if "\0" in entry:
        with pytest.raises(Unacceptable, match="holds a NUL"):
            read(document)
    else:
        assert read(document).env == [entry]


def test_nul_in_a_process_file_is_unacceptable() -> None:
    with pytest.raises(Unacceptable, match="holds a NUL"):
        ProcessFile(b'{"env": ["A\\u0000=1"]}', "/p")


MOUNT: oci.Json = {"destination": "/x", "type": "bind", "source": "/s", "options": ["ro"]}


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        ((["A\0"], [], [], {}), "env"),
        ((["A"], ["\0"], [], {}), "args"),
        (([], [], [oci.Mount({**MOUNT, "options": ["ro", "\0"]})], {}), "mounts"),
        (([], [], [oci.Mount({**MOUNT, "source": "/x\0"})], {}), "mounts"),
        (([], [], [], {"a": "\0"}), "annotations"),
        (([], [], [], {"\0": ""}), "annotations"),
        ((["A=1"], ["a"], [oci.Mount(MOUNT)], {"a": "b"}), ""),
    ],
)
def test_nul_in_what_comes_without_a_text_is_found(parts: Any, place: str) -> None:
    assert nul_in(*parts) == place


SPELLINGS = [
    ('{"process": {}, "hoo\u212as": {}}', "member 'hoo\u212as' is spelled 'hooks'"),
    ('{"process": {}, "proce\u017fs": {}}', "member 'proce\u017fs' is spelled 'process'"),
    ('{"process": {}, "mount\\u017f": []}', "member 'mount\u017f' is spelled 'mounts'"),
    ('{"process": {"ARGS": []}}', "member 'ARGS' is spelled 'args'"),
    ('{"process": {}, "linux": {"Devices": []}}', "member 'Devices' is spelled 'devices'"),
    ('{"process": {}, "linux": {"cgroup\u017fPath": ""}}', "is spelled 'cgroupsPath'"),
    ('{"process": {}, "linux": {"resources": {"DEVICES": []}}}', "member 'DEVICES' is spelled 'devices'"),
    ('{"process": {}, "linux": {"devices": [{"Path": "/dev/x"}]}}', "member 'Path' is spelled 'path'"),
    ('{"process": {}, "linux": {"resources": {"devices": [{"acce\u017fs": "rwm"}]}}}', "is spelled 'access'"),
    ('{"process": {}, "linux": {"namespaces": [{"Type": "user"}]}}', "member 'Type' is spelled 'type'"),
    ('{"process": {}, "mounts": [{"destination": "/x"}, {"destination": "/x", "\u017fource": "/"}]}', "'source'"),
    ('{"process": {}, "root": {"Path": "/"}}', "member 'Path' is spelled 'path'"),
    ('{"process": {}, "hooks": {"CreateRuntime": []}}', "is spelled 'createRuntime'"),
    ('{"process": {}, "hooks": {"createRuntime": [{"Path": "/x"}]}}', "member 'Path' is spelled 'path'"),
    ('{"process": {}, "mounts": [{"destination": "/x", "destination": "/y"}]}', "duplicate member 'destination'"),
    ('{"process": {}, "annotations": {"a": "1", "b": "", "a": "2"}}', "duplicate member 'a'"),
    ('{"process": {}, "linux": {"resources": {}, "resources": {}}}', "duplicate member 'resources'"),
    ('{"process": {"capabilities": {"bounding": ["CAP_SYS_ADMIN"], "bounding": []}}}', "duplicate member 'bounding'"),
]


@pytest.mark.parametrize(("text", "complaint"), SPELLINGS)
def test_member_that_go_and_c_read_differently_is_unacceptable(text: str, complaint: str) -> None:
    with pytest.raises(Unacceptable) as caught:
        read(text)
    assert complaint in str(caught.value)


def test_annotations_and_unknown_members_may_have_any_spelling() -> None:
    spec = read({"process": {"x": {"ENV": 1}}, "annotations": {"Mounts": "1", "mounts": "2"}, "vm": {"Path": "/"}})
    assert spec.annotations == {"Mounts": "1", "mounts": "2"}


@pytest.mark.slow
def test_fold_is_unicodes_simple_folding_of_ascii() -> None:
    """Go's unicode.SimpleFold: the only characters beyond ASCII in an orbit with an ASCII letter are these two."""
    others = {chr(code): fold(chr(code)) for code in range(128, 0x110000) if fold(chr(code)).isascii()}
    assert others == {"\u017f": "s", "\u212a": "k"}
    assert fold("READONLYpath\u017f") == "readonlypaths"


PID = {"type": "pid"}


@pytest.mark.parametrize(
    ("namespaces", "shared"),
    [
        ([{"type": "mount"}, PID], ""),
        ([{**PID, "path": ""}], ""),
        ([{**PID, "path": "/proc/7/ns/pid"}], "joins the PID namespace /proc/7/ns/pid of others"),
        ([PID, {**PID, "path": "/p"}], "joins the PID namespace /p of others"),
        ([{"type": "mount"}], "has the node's PID namespace"),
        (None, "has the node's PID namespace"),
    ],
)
def test_processes_that_a_container_shares(namespaces: object, shared: str) -> None:
    assert read({"process": {}, "linux": {"namespaces": namespaces}}).shared_processes == shared


@pytest.mark.parametrize(
    ("capabilities", "is_admin"),
    [
        ({"bounding": ["CAP_CHOWN"]}, False),
        ({}, True),  # a runtime's defaults
        (None, True),
        ({"bounding": ["CAP_CHOWN"], "ambient": ["CAP_SYS_ADMIN"]}, True),
        ({"inheritable": ["cap_sys_admin"]}, True),  # as crun reads it
    ],
)
def test_who_is_admin(capabilities: object, is_admin: bool) -> None:
    spec = read({"process": {"capabilities": capabilities}, "linux": {"namespaces": [{"type": "pid"}]}})
    assert spec.is_admin() is spec.can_be_remounted() is is_admin


def test_mounts_can_be_remounted_from_a_joined_pid_namespace() -> None:
    namespaces = [{"type": "pid", "path": "/proc/1/ns/pid"}]
    spec = read({"process": {"capabilities": {"bounding": ["CAP_CHOWN"]}}, "linux": {"namespaces": namespaces}})
    assert not spec.is_admin()
    assert spec.can_be_remounted()


def test_capabilities_in_another_spelling_are_refused() -> None:
    with pytest.raises(Unacceptable, match="is spelled 'capabilities'"):
        read({"process": {"Capabilities": {}}})


# -- devices

DEVICE = {"path": "/dev/gpu", "type": "c", "major": 1, "minor": 3}
RULE = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}
others_of_linux = st.dictionaries(
    text.filter(lambda name: fold(name) not in ("devices", "resources", "namespaces")), json_values, max_size=3
)


def of_linux(linux: object, **more: Any) -> Spec:
    return read(config(**more, linux=linux))


@given(others_of_linux, others_of_linux, st.booleans(), st.booleans())
def test_unknown_members_of_linux_survive_new_devices(
    linux: dict[str, Any], resources: dict[str, Any], both: bool, with_resources: bool
) -> None:
    given = {**linux, **({"resources": {**resources, "devices": []}} if with_resources else {})}
    spec = of_linux(given, **{"x-unknown": 1})
    spec.devices = oci.devices([DEVICE])
    if both:
        spec.device_rules = oci.device_rules([RULE])
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
    spec.devices, spec.device_rules = oci.devices([DEVICE]), oci.device_rules([RULE])
    again = Spec(spec.render(), "c")
    assert (oci.objects(again.devices), oci.objects(again.device_rules)) == ([DEVICE], [RULE])


def test_all_parts_at_once() -> None:
    spec = of_linux({"resources": {"cpu": {"shares": 2}}}, env=["A=1"])
    spec.env, spec.mounts, spec.annotations = ["A=2"], oci.mounts([{"destination": "/m"}]), {"n": "v"}
    spec.devices, spec.device_rules = oci.devices([DEVICE]), oci.device_rules([RULE])
    again = Spec(spec.render(), "c")
    assert (again.env, oci.objects(again.mounts)) == (["A=2"], [{"destination": "/m"}])
    assert again.annotations == {"n": "v"}
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
        of_linux(linux)
    assert str(caught.value) == f"/b/config.json: {complaint}"


@pytest.mark.parametrize("rest", [" x", "{}", "\n]", ' {"process": {}}'])
def test_text_after_the_object_is_refused_with_its_place(rest: str) -> None:
    """runc reads the first value and crun refuses the file."""
    text = json.dumps(config())
    with pytest.raises(Unacceptable, match=r"^/b/config.json: more text after the object at line 1, column \d+$"):
        read(text + rest)
    assert read(text + " \t\r\n").env == config()["process"]["env"]


OCI_PROCESS = {
    *("apparmorProfile", "args", "capabilities", "commandLine", "consoleSize", "cwd", "env", "execCPUAffinity"),
    *("ioPriority", "noNewPrivileges", "oomScoreAdj", "rlimits", "scheduler", "selinuxLabel", "terminal", "user"),
}
"""The members of `process` in version 1.3 of the runtime-spec (config.md)."""

CHECKED = {
    "member": _ROOT,
    "_process": PROCESS,
    "linux": _LINUX,
    "_resources": RESOURCES,
    "root": _ROOT_FILESYSTEM,
    "hooks": _STAGES,
    "oci": {**_MOUNT, **_DEVICE, **_DEVICE_RULE},
}
"""By the attribute that has an object of config.json, the members of that whose spelling is checked."""


def members_read(path: Path) -> Iterator[tuple[str, str]]:
    """The attribute, and each member that code reads of it by a literal name: `x.linux.get("devices")`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript):
            owner, named = node.value, [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            owner, named = node.func.value, node.args[:1]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "member":
            owner, named = node.func, node.args
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in ("strings", "splice"):
            owner, named = node.args[0], node.args[1:]
        else:
            continue
        if isinstance(owner, ast.Attribute) and owner.attr in CHECKED:
            yield from (
                (owner.attr, each.value)
                for each in named
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and "." not in each.value
            )


def test_the_spelling_of_each_member_that_is_read_is_checked() -> None:
    """A member that a spec cannot have is none that is read, and no other spelling of one that is read passes."""
    read_here = {each for path in (ROOT / "hook").rglob("*.py") for each in members_read(path)}
    assert {owner for owner, _ in read_here} | {"hooks"} == CHECKED.keys()
    assert ("_process", "capabilities") in read_here
    assert [f"{owner}: {name}" for owner, name in sorted(read_here) if CHECKED[owner].get(name) != name] == []
    assert {*PROCESS.values()} - OCI_PROCESS == set()
