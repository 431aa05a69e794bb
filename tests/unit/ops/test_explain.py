"""`explain` shows the decision that an adapter would make, with reasons and unknown conditions; it changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.container.identity import identify
from hook.core.container.spec import CONFIG_LIMIT, Spec
from hook.core.decide import Case
from hook.core.policy.store import load
from hook.ops.explain import explain
from unit.ops.audit.test_drift import NodeWithContainers, node
from unit.support import CONTAINERD, WithPolicy, bind, called, config, document, reassert

__all__ = ["node"]  # a fixture

pytestmark = [
    marks.promise(
        "`explain` shows the adapter's decision, finds a running container, and changes nothing", about="Decision"
    ),
    marks.promise("What a container loses by its reserved mounts is in its event, in `explain` and in `report`"),
]

CA = {
    "name": "company-ca",
    "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "BAD_*", "absent": True}],
    "mounts": [{"hostPath": "/etc", "mountPath": "/etc/ssl"}],
}
WEB = {
    "name": "web",
    "match": {"podSelector": {"matchLabels": {"tier": "web"}}, "ifUnknown": "Skip"},
    "env": [{"name": "W", "value": "1"}],
}
OTHER = {"name": "other", "match": {"images": ["x/*"]}, "env": [{"name": "O", "value": "1"}]}
RULES = (CA, WEB, OTHER)


class Files:
    """A bundle and a policy."""

    def __init__(self, directory: Path, *rules: dict[str, Any], **fields: Any) -> None:
        self.config, self.policy = directory / "config.json", directory / "policy.yaml"
        env = ["A=1", "CA=/tmp/x", "CA", "BAD_1=y"]
        self.config.write_text(json.dumps(config(env, [bind("/etc/ssl/certs", "/evil")], CONTAINERD)))
        self.policy.write_text(document(*rules, **fields))

    def files(self) -> list[Path]:
        return [path for path in self.config.parent.rglob("*") if path.is_file()]

    def explain(self, output: str, **options: bool) -> int:
        """Which changes nothing."""
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.files()}
        status = explain(str(self.config), str(self.policy), "/nowhere", output, **options)
        assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.files()} == before
        return status


def test_table_says_which_rules_apply_and_why(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Files(root_dir, *RULES).explain("table") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "container team-a/web-1/app (containerd, container or init or ephemeral)",
        "company-ca yes no conditions: every container",
        "web no podSelector is unknown here, counts as not met",
        "other no images registry.example/app:1 is not x/*",
        "company-ca env CA '/tmp/x', (no =) '/ca.pem'",
        "company-ca env BAD_1 'y' absent",
        "company-ca mount /etc/ssl /etc/ssl/certs from /evil /etc (rbind,rprivate,ro,rro)",
        "result started corrected",
    ):
        assert line in lines


def test_json_holds_the_whole_decision_of_the_adapter(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Files(root_dir, *RULES)
    files.explain("json")
    data = json.loads(capsys.readouterr().out)
    assert data["container"]["namespace"] == "team-a"
    assert {rule["name"]: (rule["applies"], rule["unknown"]) for rule in data["rules"]} == {
        "company-ca": (True, []),
        "web": (False, ["podSelector"]),
        "other": (False, []),
    }
    assert (data["outcome"], data["excluded"], data["policy"]["path"]) == ("started corrected", None, str(files.policy))
    spec = Spec(files.config.read_bytes(), "config.json")
    decided = Case(WithPolicy(load(str(files.policy), f"{root_dir}/s")), "0a").decide(identify(spec), spec)
    assert [edit["name"] for edit in data["edits"]] == ["CA", "BAD_1", "/etc/ssl"]
    assert data["edits"] == [edit.describe() for edit in decided.edits]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"mode": "Audit"}, "started unchanged: mode is Audit"),
        ({"exclude": {"namespaces": ["team-*"]}}, "left alone: excluded by namespace team-a"),
    ],
)
def test_outcome_where_nothing_is_corrected(
    root_dir: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], outcome: str
) -> None:
    Files(root_dir, *RULES, **fields).explain("json")
    assert json.loads(capsys.readouterr().out)["outcome"] == outcome


def test_a_refusal_is_told_once_and_is_exit_status_1(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Files(root_dir, {**CA, "onConflict": "Deny"}).explain("table") == 1
    out = capsys.readouterr().out
    assert out.count("env CA is reserved and was set to something else") == 1
    assert "result     refused: rule company-ca: env CA" in out


def test_no_path_of_a_container_is_taken_for_a_refusal(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Files(root_dir, OTHER)
    files.config.write_text(json.dumps(config([], [bind("/logs refused: x", "/var/log")], CONTAINERD)))
    assert files.explain("json") == 0
    assert json.loads(capsys.readouterr().out)["madeReadOnly"] == ["/logs refused: x/reassert"]


def test_diff_is_what_the_wrapper_would_write(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Files(root_dir, *RULES).explain("diff")
    changed = [line for line in capsys.readouterr().out.splitlines() if re.match(r"[+-](?!\+\+|--)", line)]
    told = {line[0] + line[1:].strip(" ,") for line in changed}
    assert {'-"CA=/tmp/x"', '-"CA"', '-"BAD_1=y"', '+"CA=/ca.pem"', '+"destination": "/etc/ssl"'} <= told
    assert any(line.startswith('+"reassert/decision": ') for line in told)


def test_container_that_was_corrected_is_said_to_be(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else who looks at a bundle after the start is told that nothing was done."""
    files = Files(root_dir, CA)
    arguments = [f"--policy={files.policy}", f"--store={root_dir}/s", f"--events={root_dir}/e", "--", "create"]
    assert reassert("runtime", "--real=/bin/true", *arguments, "--bundle", str(root_dir), "0a").returncode == 0
    files.explain("table")
    corrected = "result     corrected by reassert at create"
    assert capsys.readouterr().out.splitlines()[0].startswith(corrected)
    text = files.config.read_text()
    files.config.write_text(json.dumps(json.loads(text)))  # as any other program writes it, with a pod's annotation
    files.explain("table")
    assert not capsys.readouterr().out.startswith(corrected)


def test_mounts_in_gvisor_are_explained_as_runsc_gets_them(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the option rro, and not as seen in the container: no look from outside tells what the sentry mounted."""
    files = Files(root_dir, CA)
    assert files.explain("table", gvisor=True) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "/etc (rbind,rprivate,ro) " in said
    assert "started corrected. gVisor's kernel makes the mounts" in said


def test_draft_that_a_node_would_refuse_is_explained_with_a_warning(
    root_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files(root_dir, *RULES)
    files.policy.chmod(0o666)
    assert files.explain("table") == 0
    assert "warning: on a node this file would be refused" in capsys.readouterr().err


POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: p, namespace: monitoring}}
spec:
  hostUsers: {users}
  containers: [{{name: c, image: i, volumeMounts: [{{name: v, mountPath: /host, readOnly: {read_only}}}]}}]
  volumes: [{{name: v, hostPath: {{path: {path}}}}}]
"""


@pytest.mark.parametrize(
    ("path", "read_only", "users", "starts"),
    [
        ("/", "true", "true", True),
        ("/var/log", "false", "true", True),
        ("/var/log", "false", "false", False),
        ("/etc/reassert", "true", "false", False),
        ("/etc", "false", "true", False),
    ],
)
def test_a_pods_volumes_of_the_nodes_own_files_are_judged_as_at_its_start(
    root_dir: Path, path: str, read_only: str, users: str, starts: bool
) -> None:
    """node-exporter's, fluent-bit's, and those that Enforce mode refuses."""
    files = Files(root_dir, OTHER)
    pod = root_dir / "pod.yaml"
    pod.write_text(POD.format(path=path, read_only=read_only, users=users))
    done = called("explain", str(pod), "--policy", str(files.policy), "-o", "json", "--adapter", "runtime")
    [told] = json.loads(done.stdout)
    assert done.returncode == (0 if starts else 1)
    assert told["outcome"].startswith("started " if starts else "refused: the volume /host ")
    assert bool(told["denials"]) == (not starts)
    if path == "/var/log" and starts:
        assert told["madeReadOnly"] == ["/host/reassert"]


@pytest.mark.parametrize("exclusive", [True, False])
def test_rules_that_need_a_node_are_named(root_dir: Path, exclusive: bool) -> None:
    allocations = {"exclusive": ["/dev/nvidia*"]} if exclusive else {"env": True}
    files = Files(root_dir, {"name": "gpu", "deviceAllocations": allocations})
    pod = root_dir / "pod.yaml"
    pod.write_text(POD.format(path="/dev", read_only="false", users="true"))
    done = called("explain", str(pod), "--policy", str(files.policy), "--adapter", "runtime")
    assert ("\nnot judged " in done.stdout) == exclusive


def test_what_the_container_loses_is_said_unless_it_is_refused(
    root_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = root_dir / "live/certs"
    store.mkdir(parents=True)
    rule = {"name": "ca", "mounts": [{"hostPath": str(store), "mountPath": "/etc/ssl/certs"}]}
    files = Files(root_dir, rule)
    assert files.explain("json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["loses"][0] == "cannot write to /etc/ssl/certs: writable by the pod, read-only now"
    assert told["loses"][1].startswith(
        "cannot write to /etc/ssl/certs: writable in the image, read-only now; update-ca"
    )
    files.explain("table")
    assert (
        "\nloses      cannot write to /etc/ssl/certs: writable by the pod, read-only now\n" in capsys.readouterr().out
    )
    files.policy.write_text(document({**rule, "onConflict": "Deny"}))
    files.explain("json")
    assert json.loads(capsys.readouterr().out)["loses"] == []


def test_image_without_a_place_for_a_reserved_mount_is_refused_as_at_create(
    root_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root_dir / "rootfs/etc").mkdir(parents=True)
    (root_dir / "rootfs/etc/ssl").touch()
    files = Files(root_dir, {"name": "ca", "mounts": [{"hostPath": "/etc", "mountPath": "/etc/ssl"}]})
    files.explain("json")
    outcome = json.loads(capsys.readouterr().out)["outcome"]
    assert outcome.startswith("refused: rule ca: mount /etc/ssl cannot be made: /etc/ssl in the image is a file")
    files.policy.write_text(
        document({"name": "ca", "mounts": [{"hostPath": "/etc", "mountPath": "/etc/ssl"}]}, mode="Audit")
    )
    files.explain("json")
    assert json.loads(capsys.readouterr().out)["outcome"] == "started unchanged: mode is Audit"


PODS = {"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}]}


@pytest.mark.parametrize("target", ["config.json", "", "pods.json", "pods.yaml", "-", "- of pods", "a pipe"])
def test_a_target_is_a_file_a_directory_or_standard_input(root_dir: Path, target: str) -> None:
    """`kubectl get pod -o json | reassert explain -` and `reassert explain <(kubectl get pod -o json)` too."""
    files = Files(root_dir, *RULES)
    pods = json.dumps(PODS)
    (root_dir / "pods.json").write_text(pods)
    (root_dir / "pods.yaml").write_text(pods.replace("{", "{ # YAML\n", 1))
    given = pods if target == "- of pods" else files.config.read_text()
    where = target[:1] if target.startswith("-") else "/dev/stdin" if target == "a pipe" else str(root_dir / target)
    done = reassert("explain", where, "--policy", str(files.policy), "-o", "json", input=given)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    names = [each["container"]["pod"] for each in (told if isinstance(told, list) else [told])]
    assert names == (["p"] if "pods" in target else ["web-1"])


def test_a_target_is_a_container_that_runs(node: NodeWithContainers) -> None:
    key = node.start("a", {"CA": "/tmp/x"})
    for word in (key, key[:12], "a", "team-a/a/app"):
        done = called("explain", word, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["container"]["pod"] == "a"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no-such", r"no-such: no file or directory has this name; as a container: no running container has the id or"),
        ("", "/config.json: No such file or directory"),
        ("broken.json", "broken.json: no member name at the end of the text"),
        ("words", "no pod in this file, which has nothing; give a Pod, an object with a template, or an OCI config"),
        ("large", "larger than the limit of"),
    ],
)
def test_an_error_says_what_the_target_was_tried_as(
    node: NodeWithContainers, root_dir: Path, target: str, says: str
) -> None:
    policy = root_dir / "directory/policy.yaml"
    policy.parent.mkdir()
    policy.write_text(document(CA))
    (root_dir / "broken.json").write_text("{")
    (root_dir / "words").write_text("words")
    (root_dir / "large").write_bytes(bytes(CONFIG_LIMIT + 1))
    there = root_dir / target if target else policy.parent
    done = called("explain", str(there) if there.exists() else target, "--policy", str(policy))
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
