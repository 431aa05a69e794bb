"""Lengths and keyed hashes in place of values that are not the policy's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import marks
import pytest

from hook.compile.in_force import refresh
from hook.core.base.concealed import KEY, concealed
from hook.core.base.system import read_file
from unit.support import ROOT, document

pytestmark = marks.promise(
    "A value that is not the policy's is in no event, journal, report, metric, audit, bundle or refusal; in "
    "its place are its length and a hash with the node's key"
)

SECRET = "s3cr3t-" + "ü" * 3


def hash_of(value: str, store: Path) -> object:
    return concealed(value, None, str(store)).get("hash")


def test_equal_values_have_equal_hashes_on_one_node_alone(root_dir: Path) -> None:
    stores = [root_dir / name for name in ("a", "b")]
    for store in stores:
        store.mkdir()
    one, other = [[hash_of(value, store) for value in (SECRET, SECRET, "x", "")] for store in stores]
    assert one[0] == one[1]
    assert len({*one, *other}) == 6, "another value, and another node's key"
    assert concealed(SECRET, None, str(stores[0])) == {"bytes": 13, "hash": one[0]}


def test_the_key_is_made_once_for_root_alone(root_dir: Path) -> None:
    first = hash_of(SECRET, root_dir)
    status = (root_dir / KEY).stat()
    assert (status.st_size, stat.S_IMODE(status.st_mode)) == (32, 0o600)
    assert hash_of(SECRET, root_dir) == first
    assert os.listdir(root_dir) == [KEY], "nothing temporary stays"


def test_processes_that_make_it_at_once_agree(root_dir: Path) -> None:
    program = "import sys; from hook.core.base.concealed import concealed; print(concealed('x', None, sys.argv[1]))"
    command = [sys.executable, "-c", program, str(root_dir)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(8)]
    said = {process.communicate(timeout=600)[0] for process in running}
    assert len(said) == 1
    assert b"hash" in said.pop()


def test_a_compiled_policy_comes_with_the_key(root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    for text in (document({"name": "r", "env": [{"name": "A", "value": "1"}]}), "broken"):
        source.write_text(text)
        refresh(str(source), str(root_dir / "store"))
        key = (root_dir / "store" / KEY).read_bytes()
        assert len(key) == 32
    hash_of(SECRET, root_dir / "store")
    assert (root_dir / "store" / KEY).read_bytes() == key, "it stays"


def test_a_key_that_was_replaced_counts_and_is_read_once(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(path: str, limit: int) -> bytes:
        read.append(path)
        return read_file(path, limit)

    monkeypatch.setattr("hook.core.base.concealed.read_file", counted)
    hashes = []
    for fill in (b"a", b"b"):
        (root_dir / "new").write_bytes(fill * 32)
        (root_dir / "new").chmod(0o600)
        (root_dir / "new").rename(root_dir / KEY)
        hashes += [hash_of(SECRET, root_dir) for _ in range(3)]
    assert len({*hashes[:3]}) == len({*hashes[3:]}) == 1
    assert hashes[0] != hashes[3]
    assert read == [str(root_dir / KEY)] * 2
    (root_dir / KEY).chmod(0o640)
    assert hash_of(SECRET, root_dir) is None


def _missing(store: Path) -> None:
    store.rmdir()


def _short(store: Path) -> None:
    (store / KEY).write_bytes(b"k" * 31)


def _long(store: Path) -> None:
    (store / KEY).write_bytes(b"k" * 33)


def _others_read(store: Path) -> None:
    (store / KEY).write_bytes(b"k" * 32)
    (store / KEY).chmod(0o644)


def _others_write(store: Path) -> None:
    (store / KEY).write_bytes(b"k" * 32)
    store.chmod(0o777)


def _fifo(store: Path) -> None:
    os.mkfifo(store / KEY, 0o600)


def _file(store: Path) -> None:
    store.rmdir()
    store.touch()


@pytest.mark.parametrize("spoil", [_missing, _short, _long, _others_read, _others_write, _fifo, _file])
def test_without_a_key_there_is_the_length_alone(root_dir: Path, spoil: Callable[[Path], None]) -> None:
    store = root_dir / "store"
    store.mkdir()
    if spoil not in (_missing, _file):
        (store / KEY).unlink(missing_ok=True)
    spoil(store)
    assert concealed([SECRET, None], None, str(store)) == [{"bytes": 13}, None]
    assert concealed(SECRET, None, "") == {"bytes": 13}


def test_the_policys_own_value_is_shown_without_its_password(root_dir: Path) -> None:
    own = "http://me:pass@proxy:3128"
    first, second, third = concealed([own, "x" + own, None], own, str(root_dir))
    assert (first, third) == ("http://***@proxy:3128", None)
    assert second.keys() == {"bytes", "hash"}


def test_strings_at_any_depth_are_concealed(root_dir: Path) -> None:
    found = concealed([{"type": SECRET, "n": 1, "more": [SECRET]}], None, str(root_dir))
    assert SECRET not in str(found)
    assert found[0]["n"] == 1


def test_of_a_list_no_more_is_hashed_than_an_event_has(root_dir: Path) -> None:
    found = concealed(["x"] * 10, None, str(root_dir))
    assert [each.keys() for each in found] == [{"bytes", "hash"}] * 8 + [{"bytes"}] * 2
