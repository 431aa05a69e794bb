"""Test containers that something else ends, as kubelet ends pods that the API server does not know."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hook.inside.process import ContainerGone
from hook.node.errors import NodeError
from hook.node.probe.cri import READY, CallFailed, message
from hook.node.probe.device_attempt import DeviceAttempt, try_attempt
from hook.node.probe.pods import LABEL, PodStarter
from hook.node.probe.report import EXPOSED, PROTECTED, UNTRIED
from hook.node.probe.starter import Extra, NotStarted, Unsupported
from unit.node.probe.local import RUNC, Local, Make, found, keep, protect
from unit.ownmachine import Machine

EXITED = 2
BY_KUBELET = "something else ended the test pod, kubelet for instance"
NEVER = f"each of 10 times, {BY_KUBELET}"


@pytest.fixture
def beside_kubelet(local: Make) -> Callable[..., Local]:
    """Makes starters whose first containers, `times` of them, are ended before `at` is over."""

    def make(at: str, times: int, *changes: Any) -> Local:
        starter = local(*changes or (protect,))
        starter.ended_by, starter.ends_at, starter.short_lived = BY_KUBELET, at, times
        return starter

    return make


@pytest.mark.root
@pytest.mark.parametrize("at", ["start", "exec", "exec-env"])
def test_a_container_that_was_ended_is_started_again(beside_kubelet: Make, at: str) -> None:
    starter = beside_kubelet(at, 9)
    assert found(starter) == ("protected", ["put back: 2 env; in exec too"], "protected")
    assert starter.started == 11


@pytest.mark.root
def test_what_is_ended_each_time_was_not_tried(beside_kubelet: Make) -> None:
    assert found(beside_kubelet("start", 10)) == ("not tried", [NEVER], "")
    result, saw, executed = found(beside_kubelet("exec", 10))
    assert (result, executed) == ("protected", "not tried")
    assert saw == ["put back: 2 env", f"exec not tried: {NEVER}"]


@pytest.mark.root
def test_what_was_seen_before_the_end_counts(beside_kubelet: Make) -> None:
    starter = beside_kubelet("exec", 10, keep)
    result, saw, executed = found(starter)
    assert (result, executed) == ("not protected", "not tried")
    assert saw[0] == "env CA is reassert-verify-pod, the policy wants /ca.pem"
    assert saw[-1] == f"exec not tried: {NEVER}"
    # Each exec has a container's whole life: what was seen of an earlier one is not looked at again.
    starter = beside_kubelet("exec", 1)
    assert found(starter)[0] == "protected"
    assert starter.seen == ["exec", "exec-env"]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    "error", [FileNotFoundError("/proc/7/stat"), Unsupported("no config.json"), NodeError("other")]
)
def test_a_way_is_tried_again(beside_kubelet: Make, error: Exception) -> None:
    way = DeviceAttempt("annotation", extra=Extra(annotations=[("a", "b")]))
    starter = beside_kubelet("annotations", 9)
    starter.error = error
    assert try_attempt(way, RUNC, starter, None).result == PROTECTED
    assert starter.started == 10
    starter = beside_kubelet("annotations", 10)
    starter.error = error
    tried = try_attempt(way, RUNC, starter, None)
    assert (tried.result, tried.saw) == (UNTRIED, NEVER)


@pytest.mark.root
def test_a_container_without_devices_that_ended_meanwhile_shows_nothing(
    beside_kubelet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = beside_kubelet("devices", 2)

    def reached(_pid: int, _closed: object) -> list[str]:
        return [] if starter.end_at("devices") else ["its cgroup gives rw access to /dev/nvidia0"]

    # The process would have to end between two system calls of the look.
    monkeypatch.setattr("hook.inside.observe.reached", reached)
    closed: Any = object()
    assert try_attempt(DeviceAttempt("device"), RUNC, starter, closed).result == EXPOSED
    assert starter.started == 3


class Engine:
    """A Cri with one pod. `failing`: a method that fails. `left`: the pod's state then; None if it was removed.

    `stuck`: how often its removal fails. `status`: of its container.
    """

    def __init__(self, failing: str = "", left: int | None = 0, stuck: int = 0, **status: int) -> None:
        self.failing, self.left, self.stuck, self.status = failing, left, stuck, status
        self.removals = 0

    def call(self, method: str, **fields: Any) -> Any:
        message(f"{method}Request", **fields)  # such a request can be sent
        if method == self.failing:
            raise CallFailed("sandbox container is not running")
        if method == "ListPodSandbox":
            there = [] if self.left is None else [{"id": "s", "state": self.left, "labels": {LABEL: "1-a"}}]
            return message("ListPodSandboxResponse", items=there)
        if method == "RemovePodSandbox":
            self.removals += 1
            if self.removals <= self.stuck:
                raise CallFailed("container is already in removing state")
        if method == "ContainerStatus":
            return message("ContainerStatusResponse", status=self.status, info={"info": '{"pid": 0}'})
        return SimpleNamespace(pod_sandbox_id="s", container_id="c", containers=[], info={})


@pytest.fixture
def pod_starter(machine: Machine) -> Callable[[Engine], PodStarter]:
    def make(engine: Engine) -> PodStarter:
        starter = PodStarter("containerd", "/none", "pause:1", systemd=True)
        starter._ready = True
        starter._cri = engine  # type: ignore[assignment]  # a stand-in
        return starter

    return make


@pytest.mark.root
@pytest.mark.parametrize("failing", ["CreateContainer", "StartContainer"])
@pytest.mark.parametrize(("left", "raised"), [(0, NotStarted), (1, ContainerGone), (None, ContainerGone)])
def test_a_pod_that_was_ended_before_its_container_started_is_no_broken_runtime(
    pod_starter: Callable[[Engine], PodStarter], failing: str, left: int | None, raised: type[Exception]
) -> None:
    with pytest.raises(raised, match="kubelet" if raised is ContainerGone else "sandbox container is not running"):
        pod_starter(Engine(failing, left)).start("runc")


@pytest.mark.root
@pytest.mark.parametrize(
    ("engine", "raised", "said"),
    [
        (Engine("ContainerStatus"), ContainerGone, "kubelet"),  # it is removed
        (Engine(state=EXITED), ContainerGone, "kubelet"),  # the sandbox image's program ends with 0 when it is told to
        (Engine(state=EXITED, exit_code=137), ContainerGone, "kubelet"),
        (Engine(state=EXITED, exit_code=127), NotStarted, "its program ended by itself, with exit status 127"),
        (Engine(state=1), NodeError, "does not report the pid"),
    ],
)
def test_who_ended_a_container_that_has_no_pid(
    pod_starter: Callable[[Engine], PodStarter], engine: Engine, raised: type[Exception], said: str
) -> None:
    with pytest.raises(raised, match=said) as caught:
        pod_starter(engine).start("runc")
    assert type(caught.value) is raised


def test_a_probe_has_what_kubelet_sends() -> None:
    """CRI-O identifies containers by kubelet's labels, and checks signatures of the image that a user named."""
    starter = PodStarter("cri-o", "/none", "pause:1", systemd=True, namespace="team")
    starter._ready = True
    asked: dict[str, Any] = {}

    def answer(method: str, **fields: Any) -> Any:
        message(f"{method}Request", **fields)
        asked[method] = fields
        if method == "CreateContainer":
            raise CallFailed("enough")
        return SimpleNamespace(pod_sandbox_id="s", info={}, items=[SimpleNamespace(id="s", state=READY, labels={})])

    starter._cri = SimpleNamespace(call=answer)  # type: ignore[assignment]  # a stand-in
    with pytest.raises(NotStarted, match="enough"):
        starter.start("")
    identity = starter.identity
    labels = {
        "io.kubernetes.pod.namespace": "team",
        "io.kubernetes.pod.name": identity.pod,
        "io.kubernetes.pod.uid": identity.uid,
    }
    assert labels.items() <= asked["RunPodSandbox"]["config"]["labels"].items()
    container = asked["CreateContainer"]["config"]
    assert container["labels"] == {**labels, "io.kubernetes.container.name": identity.container}
    assert container["image"] == {"image": "pause:1", "user_specified_image": "pause:1"}
