"""Dashboard and alert rules: they use metrics and labels that exist, and Prometheus' own tool accepts them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from hook.ops.metrics.prometheus import Metrics
from unit.support import ROOT, policy

MONITORING = ROOT / "packaging" / "monitoring"
PROMTOOL = ROOT / "build/promtool"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())

OF_SCRAPES = {"instance", "job", "le"}
OF_OTHERS = {"kube_node_info", "node_uname_info", "node_textfile_mtime_seconds", "up"}
"""Metrics of kube-state-metrics, node_exporter and Prometheus, which the alerts join with."""

WORDS = {"by", "on", "and", "or", "unless", "group_left", "sum", "count", "rate", "increase", "delta", "time", "vector"}
WORDS |= {"histogram_quantile", "label_replace"}


def expressions(name: str) -> list[str]:
    """Every PromQL expression in a file."""
    if name.endswith(".json"):
        return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    text = (MONITORING / name).read_text()
    return [rule["expr"] for group in YAML(typ="safe").load(text)["groups"] for rule in group["rules"]]


def declared() -> dict[str, set[str]]:
    """Every sample's name with its labels, from the definitions."""
    metrics = Metrics()
    found = {}
    for metric in metrics.metrics.values():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(metric._type, [""])
        found.update({metric._name + suffix: {*metric._labelnames, *OF_SCRAPES} for suffix in suffixes})
    assert {family.name for family in metrics.registry.collect()} <= {
        re.sub("_(total|bucket|sum|count)$", "", n) for n in found
    }
    return found


def unknown(expression: str) -> set[str]:
    """The metrics and labels of an expression that do not exist."""
    known = declared()
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', "", expression)
    grouped = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare) for label in group.split(", ") if label}
    metrics = set(re.findall(r"\b[a-z_][a-z0-9_]*\b", bare)) - WORDS - grouped
    found = metrics - known.keys() - OF_OTHERS or ({"no metric"} if not metrics else set())
    for metric, selector in re.findall(r"\b(reassert_\w+)\{([^}]*)\}", expression):
        found |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) - known.get(metric, set())
    if metrics <= known.keys():
        found |= grouped - set().union(*(known[metric] for metric in metrics))
    return found


def test_every_metric_and_label_exists() -> None:
    every = [*expressions("alerts.yaml"), *expressions("dashboard.json")]
    assert {expression: missing for expression in every if (missing := unknown(expression))} == {}


def test_every_metric_is_in_the_dashboard_or_in_an_alert() -> None:
    """Or it is a count that only its rate in another panel would repeat."""
    text = " ".join([*expressions("dashboard.json"), *expressions("alerts.yaml")])
    unused = {name for name in declared() if name not in text and not name.endswith(("_sum", "_count"))}
    assert unused == {
        "reassert_probes_total",
        "reassert_nri_connections_total",
        "reassert_policy_loaded_timestamp_seconds",
        "reassert_ca_certificates",
        "reassert_ca_expired_certificates",
    }


def test_every_variable_of_a_panel_is_defined() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    used = {name for each in expressions("dashboard.json") for name in re.findall(r"\$\{?(\w+)", each)}
    assert used - {"__rate_interval"} <= variables.keys()
    for variable in variables.values():
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]  # every query matches
            assert label in declared()[metric]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = {label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")}
            assert labels <= kept


# -- Prometheus' own tool


def promtool(*arguments: str, where: Path = MONITORING, text: str = "") -> str:
    done = subprocess.run([PROMTOOL, *arguments], cwd=where, capture_output=True, text=True, timeout=120, input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.promtool
def test_promtool_accepts_the_alerts_and_their_unit_tests_pass() -> None:
    assert "20 rules found" in promtool("check", "rules", "alerts.yaml")
    names = [path.name for path in sorted(MONITORING.glob("*.test.yaml"))]
    promtool("test", "rules", *names)
    tested = {name for file in names for name in re.findall(r"alertname: (\w+)", (MONITORING / file).read_text())}
    rules = YAML(typ="safe").load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert tested == {rule["alert"] for rule in rules}


@pytest.mark.promtool
def test_promtool_has_nothing_against_the_metrics() -> None:
    """Also what node_exporter reads from the textfile."""
    metrics = Metrics()
    metrics.started("runtime", "adjusted", "cold", "absent")
    metrics.edit('a "rule"\\\n', "env", "applied", "runtime")
    metrics.set_all("verify_exit_status", {"containerd": 0})
    metrics.authorities({"/ca.pem": [1.0, 9e9]}, 5.0)
    assert promtool("check", "metrics", text=metrics.text().decode()) == ""


def use(metrics: Metrics) -> None:
    """A minute of a node, in which everything happens that is counted or measured."""
    metrics.started("runtime", "adjusted", "cold", "absent")
    metrics.unchanged("hook", False)
    metrics.unchanged("hook", True)
    metrics.executed("warm", "")
    metrics.container("refused", 0.0003)
    metrics.edit("ca", "env", "applied", "runtime")
    metrics.refusal("gpu", "audited")
    metrics.drift("ca", "mount")
    for name in ("drifted_containers", "unseen_containers", "lost_events"):
        metrics.set(name, 1)
    metrics.error("decision")
    metrics.connected(True)
    metrics.policy(policy(mode="Audit"), 5.0)
    metrics.set("policy_compiled_timestamp_seconds", 5.0)
    metrics.answer("cold", "size", 0.0003)
    metrics.dropped()
    metrics.set_all("verify_exit_status", {"containerd": 1})
    metrics.set_all("verify_timestamp_seconds", {"containerd": 5})
    metrics.authorities({"/ca.pem": [1.0, 9e9]}, 5.0)
    metrics.set_all("stale_containers", {"/ca.pem": 1})


def samples(metrics: Metrics) -> dict[str, float]:
    """What a scrape of node n1 gives Prometheus."""
    lines = [line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {re.sub(r"[{]|$", '{instance="n1",', name, count=1).rstrip("}") + "}": float(value) for name, value in lines}


def test_a_minute_in_which_everything_happens_leaves_no_metric_at_zero() -> None:
    metrics = Metrics()
    use(metrics)
    counted: dict[str, float] = {}
    for name, value in samples(metrics).items():
        family = name.partition("{")[0]
        counted[family] = max(counted.get(family, 0.0), value)
    assert len(counted) > 20
    assert [family for family, value in counted.items() if not value] == ["reassert_policy_held_back"]


@pytest.mark.promtool
def test_every_panel_of_the_dashboard_shows_what_a_node_exports(tmp_path: Path) -> None:
    """promtool evaluates each query as Prometheus does, with the samples of two scrapes and their difference since."""
    metrics = Metrics()
    use(metrics)
    first = samples(metrics)
    use(metrics)
    series = [
        {"series": name, "values": f"{first[name]}+{value - first[name]}x30"}
        for name, value in samples(metrics).items()
        if name in first and "_created" not in name
    ]
    plain = [
        each.replace("$__rate_interval", "5m").replace("$instance", "n.").replace("$adapter", ".*")
        for each in expressions("dashboard.json")
    ]
    queries = [
        {"expr": f"count({each}) > bool 0", "eval_time": "20m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for each in plain
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": queries}
    (tmp_path / "test.json").write_text(json.dumps({"tests": [test]}))
    promtool("test", "rules", "test.json", where=tmp_path)
