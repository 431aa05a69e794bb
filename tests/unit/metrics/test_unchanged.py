"""Starts that need no edit leave no event. They are counted from the lines of a file that the agent makes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from startpath import MOUNT, RULE, Start

from hook.core.metrics import NoMetrics
from hook.entry import protocol
from hook.entry import start_counts as unchanged
from hook.entry.unchanged_starts import UnchangedStarts, not_taken
from hook.ops.metrics.log import LogCounter
from hook.ops.metrics.prometheus import Metrics
from unit.metrics.support import samples
from unit.support import reassert

RUNC = "/usr/sbin/runc"
LINES = f"""runtime absent 1763800000 {RUNC}
probe runtime absent 1763800000 {RUNC}
hook - 1763800001 0a
hook
runtime absent x {RUNC}
evil x 1763800000 {RUNC}
\0
"""


def test_a_cold_start_that_changes_nothing_is_counted_once(root_dir: Path) -> None:
    start, metrics = Start(root_dir), Metrics()
    counter = LogCounter(str(root_dir / "events.jsonl"), str(root_dir / "s"), metrics)
    create = ["--", "--root", str(root_dir / "state"), "create", "--bundle", str(start.bundle), "0a"]

    def run(*arguments: str, text: str = "") -> None:
        done = reassert(*arguments, *start.where, "--cold=absent", *create if text == "" else (), input=text)
        assert (done.returncode, done.stderr) == (0, "")

    def counts() -> dict[str, float]:
        counter.count()
        kinds = ("reassert_containers_total", "reassert_probes_total")
        return {name: value for name, value in samples(metrics).items() if name.startswith(kinds)}

    start.set_policy({**RULE, "match": {"namespaces": ["other"]}})
    run("runtime", "--real", "/bin/true")
    assert counts() == {}, "no agent has asked for it"
    for _ in range(2):
        run("runtime", "--real", "/bin/true")
    run("hook", "createRuntime", text=start.state())
    run("hook", "createRuntime", "--handed-on", "--config", str(start.config), text=start.state())
    run("hook", "poststop", text=start.state())
    unchanged = 'reassert_containers_total{adapter="%s",cold="absent",outcome="unchanged",start="cold"}'
    wanted = {unchanged % "runtime": 3, unchanged % "hook": 1}
    assert counts() == wanted
    start.set_policy({**RULE, "mounts": [MOUNT]})
    run("runtime", "--real", "/bin/true")
    assert "reassert/decision" in start.config.read_text(), "the hook writes the event of this container"
    assert counts() == wanted


def test_a_line_is_counted_that_was_on_its_way_while_the_file_was_taken(root_dir: Path) -> None:
    metrics, path = Metrics(), root_dir / "unchanged-starts"
    starts = UnchangedStarts(str(root_dir), metrics)
    starts.count()
    with path.open("a") as early:
        path.write_text(LINES)
        starts.count()
        assert path.read_text() == ""
        early.write("precreate - 1763800000 0a\n")
    starts.count()
    starts.count()
    found = {name: value for name, value in samples(metrics).items() if "unchanged" in name}
    assert found == {
        'reassert_containers_total{adapter="runtime",cold="absent",outcome="unchanged",start="cold"}': 1,
        'reassert_probes_total{adapter="runtime",outcome="unchanged"}': 1,
        'reassert_containers_total{adapter="hook",cold="",outcome="unchanged",start="cold"}': 1,
        'reassert_containers_total{adapter="precreate",cold="",outcome="unchanged",start="cold"}': 1,
    }


def test_the_file_of_unchanged_starts_stops_growing_and_a_bad_one_stops_nothing(root_dir: Path) -> None:
    start = Start(root_dir)
    start.set_policy({**RULE, "match": {"namespaces": ["other"]}})
    path = root_dir / "s/unchanged-starts"
    path.write_bytes(b"-" * unchanged.LIMIT)
    start.create()
    assert path.stat().st_size == unchanged.LIMIT
    path.unlink()
    os.mkfifo(path)
    start.create()
    UnchangedStarts(str(root_dir / "s"), NoMetrics()).count()


def test_the_last_starts_and_execs_are_kept_by_real_runtime(root_dir: Path) -> None:
    starts = UnchangedStarts(str(root_dir))
    starts.count()
    (root_dir / "unchanged-starts").write_text(f"{LINES}exec timeout 1763800002 /opt/a b\nprobe exec probe 5 {RUNC}\n")
    waiting = not_taken(str(root_dir))
    starts.count()
    assert starts.as_json() == waiting
    for second in range(30):
        starts.add("runtime", False, None, RUNC, 1763800010.0 + second)
    runc, hook, execs = starts.as_json()
    assert (runc["runtime"], runc["exec"], len(runc["starts"])) == (RUNC, False, 20)
    assert runc["starts"][-1] == {"time": 1763800039.0, "start": "warm"}
    assert hook == {"runtime": "", "exec": False, "starts": [{"time": 1763800001.0, "start": "cold", "id": "0a"}]}
    cold = {"time": 1763800002.0, "start": "cold", "cold": "timeout"}
    assert execs == {"runtime": "/opt/a b", "exec": True, "starts": [cold]}
    for name in range(100):
        starts.add("exec", False, "timeout", f"/{name}".ljust(128, "x"), 1763800000.0)
    assert len(json.dumps(starts.as_json())) < protocol.LIMIT // 2


def test_a_cold_exec_is_counted_with_its_reason(root_dir: Path) -> None:
    start, metrics = Start(root_dir), Metrics()
    starts = UnchangedStarts(str(root_dir / "s"), metrics)
    starts.count()
    start.create()
    for cold in ((), ("--cold=timeout",), ("--cold=timeout",)):
        start.where = [*start.where[:6], *cold]
        shutil.rmtree(root_dir / "state", ignore_errors=True)
        assert start.exec(["CA=/tmp/x"])[1] == ["CA=/ca.pem"]
    starts.count()
    found = {name: value for name, value in samples(metrics).items() if name.startswith("reassert_execs_total")}
    assert found == {
        'reassert_execs_total{cold="",start="cold"}': 1,
        'reassert_execs_total{cold="timeout",start="cold"}': 2,
    }
    assert [(of["runtime"], of["exec"], len(of["starts"])) for of in starts.as_json()] == [("/bin/true", True, 3)]
