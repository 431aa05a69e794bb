"""Volumes that reach reassert's own files and are closed, not refused: the agents of a platform start.

Then the attacks: what a process does about a mount that was made read-only, and about the log's covered directory.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, Node
from harness.paths import REASSERT
from harness.tools import run

from e2e.hostile_mounts import in_user_namespace
from e2e.runtimes import EACH, guarded, real_runtime
from e2e.test_audit import listed, seen
from e2e.test_node_paths import ENV, refused, with_env
from hook.core.policy.store import load
from hook.ops.audit import audit

LOG = Path("/var/log/reassert")


@pytest.fixture
def host(directory: Path, node: Node) -> Iterator[Path]:
    """A directory of the node with a file system of its own below it, which has reassert's files: as `/` has /run."""
    root = directory / "host"
    (root / "run").mkdir(parents=True)
    (root / "data").mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(root / "run"))
    (root / "run/reassert").mkdir()
    policy = root / "run/reassert/policy.yaml"
    policy.write_bytes(node.policy.read_bytes())
    node.policy = policy
    yield root
    run("umount", str(root / "run"))


def node_exporter(bundle: Bundle, host: Path) -> None:
    """As prometheus-community's chart has it: hostPath `/`, readOnly, HostToContainer. No capability."""
    bundle.bind(host, "/host/root", "ro", "rslave")
    for sets in bundle.spec["process"]["capabilities"].values():
        sets.clear()


def in_container(container: Running, script: str) -> str:
    """What a script of the container's shell prints, and its complaints."""
    for applet in ("rm", "mv", "rmdir", "umount"):
        script = script.replace(f"{applet} ", f"/bin/busybox {applet} ")
    done = run(container.runtime, "exec", container.id, "/bin/sh", "-c", script, check=False)
    return done.stdout + done.stderr


@marks.claim("own-files", "runtime@wrapper", "hook@createRuntime")
def test_node_exporter_starts_and_what_it_reaches_is_read_only(
    pair: tuple[str, str], node: Node, bundle: Bundle, host: Path
) -> None:
    node.compile(ENV)
    node_exporter(bundle, host)
    bundle.spec["process"]["env"].append("CA=x")
    was = node.policy.read_bytes()
    with guarded(pair[1], pair[0], node, bundle) as container:
        assert "policy.yaml" in container.exec("/bin/ls", "/host/root/run/reassert")
        [mount] = container.mounts("/host/root/run")
        assert "ro" in mount.options
        at = "/host/root/run/reassert"
        said = in_container(container, f"echo x >> {at}/policy.yaml; echo x > {at}/new; rm {at}/policy.yaml")
        assert said.count("Read-only file system") == 3, said
        said = in_container(container, f"mount -o remount,rw,bind /host/root/run; mv {at} /host/root/run/x; ls {at}")
        assert ("ermi" in said, "Read-only file system" in said, "policy.yaml" in said) == (True, True, True), said
    assert (node.policy.read_bytes(), [path.name for path in node.policy.parent.iterdir()]) == (was, ["policy.yaml"])
    [event] = node.logged()
    assert (event["event"], event["level"], event["edits"]) == ("container.node-paths", "info", [])
    assert (event["madeReadOnly"], "nodePaths" in event) == (["/host/root/run"], False)


def test_a_writable_volume_in_it_is_refused(pair: tuple[str, str], node: Node, bundle: Bundle, host: Path) -> None:
    """The nearest mount of config.json counts: this one asks for what the other does not."""
    node.compile(ENV)
    with_env(bundle, pair).bind(host, "/host/root", "ro", "rslave")
    bundle.bind(host / "run", "/host/root/run")
    assert refused(pair, node, bundle).startswith("the volume /host/root/run can be written and reaches ")


def test_a_refusal_names_the_volume_as_the_pod_has_it_and_the_cures(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path
) -> None:
    nested = directory / "nested"
    (nested / "below").mkdir(parents=True)
    run("mount", "--bind", str(node.policy.parent), str(nested / "below"))
    try:
        node.compile(ENV)
        with_env(bundle, pair).bind(nested, "/m")
        container = guarded(pair[1], pair[0], node, bundle)
        assert container.create() != 0, "it was created"
        run(pair[0], "delete", "--force", container.id, check=False)
        message = container.output()
        assert f"the volume /m can be written at /m/below and reaches {node.policy} of reassert" in message
        assert "set readOnly: true, or mount less of the node; or the node's administrator excepts " in message
    finally:
        run("umount", str(nested / "below"))


def test_a_link_of_the_image_on_the_way_closes_it_too(
    pair: tuple[str, str], node: Node, bundle: Bundle, host: Path
) -> None:
    node.compile(ENV)
    (bundle.rootfs / "var/host").mkdir(parents=True)
    (bundle.rootfs / "host").symlink_to("var/host")
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(host, "/host/root", "ro", "rslave")
    with guarded(pair[1], pair[0], node, bundle) as container:
        [mount] = container.mounts("/var/host/root/run")
        assert "ro" in mount.options


@pytest.fixture
def log() -> Iterator[Path]:
    """A file in the log's directory, which fluent-bit's /var/log has in it. One test at a time mounts over /var/log."""
    with open("/var/lib/reassert-tests/var-log", "w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        LOG.mkdir(mode=0o750, exist_ok=True)
        kept = LOG / f"kept-{time.monotonic_ns()}"
        kept.write_text("an event\n")
        yield kept
        kept.unlink()


@marks.claim("own-files", "runtime@wrapper")
@pytest.mark.parametrize("is_there", [True, False])
def test_fluent_bit_writes_to_its_volume_and_not_to_the_log(
    pair: tuple[str, str], node: Node, bundle: Bundle, log: Path, directory: Path, is_there: bool
) -> None:
    """Its position file lies in /var/log. In the second case the log's directory is not there yet."""
    own = directory / "varlog"
    source = Path("/var/log") if is_there else own
    node.compile(ENV)
    bundle.spec["process"]["env"].append("CA=x")
    position = source / f"flb-{directory.name}.db"
    if not is_there:
        own.mkdir()
        run("mount", "--bind", str(own), "/var/log")
    try:
        bundle.bind("/var/log", "/var/log", "rslave")
        with guarded(pair[1], pair[0], node, bundle) as container:
            in_container(container, f"echo 1 > /var/log/{position.name}")
            assert position.read_text() == "1\n"
            [mount] = container.mounts("/var/log/reassert")
            assert {"ro", "nosuid", "nodev", "noexec"} <= set(mount.options)
            target = "/var/log/reassert"
            attack = f"echo x > {target}/new; mv {target} /var/log/gone; rmdir {target}; rm -r {target}"
            said = in_container(
                container, f"{attack}; mkdir /var/log/{directory.name}; mv /var/log/{directory.name} {target}"
            )
            assert "Read-only file system" in said
            assert "busy" in said
            in_container(container, f"rm /var/log/{position.name}; rmdir /var/log/{directory.name}")
            if is_there:
                assert "an event" in container.exec("/bin/cat", f"{target}/{log.name}"), "it may be read"
        assert (source / "reassert").is_dir()
        assert not (source / "gone").exists()
        assert not is_there or log.read_text() == "an event\n"
    finally:
        if not is_there:
            run("umount", "/var/log")
    [event] = node.logged()
    assert (event["event"], event["level"]) == ("container.node-paths", "info")
    assert event["madeReadOnly"] == ["/var/log/reassert"]


def test_each_volume_of_the_log_is_covered(pair: tuple[str, str], node: Node, bundle: Bundle, log: Path) -> None:
    node.compile(ENV)
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind("/var/log", "/var/log")
    bundle.bind("/var/log", "/host/log")
    with guarded(pair[1], pair[0], node, bundle) as container:
        for at in ("/var/log", "/host/log"):
            assert "Read-only file system" in in_container(container, f"echo x > {at}/reassert/{log.name}")
    assert log.read_text() == "an event\n"
    [event] = node.logged()
    assert sorted(event["madeReadOnly"]) == ["/host/log/reassert", "/var/log/reassert"]


def test_a_volume_that_hands_mounts_to_the_node_is_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, log: Path
) -> None:
    """With mountPropagation: Bidirectional the cover would lie on the node's own log."""
    run("mount", "--bind", "/var/log", "/var/log")
    run("mount", "--make-shared", "/var/log")
    try:
        node.compile(ENV)
        with_env(bundle, pair).bind("/var/log", "/var/log", "rshared")
        bundle.spec["linux"]["rootfsPropagation"] = "rshared"
        message = refused(pair, node, bundle)
        assert "can be written and reaches /var/log/reassert" in message
    finally:
        run("umount", "/var/log")


def explained(node: Node, bundle: Bundle) -> dict[str, Any]:
    """What `explain` says about a saved bundle under the node's policy."""
    options = str(bundle.directory), "--policy", str(node.policy), "-o", "json"
    told: dict[str, Any] = json.loads(run(str(REASSERT), "explain", *options, check=False).stdout)  # 1: it is refused
    return told


@marks.hole(
    "With a writable volume of /var/log, a pod's volume at a link to /var/log, which lies below it, kept the "
    "event log from being covered: uid 0 forged and removed events",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_volume_that_lies_below_the_one_with_the_log_covers_nothing(
    pair: tuple[str, str], node: Node, bundle: Bundle, log: Path, directory: Path
) -> None:
    """Engines sort volumes by the number of names in their paths. A link makes that of the first one shorter."""
    node.compile(ENV)
    bundle.spec["process"]["env"].append("CA=x")
    (directory / "empty").mkdir()
    (bundle.rootfs / "var/log/reassert").mkdir(parents=True, exist_ok=True)
    (bundle.rootfs / "l").symlink_to("var/log")
    bundle.bind(directory / "empty", "/l/reassert")
    bundle.bind("/var/log", "/var/log")
    with guarded(pair[1], pair[0], node, bundle) as container:
        assert log.name in container.exec("/bin/ls", "/var/log/reassert")
        assert "Read-only file system" in in_container(container, f"echo forged > /var/log/reassert/{log.name}")
    assert log.read_text() == "an event\n"
    [event] = node.logged()
    assert event["madeReadOnly"] == explained(node, bundle)["madeReadOnly"] == ["/var/log/reassert"]


def test_a_volume_of_the_pod_at_the_log_stays(
    pair: tuple[str, str], node: Node, bundle: Bundle, log: Path, directory: Path
) -> None:
    node.compile(ENV)
    bundle.spec["process"]["env"].append("CA=x")
    (directory / "empty").mkdir()
    bundle.bind("/var/log", "/var/log")
    bundle.bind(directory / "empty", "/var/log/reassert")
    with guarded(pair[1], pair[0], node, bundle) as container:
        in_container(container, "echo mine > /var/log/reassert/mine; mv /var/log/reassert /var/log/gone")
    assert (directory / "empty/mine").read_text() == "mine\n"
    assert log.read_text() == "an event\n"
    assert node.logged() == [] or "madeReadOnly" not in node.logged()[0]
    assert not explained(node, bundle)["madeReadOnly"]


@marks.hole(
    "A volume over a mount of reassert's own files that came with hostPath `/`, readOnly, had an innocent "
    "container refused",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_what_another_volume_covers_refuses_nobody(
    pair: tuple[str, str], node: Node, bundle: Bundle, host: Path, directory: Path
) -> None:
    """hostPath `/`, readOnly, and an emptyDir over the /run that comes with it."""
    node.compile(ENV)
    (directory / "empty").mkdir()
    node_exporter(bundle, host)
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(directory / "empty", "/host/root/run")
    with guarded(pair[1], pair[0], node, bundle) as container:
        in_container(container, "echo mine > /host/root/run/mine; umount /host/root/run")
        assert container.exec("/bin/ls", "/host/root/run").split() == ["mine"]
    assert node.logged() == []
    assert explained(node, bundle)["denials"] == []


def test_what_comes_with_the_volume_that_covers_another_is_closed(
    pair: tuple[str, str], node: Node, bundle: Bundle, host: Path
) -> None:
    node.compile(ENV)
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(host / "data", "/host/root", "ro")
    bundle.bind(host, "/host/root", "ro", "rslave")
    with guarded(pair[1], pair[0], node, bundle) as container:
        assert "Read-only file system" in in_container(container, "echo x > /host/root/run/reassert/policy.yaml")
    [event] = node.logged()
    assert event["madeReadOnly"] == ["/host/root/run"]


@pytest.mark.parametrize("stage", ["spec Audit", "a rule on trial", "no rules"])
def test_on_trial_it_starts_and_the_event_says_what_enforce_would_do(
    node: Node, bundle: Bundle, host: Path, log: Path, stage: str
) -> None:
    text = {
        "spec Audit": ENV.replace("spec:\n", "spec:\n  mode: Audit\n"),
        "a rule on trial": ENV + "  - {name: tried, mode: Audit, env: [{name: TRIED, value: x}]}\n",
        "no rules": ENV.partition("  rules:")[0] + "  rules: []\n",
    }[stage]
    node.compile(text)
    bundle.bind(host, "/host/root", "ro", "rslave")
    bundle.bind(host / "run", "/mine")
    bundle.bind("/var/log", "/var/log")
    with guarded("wrapper", real_runtime(EACH[0], node.directory), node, bundle) as container:
        [mount] = container.mounts("/host/root/run")
        assert ("ro" in mount.options) == (stage != "spec Audit")
        assert len(container.mounts("/var/log/reassert")) == (stage != "spec Audit")
        assert "policy.yaml" in container.exec("/bin/ls", "/mine/reassert")
    [event] = node.logged()
    assert event["event"] == "container.would-deny"
    [message] = [denial["message"] for denial in event["denials"]]
    assert message.startswith("the volume /mine can be written and reaches ")
    field = "wouldMakeReadOnly" if stage == "spec Audit" else "madeReadOnly"
    assert sorted(event[field]) == ["/host/root/run", "/var/log/reassert"]


def test_an_excepted_namespace_keeps_its_volumes_and_gets_the_rest(node: Node, bundle: Bundle, host: Path) -> None:
    node.compile(ENV + "  nodePaths: {except: {namespaces: [monitoring]}}\n")
    bundle.pod("monitoring")
    bundle.spec["linux"]["cgroupsPath"] = "system.slice:cri-containerd:" + "0a" * 32
    bundle.bind(host / "run", "/mine")
    container = guarded("wrapper", real_runtime(EACH[0], node.directory), node, bundle)
    with container:
        assert "CA=x" in container.environ()
        assert "policy.yaml" in container.exec("/bin/ls", "/mine/reassert")


def volumes(bundle: Bundle, host: Path, which: str) -> bool:
    """The volumes of an agent or of an attacker; whether the container starts."""
    if which == "node-exporter":
        node_exporter(bundle, host)
    elif which == "fluent-bit":
        bundle.bind("/var/log", "/var/log", "rslave")
    elif which == "a hostPath with the policy":
        bundle.bind(host / "run", "/mine")
    elif which == "a read-only one with hostUsers: false":
        bundle.bind(host / "run", "/mine", "ro")
        in_user_namespace(bundle)
    else:
        (host / "link").symlink_to(host / "run/reassert")
        bundle.bind(host / "link", "/mine")
    return which in ("node-exporter", "fluent-bit")


WHICH = (
    *("node-exporter", "fluent-bit", "a hostPath with the policy", "a read-only one with hostUsers: false"),
    "a link to the policy",
)


@pytest.mark.parametrize("which", WHICH)
def test_every_forecast_says_what_enforce_does(
    node: Node, bundle: Bundle, host: Path, log: Path, directory: Path, which: str
) -> None:
    """Audit's event, report, explain, audit of a draft and of what is in force; then the start in Enforce mode."""
    runtime = real_runtime(EACH[0], node.directory)
    starts = volumes(bundle, host, which)
    bundle.spec["process"]["env"].append("CA=x")
    audits = ENV.replace("spec:\n", "spec:\n  mode: Audit\n")
    enforced = directory / "enforced.yaml"
    enforced.write_text(ENV)
    why = "the volume /mine can be written and reaches "
    node.compile(audits)
    with guarded("wrapper", runtime, node, bundle) as container:
        [event] = node.logged()
        assert (event["event"] == "container.would-deny") == (not starts)
        assert all(denial["message"].startswith(why) for denial in event["denials"])
        assert starts == bool(event.get("wouldMakeReadOnly"))
        told = json.loads(run(str(REASSERT), "report", "--events", str(node.events), "-o", "json").stdout)
        [workload] = told["workloads"]
        assert workload["outcomes"]["wouldRefuse"] == (not starts)
        assert {item["rule"] for item in workload["rules"]} == {"nodePaths"}
        in_force = load(str(node.policy), str(node.store))
        known = audit.draft(str(enforced), in_force)
        known.policy.path = in_force.path  # whose own directory is what nodePaths closes
        [draft] = audit.audit(known, listed(container)).findings
        assert ("refusal" in draft.changes) == draft.is_refused() == (not starts)
        assert starts == any(entry.startswith("volume ") for entry in draft.changes)
        assert not seen(node, container)["differences"]
        [said] = seen(node, container)["next_start"]
        assert said.startswith("would be made read-only: " if starts else f"would be refused: {why}")
    shown = json.loads(
        run(*(str(REASSERT), "explain", str(bundle.directory), "--policy", str(node.policy), "-o", "json")).stdout
    )
    assert bool(shown["denials"]) == (not starts)
    assert bool(shown["madeReadOnly"]) == starts
    node.events.unlink()
    node.compile(ENV)
    shown = explained(node, bundle)
    assert shown["outcome"].startswith("started " if starts else "refused: ")
    container = guarded("wrapper", runtime, node, bundle)
    assert (container.create() == 0) == starts
    run(runtime, "delete", "--force", container.id, check=False)
    [event] = node.logged()
    assert event["event"] == ("container.node-paths" if starts else "container.denied")


def test_a_preflight_says_what_a_new_version_would_refuse_and_stores_nothing(
    node: Node, bundle: Bundle, host: Path
) -> None:
    node.compile(ENV + "  nodePaths: {reassert: Report}\n")
    bundle.bind(host / "run", "/mine")
    with guarded("wrapper", real_runtime(EACH[0], node.directory), node, bundle) as container:
        node.write_policy(ENV)
        was = sorted((path.name, path.read_bytes()) for path in node.store.iterdir() if path.is_file())
        found = audit.audit(audit.preflight(str(node.policy)), listed(container))
        assert (found.refused(), found.exit_status()) == (1, 1)
        [said] = found.findings[0].next_start
        assert said.startswith("refused: the volume /mine can be written and reaches ")
        assert found.round.why(listed(container)[0], None).text == "its next start under this version"
        assert was == sorted((path.name, path.read_bytes()) for path in node.store.iterdir() if path.is_file())


def test_audit_mode_sees_a_link_of_the_image_that_enforce_would_refuse(node: Node, bundle: Bundle) -> None:
    (bundle.rootfs / "etc/ssl").rename(bundle.rootfs / "etc/ssl-of-the-image")
    (bundle.rootfs / "etc/ssl").symlink_to("/proc/self/cwd")
    node.compile(POLICY.replace("spec:\n", "spec:\n  mode: Audit\n"))
    runtime = real_runtime(EACH[0], node.directory)
    with guarded("wrapper", runtime, node, bundle) as container:
        assert "REQUESTS_CA_BUNDLE" not in " ".join(container.environ())
    [event] = node.logged()
    assert (event["event"], event["applied"]) == ("container.would-deny", False)
    [denial] = event["denials"]
    node.events.unlink()
    node.compile(POLICY)
    refused_by_enforce = guarded("wrapper", runtime, node, bundle)
    assert refused_by_enforce.create() != 0
    run(runtime, "delete", "--force", refused_by_enforce.id, check=False)
    [enforced] = node.logged()
    assert denial["message"] == enforced["denials"][0]["message"]
