"""daemon.json: what dockerd would not read is said with line and column, and a file keeps its style."""

from __future__ import annotations

import json

import pytest

from hook.node.engines.dockerd import parse, render
from hook.node.errors import NodeError

PATH = "/etc/docker/daemon.json"


@pytest.mark.parametrize("content", [b"", b" \n", b"\xef\xbb\xbf{}"])
def test_empty_file_has_no_settings(content: bytes) -> None:
    assert parse(content, PATH) == {}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (
            '{"runtimes": {"a": {"path": "/a"}}, "debug": false, "runtimes": {"b": {"path": "/b"}}}',
            {"a": "/a", "b": "/b"},
        ),
        ('{"runtimes": {"a": {"path": "/a"}}, "runtimes": {"a": {"path": "/b"}}}', {"a": "/b"}),
        ('{"runtimes": {"a": {"path": "/a"}, "a": {"runtimeArgs": ["x"]}}}', {"a": None}),
        ('{"runtimes": {"a": {"path": "/a", "path": "/b"}}}', {"a": "/b"}),
        ('{"runtimes": {"a": {"path": "/a"}}, "runtimes": null}', {"a": "/a"}),
        ('{"runtimes": null}', {}),
        ('{"runtimes": {"a": null}}', {"a": None}),
        ('{"runtimes": {"a": {"path": null, "runtimeType": "x", "options": null}}}', {"a": None}),
    ],
)
def test_what_stands_twice_or_is_null_is_read_as_go_does(content: str, wanted: dict[str, str | None]) -> None:
    """dockerd's own answer to the first one: both runtimes (20.10)."""
    runtimes = parse(content.encode(), PATH).get("runtimes", {})
    assert {name: entry.get("path") for name, entry in runtimes.items()} == wanted


def test_what_is_null_has_its_default() -> None:
    assert "default-runtime" not in parse(b'{"default-runtime": null, "debug": null}', PATH)
    assert parse(b'{"default-runtime": "a", "default-runtime": "b"}', PATH) == {"default-runtime": "b"}
    assert parse(b'{"features": {"x": true}, "features": {"y": true}}', PATH) == {"features": {"x": True, "y": True}}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{\n  "a": 1,\n}', f"{PATH}:3:1: "),
        (b'{"a": 1', f"{PATH}:1:8: "),
        (b"[]", f"{PATH}:1:1: the file must hold a JSON object"),
        (b'{\n "a": "\xff"}', f"{PATH} is not UTF-8"),
        (b'{"a": 1,\n  "runtimes": []}', f"{PATH}:2:3: runtimes must be an object"),
        (b'{"default-runtime": 1}', f"{PATH}:1:2: default-runtime must be a string"),
        (b'{"runtimes": {\n "nvidia": "x"}}', f"{PATH}:2:2: nvidia must be an object"),
        (b'{"runtimes": {"a": {"path": 1}}}', f"{PATH}:1:21: path must be a string"),
        (b'{"runtimes": {"a": {"options": []}}}', f"{PATH}:1:21: options must be an object"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(content: bytes, complaint: str) -> None:
    with pytest.raises(NodeError) as error:
        parse(content, PATH)
    assert str(error.value).startswith(complaint)
    assert str(error.value).endswith("nothing was changed")


@pytest.mark.parametrize(
    "text",
    [
        '{\n    "b": 1,\n    "a": {\n        "é": "x"\n    }\n}\n',
        '{\n\t"b": 1,\n\t"a": {}\n}',
        '{"b": 1, "a": 2}\n',
    ],
)
def test_order_indentation_and_last_line_stay(text: str) -> None:
    assert render(json.loads(text), text.encode()) == text.encode()


def test_new_file_is_indented_by_two() -> None:
    assert render({"a": {"b": 1}}, b"") == b'{\n  "a": {\n    "b": 1\n  }\n}\n'
