"""The dashboard and the alert rules use only metrics that the NRI plugin has."""

from __future__ import annotations

import json
import re

import pytest
from ruamel.yaml import YAML

from hook.adapters.nri.metrics import Metrics
from unit.support import ROOT

MONITORING = ROOT / "packaging" / "monitoring"


def expressions(name: str) -> list[str]:
    """Every PromQL expression in a file."""
    text = (MONITORING / name).read_text()
    if name.endswith(".json"):
        return [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    return [rule["expr"] for group in YAML(typ="safe").load(text)["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
def test_every_metric_exists(name: str) -> None:
    declared = set(re.findall(rb"^# TYPE (\w+) ", Metrics().text()[1], re.MULTILINE))
    known = {metric.decode() for metric in declared} | {"reassert_decision_seconds_bucket"}
    asked = {metric for expression in expressions(name) for metric in re.findall(r"\breassert_\w+", expression)}
    assert asked
    assert asked <= known
