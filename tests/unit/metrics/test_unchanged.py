"""Starts that need no edit leave no event. They are counted from the lines of a file that the agent makes."""

from __future__ import annotations

import os
from pathlib import Path

from startpath import MOUNT, RULE, Start

from hook.adapters import unchanged
from hook.adapters.nri.metrics import Metrics, NoMetrics
from hook.metrics.log import LogCounter
from hook.metrics.unchanged import UnchangedStarts
from unit.metrics.support import samples
from unit.support import reassert


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
        path.write_text("runtime absent\nprobe runtime absent\nhook -\nhook\nevil x\n\0\n")
        starts.count()
        assert path.read_text() == ""
        early.write("precreate -\n")
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
