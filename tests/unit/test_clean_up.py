"""What an engine answers while a test cleans up fails no test: it is asked again, and what stays is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from e2e.cri.client import Container, Pod
from harness import tools


class Closed(grpc.RpcError):
    """What a shim answers that goes away."""

    def details(self) -> str:
        return "ttrpc: closed"


class Engine:
    """Answers its first `errors` calls with an error."""

    def __init__(self, errors: int) -> None:
        self.errors = errors
        self.calls: list[str] = []
        self.runtime = self

    def __getattr__(self, name: str) -> Any:
        def call(request: object, timeout: int) -> None:
            self.calls.append(name)
            if len(self.calls) <= self.errors:
                raise Closed

        return call


@pytest.mark.parametrize(
    ("made", "calls"),
    [
        (lambda engine: Pod(engine, "p", SimpleNamespace()), ["StopPodSandbox"] * 3 + ["RemovePodSandbox"]),
        (lambda engine: Container(engine, "c", Path("/")), ["StopContainer"] * 3 + ["RemoveContainer"]),
    ],
)
def test_an_engine_is_asked_again(made: Any, calls: list[str], recwarn: pytest.WarningsRecorder) -> None:
    engine = Engine(errors=2)
    made(engine).remove()
    assert engine.calls == calls
    assert not recwarn.list


def test_what_cannot_be_removed_is_said_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "CLEAN_UP_SECONDS", 0.0)
    with pytest.warns(UserWarning, match="pod p could not be removed: ttrpc: closed"):
        Pod(Engine(errors=1000), "p", SimpleNamespace()).remove()  # type: ignore[arg-type]  # no CRI


def test_a_directory_that_is_written_to_is_removed_once_it_is_not(tmp_path: Path) -> None:
    """EBUSY or ENOTEMPTY of a mount, or of a process that is still ending."""
    attempts = []

    def remove() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError(39, "Directory not empty")

    assert tools.cleaned(str(tmp_path), remove)
    assert len(attempts) == 3
