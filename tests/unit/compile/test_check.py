"""`policy check` lists all problems at once, each with position, value and what would be right."""

from __future__ import annotations

import marks
import pytest

from unit.support import document, lines, problems

pytestmark = marks.promise(
    "All errors of a policy are reported at once, each with line, column and a correction, as text, JSON and "
    "GitHub annotations",
    about="Policy",
)

HEAD = "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - name: r\n"
"""What stands in front of a test's own lines, which begin at line 6."""

ENV_NAME = "it must not be empty or contain '=' or NUL"
ONE_OF = "it takes exactly one of value, absent or valueFrom; or oneOf, pattern or both"


def errors(own: str) -> list[str]:
    """The problems of HEAD with these lines appended, without the file's name."""
    return [line.removeprefix("policy.yaml:") for line in lines(HEAD + own)]


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/proc", "mountPath /proc is in /proc, which the runtime builds"),
        ("/proc/sys/kernel", "mountPath /proc/sys/kernel is in /proc, which the runtime builds"),
        ("//proc/", "mountPath /proc is in /proc, which the runtime builds"),
        ("/./sys/fs", "mountPath /sys/fs is in /sys, which the runtime builds"),
        ("/dev/nvidia0", "mountPath /dev/nvidia0 is in /dev, which the runtime builds"),
        ("/", "mountPath / would replace the container's whole root filesystem"),
        ("//.", "mountPath / would replace the container's whole root filesystem"),
        ("etc/ssl", "mountPath 'etc/ssl' is relative; write it from the root: /etc/ssl"),
        ("./etc", "mountPath './etc' is relative; write it from the root: /etc"),
        ("/etc/../proc", "mountPath '/etc/../proc' has a '..' in it; write /proc"),
        ("", "mountPath: '' is not allowed; it takes an absolute path without .."),
        (r"/etc/a\0b", r"mountPath '/etc/a\x00b' contains a NUL byte"),
    ],
)
def test_mount_path_that_could_hand_over_the_node_is_refused(path: str, complaint: str) -> None:
    assert errors(f'    mounts:\n    - {{hostPath: /a, mountPath: "{path}"}}\n') == [f"7:33: error: {complaint}"]


@pytest.mark.parametrize("path", ["/process", "/devices", "/system", "/etc/proc", "/srv/..data"])
def test_mount_path_that_only_resembles_a_forbidden_one_is_taken(path: str) -> None:
    assert errors(f"    mounts:\n    - {{hostPath: /a, mountPath: {path}}}\n") == []


def test_host_path_must_be_absolute_and_plain() -> None:
    assert errors("    mounts:\n    - {hostPath: a, mountPath: /b}\n    - {hostPath: /a/.., mountPath: /c}\n") == [
        "7:18: error: hostPath 'a' is relative; write it from the root: /a",
        "8:18: error: hostPath '/a/..' has a '..' in it; write /",
    ]


def test_allow_below_must_lie_below_its_mount() -> None:
    assert errors("    mounts:\n    - {hostPath: /a, mountPath: /b, allowBelow: [/b/c, /b, /bc, d]}\n") == [
        "7:56: error: allowBelow '/b' is not below mountPath /b",
        "7:60: error: allowBelow '/bc' is not below mountPath /b",
        "7:65: error: allowBelow 'd' is relative; write it from the root: /d",
    ]


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ('{name: A=B, value: ""}', f"7:14: error: env name 'A=B': {ENV_NAME}"),
        ('{name: "", value: x}', f"7:14: error: env name '': {ENV_NAME}"),
        (r'{name: "A\0", absent: true}', rf"7:14: error: env name 'A\x00': {ENV_NAME}"),
        (r'{name: A, value: "x\0y"}', "7:24: error: value of A: a NUL byte cannot be in an env value"),
        ("{name: A_*, value: x}", "7:14: error: env name 'A_*' is a pattern; only absent: true takes one"),
        ("{name: A?, valueFrom: {file: /a}}", "7:14: error: env name 'A?' is a pattern; only absent: true takes one"),
        ("{name: A}", f"7:7: error: item 0: none given; {ONE_OF}"),
        ("{name: A, value: x, absent: true}", f"7:7: error: item 0: value, absent given; {ONE_OF}"),
        ("{name: A, absent: true, valueFrom: {file: /a}}", f"7:7: error: item 0: absent, valueFrom given; {ONE_OF}"),
        (
            "{name: A, valueFrom: {}}",
            "7:28: error: valueFrom: none given; it takes exactly one of file or deviceAllocation",
        ),
        ("{value: x}", "7:7: error: name is missing"),
        ("{name: A, absent: false}", "7:25: error: absent: false must be true"),
        ("{name: A, valueFrom: {file: a}}", "7:35: error: file 'a' is relative; write it from the root: /a"),
        (
            '{name: A, valueFrom: {deviceAllocation: {default: "\\0"}}}',
            "7:57: error: default of A: a NUL byte cannot be in an env value",
        ),
    ],
)
def test_env_that_no_process_can_have_is_refused(env: str, complaint: str) -> None:
    assert errors(f"    env:\n    - {env}\n") == [complaint]


DEVICES = (
    "it takes a glob of device paths (/dev/nvidia*), whose first directory has no wildcard, "
    "or of CDI kinds (nvidia.com/gpu)"
)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("/dev/nvidia*", ""),
        ("/dev/dri/card?", ""),
        ("/dev/kfd", ""),
        ("nvidia.com/gpu", ""),
        ('"*/*"', ""),
        ("/dev", f"item 0: '/dev' is not allowed; {DEVICES}"),
        ("/*", f"item 0: '/*' is not allowed; {DEVICES}"),
        ("/d*/x", f"item 0: '/d*/x' is not allowed; {DEVICES}"),
        ("nvidia", f"item 0: 'nvidia' is not allowed; {DEVICES}"),
        ("nvidia.com/gpu/x", f"item 0: 'nvidia.com/gpu/x' is not allowed; {DEVICES}"),
        ('"/dev/a b"', f"item 0: '/dev/a b' is not allowed; {DEVICES}"),
        ("/dev/dri/", "device path '/dev/dri/' matches nothing; write /dev/dri"),
        ("/dev/../x", "device path '/dev/../x' matches nothing; write /x"),
        ("/dev/net/tun", "device path '/dev/net/tun': runtimes let every container use this device; leave it out"),
        ("/dev/null", "device path '/dev/null': runtimes let every container use this device; leave it out"),
    ],
)
def test_exclusive_devices(written: str, complaint: str) -> None:
    found = errors(f"    deviceAllocations:\n      exclusive: [{written}]\n")
    assert found == ([f"7:19: error: {complaint}"] if complaint else [])


def test_a_pattern_of_devices_that_runtimes_open_to_every_container_is_warned_of() -> None:
    for written, not_closed in (("/dev/*", "/dev/null"), ("/dev/net/*", "/dev/net/tun"), ("/dev/nvidia*", "")):
        found = errors(f"    deviceAllocations:\n      exclusive: [{written}]\n")
        assert [not_closed in line and ": warning: " in line for line in found] == ([True] if not_closed else [])


@marks.hole("A `HOME` that must be absent was set again by the runtime", since="0.1.0", fixed="0.4.0", severity="low")
@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("{name: HOME, absent: true}", "14: error: env name 'HOME' cannot be absent: "),
        ("{name: 'H*', absent: true}", "14: error: env name 'H*' matches HOME, which cannot be absent: "),
        ("{name: HOME, value: ''}", "27: error: value of HOME: it cannot be empty: "),
        ("{name: HOME, valueFrom: {deviceAllocation: {}}}", "14: error: env name 'HOME' cannot be absent: "),
        ("{name: HOME, valueFrom: {deviceAllocation: {default: ''}}}", "60: error: default of HOME: it cannot be empt"),
        ("{name: HOME, value: /root}", ""),
        ("{name: HOME, valueFrom: {deviceAllocation: {default: Keep}}}", ""),
        ("{name: HOME, valueFrom: {file: /etc/home}}", ""),
        ("{name: 'HOME_*', absent: true}", ""),
    ],
)
def test_home_that_runtimes_set_again_is_refused(entry: str, complaint: str) -> None:
    found = errors(f"    env:\n    - {entry}\n")
    assert [line.startswith("7:" + complaint) for line in found] == ([True] if complaint else []), found


def test_a_pattern_may_match_home_where_the_rule_gives_it_a_value() -> None:
    entries = "    env:\n    - {name: 'H*', absent: true}\n    - {name: HOME, value: /root}\n"
    assert errors(entries) == []


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("true", 'value: true is not a string; quote it: "true"'),
        ("1.10", 'value: 1.10 is not a string; quote it: "1.10"'),
        ("0755", 'value: 0755 is not a string; quote it: "0755"'),
        ("2024-01-01", 'value: 2024-01-01 is not a string; quote it: "2024-01-01"'),
        ("!!int 7", 'value: 7 is not a string; quote it: "7"'),
        ("[a]", "value: a list is not a string"),
        ("{a: b}", "value: a mapping is not a string"),
    ],
)
def test_value_that_is_no_string_is_refused_with_what_to_write(written: str, complaint: str) -> None:
    assert errors(f"    env:\n    - name: A\n      value: {written}  # why\n") == [f"8:14: error: {complaint}"]


def test_missing_value_is_told_at_its_key() -> None:
    assert errors("    env:\n    - name: A\n      value:\n") == ["8:7: error: value: nothing is not a string"]


@pytest.mark.parametrize("written", ["yes", "no", "on", "off", "y", "0o", "1:30"])
def test_yaml_1_1_booleans_are_strings(written: str) -> None:
    assert errors(f"    env:\n    - {{name: A, value: {written}}}\n") == []


def test_yaml_1_1_boolean_is_refused_where_a_boolean_is_needed() -> None:
    own = "    mounts:\n    - {hostPath: /a, mountPath: /b, readOnly: yes}\n"
    assert errors(own) == ['7:47: error: readOnly: "yes" is not true or false']


def test_unknown_field_is_refused_with_the_one_that_was_meant() -> None:
    text = "apiVersion: reassert/v1\nkind: NodePolicy\nspecs: {}\nspec:\n  mod: Audit\n  exclude: {namespace: [a]}\n"
    assert lines(text) == [
        "policy.yaml:3:1: error: unknown field 'specs'; did you mean spec?",
        "policy.yaml:5:3: error: unknown field 'mod'; did you mean mode?",
        "policy.yaml:6:13: error: unknown field 'namespace'; did you mean namespaces?",
    ]


def test_unknown_field_that_resembles_none_is_refused_with_all_there_are() -> None:
    assert errors("    env:\n    - {name: A, value: x, qqq: 1}\n") == [
        "7:27: error: unknown field 'qqq'; the fields are name, value, absent, oneOf, pattern, else, default, valueFrom"
    ]


def test_wrong_choice_is_refused_with_the_choices() -> None:
    assert lines(
        document({"name": "r", "env": [{"name": "A", "value": ""}], "onConflict": "deny"}, mode="enforce")
    ) == [
        "policy.yaml:5:11: error: mode: 'enforce' is not one of Enforce, Audit; did you mean Enforce?",
        "policy.yaml:15:19: error: onConflict: 'deny' is not one of Override, Deny; did you mean Deny?",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("3", "1:1: error: the policy: 3 is not a mapping"),
        ("- a", "1:1: error: the policy: a list is not a mapping"),
        ("apiVersion: reassert/v1\nkind: NodePolicy\n", "1:1: error: spec is missing"),
        ("apiVersion: v1\nkind: NodePolicy\nspec: {}", '1:13: error: apiVersion: "v1" must be "reassert/v1"'),
        ("apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n", "3:1: error: spec: nothing is not a mapping"),
        ("apiVersion: reassert/v1\nkind: NodePolicy\nspec: {rules: 5}", "3:15: error: rules: 5 is not a list"),
        (
            "apiVersion: reassert/v1\nkind: NodePolicy\nspec: {rules: {a: b}}",
            "3:15: error: rules: a mapping is not a list; write `- ` before each entry",
        ),
        (
            "apiVersion: reassert/v1\nkind: NodePolicy\nspec: {rules: [5, [x]]}",
            "3:16: error: item 0: 5 is not a mapping\n3:19: error: item 1: a list is not a mapping",
        ),
    ],
)
def test_file_of_another_shape_is_refused_with_its_place(text: str, complaint: str) -> None:
    assert [line.removeprefix("policy.yaml:") for line in lines(text)] == complaint.split("\n")


def test_wrong_types_inside_a_rule_never_raise() -> None:
    assert errors("    env: [3, FOO]\n    mounts: x\n    match: [a]\n") == [
        "6:11: error: item 0: 3 is not a mapping",
        '6:14: error: item 1: "FOO" is not a mapping',
        '7:13: error: mounts: "x" is not a list',
        "8:12: error: match: a list is not a mapping",
    ]


def test_all_errors_of_a_file_come_at_once_and_in_its_order() -> None:
    """Shape, meaning, and rules against each other: none hides another."""
    own = """    env:
    - {name: A=B, value: x}
    - {name: C, value: 1}
    matches: {}
  - name: s
    mounts: [{hostPath: /a, mountPath: /proc}]
  - name: t
    mounts: [{hostPath: /a, mountPath: /b}]
  - name: t
    mounts: [{hostPath: /c, mountPath: /b}]
"""
    assert errors(own) == [
        f"7:14: error: env name 'A=B': {ENV_NAME}",
        '8:24: error: value: 1 is not a string; quote it: "1"',
        "9:5: error: unknown field 'matches'; did you mean match?",
        "11:40: error: mountPath /proc is in /proc, which the runtime builds",
        "14:11: error: duplicate rule name t; the first one is at line 12",
        "15:14: error: rules t and t want different things for mount /b, and match the same containers (see line 13)",
    ]


def test_rule_that_reserves_nothing_is_refused() -> None:
    assert errors("    match: {namespaces: [a]}\n") == [
        "5:5: error: rule r reserves nothing: give it trust, env, mounts, annotations, deviceAllocations or "
        "sharedProcesses"
    ]


@pytest.mark.parametrize(
    ("match", "complaint"),
    [
        ("namespaces: []", "6:25: error: namespaces: the list is empty; leave it out to match everything"),
        (
            'images: ["a[bc]"]',
            "6:22: error: item 0: 'a[bc]' is not allowed; it takes a non-empty name in which * stands for any "
            "characters and ? for one",
        ),
        (
            "containerTypes: [initt]",
            "6:30: error: item 0: 'initt' is not one of sandbox, init, container, ephemeral; did you mean init?",
        ),
        (
            "podSelector: {matchExpressions: [{key: a, operator: In}]}, ifUnknown: Skip",
            "6:46: error: operator In needs values",
        ),
        (
            "podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}, ifUnknown: Skip",
            "6:81: error: operator Exists takes no values",
        ),
    ],
)
def test_condition_that_says_nothing_is_refused(match: str, complaint: str) -> None:
    assert errors(f"    match: {{{match}}}\n    env: [{{name: A, absent: true}}]\n") == [complaint]


def test_rule_that_reserves_a_thing_twice_is_refused() -> None:
    own = """    env: [{name: A, value: x}, {name: A, value: x}]
    mounts: [{hostPath: /a, mountPath: /b}, {hostPath: /a, mountPath: /b/}]
"""
    assert errors(own) == [
        "6:32: error: rule r has A twice; keep one",
        "7:45: error: rule r has /b twice; keep one",
    ]


A = {"env": [{"name": "A", "value": "1"}]}
B = {"env": [{"name": "A", "value": "2"}]}


@pytest.mark.parametrize(
    ("one", "other", "severity"),
    [
        ({}, {}, "error"),
        ({"namespaces": ["team-*"]}, {"namespaces": ["team-a"]}, "error"),
        ({"namespaces": ["team-a"]}, {}, "error"),
        ({"namespaces": ["a"]}, {"images": ["x/*"]}, "warning"),
        ({"namespaces": ["*-a"]}, {"namespaces": ["team-*"]}, "warning"),
        ({"namespaces": ["team-a"]}, {"namespaces": ["team-b"]}, None),
    ],
)
def test_contradiction_is_an_error_where_it_always_comes_and_a_warning_where_it_may(
    one: dict[str, list[str]], other: dict[str, list[str]], severity: str | None
) -> None:
    found = problems(document({"name": "one", "match": one, **A}, {"name": "other", "match": other, **B}))
    assert [problem.severity for problem in found] == ([severity] if severity else [])
    assert all("rules one and other want different things for env A" in problem.message for problem in found)


def test_rules_that_want_the_same_do_not_contradict() -> None:
    assert problems(document({"name": "one", **A}, {"name": "other", **A})) == []


@pytest.mark.parametrize(("other", "severity"), [("a", []), ("b", ["error"])])
def test_rules_that_trust_different_namespaces_contradict(other: str, severity: list[str]) -> None:
    values = [
        {"deviceAllocation": {"default": "d", "trusted": [{"namespaces": [name], "reservedBy": ["r"]}]}}
        for name in ("a", other)
    ]
    rules = [{"name": f"r{at}", "env": [{"name": "A", "valueFrom": value}]} for at, value in enumerate(values)]
    assert [problem.severity for problem in problems(document(*rules))] == severity


@pytest.mark.parametrize(
    ("above", "below", "warned"),
    [
        ("hostPath: /a, mountPath: /b/, readOnly: false", "mountPath: /b/c", True),
        ("emptyDir: {}, mountPath: /b", "mountPath: /b/c", True),
        ("emptyDir: {}, mountPath: /b", "mountPath: /b/c, volumesAbove: Allow", False),
        ("hostPath: /a, mountPath: /b", "mountPath: /b/c", False),
        ("hostPath: /a, mountPath: /b, readOnly: false", "mountPath: /bc", False),
    ],
)
def test_mount_below_one_of_its_rule_to_which_containers_write_is_a_warning(
    above: str, below: str, warned: bool
) -> None:
    found = errors(f"    mounts:\n    - {{{above}}}\n    - {{hostPath: /c, {below}}}\n")
    message = "8:33: warning: mountPath /b/c is below /b, to which containers write: they are refused"
    assert found == ([f"{message} (volumesAbove: Allow permits it)"] if warned else [])


@pytest.mark.parametrize("of", ["Pod", "Both", "Container", None])
def test_annotations_that_only_nri_sees_are_a_warning(of: str | None) -> None:
    entry = {"name": "nvidia.cdi.k8s.io/pod", "absent": True, **({"of": of} if of else {})}
    found = problems(document({"name": "closed", "annotations": [entry]}))
    assert [(problem.severity, "the NRI plugin alone" in problem.message) for problem in found] == (
        [("warning", True)] if of == "Pod" else []
    )
