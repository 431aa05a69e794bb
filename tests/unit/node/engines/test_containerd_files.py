"""Which of containerd's files changes, and how it is taken out again; the real containerd is in tests/e2e/node."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hook.node.change.files import look
from hook.node.engines.containerd.files import Files, strip
from hook.node.engines.toml import Key
from hook.node.errors import NodeError

BINARY = ("containerd", "runtimes", "runc", "options", "BinaryName")


def change(main: Path, newest: int) -> tuple[dict[str, str], list[dict[str, object]]]:
    """The files that would be written, text by path, and the notes. `newest`: the format that containerd knows."""
    files = Files.read(str(main), newest, [], look)
    key: Key = (*files.cri(), *BINARY)
    changes, notes = files.change({key: "/ours"})
    return {path: state.content.decode() for path, state in changes if state}, notes


@pytest.mark.parametrize(
    ("text", "newest", "version", "imports"),
    [
        ("version = 3\n", 3, 3, ["CONF.D/99-reassert*.toml"]),
        ('version = 3\nimports = ["/site/*.conf"]\n', 3, 3, ["/site/*.conf", "CONF.D/99-reassert*.toml"]),
        ("", 3, 3, ["CONF.D/99-reassert*.toml"]),
        ("version = 4\n", 4, 4, ["CONF.D/99-reassert*.toml"]),
        ("version = 3\n", 4, 3, ["CONF.D/99-reassert*.toml"]),
        ("version = 4\n", 5, 4, ["CONF.D/99-reassert*.toml"]),
        ("", 4, 4, ["CONF.D/99-reassert*.toml"]),
    ],
)
def test_2_gets_a_drop_in_and_one_import(
    tmp_path: Path, text: str, newest: int, version: int, imports: list[str]
) -> None:
    """The drop-in has the main file's version: containerd 2.3.0 to 2.3.4 do not start with a higher one."""
    main = tmp_path / "config.toml"
    if text:
        main.write_text(text)
    written, notes = change(main, newest)
    drop_in = str(tmp_path / "conf.d/99-reassert.toml")
    assert list(written) == [drop_in, str(main)]
    values = tomllib.loads(written[drop_in])
    assert values["version"] == version
    assert list(values["plugins"]) == ["io.containerd.cri.v1.runtime"]
    wanted = [item.replace("CONF.D", str(tmp_path / "conf.d")) for item in imports]
    assert tomllib.loads(written[str(main)])["imports"] == wanted
    assert strip(str(main), written[str(main)], notes) == (text or f"version = {version}\n")


def test_2_uses_a_directory_that_is_imported_already(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('version = 2\nimports = ["conf/*.toml"]\n')
    written, notes = change(tmp_path / "config.toml", 3)
    assert list(written) == [str(tmp_path / "conf/99-reassert.toml")]
    assert tomllib.loads(written[str(tmp_path / "conf/99-reassert.toml")])["version"] == 2  # as the main file's
    assert notes == []


@pytest.mark.parametrize(
    ("text", "newest", "remedy"),
    [
        ("[debug]\n", 2, "write `version = 2`"),
        ("version = 3\n", 2, "write `version = 2`"),
        ("version = 1\n", 3, "write `version = 3`.* or let `containerd config migrate` do it"),
        ("version = 4\n", 3, "write `version = 3`"),
        ("version = 5\n", 5, "write `version = 4`"),
    ],
)
def test_other_versions_are_refused(tmp_path: Path, text: str, newest: int, remedy: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(NodeError, match=remedy):
        change(tmp_path / "config.toml", newest)
