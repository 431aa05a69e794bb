"""Shared by the unit tests: policies, containers and bundles, made by the real compiler and parser."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.bundle import containerd_annotations
from hypothesis import settings

from hook.cli import main
from hook.compile.compiler import Compiled, compile_bytes
from hook.compile.source import PolicyInvalid, Problem
from hook.core.container.identity import Identity
from hook.core.container.spec import Spec
from hook.core.container.start import Start
from hook.core.decide import Adapter, Case
from hook.core.facts import Container, Facts
from hook.core.policy.model import Policy, Rule

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
CONTAINERD = containerd_annotations("team-a", "web-1", "app", uid="1-2-3", sandbox="d1728b")
"""Annotations that containerd gives an app container."""
SYSTEMD_CGROUP = "kubepods-burstable-pod1_2_3.slice:cri-containerd:0a1b"
"""What containerd's cgroup is where systemd makes it; it shows that containerd wrote a spec."""

POD = Identity(
    "containerd",
    True,
    namespace="team-a",
    pod="web-1",
    uid="1-2-3",
    container="app",
    types=("container",),
    image="registry.example/app:1",
    labels=None,
)


def examples(count: int) -> settings:
    """The number of examples of a property test; a fifth of it with `--fast`."""
    return settings(max_examples=count * settings.default.max_examples // 100)


def document(*rules: dict[str, Any], **spec: Any) -> str:
    """A policy file with these rules, in JSON, which is YAML that needs no quoting."""
    body = {"apiVersion": "reassert/v1", "kind": "NodePolicy", "spec": {**spec, "rules": list(rules)}}
    return json.dumps(body, indent=1)


def policy(*rules: dict[str, Any], **spec: Any) -> Policy:
    """The compiled policy, by the real compiler."""
    return _compiled(document(*rules, **spec)).policy()


@lru_cache(256)
def _compiled(text: str) -> Compiled:
    return compile_bytes("policy.yaml", text.encode())


def rule(name: str = "r", **fields: Any) -> Rule:
    """One compiled rule."""
    fields.setdefault("env", [{"name": "X", "value": "1"}])
    return policy({"name": name, **fields}).candidates(None)[0]


def problems(text: str | bytes) -> list[Problem]:
    """Errors and warnings of a policy file, as `policy check` would list them."""
    content = text.encode() if isinstance(text, str) else text
    try:
        return compile_bytes("policy.yaml", content).warnings
    except PolicyInvalid as error:
        return error.problems


def lines(text: str | bytes) -> list[str]:
    """The same as the lines that `policy check` prints."""
    return [problem.at("policy.yaml") for problem in problems(text)]


def container(
    env: list[str] | None = None,
    mounts: list[dict[str, object]] | None = None,
    identity: Identity = POD,
    facts: Facts | None = None,
) -> Container:
    """A container before its start."""
    return Container(identity, Start(env or [], mounts or []), facts)


class WithPolicy(Adapter):
    """An adapter with this policy, or this way to read it. `more`: what else it has of its own."""

    def __init__(self, in_force: Policy | Callable[[], Policy], name: str = "runtime", **more: Any) -> None:
        self.name = name
        self._in_force = in_force
        for key, value in more.items():
            assert hasattr(self, key)
            setattr(self, key, value)

    def policy(self) -> Policy:
        return self._in_force if isinstance(self._in_force, Policy) else self._in_force()


class _Known(Case):
    def __init__(self, adapter: str, container_id: str, in_force: Policy | None, identity: Identity) -> None:
        super().__init__(WithPolicy(policy, adapter), container_id)
        self.identity, self.policy, self.container = identity, in_force, container()


def case(adapter: str, container_id: str, in_force: Policy | None, identity: Identity = POD) -> Case:
    """A container at an adapter that knows its identity and the policy."""
    return _Known(adapter, container_id, in_force, identity)


def bind(destination: str, source: str = "/pod") -> dict[str, object]:
    """A pod's bind mount."""
    return {"destination": destination, "type": "bind", "source": source, "options": ["rbind", "rw"]}


def name_of(entry: str) -> str:
    """The name in an entry of process.env."""
    return entry.partition("=")[0]


def values_of(env: list[str], name: str) -> list[str | None]:
    """All values that a name has in process.env, in order; None for an entry without `=`."""
    return [entry[len(name) + 1 :] if "=" in entry else None for entry in env if name_of(entry) == name]


def config(
    env: list[str] | None = None,
    mounts: list[dict[str, object]] | None = None,
    annotations: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A small config.json as data, with containerd's cgroup to containerd's annotations."""
    if annotations and annotations.get("io.kubernetes.cri.sandbox-id"):
        more.setdefault("linux", {"cgroupsPath": SYSTEMD_CGROUP})
    process = {"args": ["/bin/true"], "cwd": "/", "env": env or []}
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": "rootfs"},
        "mounts": mounts or [],
        "annotations": annotations or {},
        **more,
    }


def spec(**fields: Any) -> Spec:
    """The same, parsed."""
    return Spec(json.dumps(config(**fields)).encode(), "config.json")


def reassert(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command from this checkout."""
    options.setdefault("env", {"PATH": os.defpath})
    command = [sys.executable, str(ROOT / "hook" / "__main__.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


LEASE = """
import fcntl, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(file := open(sys.argv[1], "rb"), fcntl.F_SETLEASE, fcntl.F_RDLCK)
print(flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def leased(path: Path) -> Iterator[None]:
    """A process has a lease on a file (fcntl(2)): an open(2) of others to write waits, or fails with O_NONBLOCK."""
    with subprocess.Popen([sys.executable, "-c", LEASE, str(path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout and other.stdout.readline()
            yield
        finally:
            other.kill()


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command in this process, which takes a tenth of `reassert`: for tests of what it decides and prints."""
    out, error = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = main(list(arguments))
        except SystemExit as ended:  # of argparse
            status = int(ended.code or 0)
    out.flush()
    error.flush()
    said = [stream.detach().getvalue().decode() for stream in (out, error)]  # type: ignore[attr-defined]  # BytesIO
    return subprocess.CompletedProcess(arguments, status, *said)
