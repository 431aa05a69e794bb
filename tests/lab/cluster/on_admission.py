"""`policy export --admission` on a real API server (tests/lab/cluster/run.sh), with no node behind it."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPSConnection
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.ops.policy.test_admission import (
    FILES,
    PEERS,
    PODS,
    RULES,
    VALUE,
    ApiServer,
    hostile,
    innocents,
    pod,
    volumes,
    with_env,
    with_volumes,
    workload,
)
from unit.support import policy

from hook.compile.compiler import compile_bytes
from hook.core.policy.model import Policy
from hook.ops.policy.admission import NAME, text
from lab.cluster.cluster import CONTROL, Cluster, Object, control_plane

SPACE = "team-a"
SPACES = (SPACE, "default", "kube-system", "own", "other")
PLURALS = {"Pod": "/api/v1/{}/pods"} | {
    kind: f"/apis/{group}/v1/{{}}/{kind.lower()}s"
    for group, kinds in (("apps", ("Deployment", "DaemonSet", "StatefulSet")), ("batch", ("Job", "CronJob")))
    for kind in kinds
}
CONTROLLERS = "deployment-controller,replicaset-controller,validatingadmissionpolicy-status-controller"
SAYS = f"ValidatingAdmissionPolicy '{NAME}' with binding '{NAME}'"


@dataclass
class Answer:
    """What the API server says. `told`: the messages of the exported policy."""

    status: int
    told: list[str]
    body: str


class Client:
    """An administrator whose requests change nothing, except where said."""

    def __init__(self, cluster: Cluster) -> None:
        at = cluster.directory
        context = ssl.create_default_context(cafile=at / "ca.crt")
        context.load_cert_chain(at / "admin.crt", at / "admin.key")
        self._connection = HTTPSConnection(CONTROL, 443, context=context)

    def create(self, found: Object, namespace: str) -> Answer:
        """POST of an object."""
        return self.send("POST", PLURALS[found["kind"]].format(f"namespaces/{namespace}"), found)

    def send(self, method: str, path: str, content: Object, options: str = "dryRun=All") -> Answer:
        """A request."""
        kind = {"PATCH": "application/apply-patch+yaml"}.get(method, "application/json")
        self._connection.request(method, f"{path}?{options}", json.dumps(content), {"Content-Type": kind})
        response = self._connection.getresponse()
        body = response.read().decode()
        told = [each.encode("latin-1").decode() for each in response.headers.get_all("Warning", [])]
        said = [re.sub(r"\\(.)", r"\1", each) for each in told]
        found = [each.partition(f"{SAYS}: ")[2].removesuffix('"') for each in said if SAYS in each]
        return Answer(response.status, found, body)


class Server:
    """A control plane, and what is exported to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.client = cluster, Client(cluster)
        self._times = 0

    def export(self, exported: str, also: str = "", **binding: Any) -> ApiServer:
        """Put both objects in force. `also`: the beginning of one more expression. Returns the evaluator for them."""
        self._times += 1
        mark = f"marked {self._times}"
        made = list(yaml.safe_load_all(exported))
        made[0]["spec"]["validations"].append(
            {"expression": f"{also}object.metadata.name != 'marker'", "message": mark}
        )
        made[1]["spec"] |= binding
        for each in made:
            path = f"/apis/{each['apiVersion']}/{each['kind'].lower()[:-1]}"
            path = path + ("ies" if each["kind"].endswith("Policy") else "gs")
            answer = self.client.send("PATCH", f"{path}/{NAME}", each, "fieldManager=test&force=true")
            assert answer.status in (200, 201), answer.body
        marker = {**pod(), "metadata": {"name": "marker"}}

        def in_force() -> bool:
            answer = self.client.create(marker, SPACE)
            return answer.told == [mark] or f"{SAYS} denied request: {mark}" in json.loads(answer.body).get(
                "message", ""
            )

        self.cluster.wait(in_force, "the exported policy in force")
        return ApiServer(exported)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A control plane, and namespaces for pods."""
    with control_plane(CONTROLLERS) as cluster:
        for name in {*SPACES, *(namespace for _, namespace, _ in innocents())}:
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
            own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"is": name}}}
            cluster.apply(own, account)
        yield Server(cluster)


def compiled(path: Path) -> Policy:
    """The policy of a file, as it would be in force."""
    found = compile_bytes(str(path), path.read_bytes()).policy()
    found.enforce_all()
    return found


def everybody() -> list[tuple[str, str, Object]]:
    """The hostile pods and the innocents."""
    return [(name, SPACE, found) for name, found in hostile()] + list(innocents())


def compare(server: Server, evaluator: ApiServer, pods: list[tuple[str, str, Object]]) -> set[str]:
    """The API server warns of what the evaluator does. Returns the pods that the API itself refuses."""
    refused, wrong = set(), {}
    for name, namespace, found in pods:
        answer = server.client.create(found, namespace)
        expected = evaluator.warnings(found, namespace)
        if answer.status != 201:
            assert answer.told == [], name
            refused.add(name)
        elif set(answer.told) != set(expected):
            wrong[name, namespace] = (answer.told, expected)
    assert wrong == {}
    return refused


@pytest.mark.parametrize("number", range(len(RULES)))
def test_each_rule_is_told_as_the_evaluator_tells_it(server: Server, number: int) -> None:
    in_force = policy({"name": "r", **RULES[number]}, exclude={"namespaces": ["kube-*", "own"]})
    evaluator = server.export(text(in_force, denies=False))
    pods = [(name, space, volumes(found)) for (name, found), space in product(PODS.items(), SPACES)]
    refused = compare(server, evaluator, pods)
    assert refused == {"ephemeral"}, "the API takes it as an update alone"


def test_an_ephemeral_container_is_told_of_alone(server: Server) -> None:
    evaluator = server.export(text(policy(VALUE), denies=False))
    old = {**pod(with_env("A=x")), "metadata": {"name": "debugged", "labels": {"tier": "web"}}}
    path = PLURALS["Pod"].format(f"namespaces/{SPACE}")
    server.client.send("POST", path, old, "")
    for env in ("A=x", "A=1", "B=1"):
        own = {"name": "d", "image": "registry.example/app:1", "targetContainerName": "app", **with_env(env)}
        debugged = {**old, "spec": {**old["spec"], "ephemeralContainers": [own]}}
        answer = server.client.send("PUT", f"{path}/debugged/ephemeralcontainers", debugged)
        assert answer.status == 200, answer.body
        assert answer.told == evaluator.warnings(debugged, SPACE, old=old, part="ephemeralcontainers")
        assert bool(answer.told) == (env == "A=x")
    debug = ("debug", "debugged", "--namespace", SPACE, "--image=registry.example/app:1", "--env=A=x", "--target=app")
    status, said = server.cluster.try_kubectl(*debug)
    assert status == 0
    assert f"{SAYS}: rule r: env A is reserved" in said


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_every_hostile_pod_and_every_innocent_is_told_as_the_evaluator_tells_it(server: Server, path: Path) -> None:
    evaluator = server.export(text(compiled(path), denies=False))
    refused = compare(server, evaluator, everybody())
    assert refused == set()


def test_deny_refuses_whom_warn_warns(server: Server) -> None:
    evaluator = server.export(text(compiled(PEERS / "policy.yaml"), denies=True))
    found = {}
    for name, namespace, each in everybody():
        answer = server.client.create(each, namespace)
        expected = evaluator.warnings(each, namespace)
        found[name] = answer.status
        assert (answer.status, answer.told) == (403 if expected else 201, []), (name, answer.body)
        if expected:
            assert json.loads(answer.body)["message"].endswith(f"{SAYS} denied request: {expected[0]}")
    assert {*found.values()} == {201, 403}


@pytest.mark.parametrize("kind", [kind for kind in PLURALS if kind != "Pod"])
def test_who_applies_a_workload_is_told_of_its_pods(server: Server, kind: str) -> None:
    evaluator = server.export(text(policy(VALUE), denies=False))
    found = workload(kind)
    answer = server.client.create(found, SPACE)
    assert (answer.status, answer.told) == (201, evaluator.warnings(found, SPACE)), answer.body
    command = ("create", "--dry-run=server", "--namespace", SPACE, "--filename=-")
    status, said = server.cluster.try_kubectl(*command, input=json.dumps(found))
    assert status == 0
    assert f"Warning: Validation failed for {SAYS}: rule r: env A is reserved; nodes use another value" in said


def test_deny_stops_new_pods_of_a_workload_that_was_there_before(server: Server) -> None:
    """Only its controller is told."""
    exported = {denies: text(policy(VALUE), denies=denies) for denies in (False, True)}
    server.export(exported[False])
    cluster = server.cluster
    cluster.kubectl("create", "--namespace", SPACE, "--filename=-", input=json.dumps(workload("Deployment")))

    def pods() -> list[Object]:
        found = cluster.get("pods", "--selector=tier=web,pod-template-hash", namespace=SPACE)
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    cluster.wait(lambda: len(pods()) == 1, "the Deployment's pod")
    server.export(exported[True])
    (before,) = pods()
    cluster.kubectl("delete", "pod", before["metadata"]["name"], "--namespace", SPACE, "--force")

    def told() -> list[str]:
        (found,) = cluster.get("replicasets", namespace=SPACE)
        return [each["message"] for each in found["status"].get("conditions", []) if each["type"] == "ReplicaFailure"]

    cluster.wait(lambda: bool(told()), "the refusal of the next pod")
    assert f"{SAYS} denied request: rule r: env A is reserved" in told()[0]
    assert pods() == []
    cluster.kubectl("delete", "deployment", "--all", "--namespace", SPACE)


def test_the_controller_manager_has_nothing_to_say_of_types(server: Server) -> None:
    """But of the same policy with a field that no kind has."""
    exported = text(compiled(PEERS / "policy.yaml"), denies=False)

    def warnings() -> list[Object] | None:
        found = server.cluster.get("validatingadmissionpolicy", NAME)
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"] and "typeChecking" in status
        return status["typeChecking"].get("expressionWarnings", []) if current else None

    for also, expected in (("", 0), ("has(object.spec.nothing) || ", 1)):
        server.export(exported, also)
        server.cluster.wait(lambda: warnings() is not None, "the check of types")
        assert len(warnings() or []) == expected


def test_a_large_policy(server: Server) -> None:
    """Larger than what `kubectl apply` keeps in an annotation."""
    rules = [
        {"name": f"r{number}", "env": [{"name": f"NAME_{number}", "value": "x" * 200}, {"name": "A", "value": "1"}]}
        for number in range(500)
    ]
    exported = text(policy(*rules), denies=False)
    assert len(exported) > 300_000
    server.cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=exported)
    found = pod(with_env("NAME_499=x"))
    told = ["rule r499: env NAME_499 is reserved; nodes use another value"]
    server.cluster.wait(lambda: server.client.create(found, SPACE).told == told, "the policy in force")


def test_a_binding_may_be_for_some_namespaces(server: Server) -> None:
    only = {"namespaceSelector": {"matchExpressions": [{"key": "is", "operator": "NotIn", "values": ["other"]}]}}
    exported = text(policy(VALUE, exclude={"namespaces": ["own"]}), denies=False)
    evaluator = server.export(exported, matchResources=only)
    found = pod(with_env("A=x"))
    for name in SPACES:
        expected = [] if name == "other" else evaluator.warnings(found, name)
        assert server.client.create(found, name).told == expected
        assert bool(expected) == (name not in ("other", "own"))
    server.export(exported, matchResources=None)


def test_of_a_large_pod_too(server: Server) -> None:
    """The cost of expressions is limited; what costs more is passed over in silence."""
    server.export(text(compiled(Path("config/examples/company-ca.yaml")), denies=False))
    many = [f"NAME_{number}={'x' * 100}" for number in range(200)]
    paths = [f"/a/directory/of/some/length/{number}" for number in range(30)]
    for number in (1, 10, 50):
        each = {"image": "registry.example/app:1", **with_env(*many, "SSL_CERT_FILE=/x"), **with_volumes(*paths)}
        found = volumes(pod(containers=[{"name": f"c{index}", **each} for index in range(number)]))
        answer = server.client.create(found, SPACE)
        assert answer.status == 201
        assert any("SSL_CERT_FILE" in said for said in answer.told), number
