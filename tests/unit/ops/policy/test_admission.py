"""`policy export --admission`: an evaluator of CEL says of each pod what the API server would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import marks
import pytest
import yaml
from cel_expr_python import cel
from e2e.innocents.rows import rows

from hook.compile.compiler import compile_bytes
from hook.core.facts import Container
from hook.core.plan import plan
from hook.core.policy.model import Policy
from hook.core.reserve import env, mounts, shared_processes
from hook.ops.policy.admission import text
from hook.ops.policy.pods import Given, Pod
from unit.support import ROOT, called, document, policy

pytestmark = marks.promise(
    "`policy export --admission` warns exactly where a node overrides or refuses a pod, by what an API server sees",
    about="Policy",
)

Json = dict[str, Any]
HOSTILE = ROOT / "tests/hostile-pod"
PEERS = ROOT / "tests/lab/peers"
SEEN = frozenset({env.KIND, mounts.KIND, shared_processes.KIND})


class ApiServer:
    """Evaluates the exported policy, as admission of Kubernetes does it."""

    def __init__(self, exported: str) -> None:
        self.policy, self.binding = yaml.safe_load_all(exported)
        names = ("object", "oldObject", "request", "variables")
        self._env = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))
        spec = self.policy["spec"]
        self._conditions = [self._env.compile(each["expression"]) for each in spec["matchConditions"]]
        self._variables = {each["name"]: self._env.compile(each["expression"]) for each in spec["variables"]}
        self._validations = [(self._env.compile(each["expression"]), each["message"]) for each in spec["validations"]]

    def warnings(self, found: Json, namespace: str, old: Json | None = None, part: str = "") -> list[str]:
        """What is said to who applies an object. `old`: it is updated. `part`: a subresource."""
        request = {"namespace": namespace, "operation": "UPDATE" if old else "CREATE"}
        request |= {"subResource": part} if part else {}
        data: Json = {"object": found, "oldObject": old, "request": request, "variables": {}}
        if not all(self._true(each, data) for each in self._conditions):
            return []
        for name, expression in self._variables.items():
            data["variables"][name] = expression.eval(data=data).plain_value()
        return [message for expression, message in self._validations if not self._true(expression, data)]

    @staticmethod
    def _true(expression: Any, data: Json) -> bool:
        value = expression.eval(data=data).plain_value()
        assert value in (True, False), value
        return bool(value)


def overridden(in_force: Policy, found: Json, namespace: str) -> bool:
    """Whether a node overrides or refuses something of a pod, by what the policy reserves of env and mounts."""
    meta = {**found.get("metadata", {}), "namespace": namespace}
    pod = Pod("Pod/p", {**found, "metadata": meta}, {}, {}, "pod.yaml")
    for types, container in pod.containers():
        identity, start = pod.start(types, container, Given())
        decided = plan(in_force, Container(identity, start), kinds=SEEN)
        if decided.denials or decided.errors or any(edit.conflict() for edit in decided.edits):
            return True
    return False


def pod(container: Json | None = None, **spec: Any) -> Json:
    """A pod with one container, or with `spec`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"tier": "web"}},
        "spec": {"containers": [{"name": "app", "image": "registry.example/app:1", **(container or {})}], **spec},
    }


def with_env(*pairs: str) -> Json:
    """A container with this env."""
    return {"env": [{"name": pair.partition("=")[0], "value": pair.partition("=")[2]} for pair in pairs]}


def with_volumes(*paths: str, **more: Any) -> Json:
    """A container with a volume at each path."""
    return {"volumeMounts": [{"name": f"v{n}", "mountPath": path, **more} for n, path in enumerate(paths)]}


def volumes(found: Json) -> Json:
    """The pod with an emptyDir for each volume of its containers."""
    spec = found["spec"]
    containers = [each for field in spec if field.lower().endswith("containers") for each in spec[field]]
    kinds: dict[str, Json] = {
        "volumeMounts": {"emptyDir": {}},
        "volumeDevices": {"persistentVolumeClaim": {"claimName": "c"}},
    }
    own = {use["name"]: kind for each in containers for field, kind in kinds.items() for use in each.get(field, ())}
    return {**found, "spec": {"volumes": [{"name": name, **own[name]} for name in sorted(own)], **spec}}


RULES: list[Json] = [
    {"env": [{"name": "A", "value": "1"}]},
    {"env": [{"name": "A", "absent": True}]},
    {"env": [{"name": "A*", "absent": True}, {"name": "AB", "value": "1"}]},
    {"env": [{"name": "A", "oneOf": ["1", "é\n"], "pattern": "/a/*", "else": "2"}], "onConflict": "Deny"},
    {"env": [{"name": "A", "pattern": "1?.*+", "else": "Deny", "default": "3"}]},
    {"env": [{"name": "A", "valueFrom": {"deviceAllocation": {"default": "1"}}}]},
    {"env": [{"name": "A", "valueFrom": {"deviceAllocation": {"default": "Keep"}}}]},
    {"env": [{"name": "A", "value": "1"}], "match": {"containerTypes": ["container"]}},
    {"env": [{"name": "A", "value": "1"}], "match": {"containerTypes": ["init", "ephemeral"]}},
    {"env": [{"name": "A", "value": "1"}], "match": {"containerTypes": ["init"]}},
    {"env": [{"name": "A", "value": "1"}], "match": {"containerTypes": ["init"], "ifUnknown": "Skip"}},
    {"env": [{"name": "A", "value": "1"}], "match": {"containerTypes": ["sandbox"]}},
    {"env": [{"name": "A", "value": "1"}], "match": {"containerNames": ["a?p", "x"], "images": ["registry.example/*"]}},
    {"env": [{"name": "A", "value": "1"}], "match": {"namespaces": ["team-*", "b"]}},
    {"env": [{"name": "A", "value": "1"}], "match": {"namespaces": ["*"], "containerNames": ["side"]}},
    {"env": [{"name": "A", "value": "1"}], "match": {"podSelector": {"matchLabels": {"tier": "web"}}}},
    {
        "env": [{"name": "A", "value": "1"}],
        "match": {"podSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["web"]}]}},
    },
    {
        "env": [{"name": "A", "value": "1"}],
        "match": {"podSelector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}},
    },
    {"mounts": [{"hostPath": "/h", "mountPath": "/m/n"}]},
    {"mounts": [{"hostPath": "/h", "mountPath": "/m/n", "allowBelow": ["/m/n/ok"], "volumesAbove": "Allow"}]},
    {"mounts": [{"hostPath": "/h", "mountPath": "/m/n"}, {"hostPath": "/h2", "mountPath": "/m", "readOnly": True}]},
    {"mounts": [{"mountPath": "/m/n", "absent": True}], "onConflict": "Deny"},
    {"sharedProcesses": "Refuse"},
]

SIDECAR = {"name": "side", "image": "other", "restartPolicy": "Always", **with_env("A=x")}
PODS: dict[str, Json] = {
    "plain": pod(),
    **{f"env {value!r}": pod(with_env(f"A={value}")) for value in ("1", "2", "x", "", "é\n", "1x.y+", "3")},
    **{f"env {value!r}": pod(with_env(f"A={value}")) for value in ("/a/b", "/a/../b", "/a/..", "/a/..b")},
    "another name": pod(with_env("AB=1", "B=1")),
    "a name of the pattern": pod(with_env("ABC=1")),
    "twice": pod(with_env("A=x", "A=1")),
    "twice, the other way": pod(with_env("A=1", "A=x")),
    "init": pod(initContainers=[{"name": "asp", "image": "other", **with_env("A=x")}]),
    "sidecar": pod(initContainers=[SIDECAR]),
    "ephemeral": pod(ephemeralContainers=[{"name": "debug", "targetContainerName": "app", **with_env("A=x")}]),
    **{
        f"volume {path}": pod(with_volumes(path))
        for path in (
            "/m/n",
            "/m//n/",
            "/./m/./n/.",
            "m/n",
            "/m/n/o",
            "/m/nx",
            "/m",
            "/m/.",
            "/q",
            "/x/../m/n",
            "/m/x/..",
            "/x/..",
            "/..",
        )
    },
    "allowed below": pod(with_volumes("/m/n/ok/x")),
    **{
        f"last words at {path}": pod({"terminationMessagePath": path})
        for path in ("/dev/termination-log", "/m/n", "/m//n/x", "m/n/ok/x", "/m", "/x/../m/n", "/m/x/../")
    },
    "above, shared": pod(
        {"securityContext": {"privileged": True}, **with_volumes("/m", mountPropagation="Bidirectional")}
    ),
    "device": pod({"volumeDevices": [{"name": "d", "devicePath": "/m/n/d"}]}),
    "node's processes": pod(hostPID=True),
    "shared processes": pod(shareProcessNamespace=True),
}


def exported(in_force: Policy) -> ApiServer:
    """The API server with this policy."""
    return ApiServer(text(in_force, denies=False))


@pytest.mark.parametrize("number", range(len(RULES)))
def test_each_pod_is_told_what_a_node_would_do(number: int) -> None:
    in_force = policy({"name": "r", **RULES[number]}, exclude={"namespaces": ["kube-*", "own"]})
    server = exported(in_force)
    for (name, found), namespace in product(PODS.items(), ("team-a", "default", "kube-system", "own")):
        told = bool(server.warnings(volumes(found), namespace))
        assert told == overridden(in_force, volumes(found), namespace), (RULES[number], name, namespace)


@pytest.mark.parametrize(
    "match",
    [
        {"namespaces": ["team-*"]},
        {"containerNames": ["side"]},
        {"namespaces": ["team-*"], "podSelector": {"matchLabels": {"tier": "web"}}, "images": ["other"]},
    ],
)
def test_the_name_of_a_rule_that_does_not_apply_is_still_one_of_a_pattern(match: Json) -> None:
    pattern: Json = {"name": "p", "env": [{"name": "A*", "absent": True}]}
    in_force = policy(pattern, {"name": "r", "match": match, "env": [{"name": "AB", "value": "1"}]})
    server = exported(in_force)
    for (name, found), namespace in product(PODS.items(), ("team-a", "default")):
        told = bool(server.warnings(volumes(found), namespace))
        assert told == overridden(in_force, volumes(found), namespace), (name, namespace)


def test_no_rule_is_silent_or_warns_of_every_pod() -> None:
    """Else the comparison above proves nothing."""
    for rule in RULES:
        server = exported(policy({"name": "r", **rule}))
        told = [bool(server.warnings(volumes(found), "team-a")) for found in PODS.values()]
        never = rule.get("match", {}).get("containerTypes") == ["sandbox"] or "Keep" in json.dumps(rule)
        skips = rule.get("match", {}).get("ifUnknown") == "Skip" or "NotIn" in json.dumps(rule)
        assert any(told) != (never or skips), rule
        assert not all(told), rule


def hostile() -> Iterator[tuple[str, Json]]:
    """The pods of tests/hostile-pod, as far as a pod can be written that asks for it."""
    expect = json.loads((HOSTILE / "expect.json").read_text())
    name, value = next((name, value) for name, value in expect["env"].items() if value is not None)
    gone = next(name for name, value in expect["env"].items() if value is None)
    path = next(iter(expect["mounts"]))
    above, _, base = path.rpartition("/")
    words = {"name": name, "value": value, "gone": gone, "path": path, "below": f"{path}/certs"}
    words |= {"above": above, "base": base, "device": "/dev/x", "volumes": "/srv"}
    for case in json.loads((HOSTILE / "cases.json").read_text()):
        entries = [entry.format_map(words) for entry in case.get("env", ()) if "=" in entry and "\0" not in entry]
        paths = [mount["at"].format_map(words) for mount in case.get("mounts", ())]
        yield case["id"], volumes(pod({**with_env(*entries), **with_volumes(*paths)}))


def innocents() -> Iterator[tuple[str, str, Json]]:
    """The agents of tests/innocents, each with its namespace."""
    for row in rows().values():
        places = [{"name": f"h{n}", **volume} for n, volume in enumerate(row.volumes)]
        kept = ("name", "mountPath", "readOnly", "mountPropagation")
        mounted = [{key: place[key] for key in kept if key in place} for place in places]
        mounted += [{"name": f"e{n}", "mountPath": path} for n, path in enumerate(row.emptyDirs)]
        own = [{"name": place["name"], "hostPath": {"path": place["hostPath"]}} for place in places]
        own += [{"name": f"e{n}", "emptyDir": {}} for n in range(len(row.emptyDirs))]
        shared = any(place.get("mountPropagation") == "Bidirectional" for place in mounted)
        container = {
            "volumeMounts": mounted,
            "securityContext": {"privileged": shared},
            **with_env(*[f"{name}={value}" for name, value in row.env.items()]),
        }
        yield row.name, row.namespace or "agents", pod(container, volumes=own, hostPID=row.hostPID)


FILES = [PEERS / "policy.yaml", *sorted((ROOT / "config/examples").glob("*.yaml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_every_hostile_pod_and_every_innocent_is_told_what_a_node_would_do(path: Path) -> None:
    in_force = compile_bytes(str(path), path.read_bytes()).policy()
    in_force.enforce_all()
    server = exported(in_force)
    pods = [(name, "team-a", found) for name, found in hostile()] + list(innocents())
    wrong = {
        name: told
        for name, namespace, found in pods
        if bool(told := server.warnings(found, namespace)) != overridden(in_force, found, namespace)
    }
    assert wrong == {}
    if path.parent == PEERS:
        told = {name for name, namespace, found in pods if server.warnings(found, namespace)}
        assert {"HP-005", "HP-010", "HP-019", "HP-020", "HP-021", "HP-022"} <= told
        assert not {"HP-001", "HP-002", "HP-003"} & told


def workload(kind: str) -> Json:
    """An object whose pods take a reserved name."""
    template = {key: pod(with_env("A=x"))[key] for key in ("metadata", "spec")}
    named = {"kind": kind, "metadata": {"name": "w"}}
    if kind in ("Job", "CronJob"):
        template["spec"]["restartPolicy"] = "Never"
        job = {"template": template}
        spec = job if kind == "Job" else {"schedule": "@daily", "jobTemplate": {"spec": job}}
        return {"apiVersion": "batch/v1", **named, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        **named,
        "spec": {"selector": {"matchLabels": {"tier": "web"}}, "template": template},
    }


VALUE = {"name": "r", "env": [{"name": "A", "value": "1"}], "match": {"podSelector": {"matchLabels": {"tier": "web"}}}}
TOLD = "rule r: env A is reserved; nodes use another value"


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob"])
def test_who_applies_a_workload_is_told_of_its_pods(kind: str) -> None:
    """And again when its pods change, not when a finalizer or a label of its own does."""
    server, found = exported(policy(VALUE)), workload(kind)
    assert server.warnings(found, "team-a") == [TOLD]
    assert server.warnings(found, "team-a", old=found) == []
    assert server.warnings(found, "team-a", old={**found, "spec": {}}) == [TOLD]


def test_of_a_debugged_pod_only_the_new_container_counts() -> None:
    server = exported(policy(VALUE))
    old = pod(with_env("A=x"))
    for env_of_it, told in (("B=1", []), ("A=x", [TOLD])):
        debugged = {**old, "spec": {**old["spec"], "ephemeralContainers": [{"name": "d", **with_env(env_of_it)}]}}
        assert server.warnings(debugged, "team-a", old=old, part="ephemeralcontainers") == told


def test_the_command_prints_two_objects_that_kubernetes_takes_and_what_they_do_not_see(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    tried = {"name": "tried", "mode": "Audit", "env": [{"name": "B", "value": "1"}]}
    gpu = {"name": "gpu", "deviceAllocations": {"env": True}}
    file.write_text(document(VALUE, tried, gpu))
    for options, actions in (((), ["Warn", "Audit"]), (("--deny",), ["Deny", "Audit"])):
        done = called("policy", "export", "--admission", str(file), *options)
        assert (done.returncode, done.stderr) == (0, "")
        server = ApiServer(done.stdout)
        assert server.binding["spec"] == {"policyName": server.policy["metadata"]["name"], "validationActions": actions}
        assert server.policy["spec"]["failurePolicy"] == "Ignore"
        for each in (server.policy, server.binding):
            kubernetes_validate.validate(each, "1.30", strict=True)
        comments = "".join(line for line in done.stdout.splitlines(True) if line.startswith("#"))
        for unseen in ("image's ENV", "envFrom", "device plugin", "rule tried", "rule gpu: deviceAllocations"):
            assert unseen in comments
        assert len(server.policy["spec"]["validations"]) == 1


def test_a_policy_file_with_an_error_is_not_exported(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("kind: x")
    done = called("policy", "export", "--admission", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert "policy.yaml:1:" in done.stderr


def test_what_no_api_server_takes_is_not_exported(tmp_path: Path) -> None:
    """kube-apiserver 1.36 answers 422 to it, and takes one of 90,000 characters."""
    file = tmp_path / "policy.yaml"
    file.write_text(document({"name": "r", "env": [{"name": "A", "oneOf": ["x" * 100_000]}]}))
    done = called("policy", "export", "--admission", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert "too long for the API server (100000 characters): rule r: env A has a value that is not" in done.stderr


def test_a_path_that_climbs_is_told_of_where_it_may_lead() -> None:
    """Where it leads no expression says, and the comments say so."""
    in_force = policy({"name": "ca", "mounts": [{"hostPath": "/h", "mountPath": "/etc/ssl"}]})
    server = exported(in_force)
    for path in ("/a/../etc/ssl", "/etc/a/../ssl/", "/etc/ssl/..", "/etc/ssl/../x", "/a/..", "/a/../etc"):
        assert server.warnings(volumes(pod(with_volumes(path))), "team-a"), path
    for path in ("/a/../b", "/etc..", "/..a", "/srv/../var/lib"):
        assert not server.warnings(volumes(pod(with_volumes(path))), "team-a"), path
    assert "where a path with `..` leads" in text(in_force, denies=False)


def test_of_a_trust_rule_each_variable_and_directory_is_told() -> None:
    in_force = policy({"name": "ca", "trust": {"bundle": "company"}})
    told = exported(in_force).warnings(pod({**with_env("SSL_CERT_FILE=/x"), **with_volumes("/etc/ssl")}), "team-a")
    assert len(told) >= 2
    assert any("SSL_CERT_FILE" in each for each in told)
    assert any("/etc/ssl" in each for each in told)


def test_the_file_for_a_containers_last_words_is_told() -> None:
    """kubelet mounts one where the author of the pod says."""
    server = exported(policy({"name": "ca", "mounts": [{"hostPath": "/h", "mountPath": "/etc/ssl"}]}))
    for path, told in (
        ("/etc/ssl/ca.crt", "rule ca: a volume at /etc/ssl or below is reserved; nodes take it away"),
        ("/etc", "rule ca: a volume above /etc/ssl, which is reserved; nodes refuse the container"),
    ):
        assert server.warnings(pod({"terminationMessagePath": path}), "team-a") == [told]
