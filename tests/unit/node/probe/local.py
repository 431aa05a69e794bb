"""A Starter whose containers are processes, for the tests of what `verify` makes of what it saw."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hook.core.container.identity import CONTAINER, Identity
from hook.core.policy.model import Policy
from hook.inside.process import ContainerGone
from hook.node.engines.base import Handler
from hook.node.errors import NodeError
from hook.node.probe.starter import (
    MARKER,
    NOTHING_MORE,
    Extra,
    Marks,
    NotStarted,
    Pairs,
    Process,
    Unsupported,
    new_token,
)
from hook.node.probe.verify import examine
from unit.support import policy

POLICY = policy({"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "INSECURE", "absent": True}]})
RUNC = Handler("runc", "/usr/sbin/runc", ("runtime",))
BARE = Handler("bare", "/usr/sbin/runc", ())
KATA = Handler("kata", "", ())
ENGINE: Any = SimpleNamespace(name="containerd", title="containerd 2.1")

Env = dict[str, str]


class Local:
    """A Starter whose containers are processes. `change`: what becomes of the env that is asked for.

    `short_lived`: how many containers end before `ends_at` (start, exec, exec-env, annotations, devices) is over.
    `ended_by`: what else ended them; "" if they ended by themselves. `error`: what the look at one says then.
    `seen`: what was executed in full.
    """

    def __init__(self, change: Callable[[Env], Env], exec_change: Callable[[Env], Env] | None = None) -> None:
        self.identity = Identity("podman", False, types=(CONTAINER,))
        self.marks = Marks()
        self.change, self.exec_change = change, exec_change or change
        self.short_lived, self.ends_at, self.ended_by = 0, "start", ""
        self.error: Exception = NodeError("cannot exec in a stopped container")
        self.seen: list[str] = []
        self.hole = False
        self.up_seconds = 10.0
        self.alive: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def clean(self) -> None:
        """Nothing is left."""

    def prepare(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing is held."""

    def start(self, _handler: str, env: Pairs = (), _mounts: Pairs = (), extra: Extra = NOTHING_MORE) -> LocalProcess:
        if extra.pod_annotations or extra.cdi:
            raise Unsupported("it has none")
        self.started += 1
        token = new_token()
        asked = {**dict(env), MARKER: token}
        process = subprocess.Popen(["sleep", "60"], env=self.change(asked))
        self.alive.append(process)
        self.end_at("start")
        return LocalProcess(self, process, token, asked)

    def end_at(self, at: str) -> bool:
        """End the last container if this is when such a one ends."""
        ends = at == self.ends_at and self.short_lived > 0
        if ends:
            self.short_lived -= 1
            self.alive[-1].kill()
            self.alive[-1].wait()
        return ends


class LocalProcess:
    def __init__(self, starter: Local, process: subprocess.Popen[bytes], token: str, asked: Env) -> None:
        self.starter, self.process, self.token, self.asked = starter, process, token, asked
        self.pid = process.pid

    def environ(self) -> list[str]:
        return Process(self.pid, self.token, self.starter.up_seconds).environ()

    def ended(self, error: Exception) -> Exception:
        return ContainerGone(self.starter.ended_by) if self.starter.ended_by else NotStarted(str(error))

    def exec_environ(self, env: Pairs = ()) -> list[str]:
        at = "exec-env" if env else "exec"
        if self.starter.end_at(at):
            raise self.starter.error
        self.starter.seen.append(at)
        changed = self.starter.exec_change({**self.asked, **dict(env)})
        return [f"{name}={value}" for name, value in {**changed, **dict(env if self.starter.hole else ())}.items()]

    def annotations(self) -> dict[str, str]:
        if self.starter.end_at("annotations"):
            raise self.starter.error
        return {}

    def remove(self) -> None:
        if self.process in self.starter.alive:
            self.starter.alive.remove(self.process)
            self.process.kill()
            self.process.wait()


def protect(env: Env) -> Env:
    return {**{name: value for name, value in env.items() if name != "INSECURE"}, "CA": "/ca.pem"}


def keep(env: Env) -> Env:
    return env


def refuse(env: Env) -> Env:
    if "INSECURE" in env:
        raise NotStarted("task: OCI runtime create failed: reassert: refused x: rule ca: INSECURE was set: unknown")
    return protect(env)


def break_down(_env: Env) -> Env:
    raise NotStarted("exec: reassert-runc: no such file")


def refuse_everything(_env: Env) -> Env:
    raise NotStarted(
        "OCI runtime create failed: reassert: refused x: rule ca: hostPath /ca.crt does not exist: unknown"
    )


Make = Callable[..., Local]


def found(starter: Local, handler: Handler = RUNC, given: Policy = POLICY) -> tuple[str, list[str], str]:
    [finding], _ = examine([handler], given, starter)
    return finding.result, finding.saw, finding.executed
