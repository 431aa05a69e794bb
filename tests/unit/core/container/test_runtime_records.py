"""A container's bundle is found in the state directory of a runtime with any name."""

from __future__ import annotations

import json
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import Undecided
from hook.core.container.runtime_records import bundle_of

pytestmark = marks.promise("Command lines are read as runc and crun read them")

RUNC = ("state.json", {"config": {"labels": ["a=b", "bundle=BUNDLE"]}})
CRUN = ("status", {"pid": 1, "bundle": "BUNDLE"})
YOUKI = ("state.json", {"id": "0a", "bundle": "BUNDLE"})


def record(root: Path, kind: tuple[str, object], bundle: str) -> None:
    """Write the state of a container 0a into a runtime's state directory."""
    name, data = kind
    (root / "0a").mkdir(parents=True)
    (root / "0a" / name).write_text(json.dumps(data).replace("BUNDLE", bundle))


@pytest.mark.parametrize("kind", [RUNC, CRUN, YOUKI])
def test_given_root_is_the_only_place(tmp_path: Path, kind: tuple[str, object]) -> None:
    record(tmp_path / "root", kind, "/b")
    record(tmp_path / "crun", CRUN, "/other")
    environment = {b"XDG_RUNTIME_DIR": str(tmp_path).encode()}
    assert bundle_of("0a", root=f"{tmp_path}/root", real="/usr/bin/x", environment=environment) == "/b"
    assert bundle_of("0a", root=f"{tmp_path}/root/", real="/usr/bin/x", environment={}) == "/b"


@pytest.mark.parametrize(
    ("directory", "kind"), [("runc", RUNC), ("crun", CRUN), ("youki", YOUKI), ("crun-wasm", CRUN), ("runc", CRUN)]
)
def test_without_a_root_the_runtime_directory_of_the_environment_is_looked_through(
    tmp_path: Path, directory: str, kind: tuple[str, object]
) -> None:
    record(tmp_path / directory, kind, "/b")
    environment = {b"XDG_RUNTIME_DIR": str(tmp_path).encode()}
    assert bundle_of("0a", root=None, real="/usr/bin/crun-wasm", environment=environment) == "/b"


def test_container_that_is_found_nowhere_is_undecided_and_every_place_is_named(tmp_path: Path) -> None:
    environment = {b"XDG_RUNTIME_DIR": str(tmp_path).encode()}
    with pytest.raises(Undecided) as caught:
        bundle_of("nobody", root=None, real="/opt/my-runtime", environment=environment)
    for directory in ("/run", str(tmp_path)):
        for name in ("runc", "crun", "youki", "my-runtime"):
            assert f"{directory}/{name}/nobody" in str(caught.value)


def test_two_records_must_agree_on_the_bundle(tmp_path: Path) -> None:
    environment = {b"XDG_RUNTIME_DIR": str(tmp_path).encode()}
    record(tmp_path / "runc", RUNC, "/b")
    record(tmp_path / "crun", CRUN, "/b")
    assert bundle_of("0a", root=None, real="/usr/bin/crun", environment=environment) == "/b"
    record(tmp_path / "youki", YOUKI, "/other")
    with pytest.raises(Undecided, match=r"different containers with this id in .*/runc/0a and .*/youki/0a"):
        bundle_of("0a", root=None, real="/usr/bin/crun", environment=environment)


@pytest.mark.parametrize("label", ["bundle=/elsewhere", "bundle=/elsewhere=x", "bundle="])
def test_annotation_that_names_another_bundle_leaves_it_undecided(tmp_path: Path, label: str) -> None:
    """runc appends its own label after those of annotations, and its exec takes the first."""
    record(tmp_path, ("state.json", {"config": {"labels": [label, "a=b", "bundle=BUNDLE"]}}), "/b")
    with pytest.raises(Undecided, match="an annotation names another bundle"):
        bundle_of("0a", root=str(tmp_path), real="/usr/sbin/runc", environment={})


@pytest.mark.parametrize("text", ["{", "", '{"bundle": 3}', "[]"])
def test_record_that_cannot_be_read_is_no_bundle(tmp_path: Path, text: str) -> None:
    (tmp_path / "0a").mkdir()
    (tmp_path / "0a" / "status").write_text(text)
    with pytest.raises(Undecided):
        bundle_of("0a", root=str(tmp_path), real="/usr/bin/crun", environment={})


def sandboxed(root: Path, name: str, bundle: str) -> None:
    """The state file of runsc of a container 0a."""
    root.mkdir(exist_ok=True)
    (root / name).write_text(json.dumps({"id": "0a", "bundleDir": bundle, "sandbox": {"id": "s", "pid": 1}}))


def test_record_of_runsc_is_a_file_with_both_ids(tmp_path: Path) -> None:
    sandboxed(tmp_path / "runsc", "0a_sandbox:s.state", "/b")
    sandboxed(tmp_path / "runsc", "0a1_sandbox:0a.state", "/other")
    (tmp_path / "runsc/0a_sandbox:s.lock").touch()
    environment = {b"XDG_RUNTIME_DIR": str(tmp_path).encode()}
    assert bundle_of("0a", root=f"{tmp_path}/runsc", real="/x", environment={}) == "/b"
    assert bundle_of("0a", root=None, real="/x", environment=environment) == "/b"
    with pytest.raises(Undecided, match="is not in"):
        bundle_of("0", root=f"{tmp_path}/runsc", real="/x", environment={})
    sandboxed(tmp_path / "runsc", "0a_sandbox:t.state", "/b")
    with pytest.raises(Undecided, match="several sandboxes"):
        bundle_of("0a", root=f"{tmp_path}/runsc", real="/x", environment={})


def test_relative_bundle_of_runsc_is_undecided(tmp_path: Path) -> None:
    """It would count from the directory of whoever executes something in the container."""
    sandboxed(tmp_path, "0a_sandbox:0a.state", ".")
    with pytest.raises(Undecided, match="relative bundle"):
        bundle_of("0a", root=str(tmp_path), real="/x", environment={})
