"""openreports.py: what a NodeEnforcement says as results of OpenReports. On a real API server: tests/cluster."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from unit.kubernetes.chart import KUBERNETES

NOW = 1769860800.0  # 2026-01-31T12:00:00Z
GOOD: dict[str, Any] = {
    "lookedAt": "2026-01-31T11:55:00Z",
    "state": "Enforcing",
    "policy": {"wanted": {"sha256": "a"}, "inForce": {"sha256": "a", "mode": "Enforce"}},
    "handlers": {"wired": 2, "notWired": 0, "notKnown": 0},
    "verify": {"result": "Protected"},
    "containers": {"drifted": 0, "unknown": 0},
    "lastDay": {"refusals": 0, "overrides": 0},
}


def program() -> ModuleType:
    """The Deployment's program; its client is imported only when it runs."""
    spec = importlib.util.spec_from_file_location("openreports", KUBERNETES / "openreports/openreports.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["openreports"] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


OPENREPORTS = program()


def results(status: dict[str, Any]) -> dict[str, str]:
    return {one["rule"]: one["result"] for one in OPENREPORTS.results(status, NOW)}


def test_a_node_that_is_well_passes_everything() -> None:
    assert set(results(GOOD).values()) == {"pass"}
    assert len(results(GOOD)) <= OPENREPORTS.MOST == 20


@pytest.mark.parametrize(
    ("change", "rule", "result"),
    [
        ({"state": "NotReady", "message": "NOT WIRED"}, "state", "fail"),
        ({"state": "NothingToVerify"}, "state", "warn"),
        ({"policy": {"wanted": {"sha256": "b"}, "inForce": {"sha256": "a", "mode": "Mixed"}}}, "policy", "fail"),
        ({"policy": {"wanted": {"sha256": "a"}, "inForce": {"sha256": "a", "mode": "Mixed"}}}, "mode", "warn"),
        ({"handlers": {"wired": 1, "notWired": 1, "notKnown": 0}}, "handlers", "fail"),
        ({"handlers": {"wired": 0, "notWired": 0, "notKnown": 1}}, "handlers", "error"),
        ({"verify": {"result": "NotProtected"}}, "verify", "fail"),
        ({"containers": {"drifted": 1, "unknown": 0}}, "drift", "fail"),
        ({"containers": {"drifted": 0, "unknown": 2}}, "unknown", "warn"),
        ({"lastDay": {"refusals": 3, "overrides": 0}}, "refusals", "warn"),
        ({"lastDay": {"refusals": 0, "overrides": 4}}, "overrides", "warn"),
    ],
)
def test_one_thing_that_is_wrong_is_one_result(change: dict[str, Any], rule: str, result: str) -> None:
    found = results({**GOOD, **change})
    assert found.pop(rule) == result
    assert set(found.values()) <= {"pass", "warn" if change.get("policy") else "pass"}


def test_what_nobody_looked_at_is_an_error_and_no_pass() -> None:
    found = results({"lookedAt": GOOD["lookedAt"], "state": "Enforcing"})
    assert [rule for rule, result in found.items() if result == "pass"] == ["looked-at", "state"]
    assert results({**GOOD, "lookedAt": "2026-01-31T11:00:00Z"}) == {"looked-at": "error"}
    assert results({}) == {"looked-at": "error"}


class Api:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.refused = 0

    def patch_cluster_custom_object(self, *about: Any, **options: object) -> None:
        """See kubernetes.client.CustomObjectsApi."""
        assert options["_content_type"] == "application/apply-patch+yaml"
        if self.refused:
            error = RuntimeError("refused")
            error.status = self.refused  # type: ignore[attr-defined]  # as ApiException has it
            raise error
        self.written.append(about[-1])


def node(status: dict[str, Any]) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}
    return {"metadata": {"name": "n1", "ownerReferences": [owner]}, "status": status}


def test_a_report_is_written_when_a_result_changes() -> None:
    api = Api()
    reporter = OPENREPORTS.Reporter(api)
    reporter.see(node(GOOD), NOW)
    reporter.see(node({**GOOD, "lookedAt": "2026-01-31T11:59:00Z"}), NOW + 60)
    reporter.see(node({**GOOD, "state": "NotReady"}), NOW + 120)
    reporter.age(NOW + 130)
    reporter.age(NOW + 9000)
    first, second, last = api.written
    assert first["scope"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}
    assert first["summary"] == {"pass": 10, "fail": 0, "warn": 0, "error": 0, "skip": 0}
    assert second["summary"]["fail"] == 1
    assert {one["rule"]: one["timestamp"]["seconds"] - NOW for one in second["results"]} == {
        one["rule"]: 120 if one["rule"] == "state" else 0 for one in first["results"]
    }
    assert last["summary"] == {"pass": 0, "fail": 0, "warn": 0, "error": 1, "skip": 0}
    again = OPENREPORTS.Reporter(api)  # a new process
    assert again.learn(second) == "n1"
    again.see(node({**GOOD, "state": "NotReady"}), NOW + 200)
    assert len(api.written) == 3


def test_a_report_that_is_refused_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """It is tried again at the next sight of the node; what every report would meet ends the round."""
    api = Api()
    reporter = OPENREPORTS.Reporter(api)
    api.refused = 422
    reporter.see(node(GOOD), NOW)
    assert capsys.readouterr().err == '{"node": "n1", "error": "refused"}\n'
    reporter.age(NOW + 9000)
    api.refused = 403
    with pytest.raises(RuntimeError):
        reporter.see(node(GOOD), NOW)
    api.refused = 0
    reporter.see(node(GOOD), NOW)
    assert len(api.written) == 1


def test_a_report_without_a_time_is_written_again() -> None:
    api = Api()
    OPENREPORTS.Reporter(api).see(node(GOOD), NOW)
    del api.written[0]["results"][3]["timestamp"]
    again = OPENREPORTS.Reporter(api)
    assert again.learn(api.written[0]) == "n1"
    again.see(node(GOOD), NOW + 60)
    assert {one["timestamp"]["seconds"] for one in api.written[1]["results"]} == {NOW + 60}


def test_its_requirements_are_pinned_and_name_no_index() -> None:
    text = (KUBERNETES / "openreports/requirements.txt").read_text()
    pins = re.findall(r"^(\S+)==\S+.* \\$", text, re.MULTILINE)
    assert "kubernetes" in pins
    assert len(pins) == len(re.findall(r"^[a-z]", text, re.MULTILINE))
    assert "://" not in text
