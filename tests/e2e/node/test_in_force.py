"""Is the policy in force? `audit`, `explain --container` and `doctor` on a node; and docs/break-glass.md, tried."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cri.client import CriError
from e2e.cri.hostile import ENV
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.wired import FILES, PACKAGED, POLICY, POLICY_FILE, Wirable, package, usual_config
from e2e.support import TOP

ENFORCE = POLICY.replace("  rules:", "  mode: Enforce\n  rules:")
PAGE = (TOP / "docs/break-glass.md").read_text()


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    node = module_boot("forky", config=usual_config("forky"), files={**FILES, POLICY_FILE: ENFORCE})
    node.path("/usr/local/bin/nvidia-container-runtime").chmod(0o755)
    package(node)
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    wirable = Wirable(booted, {}, PACKAGED)
    yield wirable
    wirable.take_out()


def reassert(node: Wirable, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = node.booted.run(node.program, *arguments, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def audited(node: Wirable) -> tuple[int, dict[str, dict[str, Any]]]:
    done = reassert(node, "audit", "-o", "json")
    return done.returncode, {each["title"]: each for each in json.loads(done.stdout)["containers"]}


def test_it_says_of_each_container_whether_the_policy_is_in_force(node: Wirable) -> None:
    node.booted.wait_for_cri()
    old = node.booted.cri.run_pod("runc", name="old")
    old.run(env=ENV)
    node.install("--no-probe")
    assert reassert(node, "doctor").returncode == 0, reassert(node, "doctor").stdout
    new, excluded = (
        node.booted.cri.run_pod("crun", name="new"),
        node.booted.cri.run_pod("runc", namespace="kube-system"),
    )
    container, _ = new.run(env=ENV, mounts=[("/tmp", "/etc/ssl")]), excluded.run(env=ENV)
    status, found = audited(node)
    states = {title: each["state"] for title, each in found.items() if title.endswith("/c")}
    assert (status, states) == (
        1,
        {"default/old/c": "drifted", "default/new/c": "in policy", "kube-system/p/c": "exempt"},
    )
    assert found["kube-system/p/c"]["line"] == f"{POLICY_FILE}:5"
    whys = {difference["why"] for difference in found["default/old/c"]["differences"]}
    assert all(", before the install at " in why for why in whys)
    assert {each["engine"] for each in found.values()} == {"containerd"}
    node.booted.run("sh", "-c", "mv /etc/company-ca /etc/company-ca.old && cp -r /etc/company-ca.old /etc/company-ca")
    old_files = f"container default/new/c ({container.id[:12]}) still has what /etc/company-ca was"
    assert [hint for hint in node.hints() if hint.startswith(old_files)]
    assert [each["kind"] for each in audited(node)[1]["default/new/c"]["differences"]] == ["stale file"]
    node.booted.run("sh", "-c", "rm -r /etc/company-ca && mv /etc/company-ca.old /etc/company-ca")
    assert audited(node)[1]["default/new/c"]["state"] == "in policy"
    explained = reassert(node, "explain", "--container", "new/c")
    assert "corrected by reassert at create" in explained.stdout
    assert container.id in explained.stdout
    page = reassert(node, "doctor", "--bundle", "/root/report.tar.gz")
    assert "-> reassert audit" in page.stdout
    names = node.booted.run("tar", "-tzf", "/root/report.tar.gz").stdout
    assert "reassert-doctor/journal/reassert-agent.service.txt" in names
    assert "/tmp/evil" not in node.booted.run("tar", "-xzOf", "/root/report.tar.gz").stdout
    for pod in (old, new, excluded):
        pod.remove()
    assert audited(node) == (0, {})


def test_drift_is_audited_under_nri_too_and_told_once(node: Wirable) -> None:
    """The plugin is away while a pod is created, which the wrapper corrects."""
    node.booted.wait_for_cri()
    old = node.booted.cri.run_pod("runc", name="old")
    older = old.run(env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    node.install("--adapter", "nri,runtime", "--no-agent", "--no-probe")
    node.booted.run("systemctl", "stop", "reassert-nri.service")
    new = node.booted.cri.run_pod("runc", name="new")
    newer = new.run(env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    assert "NVIDIA_VISIBLE_DEVICES=void" in newer.environ()
    node.booted.run("systemctl", "start", "reassert-nri.service")
    for _ in range(2):
        node.node("status", "--record")
        told = [event for event in node.events() if event["event"] == "container.drifted"]
        [event] = [event for event in told if event["id"] == older.id]
        kept = node.booted.path("/var/lib/reassert/drift.json")
        when, *rest = json.loads(kept.read_text())
        assert (older.id in rest[2], newer.id in rest[2], len(rest[2]), when > 1) == (True, False, rest[0], True)
        kept.write_text(json.dumps([1, *rest]))  # a look of long ago: the next one audits again
    assert (event["id"], event["container"]) == (older.id, {"namespace": "default", "pod": "old", "container": "c"})
    assert ("gpu", "NVIDIA_VISIBLE_DEVICES") in {(each["rule"], each["name"]) for each in event["differences"]}
    assert "before the install" in event["message"]
    assert audited(node)[1]["default/new/c"]["state"] == "in policy"
    old.remove()
    new.remove()


def test_each_command_of_the_page_lets_containers_start(node: Wirable) -> None:
    node.install("--no-probe")
    commands = re.findall(r"^\| \d \| `(.+?)` \|", PAGE, re.MULTILINE)
    assert len(commands) == 3
    broken = ENFORCE.replace("hostPath: /etc/company-ca", "hostPath: /etc/no-such-ca")
    broken = broken.replace("  mode: Enforce", "  mode: Enforce\n  onMissingFiles: Enforce")
    by_hand = re.findall(r"^    (for .+)$", PAGE, re.MULTILINE)[0]
    told = {commands[1]: "policy.loaded", commands[2]: "node.uninstall", by_hand: "handler.unwired"}
    for command, event in told.items():
        node.node("status", "--record")  # as the timer does
        node.booted.path(POLICY_FILE).write_text(broken)
        with pytest.raises(CriError):
            node.booted.cri.run_pod("runc")
        page = reassert(node, "doctor")
        assert page.returncode == 1
        assert "hostPath /etc/no-such-ca: No such file or directory" in page.stdout
        pid, before = node.pid(), len(node.events())
        node.booted.run("sh", "-c", command.replace("reassert node", f"{node.program} node"))
        node.booted.wait_for_cri()
        pod = node.booted.cri.run_pod("runc")
        assert "NVIDIA_VISIBLE_DEVICES=all" in pod.run(env=[("NVIDIA_VISIBLE_DEVICES", "all")]).environ()
        pod.remove()
        node.node("status", "--record")
        assert event in [each["event"] for each in node.events()[before:]]
        assert (node.pid() != pid) == ("uninstall" in command), "only that one restarts the engine"
        node.install("--no-probe")
    node.booted.path(POLICY_FILE).write_text(ENFORCE)
    node.pod_gets("runc")
