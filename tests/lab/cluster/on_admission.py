"""`policy export --admission` on a real API server (tests/lab/cluster/run.sh), with no node behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from e2e.support import run
from unit.ops.policy.test_admission import HOSTILE, ApiServer, hostile, innocents

from hook.compile.compiler import compile_bytes
from hook.ops.policy.admission import text
from lab.cluster.cluster import PROGRAMS, Cluster, Object, control_plane

POLICY = HOSTILE / "policy.yaml"
SPACE = "team-a"
SPACE_OBJECTS: tuple[Object, ...] = (
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": SPACE}},
)


@pytest.fixture(scope="module")
def exported() -> str:
    """Both objects of the policy of tests/hostile-pod."""
    return text(compile_bytes(str(POLICY), POLICY.read_bytes()).policy(), denies=False)


@pytest.fixture(scope="module")
def cluster(exported: str) -> Iterator[Cluster]:
    """A control plane with these objects, and a namespace for pods."""
    with control_plane(controllers="") as cluster:
        cluster.apply(*SPACE_OBJECTS)
        cluster.kubectl("apply", "--filename=-", input=exported)
        found = dict(hostile())["HP-005"]
        cluster.wait(lambda: "rule reserved" in tried(cluster, found)[1], "the exported policy is not in force")
        yield cluster


def tried(cluster: Cluster, pod: Object) -> tuple[int, str]:
    """Exit status, and what the API server says to who would create a pod; it makes none."""
    pod = {**pod, "metadata": {**pod["metadata"], "namespace": SPACE}}
    kubeconfig = f"--kubeconfig={cluster.authority.kubeconfig('admin')}"
    command = [str(PROGRAMS / "kubectl"), kubeconfig, "create", "--dry-run=server", "--filename=-"]
    done = run(*command, input=json.dumps(pod), check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_api_server_warns_of_the_pods_of_which_the_evaluator_does(cluster: Cluster, exported: str) -> None:
    evaluator, accepted = ApiServer(exported), 0
    pods = [*hostile(), *((name, found) for name, _, found in innocents())]
    for name, found in pods:
        status, said = tried(cluster, found)
        if status != 0:  # the API refuses what a row leaves out, such as `privileged` beside Bidirectional
            assert "reassert" not in said, name
            continue
        accepted += 1
        for message in evaluator.warnings(found, SPACE):
            assert message in said, name
        assert ("reassert" in said) == bool(evaluator.warnings(found, SPACE)), (name, said)
    assert accepted > len(pods) / 2
