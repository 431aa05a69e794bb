"""The frozen program's event log under a real runtime: limited lines, rotation, and no file that blocks a start."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED, Node
from harness.paths import REASSERT
from harness.tools import run

pytestmark = marks.promise(
    "A line is bounded and says what it omits; the log rotates, loses no line, and never stops a container"
)

RUNC = "/usr/sbin/runc"
LIMIT, KEPT = 64 << 20, 4


@pytest.fixture
def wrapper(node: Node) -> str:
    node.compile()
    return node.dispatcher(RUNC)


def start(wrapper: str, bundle: Bundle, env: list[str]) -> list[str]:
    """The env of a real container's process; config.json is what an engine would write."""
    bundle.spec["process"]["env"] = ["PATH=/bin", *env]
    bundle.config.write_text(json.dumps(bundle.spec, ensure_ascii=False))
    with Running(wrapper, bundle) as container:
        return container.environ()


def test_a_start_cannot_fill_the_log(node: Node, wrapper: str, bundle: Bundle) -> None:
    """7 MB of DEL, which stands in a config.json as one byte and in a log as six."""
    assert WANTED in start(wrapper, bundle, ["REQUESTS_CA_BUNDLE=" + "\x7f" * 7_000_000])
    assert node.events.stat().st_size < 4096
    (event,) = node.logged()
    assert event["edits"][0]["before"][0]["bytes"] == 7_000_000


def test_parallel_starts_lose_no_line_when_the_log_rotates(node: Node, wrapper: str, directory: Path) -> None:
    """The wrapper alone, 60 of them at once against a log that is just below its limit."""
    node.compile(POLICY.partition("    mounts:")[0])  # of mounts the hook tells, and there is no runtime to call it
    node.events.parent.mkdir(exist_ok=True)
    node.events.touch()
    os.truncate(node.events, LIMIT - 2000)
    config = json.dumps({"ociVersion": "1.0.2", "process": {"env": ["REQUESTS_CA_BUNDLE=x"]}, "root": {"path": "r"}})
    running = []
    for number in range(60):
        bundle = directory / str(number)
        bundle.mkdir()
        (bundle / "config.json").write_text(config)
        command = [str(REASSERT), "runtime", "--real", "/bin/true", *node.options()]
        running.append(subprocess.Popen([*command, "--", "create", "--bundle", str(bundle), f"c{number}"]))
    assert [process.wait(timeout=600) for process in running] == [0] * 60
    old = node.events.with_suffix(".jsonl.1").read_bytes().replace(b"\0", b"")
    lines = [*old.splitlines(), *node.events.read_bytes().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == sorted(f"c{number}" for number in range(60))
    assert not node.events.with_suffix(".jsonl.2").exists()


def _link(log: Path) -> None:
    log.symlink_to("/etc/hostname")


def _foreign(log: Path) -> None:
    log.touch()
    os.chown(log, 65534, 65534)


@pytest.mark.parametrize("make", [os.mkfifo, _link, _foreign, os.mkdir])
def test_whatever_lies_at_its_path_a_container_starts(
    node: Node, wrapper: str, bundle: Bundle, make: Callable[[Path], None]
) -> None:
    node.events.parent.mkdir(exist_ok=True)
    make(node.events)
    before, hostname = os.lstat(node.events), Path("/etc/hostname").read_text()
    assert WANTED in start(wrapper, bundle, ["REQUESTS_CA_BUNDLE=x"])
    assert os.lstat(node.events).st_mtime_ns == before.st_mtime_ns
    assert Path("/etc/hostname").read_text() == hostname


@marks.hole(
    "A container of uid 0 with a writable volume of /var/log, without seccomp, put a link in the place of the event "
    "log's directory: events of other containers were written to a file events.jsonl in any directory of the node",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_link_in_place_of_the_logs_directory_leads_no_event_elsewhere(
    node: Node, bundle: Bundle, directory: Path, is_dangling: bool
) -> None:
    """It may have any owner. What the container did before is in docs/security.md."""
    own, elsewhere = directory / "varlog", directory / "elsewhere"
    own.mkdir()
    if not is_dangling:
        elsewhere.mkdir()
    (own / "reassert").symlink_to(elsewhere)
    node.events = Path("/var/log/reassert/events.jsonl")
    node.compile()
    with open("/var/lib/reassert-tests/var-log", "w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        run("mount", "--bind", str(own), "/var/log")
        try:
            assert WANTED in start(node.dispatcher(RUNC), bundle, ["REQUESTS_CA_BUNDLE=x"])
        finally:
            run("umount", "/var/log")
    assert elsewhere.exists() != is_dangling
    assert is_dangling or not list(elsewhere.iterdir())


def test_credentials_of_a_proxys_url_reach_the_container_alone(node: Node, bundle: Bundle, directory: Path) -> None:
    url, own = "http://sandbox:s3cret@proxy:3128", "http://evil:hunter2@elsewhere:3128"
    file = directory / "proxy"
    file.write_text(f"{url}\n")
    rule = f"  - name: proxy\n    env: [{{name: HTTP_PROXY, valueFrom: {{file: {file}}}}}]\n"
    node.compile(f"apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n{rule}")
    bundle.spec["process"]["env"] = ["PATH=/bin", f"HTTP_PROXY={own}"]
    bundle.save()
    said = ""
    for form in ("table", "json", "diff"):
        said += run(str(REASSERT), "explain", "-o", form, "--policy", str(node.policy), str(bundle.directory)).stdout
    assert said.count("http://***@proxy:3128") > 2
    assert f"HTTP_PROXY={url}" in start(node.dispatcher(RUNC), bundle, [f"HTTP_PROXY={own}"])
    (event,) = node.logged()
    (edit,) = event["edits"]
    assert (edit["before"][0]["bytes"], edit["after"]) == (len(own), "http://***@proxy:3128")
    assert "s3cret" not in said
    assert "hunter2" not in said + node.events.read_text()
