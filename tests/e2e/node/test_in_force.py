"""Is the policy in force? `audit`, `explain` and `status --all` on a node; and docs/break-glass.md, tried."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import marks
import pytest
from harness.paths import TOP

from e2e.cri.client import CriError, wait_for
from e2e.cri.hostile import ENV
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG
from e2e.node.wired import FILES, PACKAGED, POLICY, POLICY_FILE, Wirable, package, usual_config

pytestmark = [
    marks.promise(
        "Every five minutes an audit compares the running containers with the policy, whatever the adapters; "
        "without a look there is no sample",
        about="Events and metrics",
    ),
    marks.promise(
        "`audit` says of every running container, of each engine, whether the policy is in force in it and why "
        "not; no container hides"
    ),
]

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
    page = reassert(node, "status", "--all")
    assert page.returncode == 4, page.stdout  # a pod is from before
    new, excluded = (
        node.booted.cri.run_pod("crun", name="new"),
        node.booted.cri.run_pod("runc", namespace="kube-system"),
    )
    container, _ = new.run(env=ENV, mounts=[("/tmp", "/etc/ssl")]), excluded.run(env=ENV)
    status, found = audited(node)
    states = {title: each["state"] for title, each in found.items() if title.endswith("/c")}
    assert (status, states) == (
        4,
        {"default/old/c": "drifted", "default/new/c": "in policy", "kube-system/p/c": "exempt"},
    )
    assert found["kube-system/p/c"]["line"] == f"{POLICY_FILE}:5"
    whys = {difference["why"] for difference in found["default/old/c"]["differences"]}
    assert all(", before the install at " in why for why in whys), whys
    assert {each["engine"] for each in found.values()} == {"containerd"}
    node.booted.run("sh", "-c", "mv /etc/company-ca /etc/company-ca.old && cp -r /etc/company-ca.old /etc/company-ca")
    assert [each["kind"] for each in audited(node)[1]["default/new/c"]["differences"]] == ["stale file"]
    replaced = f"with a file that the node has replaced since: default/new/c ({container.id[:12]})"
    assert [text for text in node.json("status")["remarks"] if replaced in text]
    node.booted.run("sh", "-c", "rm -r /etc/company-ca && mv /etc/company-ca.old /etc/company-ca")
    assert audited(node)[1]["default/new/c"]["state"] == "in policy"
    explained = reassert(node, "explain", "new/c")
    assert "corrected by reassert at create" in explained.stdout
    assert container.id in explained.stdout
    page = reassert(node, "status", "--all", "--bundle", "/root/report.tar.gz")
    assert "-> reassert audit" in page.stdout
    names = node.booted.run("tar", "-tzf", "/root/report.tar.gz").stdout
    assert "reassert-bundle/journal/reassert-agent.service.txt" in names
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
        file = node.booted.path("/var/lib/reassert/node.json")
        kept = json.loads(file.read_text())
        seen = kept["audited"]
        drifted = [key for key, each in seen["containers"].items() if each["state"] == "drifted"]
        assert (older.id in drifted, newer.id in drifted, sorted(seen["told"])) == (True, False, sorted(drifted))
        assert seen["when"] > 1
        seen["when"] = 1  # a look of long ago: the next one audits again
        file.write_text(json.dumps(kept))
    assert (event["id"], event["container"]) == (older.id, {"namespace": "default", "pod": "old", "container": "c"})
    assert ("gpu", "NVIDIA_VISIBLE_DEVICES") in {(each["rule"], each["name"]) for each in event["differences"]}
    assert "before the install" in event["message"]
    assert audited(node)[1]["default/new/c"]["state"] == "in policy"
    old.remove()
    new.remove()


@marks.promise("Install, upgrade and uninstall, also of the package, and each command of break-glass.md leave an event")
@marks.promise("Each command of break-glass.md lets containers start again", about="In force")
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
        page = reassert(node, "status", "--all")
        assert page.returncode == 1
        assert "hostPath /etc/no-such-ca: No such file or directory" in page.stdout
        pid, before = node.pid(), len(node.events())
        node.booted.run("sh", "-c", re.sub(r"^reassert\b", node.program, command))
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


ADDED = "/etc/containerd/conf.d/99-reassert-z.toml"
OTHER = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.other]\nruntime_type = 'io.containerd.runc.v2'"
CHANGES = (
    (f'echo "version = 3\n{OTHER}" > {ADDED}', f"rm {ADDED}", "containers of other start without reassert"),
    (f"cp -p {CONFIG} /root; echo [ >> {CONFIG}", f"cat /root/config.toml > {CONFIG}", "containerd does not accept"),
    (
        "mv /usr/bin/containerd /root; ln -s false /usr/bin/containerd",
        "rm /usr/bin/containerd; mv /root/containerd /usr/bin",
        "prints no version",
    ),
)
"""Changes of what containerd says, as commands, what undoes each, and what `status` says of it."""


@marks.promise("`status` asks an engine's program again once its answer may be another one")
def test_status_knows_a_change_of_containerd_at_once(node: Wirable) -> None:
    """Though it does not ask containerd as long as nothing has changed."""
    node.install("--no-probe")

    def remembers() -> bool:
        node.node("status", "--record")
        answers = json.loads(node.booted.path("/var/lib/reassert/node.json").read_text())["answers"]
        return [any(word in command for command in answers) for word in ("--version", "config dump")] == [True, True]

    for change, undo, said in CHANGES:
        wait_for(remembers, "what containerd says is remembered: its version and its configuration")
        assert reassert(node, "status").returncode == 0
        node.booted.run("sh", "-c", change)
        found = reassert(node, "status")
        node.booted.run("sh", "-c", undo)
        assert (found.returncode, said in found.stdout) == (1, True), found.stdout
