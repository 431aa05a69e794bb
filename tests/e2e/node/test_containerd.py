"""Install and uninstall on containerd 1.7 and 2.1: in, proved, and out again to the byte.

On 1.6 tests/e2e/kubernetes/test_node_pod.py does it, and test_containerd_configs.py tries what 1.6 reads. On 1.7
test_agent_service.py proves every handler.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import marks
import pytest
from unit.kubelet import claim, state

from e2e.cri.client import CriError
from e2e.cri.hostile import ENV, OVERRIDDEN, RESERVED, reserved_in
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.dumped import DROP_IN
from e2e.node.engines import CONFIG
from e2e.node.wired import (
    FILES,
    PACKAGED,
    POLICY,
    POLICY_FILE,
    Wirable,
    assert_put_back,
    package,
    usual_config,
    without_package,
)
from hook.node.artifacts.specs import KIND
from hook.node.kept import Verified

pytestmark = marks.promise(
    "Install wires every handler, tests it, and restarts no container; uninstall restores every byte", about="Node"
)

RUNC_TYPE = ("crun", "nvidia", "runc")
WIRED = {"crun": ["runtime"], "kata": [], "nvidia": ["runtime"], "runc": ["runtime"]}


@pytest.fixture(scope="module", params=["trixie", "forky"])
def booted(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    node = module_boot(request.param, config=usual_config(request.param), files=FILES)
    node.path("/usr/local/bin/nvidia-container-runtime").chmod(0o755)
    node.path("/etc/containerd/config.toml").chmod(0o640)
    package(node)
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """After every test reassert is taken out, and nothing is different from before."""
    booted.path(POLICY_FILE).write_text(POLICY)
    wirable = Wirable(booted, booted.snapshot(), PACKAGED)
    yield wirable
    wirable.take_out()
    booted.path(POLICY_FILE).write_text(POLICY)
    assert wirable.changes() == []


with_one_containerd = pytest.mark.parametrize("booted", ["forky"], indirect=True)
"""For what differs neither by containerd's version nor by where its configuration is changed."""

with_one_file = pytest.mark.parametrize("booted", ["trixie"], indirect=True)
"""For what an administrator does to the file that has our lines too; on 2.1 they are in a file of their own."""


@pytest.fixture
def copied(node: Wirable) -> Iterator[Wirable]:
    """With a program that install puts in place, and that goes."""
    with without_package(node) as wirable:
        yield wirable


@with_one_containerd
def test_every_handler_is_wired_and_proved(copied: Wirable) -> None:
    node = copied
    assert node.status()[:2] == (3, {key: [] for key in WIRED})
    written, pid = node.booted.path(CONFIG).stat().st_mtime_ns, node.pid()
    planned = node.install("--dry-run").stdout
    assert 'BinaryName = "/opt/reassert/reassert-runc"' in planned
    assert "would be restarted" in planned
    assert (node.changes(), node.pid()) == ([], pid)
    node.install("--no-probe")  # test_agent_service.py has an install that tests each handler; here verify does
    assert node.status() == (0, WIRED, [])
    assert 'pause:3.9"' in node.config() or "pause:3.9'" in node.config()
    assert "# GPU nodes: NVIDIA's wrapper\n" in node.config()
    said = {name: (handler["result"], handler["starts"]) for name, handler in node.verify().items()}
    both = {"warm": "protected", "cold": "protected"}
    assert said == {**dict.fromkeys(RUNC_TYPE, ("protected", both)), "kata": ("not tried", None)}
    for handler in RUNC_TYPE:
        node.pod_gets(handler)
    edited = [event for event in node.events() if event["event"] == "container.edited"]
    assert len({event["id"] for event in edited}) >= len(RUNC_TYPE)
    assert all((event["adapter"], event["applied"]) == ("runtime", True) for event in edited)
    assert "create --bundle" in node.booted.path("/run/nvidia.log").read_text()  # the wrapper behind ours was called
    wired = node.booted.snapshot()
    assert "/opt/reassert/reassert: removed" in node.node("uninstall", "--dry-run").stdout
    assert node.booted.snapshot() == wired
    node.node("uninstall")
    assert node.changes() == []
    assert node.booted.path(CONFIG).stat().st_mtime_ns == written
    assert node.status()[0] == 3
    node.pod_gets("runc", overridden=True)


@marks.promise(
    "A new policy that would refuse every container for a file that the node lacks, and a file that is being "
    "written, leave the last good policy in force"
)
@with_one_containerd
def test_a_host_path_that_the_node_lacks_is_green_nowhere(node: Wirable) -> None:
    """README's company-ca rule on a node without the bundle: valid, and no pod would start.

    With another policy in force it is held back; `onMissingFiles: Enforce` takes it.
    """
    held = POLICY.replace("hostPath: /etc/company-ca", "hostPath: /etc/no-such-ca")
    policy = held.replace("spec:\n", "spec:\n  onMissingFiles: Enforce\n")
    node.booted.path(POLICY_FILE).write_text(policy)
    lacks = (
        "rule company-ca: hostPath /etc/no-such-ca: No such file or directory; every container that the rule matches"
    )
    checked = node.booted.run(node.program, "policy", "check", "--node", check=False)
    assert (checked.returncode, checked.stderr.startswith(f"{POLICY_FILE}:")) == (1, True)
    assert f": error: {lacks} is refused" in checked.stderr
    tried = node.install(check=False)
    assert tried.returncode == 1
    assert tried.stdout.startswith(f"WARNING: {lacks}")
    assert tried.stdout.index("WARNING: ") < tried.stdout.index("writing ")
    assert "a container that overrides nothing does not start: reassert: refused" in tried.stderr
    node.booted.path(POLICY_FILE).write_text(POLICY)
    assert node.changes() == []
    assert not node.booted.path("/run/reassert/agent").exists()
    assert node.booted.property("reassert-agent.service", "LoadState") == "not-found"
    node.install("--no-probe")
    node.pod_gets("runc")
    node.booted.path(POLICY_FILE).write_text(held)
    node.pod_gets("runc")
    warning = f"the last good policy stays in force: {POLICY_FILE}: it would refuse every container"
    status, _, problems = node.status()
    assert (status, [problem.startswith(warning) for problem in problems]) == (1, [True])
    assert "/etc/no-such-ca" in problems[0]
    assert [event["warning"] for event in node.events() if "/etc/no-such-ca" in event.get("warning", "")]
    node.booted.path("/etc/no-such-ca").mkdir()
    assert node.status()[::2] == (0, [])
    node.booted.path("/etc/no-such-ca").rmdir()
    node.booted.path(POLICY_FILE).write_text(policy)
    status, _, problems = node.status()
    assert (status, [problem.startswith(lacks) for problem in problems]) == (1, [True])
    assert node.verified() == {**dict.fromkeys(RUNC_TYPE, "starts nothing"), "kata": "not tried"}
    node.booted.path(POLICY_FILE).write_text(POLICY)


@marks.promise(
    "`status` and `install` go by what the engine has loaded, and a timer logs each handler that stops being wired",
    about="Node",
)
@marks.hole(
    "`status` was green where the engine had loaded other settings than its files",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@with_one_containerd
def test_what_containerd_has_not_loaded_is_not_wired(node: Wirable) -> None:
    """A drop-in that is away while containerd starts, and is put back: every file is as install wrote it."""
    node.install("--no-probe")
    drop_in = node.booted.path(DROP_IN)
    drop_in.rename(f"{drop_in}.away")
    node.booted.run("systemctl", "restart", "containerd")
    node.booted.wait_for_cri()
    Path(f"{drop_in}.away").rename(drop_in)
    node.pod_gets("runc", overridden=True)
    status, wired, problems = node.status()
    assert (status, wired) == (1, {key: [] for key in WIRED})
    assert [problem for problem in problems if "start without reassert: containerd" in problem] == problems
    assert "would be restarted" in node.install("--dry-run").stdout
    pid = node.pid()
    assert "no file was changed" not in node.install("--no-probe").stdout
    assert (node.status(), node.pid() != pid) == ((0, WIRED, []), True)
    assert "no file was changed" in node.install().stdout
    node.pod_gets("runc")
    node.booted.run("systemctl", "kill", "--signal=STOP", "--kill-whom=main", "containerd")
    status, wired, problems = node.status()
    node.booted.run("systemctl", "kill", "--signal=CONT", "--kill-whom=main", "containerd")
    assert (status, wired) == (1, {key: [] for key in WIRED})
    assert [problem for problem in problems if problem.startswith("containerd: it is not known whether it is wired")]
    node.booted.run("systemctl", "stop", "containerd")
    status, _, problems = node.status()
    assert status == 1
    assert [problem for problem in problems if " does not run" in problem]
    node.booted.run("systemctl", "start", "containerd")
    node.booted.wait_for_cri()


@marks.promise(
    "`status` and `install` go by what the engine has loaded, and a timer logs each handler that stops being wired"
)
@with_one_containerd
def test_timers_look_at_the_wiring_and_verify(node: Wirable) -> None:
    """Configuration management takes the wiring away and restarts the engine: an event names each handler once."""
    booted = node.booted
    node.install("--no-probe")
    timers = ("reassert-status.timer", "reassert-verify.timer")
    assert [booted.property(timer, "ActiveState") for timer in timers] == ["active"] * 2
    booted.run("systemctl", "start", "reassert-status.service")
    drop_in = booted.path(DROP_IN)
    drop_in.rename(f"{drop_in}.away")
    booted.run("systemctl", "restart", "containerd")
    booted.wait_for_cri()
    booted.run("systemctl", "start", "reassert-status.service")
    booted.run("systemctl", "start", "reassert-status.service")
    Path(f"{drop_in}.away").rename(drop_in)
    booted.run("systemctl", "restart", "containerd")
    booted.wait_for_cri()
    booted.run("systemctl", "start", "reassert-status.service")
    said = [(event["event"], event["handler"]) for event in node.events() if event["event"].startswith("handler.")]
    assert sorted(said) == [(f"handler.{word}", name) for word in ("unwired", "wired") for name in RUNC_TYPE]
    remembered = booted.path("/var/lib/reassert/node.json")
    earlier = {"containerd": asdict(Verified(1, 0, ["handler/kata"]))}
    remembered.write_text(json.dumps({**json.loads(remembered.read_text()), "verified": earlier}))
    started = booted.run("systemctl", "start", "reassert-verify.service", check=False)
    assert started.returncode == 0, "\n".join(booted.journal("reassert-verify.service"))
    found = json.loads(remembered.read_text())["verified"]["containerd"]
    assert (found["when"] > 1_000_000_000, found["status"], found["accepted"]) == (True, 0, ["handler/kata"])


@marks.claim("pod-selector", "runtime")
@with_one_containerd
def test_pod_labels_are_asked_of_the_wired_engine(node: Wirable) -> None:
    """By the agent in its unit, at the socket that install noted; uninstall takes the note away."""
    selector = "- name: company-ca\n    match: {podSelector: {matchLabels: {tier: web}}}"
    node.booted.path(POLICY_FILE).write_text(POLICY.replace("- name: company-ca", selector))
    node.install("--no-probe")
    for tier, gets in (("web", OVERRIDDEN | RESERVED), ("db", OVERRIDDEN | {"NVIDIA_VISIBLE_DEVICES": "void"})):
        pod = node.booted.cri.run_pod("runc", labels={"tier": tier})
        container = pod.run(image=HOSTILE, env=ENV)
        assert reserved_in(container.environ()) == gets
        [event] = [event for event in node.events() if event.get("id") == container.id]
        assert (event["event"], event["start"]) == ("container.edited", "warm")
        pod.remove()
    assert node.booted.run(node.program, "audit").returncode == 0
    node.booted.path(POLICY_FILE).write_text(POLICY)


@with_one_containerd
def test_containers_outlive_what_started_them(node: Wirable) -> None:
    node.booted.wait_for_cri()
    old = node.booted.cri.run_pod("crun")
    older = old.run(env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    excluded = node.booted.cri.run_pod("runc", namespace="kube-system")
    past = "1 pod created before the install; until it is recreated (kubectl drain), a container that starts "
    past += "in such a pod bypasses reassert: default/p"
    assert f"Note: {past}\n" in node.install("--no-probe").stdout
    found = node.json("status")
    assert (found["exitStatus"], found["state"], found["problems"]) == (4, "protected, with warnings", [])
    assert f"containerd: {past}" in found["remarks"]
    assert [text for text in found["remarks"] if "the policy, created before the install: default/p" in text], found
    late = old.run(name="late", env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    assert "NVIDIA_VISIBLE_DEVICES=all" in late.environ()
    found = node.json("status")
    assert (found["exitStatus"], found["problems"]) == (4, []), "drain it: a warning"
    assert [text for text in found["remarks"] if "created in a pod from before the install: default/p/late" in text], (
        found
    )
    excluded.remove()
    assert "NVIDIA_VISIBLE_DEVICES=all" in older.exec_environ()  # it was not there when that one started
    pod = node.hostile_pod("crun")
    container = pod.run()
    out = node.node("uninstall")
    assert "2 running containers or commands still call /opt/reassert/reassert-crun" in out.stdout
    assert container.exec("/bin/cat", "/proc/self/cmdline")
    others = [line for line in node.changes() if not line.startswith("/var/lib/reassert")]
    assert others == ["/opt/reassert: came", "/opt/reassert/reassert-crun: came"]
    pod.remove()
    old.remove()


@with_one_file
def test_what_an_administrator_edits_or_puts_back_meanwhile_stays(node: Wirable) -> None:
    """Ansible did it, say. After the second, the running containerd still calls what uninstall removes."""
    usual = node.config()
    for theirs in (usual.replace("Changes go through the platform team.", "Ask Mary."), usual):
        node.install("--no-probe")
        pid = node.pid()
        if theirs == usual:
            node.config(usual)
        else:
            node.config(node.config().replace("Changes go through the platform team.", "Ask Mary."))
            assert node.status() == (0, WIRED, [])
        node.node("uninstall")
        assert (node.config(), node.pid() != pid) == (theirs, True)
        node.config(usual)
        node.booted.path(CONFIG).chmod(0o640)


@with_one_containerd
def test_a_handler_that_came_later_is_a_way_around_until_the_next_install(node: Wirable) -> None:
    node.install("--no-probe")
    plugin = "io.containerd.cri.v1.runtime" if node.booted.suite == "forky" else "io.containerd.grpc.v1.cri"
    late = f'\n[plugins."{plugin}".containerd.runtimes.late]\n  runtime_type = "io.containerd.runc.v2"\n'
    late += f'[plugins."{plugin}".containerd.runtimes.late.options]\n  BinaryName = "runc"\n'
    text = node.config()
    node.config(text + late)
    node.booted.run("systemctl", "restart", "containerd")
    code, wired, problems = node.status()
    assert (code, wired["late"]) == (1, [])
    assert problems[0].startswith("containerd: containers of late start without reassert; the install restarts")
    node.pod_gets("late", overridden=True)
    node.install("--no-probe")
    assert node.status()[:2] == (0, {**WIRED, "late": ["runtime"]})
    node.pod_gets("late")
    node.node("uninstall")
    assert node.config() == usual_config(node.booted.suite) + late
    node.config(usual_config(node.booted.suite))
    node.booted.run("systemctl", "restart", "containerd")


@with_one_containerd
def test_one_runtime_class_alone(node: Wirable) -> None:
    node.install("--runtime-class", "guarded", "--no-probe")
    code, wired, _ = node.status()
    assert (code, wired) == (0, {**{key: [] for key in WIRED}, "guarded": ["runtime"]})
    for handler, overridden in (("guarded", False), ("runc", True)):
        pod = node.hostile_pod(handler)
        assert_put_back(pod, overridden)
        pod.remove()
    node.install("--runtime-class", "crun", "--no-probe")
    assert node.status()[:2] == (0, {**{key: [] for key in WIRED}, "crun": ["runtime"]})
    node.install("--default", "--no-probe")
    assert node.status()[:2] == (0, WIRED)
    for name, why in (("kata", "calls no runc"), ("No_Class", "DNS label")):
        refused = node.install("--runtime-class", name, check=False)
        assert refused.returncode == 1
        assert why in refused.stderr


@with_one_containerd
def test_the_hook_alone_refuses(node: Wirable) -> None:
    node.install("--adapter", "hook", "--no-probe")
    assert node.status()[:2] == (1, {name: ["hook"] if wired else [] for name, wired in WIRED.items()})
    assert ["NVIDIA's runtime has given it" in each for each in node.status()[2]] == [True], "a hook is too late for it"
    for handler, said in (("runc", "NVIDIA_VISIBLE_DEVICES"), ("crun", "error executing hook")):
        pod = node.hostile_pod(handler)
        with pytest.raises(CriError, match=said):
            assert_put_back(pod)
        pod.remove()
    # A copy of a handler that is wired already.
    node.install("--no-probe", "--runtime-class", "guarded")
    assert node.status() == (0, {**{key: [] for key in WIRED}, "guarded": ["hook"]}, [])
    spec = json.loads(node.booted.path("/etc/reassert/base-runtime-spec/guarded.json").read_text())
    assert len(spec["hooks"]["createRuntime"]) == 1


def test_a_cdi_device_carries_a_rule_to_who_asks_for_it(node: Wirable) -> None:
    assert (claims_do_nothing(node) == "") == (node.booted.suite == "forky")
    node.install("--adapter", "cdi", *(["--no-probe"] if node.booted.suite == "trixie" else []))
    assert node.status() == (4, {key: [] for key in WIRED}, [])
    assert claims_do_nothing(node) == ""
    pod = node.hostile_pod("runc")
    asked = pod.run(annotations={"cdi.k8s.io/test": ",".join(f"{KIND}={rule}" for rule in ("company-ca", "gpu"))})
    assert "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt" in asked.environ()
    assert "company.crt" in asked.exec("/bin/ls", "/etc/ssl")
    pod.remove()
    pid = node.pid()
    node.node("uninstall")
    assert (node.pid() == pid) == (node.booted.suite == "forky")  # CDI is on there, and nothing was configured
    assert node.changes() == []


def claims_do_nothing(node: Wirable) -> str:
    """What `status` says of resource claims, on a node whose kubelet has one."""
    record = node.booted.path("/var/lib/kubelet/dra_manager_state")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(state([claim("mine", "uid", devices={"d": ["v.example/gpu=0"]})]))
    try:
        said = [*node.status()[2], *node.hints()]
    finally:
        record.unlink()
    return next((text for text in said if "resource claims" in text), "")


@with_one_file
def test_resource_claims_that_do_nothing_are_named_and_mended(node: Wirable) -> None:
    """containerd 1.7 ignores CDI devices as it is shipped. No rule of this policy could be a CDI device itself."""
    node.booted.path(POLICY_FILE).write_text(
        "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n"
        "  - {name: gpu, deviceAllocations: {exclusive: [v.example/gpu]}}\n"
    )
    said = claims_do_nothing(node)
    assert said.startswith("containerd: resource claims (DRA) do nothing on this node")
    assert said.endswith(
        "enable_cdi is false in /etc/containerd/config.toml; add `cdi` to --adapter of `reassert install`"
    )
    done = node.install("--no-probe", "--adapter", "runtime,cdi")
    assert "no CDI spec is written: /etc/reassert/policy.yaml: no rule without match" in done.stdout + done.stderr
    assert claims_do_nothing(node) == ""


@with_one_containerd
def test_nri_with_its_second_line(node: Wirable) -> None:
    node.install("--adapter", "nri", "--no-probe")  # test_node_pod.py has the probes under nri
    assert node.status()[:2] == (0, {name: ["hook", "nri"] if wired else ["nri"] for name, wired in WIRED.items()})
    assert node.booted.property("reassert-nri", "LoadState") == "not-found"
    for handler in RUNC_TYPE:
        pod = node.hostile_pod(handler)
        assert_put_back(pod)
        pod.remove()
    # A new name takes a restart, and status says so.
    node.booted.path(POLICY_FILE).write_text(POLICY + "  - {name: more, env: [{name: MORE, value: '1'}]}\n")
    code, _, problems = node.status()
    assert code == 1
    assert "/etc/reassert/base-runtime-spec/crun.json" in problems[0]
    assert "the install restarts containerd" in problems[0]
    pid = node.pid()
    node.install("--no-probe")
    assert node.pid() != pid
    assert node.status()[0] == 0
    # The plugin away: refused.
    node.booted.run("systemctl", "stop", "reassert-agent.socket", "reassert-agent.service")
    assert node.status()[0] == 1
    pod = node.hostile_pod("runc")
    with pytest.raises(CriError, match="reassert"):
        assert_put_back(pod)
    pod.remove()
    # Run by others.
    node.install("--adapter", "nri", "--no-unit", "--no-probe")
    assert node.status() == (0, {name: ["hook"] if wired else [] for name, wired in WIRED.items()}, [])
    assert "is wired already" in node.install().stdout
    assert node.booted.property("reassert-nri", "LoadState") == "not-found"
    # From one adapter to another.
    node.install("--adapter", "runtime", "--no-probe")
    assert node.status() == (0, WIRED, [])
    assert node.booted.property("reassert-nri", "LoadState") == "not-found"
