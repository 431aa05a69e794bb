"""Dashboard and alert rules: they use metrics and labels that exist, and Prometheus' own tool accepts them."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import marks
import pytest
from ruamel.yaml import YAML

from hook.ops.metrics.prometheus import Metrics
from unit.kubernetes.chart import KUBERNETES, load
from unit.ops.metrics.support import samples
from unit.support import ROOT, policy

pytestmark = marks.promise(
    "Metrics count starts of every adapter; dashboard and alerts use metrics that exist, and one silent node "
    "is an alert"
)

MONITORING = ROOT / "packaging" / "monitoring"
PROMTOOL = ROOT / "build/promtool"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
FLEET: dict[str, Any] = json.loads((MONITORING / "fleet.json").read_text())

OF_SCRAPES = {"instance", "job", "le"}
OF_OTHERS = {"kube_node_info", "node_uname_info", "node_textfile_mtime_seconds", "up"}
"""Metrics of kube-state-metrics, node_exporter and Prometheus, which the alerts join with."""

WORDS = {"by", "on", "and", "or", "unless", "group_left", "sum", "count", "rate", "increase", "delta", "time", "vector"}
WORDS |= {"histogram_quantile", "label_replace", "topk", "count_values"}


def expressions(name: str) -> list[str]:
    """Every PromQL expression in a file."""
    if name.endswith(".json"):
        panels = (FLEET if name == "fleet.json" else DASHBOARD)["panels"]
        return [target["expr"] for panel in panels for target in panel["targets"]]
    text = (MONITORING / name).read_text()
    return [rule["expr"] for group in YAML(typ="safe").load(text)["groups"] for rule in group["rules"]]


@cache
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


@cache
def of_fleet() -> dict[str, set[str]]:
    """The metrics of the NodeEnforcements, and their labels, as kube-state-metrics makes them of its configuration."""
    (resource,) = YAML(typ="safe").load((MONITORING / "kube-state-metrics.yaml").read_text())["spec"]["resources"]
    found = {}
    for metric in resource["metrics"]:
        (of_type,) = [content for name, content in metric["each"].items() if name != "type"]
        labels = {*resource["labelsFromPath"], *of_type.get("labelsFromPath", {})}
        found[f"{resource['metricNamePrefix']}_{metric['name']}"] = labels
    return found


def unknown(expression: str) -> set[str]:
    """The metrics and labels of an expression that do not exist."""
    known = declared() | of_fleet()
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
    every = [each for name in ("alerts.yaml", "dashboard.json", "fleet.json") for each in expressions(name)]
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


def test_every_metric_of_the_fleet_is_shown_and_is_a_field_of_the_definition() -> None:
    text = " ".join([*expressions("fleet.json"), *expressions("alerts.yaml")])
    assert [name for name in of_fleet() if name not in text] == []
    (spec,) = load((KUBERNETES / "chart/files/nodeenforcements.yaml").read_text())
    schema = spec["versions"][0]["schema"]["openAPIV3Schema"]

    def field(schema: Any, path: list[str]) -> Any:
        for name in path:
            schema = schema.get("items", schema)["properties"][name]
        return schema

    (resource,) = load((MONITORING / "kube-state-metrics.yaml").read_text())[0]["spec"]["resources"]
    assert resource["groupVersionKind"]["group"] == spec["group"]
    for metric in resource["metrics"]:
        of_type = metric["each"][metric["each"]["type"].lower()]
        at = field(schema, of_type["path"])
        assert all(field(at, path)["type"] == "string" for path in of_type.get("labelsFromPath", {}).values())
        if metric["each"]["type"] == "Gauge":
            value = field(at, of_type.get("valueFrom", []))
            assert value["type"] == "integer" or value["format"] == "date-time"


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
    done = subprocess.run([PROMTOOL, *arguments], cwd=where, capture_output=True, text=True, timeout=600, input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.promtool
def test_promtool_accepts_the_alerts_and_their_unit_tests_pass() -> None:
    groups = YAML(typ="safe").load((MONITORING / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert f"{len(rules)} rules found" in promtool("check", "rules", "alerts.yaml")
    names = [path.name for path in sorted(MONITORING.glob("*.test.yaml"))]
    promtool("test", "rules", *names)
    tested = {name for file in names for name in re.findall(r"alertname: (\w+)", (MONITORING / file).read_text())}
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


def of_node(metrics: Metrics) -> dict[str, float]:
    """What a scrape of node n1 gives Prometheus."""
    named = {re.sub(r"[{]|$", '{instance="n1",', name, count=1): value for name, value in samples(metrics).items()}
    return {name.rstrip("}") + "}": value for name, value in named.items()}


def show(directory: Path, series: list[dict[str, str]], queries: list[str], at: str) -> None:
    """promtool evaluates each query as Prometheus does, at this time: it has samples that are not 0."""
    tests = [
        {"expr": f"count({each}) > bool 0", "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]}
        for each in queries
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    (directory / "test.json").write_text(json.dumps({"tests": [test]}))
    promtool("test", "rules", "test.json", where=directory)


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
    """With the samples of two scrapes and their difference since."""
    metrics = Metrics()
    use(metrics)
    first = of_node(metrics)
    use(metrics)
    now = of_node(metrics)
    series = [{"series": name, "values": f"{first[name]}+{now[name] - first[name]}x30"} for name in first]
    plain = [
        each.replace("$__rate_interval", "5m").replace("$instance", "n.").replace("$adapter", ".*")
        for each in expressions("dashboard.json")
    ]
    show(tmp_path, series, plain, "20m")


@pytest.mark.promtool
def test_every_panel_of_the_fleet_shows_something(tmp_path: Path) -> None:
    """Of two nodes, of which one has every problem."""
    values = {"verify_timestamp_seconds": 1, "looked_timestamp_seconds": 1}
    series = []
    for name, labels in of_fleet().items():
        value = values.get(name.removeprefix("reassert_node_"), 3)
        for node in ("n1", "n2"):
            selector = ", ".join(f'{label}="{node}"' for label in sorted(labels))
            series.append({"series": f"{name}{{{selector}}}", "values": f"{value}x60"})
    series += [{"series": 'kube_node_info{node="n3"}', "values": "1x60"}]
    show(tmp_path, series, expressions("fleet.json"), "50m")
