"""Which of a pod's resource claims a container has: kubelet's PodResources, as a real kubelet 1.36 answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.container.identity import Identity, identify
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.facts.cri import GET, asked
from hook.core.plan import Plan
from hook.core.verdict import Verdict
from unit.kubelet import claim, state
from unit.ownmachine import Machine
from unit.podresources import RECORDED as ANSWERS
from unit.podresources import PodResources, answer, busy, recorded
from unit.support import FIXTURES, WithPolicy, policy

RECORDED = FIXTURES / "kubelet" / "k1.36-dra"
NAMES = sorted(path.name.removesuffix(".config.json") for path in RECORDED.glob("*.config.json"))
EXACT = [name for name in NAMES if name not in ("b-two.left.0", "b-two.right.0", "i-whole.whole.0", "i-whole.right.0")]
EXACT = [name for name in EXACT if name != "d-init.init.0"]
RULES = [
    {"name": "gpu", "deviceAllocations": {"exclusive": ["example.com/*"]}, "onConflict": "Deny"},
    {"name": "all", "deviceAllocations": {"env": True, "mounts": True, "devices": True}},
    {"name": "env", "env": [{"name": "TOY_GPU", "valueFrom": {"deviceAllocation": {"default": "none"}}}]},
]


class Recorded:
    """The recorded node: kubelet's files, the driver's CDI specs. `said`: why claims are not exact, of the last one."""

    def __init__(self, root: Path, machine: Machine) -> None:
        self.root = root
        self.said: object = None
        for path in (RECORDED / "cdi").iterdir():
            machine.file(f"/etc/cdi/{path.name}", path.read_bytes())
        for path in ("/etc/hostname", "/etc/default/toy"):  # which the toy driver and the toy plugin mount
            machine.file(path, b"node-a\n")
        self.state("all")

    def state(self, name: str) -> None:
        """kubelet's two files, at a time."""
        (self.root / "dra_manager_state").write_bytes((RECORDED / f"dra_manager_state.{name}").read_bytes())
        (self.root / "device-plugins").mkdir(exist_ok=True)
        plugins = "kubelet_internal_checkpoint" + (".containerd1.7" if name == "containerd1.7" else "")
        (self.root / "device-plugins/kubelet_internal_checkpoint").write_bytes((RECORDED / plugins).read_bytes())

    def decide(self, spec: Spec, identity: Identity | None = None) -> Plan:
        """What would be done about a container."""
        case = Case(WithPolicy(policy(*RULES, kubelet={"root": str(self.root)})), "0a")
        decided = case.decide(identity or identify(spec, copied=True), spec)
        self.said = (case.event(decided, Verdict()) or {}).get("claims")
        return decided

    def corrected(self, spec: Spec) -> Spec:
        """The container as the real runtime finds it."""
        decided = self.decide(spec)
        assert decided.refusal() == ""
        decided.apply(spec)
        return Spec(spec.render(), "config.json")


@pytest.fixture
def kubelet(root_dir: Path) -> Iterator[PodResources]:
    found = PodResources(root_dir)
    yield found
    found.close()


@pytest.fixture
def node(root_dir: Path, kubelet: PodResources, machine: Machine) -> Recorded:
    """The server's threads are none of the machine's, or the test's thread could not leave it."""
    return Recorded(root_dir, machine)


def config(name: str, container: str = "", **without: Any) -> Spec:
    """A recorded config.json. `container`: another name. `without`: members to replace."""
    data = json.loads((RECORDED / f"{name}.config.json").read_bytes())
    if container:
        data["annotations"]["io.kubernetes.cri.container-name"] = container
    return Spec(json.dumps({**data, **without}).encode(), "config.json")


def stripped(name: str) -> Spec:
    """As an engine without CDI makes it."""
    data = json.loads((RECORDED / f"{name}.config.json").read_bytes())
    env = [entry for entry in data["process"]["env"] if not entry.startswith(("TOY_", "NVIDIA_"))]
    mounts = [mount for mount in data["mounts"] if not mount["destination"].startswith("/toy")]
    linux = {**data["linux"], "devices": [], "resources": {"devices": []}}
    return config(name, process={**data["process"], "env": [*env, "TOY_GPU=all"]}, mounts=mounts, linux=linux)


def toys(spec: Spec) -> tuple[list[str], list[object], list[object]]:
    """Env, mounts and devices of claims in a container."""
    return (
        [entry for entry in spec.env if entry.startswith("TOY_GPU=")],
        [mount.path for mount in spec.mounts if mount.path.startswith("/toy/gpu-")],
        [device.path for device in spec.devices if device.path.startswith("/dev/toy")],
    )


def of(name: str) -> tuple[list[str], list[object], list[object]]:
    """What CRI's CDI devices place in a recorded container, by the names of the toy driver."""
    devices = [device.rpartition("-")[2] for device in ANSWERS[name]["cdi"]]
    last = [f"TOY_GPU=claim-gpu-{devices[-1]}"] if devices else ["TOY_GPU=none"]
    return last, [f"/toy/gpu-{n}" for n in devices], [f"/dev/toygpu{n}" for n in devices]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_container_keeps_what_its_claim_placed(node: Recorded, kubelet: PodResources, name: str) -> None:
    node.state("containerd1.7" if "-c17-" in name else "all")
    kubelet.add(recorded(name))
    there = config(name)
    before = toys(there)[1:]
    assert toys(node.corrected(there))[1:] == (of(name)[1:] if name in EXACT else before)
    assert bool(node.said) is (name not in EXACT)
    assert kubelet.asked == [f"dra/{name.split('.', maxsplit=1)[0]}"]


@pytest.mark.parametrize("name", EXACT)
def test_what_a_claim_placed_is_restored(node: Recorded, kubelet: PodResources, name: str) -> None:
    node.state("containerd1.7" if "-c17-" in name else "all")
    kubelet.add(recorded(name))
    assert toys(node.corrected(stripped(name))) == of(name)
    assert node.decide(node.corrected(stripped(name))).is_empty()


@pytest.mark.parametrize("name", ["b-two.left.0", "i-whole.right.0", "d-init.init.0"])
def test_what_may_be_another_containers_is_not_restored(node: Recorded, kubelet: PodResources, name: str) -> None:
    kubelet.add(recorded(name))
    assert toys(node.corrected(stripped(name))) == (["TOY_GPU=none"], [], [])
    requests = "kubelet's PodResources does not tell the requests of claim"
    init = "kubelet's PodResources does not list the container; it lists no init containers"
    assert str(node.said).startswith(init if name.startswith("d") else requests)


@pytest.mark.parametrize(("of_pod", "other"), [("b-two.left.0", "none"), ("f-sidecar.side.0", "main")])
def test_a_container_that_names_no_claim_has_none(
    node: Recorded, kubelet: PodResources, of_pod: str, other: str
) -> None:
    """The same config.json, of the pod's other container. Without an answer, the claim is any container's."""
    assert node.decide(config(of_pod, other)).refusal() == ""
    assert node.said == "kubelet's PodResources gave no answer"
    kubelet.add(recorded(of_pod))
    assert "not allocated: mount /toy/gpu-" in node.decide(config(of_pod, other)).refusal()
    assert node.said is None


@marks.claim("exclusive-claims", "nri")
def test_two_containers_with_a_claim_each_have_their_own(node: Recorded, kubelet: PodResources) -> None:
    """The values of the other one's claim are no claim's here."""
    there = config("b-two.left.0")
    uid = identify(there, copied=True).uid or ""
    left, right = ANSWERS["b-two.left.0"]["cdi"], ANSWERS["b-two.right.0"]["cdi"]
    both = [claim("l", uid, devices={"d": left}), claim("r", uid, devices={"d": right})]
    (node.root / "dra_manager_state").write_bytes(state([{**each, "Namespace": "dra"} for each in both]))
    kubelet.add(answer("dra", "b-two", {"none": [], "left": ["l"], "right": ["r"]}))
    for name, other in (("left", "right"), ("right", "left")):
        assert toys(node.corrected(stripped(f"b-two.{name}.0"))) == of(f"b-two.{name}.0")
        assert toys(node.corrected(config(f"b-two.{name}.0", other)))[0] == of(f"b-two.{other}.0")[0]


def test_an_admins_claim_is_a_claim(node: Recorded, kubelet: PodResources, machine: Machine) -> None:
    """It gives a device that another pod's claim has too: the API server decides who may have one (adminAccess)."""
    name = "g-shared-2.main.0"
    [device] = ANSWERS[name]["cdi"]
    name_in_spec = device.partition("=")[2]
    [spec] = [path for path in (RECORDED / "cdi").iterdir() if name_in_spec in path.read_text()]
    machine.file("/etc/cdi/admin.json", spec.read_bytes().replace(name_in_spec.encode(), b"admins"))
    uids = [identify(config(f"g-shared-{n}.main.0"), copied=True).uid or "" for n in (1, 2)]
    given = [claim("first", uids[0], devices={"d": [device]})]
    given.append(claim("a", uids[1], devices={"d": ["example.com/gpu=admins"]}))
    (node.root / "dra_manager_state").write_bytes(state([{**each, "Namespace": "dra"} for each in given]))
    for pod, its in (("g-shared-1", "first"), ("g-shared-2", "a")):
        kubelet.add(answer("dra", pod, {"main": [its]}))
        assert toys(node.corrected(stripped(f"{pod}.main.0"))) == of(name)


# -- what is no answer: as without one


def test_a_kubelet_that_is_busy_is_asked_again(node: Recorded, kubelet: PodResources) -> None:
    kubelet.close()
    with busy(node.root, recorded("b-two.none.0")):
        assert "not allocated" in node.decide(config("b-two.left.0", "none")).refusal()


def test_a_kubelet_that_stays_busy_is_asked_twenty_times_a_second(root_dir: Path) -> None:
    identity = identify(config("a-one.main.0"), copied=True)
    with busy(root_dir, b"", times=1000) as calls, pytest.raises(TimeoutError):
        asked(str(root_dir), GET, "", identity, seconds=0.25)
    assert len(calls) <= 6


def as_without_an_answer(node: Recorded, said: str) -> None:
    assert toys(node.corrected(config("a-one.main.0"))) == of("a-one.main.0")
    assert node.said == said
    assert toys(node.corrected(stripped("a-one.main.0"))) == (["TOY_GPU=none"], [], [])


NO_ANSWER = "kubelet's PodResources gave no answer"


def test_a_pod_that_kubelet_does_not_know(node: Recorded, kubelet: PodResources) -> None:
    as_without_an_answer(node, NO_ANSWER)


def test_a_socket_that_others_can_replace(node: Recorded, kubelet: PodResources) -> None:
    kubelet.add(recorded("a-one.main.0"))
    kubelet.socket.parent.chmod(0o777)
    as_without_an_answer(node, NO_ANSWER)
    kubelet.socket.parent.chmod(0o755)
    kubelet.socket.chmod(0o777)
    as_without_an_answer(node, NO_ANSWER)
    assert kubelet.asked == []


def test_a_kubelet_that_is_away_down_or_hangs(node: Recorded, kubelet: PodResources) -> None:
    kubelet.close()
    path = node.root / "pod-resources/kubelet.sock"
    as_without_an_answer(node, NO_ANSWER)
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(path))
        as_without_an_answer(node, NO_ANSWER)
        listening.listen()
        as_without_an_answer(node, NO_ANSWER)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (answer("dra", "another", {"main": []}), NO_ANSWER),
        (answer("dra", "a-one", {"main": ["of-another-uid"]}), "kubelet's PodResources lists another pod of this name"),
        (b"\xff", NO_ANSWER),
    ],
)
def test_an_answer_about_another_pod(node: Recorded, kubelet: PodResources, found: bytes, said: str) -> None:
    kubelet.answers["dra/a-one"] = found
    as_without_an_answer(node, said)


def test_only_pods_with_claims_are_asked_about(node: Recorded, kubelet: PodResources) -> None:
    node.state("empty")
    node.decide(config("a-one.main.0"))
    node.state("all")
    identity = identify(config("a-one.main.0"), copied=True)
    identity.cdi = ANSWERS["a-one.main.0"]["cdi"]
    assert node.decide(config("a-one.main.0"), identity).refusal() == ""
    assert (kubelet.asked, node.said) == ([], None)
