"""What many NodeEnforcements cost a real API server (tests/lab/cluster/run.sh --fleet): no test, it prints."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from harness.tools import run

from lab.cluster.cluster import CONTROL, NAMESPACE, PROGRAMS, Cluster, Object, control_plane
from lab.cluster.on_api_server import ACCOUNT, FACTS, GROUP, VALUES, enforcement, pod

NODES = int(os.environ.get("REASSERT_TEST_NODES", "1000"))
ROUNDS = 3
AT_ONCE = 8
EVERY = 600
"""Seconds between two writes of a node (report.sh)."""

SIZE = "apiserver_storage_size_bytes"

STATUS: Object = FACTS | {
    "message": "",
    "engine": "containerd 1.7.24",
    "engines": [
        {"name": "containerd", "version": "containerd 1.7.24", "running": True, "adapters": ["runtime"]}
        | {"wired": ["runc"], "notWired": ["crun"], "notKnown": ["kata"]}
    ],
    "verify": {
        "at": "2026-01-31T11:00:00Z",
        "result": "Protected",
        "engines": [{"engine": "containerd", "at": "2026-01-31T11:00:00Z", "exitStatus": 0}],
    },
    "trustStores": [{"name": "company", "generation": 7, "builtAt": "2026-01-30T00:00:00Z", "certificates": 145}],
    "kernel": "6.12.41+deb13-amd64",
    "reassert": "0.4.0",
}


class Api:
    """The API server, a new connection for each request, as a kubectl has. `token`: "" for an administrator."""

    def __init__(self, cluster: Cluster, token: str = "") -> None:
        at = cluster.directory
        self._context = ssl.create_default_context(cafile=at / "ca.crt")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if not token:
            self._context.load_cert_chain(at / "admin.crt", at / "admin.key")

    def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Any:
        connection = http.client.HTTPSConnection(CONTROL, context=self._context, timeout=60)
        try:
            headers = {**self._headers, "Content-Type": kind}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, text
            return json.loads(text) if text.startswith(b"{") else text.decode()
        finally:
            connection.close()


def each(do: Callable[[int], object], count: int = NODES) -> list[float]:
    """Call it for each number, some at once. Returns the seconds of each call."""

    def timed(number: int) -> float:
        began = time.monotonic()
        do(number)
        return time.monotonic() - began

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(timed, range(count)))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with control_plane(controllers="") as cluster:
        cluster.install(
            {**VALUES, "node": {"onUninstall": "Keep", "firstInstall": "AtOnce"}, "fleet": {"enabled": True}}
        )
        yield cluster


def metric(admin: Api, name: str) -> float:
    lines = [line for line in admin.call("GET", "/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def compact(what: Any) -> int:
    """Bytes of JSON."""
    return len(json.dumps(what, separators=(",", ":")))


def patch(api: Api, name: str, part: str, what: Object) -> None:
    path = f"{GROUP}/{name}{part}?fieldManager=reassert&force=true"
    api.call("PATCH", path, what, "application/apply-patch+yaml")


def kubectls(cluster: Cluster, token: str, facts: Object, cache: str) -> tuple[int, float]:
    """Requests of one `kubectl apply`, as report.sh calls it, and the API server's seconds of CPU for one."""
    client = cluster.authority.kubeconfig("token-kubectl", token)
    command = [str(PROGRAMS / "kubectl"), f"--kubeconfig={client}", f"--cache-dir={cache}", "apply", "--server-side"]
    command += ["--force-conflicts", "--field-manager=reassert", "--validate=false", "--filename=-"]
    command += ["--subresource=status"]

    def once(*more: str) -> str:
        return run(*command, *more, input=json.dumps(facts)).stderr

    once()
    requests = sum("https://" in line and "200" in line for line in once("-v=6").splitlines())
    before, times = cluster.usage()["kube-apiserver"][0], 50
    for _ in range(times):
        once()
    return requests, (cluster.usage()["kube-apiserver"][0] - before) / times


def test_measure(cluster: Cluster, tmp_path: Path) -> None:
    admin = Api(cluster)
    names = [f"node-{number:05d}" for number in range(NODES)]
    tokens: dict[str, str] = {}
    uid: dict[str, str] = {}

    def join(number: int) -> None:
        """A node, and the token of its pod."""
        name = names[number]
        made = admin.call("POST", "/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})
        admin.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod(name))
        bound = {"kind": "Pod", "apiVersion": "v1", "name": f"node-{name}"}
        request = {"spec": {"audiences": [], "boundObjectRef": bound, "expirationSeconds": 3600}}
        token = admin.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token", request)
        tokens[name] = token["status"]["token"]
        uid[name] = made["metadata"]["uid"]

    each(join)
    apis, uids = [Api(cluster, tokens[name]) for name in names], [uid[name] for name in names]
    size = metric(admin, SIZE)
    start = cluster.usage()

    def create(number: int) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": names[number], "uid": uids[number]}
        what = enforcement(names[number]) | {"metadata": {"name": names[number], "ownerReferences": [owner]}}
        patch(apis[number], names[number], "", what)

    def write(number: int) -> None:
        name, now = names[number], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        patch(apis[number], name, "/status", enforcement(name, status=STATUS | {"lookedAt": now}))

    each(create)
    each(write)
    grown = metric(admin, SIZE) - size
    listed = admin.call("GET", GROUP)
    assert len(listed["items"]) == NODES
    print(f"\n{NODES} nodes, each written every {EVERY} s: {NODES / EVERY:.2f} writes a second")
    print(f"object: {compact(listed['items'][0])} bytes of JSON, {compact(STATUS)} of them the status")
    print(
        f"list of all: {compact(listed) / 1e6:.1f} MB; etcd after a create and a write of each: +{grown / 1e6:.1f} MB"
    )
    between, began, before = cluster.usage(), time.monotonic(), metric(admin, SIZE)
    seconds = [taken for _ in range(ROUNDS) for taken in each(write)]
    wall, end, cuts = time.monotonic() - began, cluster.usage(), quantiles(seconds, n=100)
    writes = NODES * ROUNDS
    print(f"{writes} writes, {AT_ONCE} at once: {writes / wall:.0f} a second", end="; ")
    print(f"half of them take {cuts[49] * 1e3:.0f} ms, 99% {cuts[98] * 1e3:.0f} ms", end="; ")
    print(f"etcd before compaction: +{(metric(admin, SIZE) - before) / writes / 1e3:.1f} kB a write")
    for name, (cpu, memory) in end.items():
        of_each = (cpu - between[name][0]) / writes
        print(
            f"{name}: {of_each * 1e3:.2f} ms of CPU a write, {of_each * NODES / EVERY * 1e3:.1f} mCPU for all", end="; "
        )
        print(f"{start[name][1]:.0f} MiB before, {memory:.0f} MiB after")
    what = enforcement(names[0], status=STATUS)
    for told, cache in (("without a cache", "/dev/null"), ("with a cache", str(tmp_path / "cache"))):
        requests, cpu = kubectls(cluster, tokens[names[0]], what, cache)
        print(f"kubectl {told}: {requests} requests a call, {cpu * 1e3:.1f} ms of CPU of the API server")
