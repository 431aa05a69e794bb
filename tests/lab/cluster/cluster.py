"""A Kubernetes cluster of this machine: control plane, kubelets on booted nodes, kubectl and Helm's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from e2e.kubernetes.image import NAME, write_image
from e2e.node.booted import BootedNode, booted
from harness.paths import TOP
from harness.tools import run, scratch
from unit.kubernetes.chart import CHART, helm

Object = dict[str, Any]

PROGRAMS = Path(os.environ["REASSERT_TEST_KUBERNETES"])
CONTROL, SERVICE = "10.99.0.1", "10.98.0.1"
"""Addresses of the API server: the control plane's own, and that of the service `kubernetes`."""

CNI = ("/opt/cni/bin", "/usr/lib/cni")
"""Where containerd looks for plugins: as its authors have it, and as Debian 13's."""

CONTAINERD = "unix:///run/containerd/containerd.sock"
GATES = ("ClusterTrustBundle", "ClusterTrustBundleProjection")
NAMESPACE = "kube-system"
TAINT = "reassert.internal/not-wired"
KUBELET = """\
[Unit]
Wants=containerd.service
After=containerd.service
[Service]
Restart=always
KillMode=process
ExecStart=/src/reassert/tests/lab/cluster/kubelet.sh --config=/etc/kubernetes/kubelet.json \\
  --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override={name} --node-ip={address} --node-labels=pool={name}
[Install]
WantedBy=multi-user.target
"""
KUBELET_CONFIG: Object = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "containerRuntimeEndpoint": CONTAINERD,
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "localStorageCapacityIsolation": False,
    "evictionHard": {"memory.available": "1Mi"},
    "imageGCHighThresholdPercent": 100,
    "failSwapOn": False,
}
"""Of every kubelet here: it finds the machine as it is."""


class Authority:
    """The cluster's CA. Files of what it issues are in `directory`: NAME.crt and NAME.key."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
        self._write("ca", self._issuer, self._key, [])

    def issue(self, name: str, common: str, group: str = "", hosts: tuple[str, ...] = ()) -> None:
        """A certificate with its key, for a client of this name and group and for a server at these addresses."""
        names = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
        names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
        self._write(name, x509.Name(names), ec.generate_private_key(ec.SECP256R1()), list(hosts))

    def _write(self, name: str, subject: x509.Name, key: ec.EllipticCurvePrivateKey, hosts: list[str]) -> None:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        if hosts:
            addresses = [x509.IPAddress(ip_address(host)) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        path = self.directory / name
        path.with_suffix(".crt").write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(pem))
        path.with_suffix(".key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))

    def kubeconfig(self, name: str, token: str = "") -> Path:
        """The file with which a client talks to the API server: with an issued certificate, or with a token."""

        def data(file: str) -> str:
            return b64encode((self.directory / file).read_bytes()).decode()

        cluster = {"server": f"https://{CONTROL}", "certificate-authority-data": data("ca.crt")}
        if token:
            user = {"token": token}
        else:
            user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
        path = self.directory / f"{name}.conf"
        config: Object = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
        config |= {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}]}
        config |= {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
        path.write_text(json.dumps(config))
        return path


class Cluster:
    """`nodes`: by name, which is their Debian suite. `directory` has certificates and the logs of the control plane.

    `controllers`: those of the controller manager; with "" the control plane is etcd and the API server alone.
    """

    def __init__(self, controllers: str = "*") -> None:
        self.directory = scratch()
        self.nodes: dict[str, BootedNode] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.authority = Authority(self.directory)
        ip("link", "add", "nodes", "type", "bridge")
        ip("address", "add", f"{CONTROL}/24", "dev", "nodes")
        ip("link", "set", "nodes", "up")
        ip("address", "add", f"{SERVICE}/32", "dev", "lo")  # in place of kube-proxy
        self._start_api_server()
        if controllers:
            self._start_controllers(controllers)
        self.helm = helm().Config(kubeconfig_path=self.directory / "admin.conf", namespace=NAMESPACE)

    def _start_api_server(self) -> None:
        ca, at = self.authority, self.directory
        ca.issue("apiserver", "kube-apiserver", hosts=(CONTROL, SERVICE, "127.0.0.1"))
        ca.issue("accounts", "accounts")
        for name, common, group in (
            ("admin", "admin", "system:masters"),
            ("kubelet-client", "apiserver", "system:masters"),
            ("manager", "system:kube-controller-manager", ""),
            ("scheduler", "system:kube-scheduler", ""),
        ):
            ca.issue(name, common, group)
            ca.kubeconfig(name)
        self._start("etcd", f"--data-dir={at}/etcd", "--unsafe-no-fsync", "--log-level=warn")
        self._start(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=443",  # that of the service
            f"--advertise-address={CONTROL}",
            "--service-cluster-ip-range=10.98.0.0/24",
            f"--client-ca-file={at}/ca.crt",
            f"--tls-cert-file={at}/apiserver.crt",
            f"--tls-private-key-file={at}/apiserver.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={at}/ca.crt",
            f"--kubelet-client-certificate={at}/kubelet-client.crt",
            f"--kubelet-client-key={at}/kubelet-client.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={at}/accounts.crt",
            f"--service-account-signing-key-file={at}/accounts.key",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--runtime-config=certificates.k8s.io/v1beta1=true",  # ClusterTrustBundle is on from 1.37
            "--feature-gates=" + ",".join(f"{gate}=true" for gate in GATES),
        )
        self.wait(lambda: self.try_kubectl("get", "--raw=/readyz")[0] == 0, "the API server")

    def _start_controllers(self, controllers: str) -> None:
        at = self.directory
        given = (f"--root-ca-file={at}/ca.crt", f"--service-account-private-key-file={at}/accounts.key")
        options = ("--use-service-account-credentials", f"--controllers={controllers}", "--leader-elect=false")
        self._start("kube-controller-manager", f"--kubeconfig={at}/manager.conf", *given, *options)
        self._start("kube-scheduler", f"--kubeconfig={at}/scheduler.conf", "--leader-elect=false")

    def _start(self, program: str, *arguments: str) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "--", str(PROGRAMS / program), *arguments]
        with (self.directory / f"{program}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def end(self) -> None:
        """Stop the control plane. Its directory stays where REASSERT_TEST_KEEP is set."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)
        ip("link", "delete", "nodes")
        ip("address", "delete", f"{SERVICE}/32", "dev", "lo")
        if "REASSERT_TEST_KEEP" not in os.environ:
            shutil.rmtree(self.directory)

    def add(self, node: BootedNode, runtime: str = CONTAINERD) -> None:
        """Give a node its network, the chart's image and a kubelet, which registers it with TAINT.

        `runtime`: the CRI socket; another one than containerd's does not get the image.
        """
        name, number = node.suite, len(self.nodes) + 1
        address = f"10.99.0.{number + 10}"
        there = ("nsenter", f"--net=/proc/{node.pid}/ns/net", "ip")
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
        ip("link", "set", name, "master", "nodes", "up")
        run(*there, "address", "add", f"{address}/24", "dev", "eth0")
        run(*there, "link", "set", "eth0", "up")
        run(*there, "route", "add", "default", "via", CONTROL)
        ip("route", "add", f"10.97.{number}.0/24", "via", address)
        if runtime == CONTAINERD:
            programs = {
                PROGRAMS / "kubectl": "usr/bin/kubectl",
                Path("/usr/bin/openssl"): "usr/bin/openssl",
            }  # for tests
            image = write_image(node.directory, TOP / "build/roots/trixie", programs)
            node.ctr("image", "import", str(image))
            image.unlink()
        self.authority.issue(f"kubelet-{name}", f"system:node:{name}", "system:nodes", (address,))
        self._put(node, name, number, runtime)
        node.run("systemctl", "enable", "--now", "kubelet")
        self.nodes[name] = node

    def _put(self, node: BootedNode, name: str, number: int, runtime: str) -> None:
        ranges, routes = [[{"subnet": f"10.97.{number}.0/24"}]], [{"dst": "0.0.0.0/0"}]
        ipam = {"type": "host-local", "dataDir": "/run/cni-addresses", "ranges": ranges, "routes": routes}
        network = {"cniVersion": "0.4.0", "name": "pods", "type": "ptp", "ipam": ipam}
        kubelet = {
            **KUBELET_CONFIG,
            "containerRuntimeEndpoint": runtime,
            "featureGates": dict.fromkeys(GATES, True),
            "registerWithTaints": [{"key": TAINT, "effect": "NoSchedule"}],
            "authentication": {"x509": {"clientCAFile": "/etc/kubernetes/ca.crt"}},
            "tlsCertFile": "/etc/kubernetes/kubelet.crt",
            "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
        }
        files: dict[str, str | Path] = {
            "/etc/kubernetes/ca.crt": self.directory / "ca.crt",
            "/etc/kubernetes/kubelet.crt": self.directory / f"kubelet-{name}.crt",
            "/etc/kubernetes/kubelet.key": self.directory / f"kubelet-{name}.key",
            "/etc/kubernetes/kubelet.conf": self.authority.kubeconfig(f"kubelet-{name}"),
            "/etc/kubernetes/kubelet.json": json.dumps(kubelet),
            "/etc/cni/net.d/10-pods.conf": json.dumps(network),
            "/etc/systemd/system/kubelet.service": KUBELET.format(name=name, address=f"10.99.0.{number + 10}"),
            "/usr/local/bin/kubelet": PROGRAMS / "kubelet",
            **{f"{at}/{each}": Path("/usr/lib/cni") / each for at in CNI for each in ("ptp", "host-local", "loopback")},
        }
        for path, content in files.items():
            target = node.path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy(content, target)
            else:
                target.write_text(content)

    def usage(self) -> dict[str, tuple[float, float]]:
        """Seconds of CPU and resident MiB of each program of the control plane."""
        return {Path(f"/proc/{each.pid}/comm").read_text().strip(): usage(each.pid) for each in self._processes}

    # What an administrator has

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Standard output of kubectl as cluster-admin."""
        return run(*self._kubectl(*arguments), **options).stdout

    def try_kubectl(self, *arguments: str, **options: Any) -> tuple[int, str]:
        """Exit status and both streams of kubectl."""
        done = run(*self._kubectl(*arguments), check=False, **options)
        return done.returncode, done.stdout + done.stderr

    def _kubectl(self, *arguments: str) -> tuple[str, ...]:
        return (str(PROGRAMS / "kubectl"), f"--kubeconfig={self.directory}/admin.conf", *arguments)

    def get(self, kind: str, *arguments: str, namespace: str = NAMESPACE) -> Any:
        """An object, or a list's items."""
        found = json.loads(self.kubectl("get", kind, *arguments, "--namespace", namespace, "--output=json"))
        return found.get("items", found)

    def apply(self, *objects: Object) -> None:
        """Create or change objects. kubectl validates them by the API server's schema."""
        self.kubectl("apply", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def install(self, values: Object, release: str = "reassert", upgrade: bool = False) -> None:
        """`helm install` or `helm upgrade`. Raises helm_python.HelmError."""
        repository, _, tag = NAME.partition(":")
        image = {"repository": repository, "tag": tag}
        change = self.helm.upgrade if upgrade else self.helm.install
        change(CHART, release, {"image": image, **values}, namespace=NAMESPACE, timeout=300, wait="hookOnly")

    def rollout(self, release: str = "reassert", seconds: int = 300) -> None:
        """`kubectl rollout status` of the node pods."""
        name = release if "reassert" in release else f"{release}-reassert"
        self.wait(lambda: self.rolled_out(f"{name}-node"), f"the roll-out of {name}", seconds)

    def rolled_out(self, name: str) -> bool:
        """Whether every node has a ready pod of the DaemonSet as it is now."""
        daemon = self.get("daemonset", name)
        status, wanted = daemon["status"], int(daemon["status"]["desiredNumberScheduled"])
        ready = {status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)} == {wanted}
        return ready and wanted > 0 and bool(status.get("observedGeneration") == daemon["metadata"]["generation"])

    def wait(self, holds: Callable[[], bool], what: str, seconds: int = 120) -> None:
        """Until something holds; else fails with what the cluster and its nodes say."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{self.trouble()}"
            time.sleep(0.5)

    def trouble(self) -> str:
        """What may have gone wrong."""
        text = "".join(f"== {log.name}\n{log.read_text()[-1500:]}\n" for log in self.directory.glob("*.log"))
        text += self.try_kubectl("get", "nodes,pods,daemonsets,jobs", "--all-namespaces", "--output=wide")[1]
        text += self.try_kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")[1][-4000:]
        for pod in self.pods("node"):
            logs = ("logs", pod["metadata"]["name"], "--namespace", NAMESPACE, "--all-containers", "--tail=15")
            text += f"== {pod['metadata']['name']}\n{self.try_kubectl(*logs)[1]}"
        for name, node in self.nodes.items():
            text += f"== kubelet of {name}\n" + "\n".join(node.journal("kubelet")[-15:]) + "\n"
        return text

    def pods(self, component: str) -> list[Object]:
        """The pods of one part of the chart, those that end left out."""
        selector = f"--selector=app.kubernetes.io/component={component}"
        status, said = self.try_kubectl("get", "pods", "--namespace", NAMESPACE, "--output=json", selector)
        items = json.loads(said)["items"] if status == 0 else []
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def uids(self) -> dict[str, str]:
        """The node pods' UIDs by node."""
        return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in self.pods("node")}

    def environ(self, pod: str) -> list[str]:
        """The env that a container of namespace default has, as its own /proc shows it."""
        return self.kubectl("exec", pod, "--", "/bin/busybox", "cat", "/proc/1/environ").split("\0")


def usage(pid: int) -> tuple[float, float]:
    """Seconds of CPU and resident MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def ip(*arguments: str) -> None:
    """A change of this network namespace."""
    run("ip", *arguments)


@contextmanager
def control_plane(controllers: str = "*") -> Iterator[Cluster]:
    """A cluster without nodes; `controllers` as for `Cluster`."""
    cluster = Cluster(controllers)
    try:
        yield cluster
    finally:
        cluster.end()


@contextmanager
def running(*suites: str) -> Iterator[Cluster]:
    """A cluster with nodes of these suites, all Ready."""
    with ExitStack() as stack:
        cluster = stack.enter_context(control_plane())
        for suite in suites:
            cluster.add(stack.enter_context(booted(suite)))

        def ready() -> bool:
            of_each = [node["status"]["conditions"] for node in cluster.get("nodes")]
            return len(of_each) == len(suites) and all(
                {"type": "Ready", "status": "True"}.items() <= condition.items()
                for conditions in of_each
                for condition in conditions
                if condition["type"] == "Ready"
            )

        cluster.wait(ready, "the nodes")
        yield cluster
