"""Edits of TOML: exactly what was meant, and not a space more."""

from __future__ import annotations

import tomllib

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.node.engines.toml import Key, decode, edit, encode, get, put
from hook.node.errors import NodeError

pytestmark = marks.promise(
    "With any configuration of an engine, only the intended settings change, or install says why not"
)

RUNTIMES: Key = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes")
BINARY = (*RUNTIMES, "runc", "options", "BinaryName")

USUAL = """\
# Ask Mary before you change this.
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "pause:3.9" # mirrored
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    # for batch jobs
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
        BinaryName = "crun"   # from /usr/bin

[debug]
  level = "info"
"""


def test_only_the_lines_concerned_change() -> None:
    edited = edit(USUAL, "f", {BINARY: "/ours", (*RUNTIMES, "crun", "options", "BinaryName"): "/ours-too"})
    added = [line for line in edited.splitlines() if line not in USUAL.splitlines()]
    assert added == [
        '      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]',
        '        BinaryName = "/ours"',
        '        BinaryName = "/ours-too"   # from /usr/bin',
    ]
    assert edited.index(added[1]) < edited.index("# for batch jobs") < edited.index("crun]")  # whose comment it is
    left = [line for line in USUAL.splitlines() if line not in edited.splitlines()]
    assert left == ['        BinaryName = "crun"   # from /usr/bin']


def test_back_again_is_what_it_was() -> None:
    edited = edit(USUAL, "f", {BINARY: "/ours", ("plugins", "nri", "disable"): False})
    assert edit(edited, "f", {BINARY: None, ("plugins", "nri", "disable"): None}) == USUAL


@pytest.mark.parametrize("text", ["", "version = 2\n", "[debug]\nlevel = 'x'\n"])
def test_tables_that_are_missing_are_made(text: str) -> None:
    assert get(tomllib.loads(edit(text, "f", {BINARY: "/ours"})), BINARY) == "/ours"


def test_a_key_that_is_absent_already_is_no_error() -> None:
    assert edit(USUAL, "f", {BINARY: None}) == USUAL


def test_other_ends_of_lines_stay() -> None:
    text = "# a\u2028b\r\nx = {y = 1}\nz.w = 2\r\n[t]\r\nk = 0"
    edited = edit(text, "f", {("t", "new"): 1, ("x", "y"): 2, ("z", "w"): 3})
    assert edited == "# a\u2028b\r\nx = {y = 2}\r\nz.w = 3\r\n[t]\r\nk = 0\nnew = 1\r\n"


def test_a_comment_stays_with_the_table_below_it() -> None:
    text = "[a]\nx = 1\n# of a\n\n# of b\n[b]\ny = 1\n"
    assert edit(text, "f", {("a", "z"): 2}) == "[a]\nx = 1\n# of a\nz = 2\n\n# of b\n[b]\ny = 1\n"
    below = edit(text, "f", {("a", "c", "z"): 2})
    assert below == "[a]\nx = 1\n# of a\n\n[a.c]\nz = 2\n\n# of b\n[b]\ny = 1\n"
    assert edit(below, "f", {("a", "c", "z"): None}) == text
    assert edit("x = 1\n[c]\nz = 2\n# the end\n", "f", {("c", "z"): None}) == "x = 1\n# the end\n"


def test_what_containerd_passes_over_is_no_error_and_stays() -> None:
    """A byte order mark, and bytes that are no UTF-8 in a comment."""
    content = b"\xef\xbb\xbf# caf\xe9\n[t]\nk = 0\n"
    assert encode(edit(decode(content), "f", {("t", "new"): 1})) == content + b"new = 1\n"


def test_what_is_no_toml_is_said_with_the_line() -> None:
    with pytest.raises(NodeError, match=r"^config\.toml: .*line 2"):
        edit('version = 2\n[plugins\nx = "', "config.toml", {BINARY: "/ours"})


def test_a_value_where_a_table_is_needed_is_refused_whole() -> None:
    with pytest.raises(NodeError, match="cannot be edited safely"):
        edit('plugins = "none"\n', "f", {BINARY: "/ours"})


names = st.text("abc.-_ é", min_size=1, max_size=4)
values = st.booleans() | st.integers(-9, 99) | st.text(max_size=6) | st.lists(st.text("ab", max_size=2), max_size=2)
documents = st.dictionaries(names, values | st.dictionaries(names, values, max_size=3), max_size=4)


@given(documents, names, names, values)
def test_any_edit_says_exactly_what_was_meant(values: dict[str, object], table: str, name: str, value: object) -> None:
    text = "".join(_line(key, item) for key, item in values.items() if not isinstance(item, dict))
    for key, item in values.items():
        if isinstance(item, dict):
            text += f"  [{_quoted(key)}] # {key!r}\n" + "".join("    " + _line(*pair) for pair in item.items())
    if not isinstance(values.get(table, {}), dict):
        return
    edited = edit(text, "f", {(table, name): value})
    wanted = tomllib.loads(text)
    put(wanted, (table, name), value)
    assert tomllib.loads(edited) == wanted


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(letter):08X}" for letter in text) + '"'


def _line(key: str, value: object) -> str:
    if isinstance(value, str):
        return f"{_quoted(key)} = {_quoted(value)}\n"
    if isinstance(value, list):
        return f"{_quoted(key)} = [{', '.join(map(_quoted, value))}]\n"
    return f"{_quoted(key)} = {str(value).lower()}\n"


def test_what_lies_there_is_the_edit_if_it_has_the_lines_and_the_values() -> None:
    """As the last install, or an older version, has written it: its own spelling stays."""
    settings: dict[Key, object] = {BINARY: "/opt/reassert/reassert-runc"}
    edited = edit(USUAL, "f", settings)
    spelt = edited.replace('"/opt/reassert/reassert-runc"', "'/opt/reassert/reassert-runc'")
    assert spelt != edited
    for there, wanted in (
        (spelt, spelt),
        (spelt.replace("opt", "srv"), edited),
        (spelt.replace("# Ask Mary", "# Ask Joe"), edited),
        (spelt + "disabled_plugins = []\n", edited),
        ("no TOML", edited),
    ):
        assert edit(USUAL, "f", settings, there.encode()) == wanted
