"""What an engine tells over CRI, by a gRPC server of another implementation (grpclib), and what does not count."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hook.core.container.identity import APP_TYPES, Identity, identify
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.facts.cri import POD, asked
from unit.cri import MESSAGES, NAMESPACE, SANDBOX, UID, Engine
from unit.support import CONTAINERD, WithPolicy, config, policy

WEB = {"name": "web", "match": {"podSelector": {"matchLabels": {"tier": "web"}}}, "env": [{"name": "A", "value": "1"}]}


@pytest.fixture
def engine(root_dir: Path) -> Iterator[Engine]:
    found = Engine(root_dir / "store")
    yield found
    found.close()


def learned(store: Path, *rules: dict[str, Any], **spec: Any) -> Identity:
    """The identity of containerd's container after the policy's questions."""
    start = Spec(json.dumps(config(annotations=CONTAINERD)).encode(), "/run/x/k8s.io/0a/config.json")
    case = Case(WithPolicy(policy(*rules, **spec), learns=True, sockets=str(store)), "0a")
    case.decide(identify(start), start)
    assert case.identity
    return case.identity


def test_labels_are_the_pods_own(engine: Engine) -> None:
    identity = learned(engine.store, WEB)
    assert (identity.labels, identity.types) == ({"tier": "web"}, APP_TYPES)
    assert engine.asked == [SANDBOX]


def test_many_labels_and_long_ones_arrive(engine: Engine) -> None:
    engine.labels = {f"{'k' * 300}{number}": "v" * 63 for number in range(3000)}  # a megabyte, in many frames
    assert learned(engine.store, WEB).labels == engine.labels


@pytest.mark.parametrize(
    ("rule", "spec"),
    [
        ({**WEB, "match": {"namespaces": [NAMESPACE]}}, {}),
        ({**WEB, "match": {**WEB["match"], "containerNames": ["another"]}}, {}),
        (WEB, {"exclude": {"namespaces": [NAMESPACE]}}),
    ],
    ids=["no selector", "another condition is not met", "excluded"],
)
def test_nobody_is_asked_where_the_answer_decides_nothing(
    engine: Engine, rule: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert learned(engine.store, rule, **spec).labels is None
    assert engine.asked == []


def test_an_answer_about_another_pod_does_not_count(engine: Engine) -> None:
    engine.uid = "another"
    assert learned(engine.store, WEB).labels is None


def test_a_note_that_others_can_write_does_not_count(engine: Engine) -> None:
    (engine.store / "cri/containerd").chmod(0o666)
    assert learned(engine.store, WEB).labels is None


def hung(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


ANSWERS: dict[str, Callable[[socket.socket], object]] = {
    "nothing": lambda peer: None,
    "no HTTP/2": lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100)),
    "a frame without end": lambda peer: peer.sendall(b"\xff\xff\xff\0\0\0\0\0\1" + bytes(100_000)),
    "GOAWAY": lambda peer: peer.sendall(b"\0\0\x08\7\0\0\0\0\0" + bytes(8)),
    "a message that is cut": lambda peer: peer.sendall(b"\0\0\x07\0\1\0\0\0\1\0\0\0\0\x20\n\x7f"),
}


def told(root_dir: Path, answer: Callable[[socket.socket], object]) -> object:
    """The labels of a pod if this is what the engine sends."""
    (root_dir / "store/cri").mkdir(parents=True)
    (root_dir / "store/cri/containerd").write_text(f"{root_dir}/sock\n")
    with hung(root_dir / "sock") as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer, suppress(OSError):  # nobody reads to the end
                peer.recv(65536)
                answer(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        labels = learned(root_dir / "store", WEB).labels
        thread.join()
    return labels


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_answer_leaves_the_labels_unknown(root_dir: Path, answer: Callable[[socket.socket], object]) -> None:
    assert told(root_dir, answer) is None


@pytest.mark.parametrize(
    ("size", "frame", "is_read"),
    [(1 << 20, 16384, True), (1 << 20, 16385, False), (5 << 20, 16384, False)],
    ids=["within the limits", "a frame that is too large", "an answer that is too large"],
)
def test_an_answer_is_read_up_to_a_limit(root_dir: Path, size: int, frame: int, is_read: bool) -> None:
    message = MESSAGES["PodSandboxStatusResponse"]()
    message.status.metadata.uid, message.status.metadata.namespace = UID, NAMESPACE
    message.status.labels["tier"] = "w" * size
    content = bytes(message.SerializeToString())
    body = b"\0" + len(content).to_bytes(4, "big") + content
    parts = [body[at : at + frame] for at in range(0, len(body), frame)]
    sent = [len(part).to_bytes(3, "big") + b"\0\0\0\0\0\1" + part for part in parts]
    end = b"\0\0\0\0\1\0\0\0\1"
    labels = told(root_dir, lambda peer: peer.sendall(b"".join(sent) + end))
    assert labels == {"tier": "w" * size} if is_read else labels is None


def test_a_late_answer_is_told_from_none(root_dir: Path) -> None:
    (root_dir / "store/cri").mkdir(parents=True)
    (root_dir / "store/cri/containerd").write_text(f"{root_dir}/sock\n")
    identity = Identity("containerd", True, namespace=NAMESPACE, uid=UID)
    assert asked(str(root_dir / "store"), POD, SANDBOX, identity, seconds=0.01) is None  # nobody listens
    with hung(root_dir / "sock"), pytest.raises(TimeoutError):
        asked(str(root_dir / "store"), POD, SANDBOX, identity, seconds=0.01)
    assert asked(str(root_dir / "nowhere"), POD, SANDBOX, identity, seconds=0.01) is None


def test_an_answer_without_end_is_not_kept(root_dir: Path) -> None:
    """It would never be late, since there is always more of it to read."""
    (root_dir / "store/cri").mkdir(parents=True)
    (root_dir / "store/cri/containerd").write_text(f"{root_dir}/sock\n")
    frame, sent = b"\0\x40\0\0\0\0\0\0\1" + bytes(0x4000), []  # DATA of the largest size
    with hung(root_dir / "sock") as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer, contextlib.suppress(OSError):
                for _ in range(400):
                    peer.sendall(frame)
                    sent.append(frame)

        thread = threading.Thread(target=serve)
        thread.start()
        assert (
            asked(
                str(root_dir / "store"),
                POD,
                SANDBOX,
                Identity("containerd", True, namespace=NAMESPACE, uid=UID),
                seconds=60,
            )
            is None
        )
        thread.join()
    assert len(sent) < 400
