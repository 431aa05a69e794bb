"""The agent keeps the policy only while nothing has changed that made its files trusted."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from hook.agent.answers import Fallback
from hook.agent.filecache import SETTLED_NS
from hook.agent.memory import LAST, Memory, WarmStarts, lasts
from hook.compile.in_force import refresh
from hook.core.decide import Case
from hook.entry import protocol
from hook.entry.caller import Options
from unit.shortage import free_descriptors
from unit.support import WithPolicy, document

RULE = {"name": "r", "env": [{"name": "CA", "value": "/ca.pem"}]}


@pytest.fixture
def memory(root_dir: Path) -> Memory:
    (root_dir / "etc").mkdir()
    (root_dir / "store").mkdir()
    (root_dir / "etc/policy.yaml").write_text(document(RULE))
    refresh(f"{root_dir}/etc/policy.yaml", f"{root_dir}/store")
    time.sleep(SETTLED_NS / 1e9 + 0.05)
    return Memory(f"{root_dir}/etc/policy.yaml", f"{root_dir}/store", f"{root_dir}/events.jsonl")


def test_a_policy_is_kept_until_its_files_or_their_directories_change(memory: Memory, root_dir: Path) -> None:
    first = memory.policy()
    assert memory.policy() is first
    for changed in ("etc", "etc/policy.yaml"):
        mode = (root_dir / changed).stat().st_mode & 0o777
        (root_dir / changed).chmod(0o777)
        assert "writable by others" in memory.policy().warning, "as a cold start says"
        (root_dir / changed).chmod(mode)
        if changed == "etc":  # chmod of the file itself changes its key
            assert not memory.policy().warning
    (root_dir / "store").chmod(0o777)
    with pytest.raises(Fallback):
        memory.policy()
    (root_dir / "store").chmod(0o755)
    refresh(f"{root_dir}/etc/policy.yaml", f"{root_dir}/store")
    memory.policy()
    (root_dir / "etc/policy.yaml").write_text(document({**RULE, "name": "new"}))
    with pytest.raises(Fallback):
        memory.policy()
    refresh(f"{root_dir}/etc/policy.yaml", f"{root_dir}/store")
    assert memory.policy().fingerprint != first.fingerprint


def test_a_policy_with_times_in_whole_seconds_is_kept_after_its_second() -> None:
    now = time.time_ns() // 10**9 * 10**9
    directories = [(stat.S_IFDIR, 1)]
    for ago, kept in ((1, False), (3, True)):
        assert lasts(directories, [(stat.S_IFREG, 1, now - ago * 10**9, now - ago * 10**9)]) == kept


def test_a_store_that_could_not_be_read_once_is_read_again(memory: Memory) -> None:
    """For example while no descriptor was free. Else every later start would be cold."""
    with free_descriptors(0), pytest.raises(Fallback):
        memory.policy()
    assert not memory.policy().missing


def test_a_directory_that_was_replaced_is_looked_at(memory: Memory, root_dir: Path) -> None:
    memory.policy()
    (root_dir / "etc").rename(root_dir / "old")
    assert "No such file" in memory.policy().warning
    (root_dir / "etc").symlink_to("old")
    assert not memory.policy().warning
    (root_dir / "old").chmod(0o777)
    assert "writable by others" in memory.policy().warning, "what leads through a link is looked up each time"


def test_last_starts_of_all_runtimes_fit_into_a_status(memory: Memory) -> None:
    """However many runtimes there are, and however long the ids that hooks are given."""
    starts, options = WarmStarts(), Options([])
    for number in range(40):
        for _ in range(LAST + 1):
            starts.add(options, Case(WithPolicy(memory.policy), f"{number}-" * 1000), is_exec=bool(number % 2))
        options.real = f"/usr/local/bin/{number}"
    found = starts.as_json()
    assert {len(each["starts"]) for each in found} == {LAST}
    assert [each["exec"] for each in found[:3]] == [False, True, False]
    assert len(json.dumps(found)) < protocol.FRAME_LIMIT // 2
