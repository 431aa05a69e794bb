"""Patterns that match nothing, and values that nothing expands, are said when the policy is checked."""

from __future__ import annotations

from typing import Any

import pytest

from hook.compile.compiler import compile_bytes
from hook.compile.ineffective import PROXIES
from hook.compile.source import PolicyInvalid, Problem
from unit.support import ROOT, document

ENV = [{"name": "LD_PRELOAD", "absent": True}]


def warned(rule: dict[str, Any], **spec: Any) -> list[str]:
    """The warnings of a policy with one rule."""
    found: list[Problem] = compile_bytes("p", document({"name": "r", "env": ENV, **rule}, **spec).encode()).warnings
    assert {each.severity for each in found} <= {"warning"}
    return [each.message for each in found]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LD_.*", "write 'LD_*'"),
        ("^PYTHON", "no regular expression"),
        ("NODE_{A,B}", "'{'"),
        ("(A|B)", "'('"),
        ("HTTPS_PROXY ", "U+0020"),
        (" TOKEN", "U+0020"),
        ("\u0410WS_KEY", "U+0410"),  # Cyrillic
        ("A\u200bB", "U+200B"),
        ("A,B", "','"),
    ],
)
def test_an_env_pattern_that_no_program_reads(name: str, said: str) -> None:
    [message] = warned({"env": [{"name": name, "absent": True}]})
    assert said in message


@pytest.mark.parametrize("name", ["LD_*", "*_TOKEN", "npm_config_cafile", "A?", "Foo.Bar", "x-y", "*"])
def test_a_usual_env_pattern_is_no_warning(name: str) -> None:
    assert warned({"env": [{"name": name, "absent": True}, {"name": "HOME", "value": "/"}]}) == []


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("^prod-.*$", "no regular expression"),
        ("prod-.+", "no regular expression"),
        ("a,b", "an entry for each"),
        ("a|b", "an entry for each"),
        ("!x", "no pattern takes a"),
        ("Team-C", "write team-c"),
        ("a" * 64, "at most 63"),
        ("te\u0430m", "lower-case letters"),
    ],
)
@pytest.mark.parametrize("field", ["namespaces", "containerNames", "exclude"])
def test_a_pattern_that_no_namespace_or_container_has(field: str, pattern: str, said: str) -> None:
    if field == "exclude":
        [message] = warned({}, exclude={"namespaces": ["kube-system", pattern]})
    else:
        [message] = warned({"match": {field: [pattern]}})
    assert "matches nothing" in message
    assert said in message


@pytest.mark.parametrize("pattern", ["^registry.*", "a,b", "nginx$", "(a|b)"])
def test_a_pattern_that_no_image_has(pattern: str) -> None:
    [message] = warned({"match": {"images": [pattern]}})
    assert "matches nothing" in message


def test_usual_patterns_are_no_warning() -> None:
    match = {"namespaces": ["team-*", "a?c"], "containerNames": ["*"], "images": ["r.example:5000/a_b/*@sha256:*"]}
    assert warned({"match": match}, exclude={"namespaces": ["kube-*"]}) == []


@pytest.mark.parametrize("value", ["a:$PATH", "http://$(HOST_IP):3128", "${NO_PROXY},.svc", "${A:-b}"])
def test_a_value_that_nothing_expands(value: str) -> None:
    [message] = warned({"env": [{"name": "A", "value": value}]})
    assert "nothing expands $" in message


@pytest.mark.parametrize("value", ["pa$$word", "5$", "$ 5", "a$1b", "$"])
def test_a_dollar_that_is_no_variable_is_no_warning(value: str) -> None:
    assert warned({"env": [{"name": "A", "value": value}]}) == []


def test_a_path_without_the_usual_directories() -> None:
    [message] = warned({"env": [{"name": "PATH", "value": "/opt/acme/bin:/usr/local/bin"}]})
    assert "neither /usr/bin nor /bin" in message
    assert warned({"env": [{"name": "PATH", "value": "/opt/acme/bin:/usr/bin"}]}) == []


@pytest.mark.parametrize("path", ["/~/ca", "/opt/$X", "/opt/*.pem", "/opt/${A}/b"])
def test_a_host_path_that_nothing_expands(path: str) -> None:
    [message] = warned({"mounts": [{"hostPath": path, "mountPath": "/a"}]})
    assert path in message


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxys_variable_in_one_case_only(name: str) -> None:
    for one, other in ((name, name.upper()), (name.upper(), name)):
        [message] = warned({"env": [{"name": one, "value": "x"}]})
        assert f"{one} is reserved and {other} is not" in message
        for twin in (
            {"name": other, "value": "x"},
            {"name": other, "absent": True},
            {"name": "*_prox?", "absent": True},
        ):
            if twin["name"] != "*_prox?" or other.islower():
                assert warned({"env": [{"name": one, "value": "x"}, twin]}) == []


@pytest.mark.parametrize(
    "example",
    [ROOT / "config/policy.yaml", *sorted((ROOT / "config/examples").glob("*.yaml"))],
    ids=lambda path: str(path.name),
)
def test_no_example_has_what_has_no_effect(example: Any) -> None:
    found = compile_bytes(str(example), example.read_bytes()).warnings
    assert [each.message for each in found if "nothing" in each.message or "is reserved and" in each.message] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  policy.yaml: |\n    kind: NodePolicy\n",
            'p:2:7: error: this is a ConfigMap (v1), and not a NodePolicy; the policy is the text of data["policy.',
        ),
        ("apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nspec: {}\n", "this is a ClusterPolicy (kyverno.io/v1)"),
        ("kind: PodPreset\n", "this is a PodPreset (no apiVersion)"),
        (
            document({"name": "r", "env": {"HTTP_PROXY": "http://p:3128"}}),
            'write a list: - {name: HTTP_PROXY, value: "http://p:3128"}',
        ),
        (document(mode="X").replace('"X"', "{{ .Values.mode }}"), "a template, which must be rendered first"),
    ],
)
def test_what_people_paste_is_refused_with_the_right_form(text: str, said: str) -> None:
    with pytest.raises(PolicyInvalid) as refused:
        compile_bytes("p", text.encode())
    assert said in str(refused.value)
    assert "ordereddict" not in str(refused.value)
    assert "did you mean" not in str(refused.value)
