"""The metrics of every adapter, from the event log, the node's files and the processes' own counts."""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import marks
import pytest
from pip._vendor.certifi import where

from hook.compile.in_force import refresh
from hook.core.base.errors import Usage
from hook.core.base.logfile import append
from hook.node import kept
from hook.node.kept import AUDIT_SECONDS, Audited, Container, Verified, Wiring
from hook.node.services import check_directory
from hook.ops.metrics import service
from hook.ops.metrics.log import LogCounter
from hook.ops.metrics.node import NodeState, expiries
from hook.ops.metrics.prometheus import Metrics
from hook.resident import oplog
from hook.resident.metrics import NoMetrics
from unit.ops.events.support import CA, DENIED, NVIDIA, event
from unit.ops.metrics.support import samples
from unit.support import ROOT, document

pytestmark = [
    marks.promise(
        "Every five minutes an audit compares the running containers with the policy, whatever the adapters; "
        "without a look there is no sample"
    ),
    marks.promise(
        "Metrics count starts of every adapter; dashboard and alerts use metrics that exist, and one silent node "
        "is an alert",
        about="Events and metrics",
    ),
]

BUNDLE = Path(where())


def log(path: Path, *found: dict[str, Any]) -> None:
    for each in found:
        append(str(path), json.dumps(each).encode())


# -- from the event log


def test_every_adapters_starts_edits_and_refusals_are_counted(root_dir: Path) -> None:
    metrics, path = Metrics(), root_dir / "events.jsonl"
    log(path, event("edited", "old", edits=[NVIDIA]))
    counter = LogCounter(str(path), str(root_dir), metrics)
    log(
        path,
        event("edited", "a", 1, edits=[NVIDIA, CA]),
        event("edited", "a", 2, edits=[CA], start="cold", cold="absent"),
        event("denied", "a", 3, adapter="hook", denials=[DENIED], edits=[CA]),
        event("would-deny", "a", 4, mode="Audit", denials=[DENIED], edits=[NVIDIA]),
        event("edited", "a", 5, mode="Audit", applied=False),
        event("edited", "a", 10, tried=True, applied=False, edits=[{**CA, "mode": "Audit"}]),
        event("error", "a", 6, errors=[{"rule": "", "message": "x"}]),
        event("edited", "a", 7, adapter="nri", start="", applied=False, asked=True, edits=[NVIDIA]),
        event("would-deny", "a", 11, tried=True, applied=True, edits=[CA], denials=[{**DENIED, "mode": "Audit"}]),
        event("drifted", "a", 8, adapter="audit", differences=[{"rule": "gpu", "kind": "env", "name": "N"}]),
        event("denied", "a", 9, probe=True, denials=[DENIED]),
        {"event": "policy.held", "adapter": "hook", "start": "cold"},
        {"event": "agent.ended", "adapter": "agent"},
        {"event": "container.edited", "adapter": "evil", "edits": 7},
    )
    counter.count()
    found = samples(metrics)

    def starts(adapter: str, outcome: str, start: str, cold: str = "") -> float:
        labels = f'adapter="{adapter}",cold="{cold}",outcome="{outcome}",start="{start}"'
        return found.get(f"reassert_containers_total{{{labels}}}", 0)

    assert starts("runtime", "adjusted", "warm") == 1
    assert starts("runtime", "adjusted", "cold", "absent") == 1
    assert starts("hook", "refused", "warm") == 1
    assert starts("runtime", "audited", "warm") == 4
    assert starts("runtime", "failed", "warm") == 1
    assert starts("nri", "adjusted", "") == 1
    assert starts("hook", "unchanged", "cold") == 1
    assert sum(value for name, value in found.items() if name.startswith("reassert_containers_total")) == 10
    edits = {name: value for name, value in found.items() if name.startswith("reassert_edits_total")}
    assert edits == {
        'reassert_edits_total{adapter="runtime",kind="env",result="applied",rule="gpu"}': 1,
        'reassert_edits_total{adapter="runtime",kind="env",result="applied",rule="company-ca"}': 3,
        'reassert_edits_total{adapter="runtime",kind="env",result="audited",rule="company-ca"}': 1,
        'reassert_edits_total{adapter="runtime",kind="env",result="audited",rule="gpu"}': 1,
        'reassert_edits_total{adapter="hook",kind="env",result="refused",rule="company-ca"}': 1,
        'reassert_edits_total{adapter="nri",kind="env",result="asked",rule="gpu"}': 1,
    }
    assert found['reassert_refusals_total{adapter="hook",result="refused",rule="gpu"}'] == 1
    assert found['reassert_refusals_total{adapter="runtime",result="audited",rule="gpu"}'] == 2
    assert found['reassert_drift_total{kind="env",rule="gpu"}'] == 1
    assert found['reassert_probes_total{adapter="runtime",outcome="refused"}'] == 1
    assert found['reassert_errors_total{kind="decision"}'] == 1


def test_what_this_process_counts_itself_is_not_counted_twice(root_dir: Path) -> None:
    metrics, path = Metrics(), root_dir / "events.jsonl"
    counter = LogCounter(str(path), str(root_dir), metrics, own=("nri",))
    log(path, event("edited", "a", 1, adapter="nri", edits=[NVIDIA]))
    counter.count()
    assert not [name for name in samples(metrics) if name.startswith(("reassert_containers", "reassert_edits"))]


def test_starts_while_no_agent_ran_are_counted_by_the_next_one(root_dir: Path) -> None:
    """Also the first events of a node, of which the agent that has ended had counted none."""
    path, metrics = root_dir / "events.jsonl", Metrics()
    LogCounter(str(path), str(root_dir), NoMetrics())
    log(path, event("edited", "a", 1))
    LogCounter(str(path), str(root_dir), metrics).count()
    assert any(name.startswith("reassert_containers_total") for name in samples(metrics))
    first = LogCounter(str(path), str(root_dir), NoMetrics())
    log(path, event("edited", "a", 2))
    first.count()
    log(path, event("edited", "a", 3, start="cold", cold="absent"))
    metrics = Metrics()
    LogCounter(str(path), str(root_dir), metrics).count()
    found = {name: value for name, value in samples(metrics).items() if name.startswith("reassert_containers_total")}
    assert found == {'reassert_containers_total{adapter="runtime",cold="absent",outcome="adjusted",start="cold"}': 1}


# -- the node


DRIFT = {"reassert_drifted_containers", "reassert_unseen_containers"}


@pytest.fixture
def policy(root_dir: Path) -> Path:
    source = root_dir / "policy.yaml"
    mounts = [
        {"hostPath": str(root_dir / "ca.pem"), "mountPath": "/ca.pem"},
        {"hostPath": str(root_dir), "mountPath": "/directory"},
        {"hostPath": "/none", "mountPath": "/none", "onMissingSource": "Skip"},
    ]
    source.write_text(document({"name": "ca", "mounts": mounts}, mode="Audit"))
    return source


def authorities() -> list[float]:
    """When the certificates of BUNDLE expire, as OpenSSL reads them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(BUNDLE)
    return sorted(ssl.cert_time_to_seconds(str(found["notAfter"])) for found in context.get_ca_certs())


def keep(store: Path, **parts: Any) -> None:
    """What the node remembers."""

    def change(now: kept.Kept) -> None:
        for name, value in parts.items():
            setattr(now, name, value)

    kept.change(change, str(store))


def test_policy_age_held_edit_and_last_verify(policy: Path, root_dir: Path) -> None:
    metrics = Metrics()
    assert any(name.startswith("reassert_build_info{version=") for name in samples(metrics))
    unseen = {"reassert_policy_held_back", "reassert_policy_compiled_timestamp_seconds", *DRIFT}
    assert not unseen & samples(metrics).keys(), "nobody has looked"
    state = NodeState(metrics, str(policy), str(root_dir / "store"), has_plugin=False)
    state.refresh()
    assert samples(metrics)["reassert_policy_held_back"] == 1, "never compiled"
    assert samples(metrics).keys() & unseen == unseen - DRIFT
    refresh(str(policy), str(root_dir / "store"))
    now = int(time.time())
    wiring = Wiring(now, {"containerd": {"runc": 0}, "docker": {"reassert": 1}}, {"docker": now})
    verified = {"containerd": Verified(now, 1, ["rule/*"]), "docker": Verified(now, 0)}
    keep(root_dir / "store", wiring=wiring, verified=verified)
    state.refresh()
    found = samples(metrics)
    (info,) = [name for name in found if name.startswith("reassert_policy_info")]
    assert 'mode="Audit"' in info
    assert abs(found["reassert_policy_compiled_timestamp_seconds"] - time.time()) < 60
    assert found["reassert_policy_held_back"] == 0
    assert [(name, found[name]) for name in found if name.startswith("reassert_wired")] == [
        ('reassert_wired{engine="containerd",handler="runc"}', 0)
    ]
    assert found['reassert_verify_exit_status{engine="containerd"}'] == 1
    assert abs(found['reassert_verify_timestamp_seconds{engine="docker"}'] - time.time()) < 60
    containers = {str(number): Container("drifted") for number in range(3)} | {"3": Container("unknown")}
    keep(root_dir / "store", audited=Audited(now, containers=containers))
    state.refresh()
    assert {name: samples(metrics)[name] for name in DRIFT} == dict(zip(sorted(DRIFT), (3, 1), strict=True))
    for when in (now - AUDIT_SECONDS - 1, now + 3600):
        keep(root_dir / "store", audited=Audited(when, containers=containers))
        state.refresh()
        assert not DRIFT & samples(metrics).keys()
    policy.write_text("spec: [")
    refresh(str(policy), str(root_dir / "store"))
    state.refresh()
    assert samples(metrics)["reassert_policy_held_back"] == 1


@pytest.mark.parametrize("name", ["ca.pem", "live/ca-certificates.crt"])
def test_expiring_authorities_of_the_files_that_the_policy_mounts(policy: Path, root_dir: Path, name: str) -> None:
    """As OpenSSL reads them. Of a mounted trust store its bundle counts."""
    wanted, bad = authorities(), b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    assert len(wanted) > 50
    file = root_dir / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(BUNDLE.read_bytes() + bad)
    assert sorted(expiries(file.read_bytes())) == wanted
    policy.write_text(policy.read_text().replace(f"{root_dir}/ca.pem", str(root_dir / name.partition("/")[0])))
    refresh(str(policy), str(root_dir))
    metrics = Metrics()
    NodeState(metrics, str(policy), str(root_dir), has_plugin=False).refresh()
    path, found = f'{{path="{file}"}}', samples(metrics)
    valid = [when for when in wanted if when > time.time()]
    assert found["reassert_ca_certificates" + path] == len(wanted)
    assert found["reassert_ca_expired_certificates" + path] == len(wanted) - len(valid)
    assert found["reassert_ca_next_expiry_timestamp_seconds" + path] == valid[0]
    assert len([name for name in found if name.startswith("reassert_ca_certificates")]) == 1, "no other file"
    metrics.authorities({"x": [1.0, 2.0, 9.0]}, 3.0)
    found = samples(metrics)
    assert found['reassert_ca_expired_certificates{path="x"}'] == 2
    assert found['reassert_ca_next_expiry_timestamp_seconds{path="x"}'] == 9


def test_containers_with_an_old_file_are_counted_by_its_path(policy: Path, root_dir: Path) -> None:
    refresh(str(policy), str(root_dir))
    metrics, seen = Metrics(), iter([[SimpleNamespace(source="/etc/ca.pem")] * 2])  # one look for both scrapes
    state = NodeState(metrics, str(policy), str(root_dir), has_plugin=False, look=lambda _: next(seen))
    state.refresh()
    state.refresh()
    assert samples(metrics)['reassert_stale_containers{path="/etc/ca.pem"}'] == 2


def test_bytes_that_are_no_certificate_are_left_out() -> None:
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"
    for body in (b"", b"MA==", b"!!!!", b"MIIB", b"MIL/////", b"MAOgAQA=", b"A" * 4000):
        assert expiries(begin + body + b"\n" + end) == []
    assert expiries(begin * 1000) == []


# -- how they are served


def options(directory: Path, **more: Any) -> argparse.Namespace:
    given = {"metrics": None, "textfile": None, "policy": "/none", "store": str(directory)}
    return argparse.Namespace(**{**given, "events": str(directory / "events.jsonl"), **more})


def test_without_an_option_nothing_is_counted(tmp_path: Path) -> None:
    assert type(service.start(options(tmp_path), False, False)) is NoMetrics


def test_a_node_without_the_plugin_is_none_without_a_connection() -> None:
    metrics = Metrics()
    assert samples(metrics)["reassert_nri_connected"] == 0
    metrics.without_plugin()
    assert not [name for name in samples(metrics) if name.startswith(("reassert_nri", "reassert_decision"))]


def test_textfile_must_be_a_directory(tmp_path: Path) -> None:
    for path in ("relative", str(tmp_path / "none")):
        with pytest.raises(Usage, match="--textfile takes the directory"):
            check_directory(path)


def test_the_textfile_is_replaced_and_never_half_written(tmp_path: Path) -> None:
    """node_exporter reads while it is written."""
    metrics = Metrics()
    for number in range(300):
        metrics.edit(f"rule-{number}", "env", "applied", "runtime")
    service.write(metrics, str(tmp_path), print)
    path, stop, bad = tmp_path / service.FILE, threading.Event(), list[str]()

    def read() -> None:
        while not stop.is_set():
            text = path.read_text()
            if "rule-299" not in text or not text.endswith("\n"):
                bad.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        service.write(metrics, str(tmp_path), print)
    stop.set()
    reader.join()
    assert bad == []
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == [service.FILE], "no other file that node_exporter could read"


def test_an_address_in_use_delays_the_agents_metrics_only(tmp_path: Path) -> None:
    """A pod on the node's network can occupy the port; the agent answers container starts all the same.

    That, and a textfile that cannot be written, is said once.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address, directory = f"127.0.0.1:{taken.getsockname()[1]}", tmp_path / "textfiles"
        command = "import sys; from unit.ops.metrics.test_metrics import serve; serve(*sys.argv[1:])"
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        running = subprocess.Popen(
            [sys.executable, "-c", command, address, str(directory)], env={"PYTHONPATH": path}, stderr=subprocess.PIPE
        )
        assert running.stderr
        lines: list[bytes] = []

        def line(words: bytes) -> bytes:
            """The line with these words. Of two threads either may be the first to say something."""
            while not (found := [each for each in lines if words in each]):
                assert running.stderr
                lines.append(running.stderr.readline())
                assert lines[-1], lines
            return found[0]

        line(b"Address already in use")
        assert running.poll() is None
    try:
        host, port = address.split(":")
        deadline = time.monotonic() + 600
        while True:
            try:
                with socket.create_connection((host, int(port))) as client:
                    client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                    assert client.recv(100).startswith(b"HTTP/1.0 200")
                    break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        line(b"event=metrics.served")
        said = line(str(directory).encode())
        directory.mkdir()
        while not (directory / service.FILE).exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        running.kill()
        running.wait()
        rest = running.stderr.read()
        running.stderr.close()
    assert b"--textfile" in said
    assert rest == b""


def serve(address: str, directory: str) -> None:
    """The agent's part of it, in a process of its own."""
    service._COUNT = service._WRITE = 0.2
    oplog.configure(oplog.LOGFMT, None, True)
    service.start(options(Path(directory).parent, metrics=address, textfile=directory), False, True)
    time.sleep(60)
