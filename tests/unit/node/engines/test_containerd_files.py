"""Which of containerd's files changes, and how it is taken out again; the real containerd is in tests/e2e/node."""

from __future__ import annotations

import tomllib

import pytest

from hook.node.engines.containerd.files import Files, strip
from hook.node.engines.toml import Key
from hook.node.errors import NodeError
from unit.node.engines.table import Table

DIRECTORY = "/etc/containerd"
MAIN, OURS = f"{DIRECTORY}/config.toml", f"{DIRECTORY}/conf.d/99-reassert.toml"
BINARY = ("containerd", "runtimes", "runc", "options", "BinaryName")
CRI_1 = 'plugins."io.containerd.grpc.v1.cri".containerd'


def files(newest: int, **texts: str) -> Files:
    """The files of a node, by their names in DIRECTORY. `newest`: the format that containerd knows."""
    node = Table(texts={f"{DIRECTORY}/{name}": text for name, text in texts.items()})
    return Files.read(MAIN, newest, [], node.state, node)


def change(newest: int, **texts: str) -> tuple[dict[str, str], list[dict[str, object]]]:
    """The files that would be written, text by path, and the notes."""
    found = files(newest, **texts)
    key: Key = (*found.cri(), *BINARY)
    changes, notes = found.change({key: "/ours"})
    return {path: state.content.decode() for path, state in changes if state}, notes


def config(text: str) -> dict[str, str]:
    return {"config.toml": text}


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
def test_2_gets_a_drop_in_and_one_import(text: str, newest: int, version: int, imports: list[str]) -> None:
    """The drop-in has the main file's version: containerd 2.3.0 to 2.3.4 do not start with a higher one."""
    written, notes = change(newest, **(config(text) if text else {}))
    assert list(written) == [OURS, MAIN]
    values = tomllib.loads(written[OURS])
    assert values["version"] == version
    assert list(values["plugins"]) == ["io.containerd.cri.v1.runtime"]
    wanted = [item.replace("CONF.D", f"{DIRECTORY}/conf.d") for item in imports]
    assert tomllib.loads(written[MAIN])["imports"] == wanted
    assert strip(MAIN, written[MAIN], notes) == (text or f"version = {version}\n")


def test_2_uses_a_directory_that_is_imported_already() -> None:
    written, notes = change(3, **config('version = 2\nimports = ["conf/*.toml"]\n'))
    [(path, text)] = written.items()
    assert path == f"{DIRECTORY}/conf/99-reassert.toml"
    assert tomllib.loads(text)["version"] == 2  # as the main file's
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
def test_other_versions_are_refused(text: str, newest: int, remedy: str) -> None:
    with pytest.raises(NodeError, match=remedy):
        change(newest, **config(text))


def test_imports_of_imported_files_are_followed() -> None:
    """As NVIDIA's toolkit writes them. In 1.x the last file with the CRI plugin's table is the one that counts."""
    runc = f"[{CRI_1}.runtimes.runc]\n"
    texts = {
        "config.toml": f'version = 2\nimports = ["site.toml", "late.toml"]\n{runc}',
        "site.toml": 'version = 2\nimports = ["sub/*.toml", "config.toml"]\n',
        "sub/a.toml": f'version = 2\nimports = ["b.conf", "a.toml"]\n{runc}',
        "sub/b.conf": f"version = 2\n{runc}",
        "late.toml": f"version = 2\n{runc}",
    }
    names = ["config.toml", "site.toml", "late.toml", "sub/a.toml", "sub/b.conf"]
    assert list(files(2, **texts).files) == [f"{DIRECTORY}/{name}" for name in names]
    written, _ = change(2, **texts)
    assert list(written) == [f"{DIRECTORY}/sub/b.conf"]


def test_2_uses_a_directory_that_an_imported_file_imports() -> None:
    texts = {
        "config.toml": 'version = 2\nimports = ["nvidia.toml"]\n',
        "nvidia.toml": 'version = 2\nimports = ["conf.d/*.toml"]\n',
        "conf.d/99-nvidia.toml": _binary("/usr/bin/nvidia"),
    }
    written, notes = change(3, **texts)
    assert (list(written), notes) == ([OURS], [])


def _binary(path: str, table: str = CRI_1) -> str:
    return f'version = 2\n[{table}.runtimes.runc.options]\nBinaryName = "{path}"\n'


@pytest.mark.parametrize("version_3", [False, True])
def test_2_says_which_file_comes_after_ours(version_3: bool) -> None:
    """One that sorts after it, and one that is imported by an imported file."""
    later = _binary("/usr/bin/crun", 'plugins."io.containerd.cri.v1.runtime".containerd' if version_3 else CRI_1)
    texts = {
        "config.toml": 'version = 2\nimports = ["conf.d/*.toml", "a.toml"]\n',
        "conf.d/10-site.toml": later,
    }
    change(3, **texts)
    texts["conf.d/zz-site.toml"] = later
    why = f"{DIRECTORY}/conf.d/zz-site.toml is read after {OURS} and sets containerd.runtimes.runc.options.BinaryName;"
    with pytest.raises(NodeError, match=f"^{why} name it so that it sorts before"):
        change(3, **texts)
    texts["conf.d/99-reassert.toml"] = ""
    with pytest.raises(NodeError, match=f"^{why}"):
        change(3, **texts)
    texts["conf.d/zz-site.toml"] = "version = 2\n[debug]\n"
    change(3, **texts)
    texts |= {"a.toml": 'version = 2\nimports = ["nested.conf"]\n', "nested.conf": later}
    with pytest.raises(NodeError, match=f"^{DIRECTORY}/nested.conf is read after "):
        change(3, **texts)
    texts["nested.conf"] = _binary("/ours")
    change(3, **texts)
