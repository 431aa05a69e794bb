"""Dashboard and alert rules: they use metrics and labels that exist, and Prometheus' own tool accepts them."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from hook.ops.metrics.prometheus import Metrics
from unit.support import ROOT, policy

MONITORING = ROOT / "packaging" / "monitoring"
PROMTOOL = ROOT / "build/promtool"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())

OF_SCRAPES = {"instance", "job", "le"}
OF_OTHERS = {"kube_node_info", "node_uname_info", "node_textfile_mtime_seconds", "up"}
"""Metrics of kube-state-metrics, node_exporter and Prometheus, which the alerts join with."""

WORDS = {"by", "on", "and", "or", "unless", "group_left", "sum", "count", "rate", "increase", "time", "vector"}
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
    for metric in vars(metrics).values():
        if hasattr(metric, "_labelnames"):
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(metric._type, [""])
            found.update({metric._name + suffix: {*metric._labelnames, *OF_SCRAPES} for suffix in suffixes})
    assert {family.name for family in metrics.registry.collect()} <= {
        re.sub("_(total|bucket|sum|count)$", "", n) for n in found
    }
    return found


ALL = [
    pytest.param(each, id=f"{name}-{number}")
    for name in ("alerts.yaml", "dashboard.json")
    for number, each in enumerate(expressions(name))
]


@pytest.mark.parametrize("expression", ALL)
def test_every_metric_and_label_exists(expression: str) -> None:
    known = declared()
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', "", expression)
    grouped = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare) for label in group.split(", ") if label}
    metrics = set(re.findall(r"\b[a-z_][a-z0-9_]*\b", bare)) - WORDS - grouped
    assert metrics
    assert metrics <= known.keys() | OF_OTHERS
    for metric, selector in re.findall(r"\b(reassert_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= known[metric]
    ours = metrics - OF_OTHERS
    if ours == metrics:
        assert grouped <= set.union(*(known[metric] for metric in ours))


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


# -- the dashboard's structure


def fields(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """The JSON Schema of an object with these fields and no other."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": [*required],
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
SOURCE = fields({"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}})
STEP = fields({"color": TEXT, "value": {"type": ["number", "null"]}})
DEFAULTS = fields(
    {"unit": {"enum": ["short", "ops", "s"]}},
    thresholds=fields({"mode": {"enum": ["absolute", "percentage"]}, "steps": {"type": "array", "items": STEP}}),
)
TARGET = fields(
    {"refId": TEXT, "datasource": SOURCE, "expr": TEXT, "legendFormat": {"type": "string"}},
    format={"enum": ["time_series", "table", "heatmap"]},
    instant={"type": "boolean"},
)
REDUCE = fields(
    {"calcs": {"type": "array", "items": TEXT}, "fields": {"type": "string"}, "values": {"type": "boolean"}}
)
PANEL = fields(
    {
        "id": COUNT,
        "title": TEXT,
        "type": {"enum": ["stat", "timeseries", "table"]},
        "datasource": SOURCE,
        "gridPos": fields(
            {
                "x": {**COUNT, "maximum": 23},
                "y": COUNT,
                "w": {"type": "integer", "minimum": 1, "maximum": 24},
                "h": {"type": "integer", "minimum": 1},
            }
        ),
        "fieldConfig": fields({"defaults": DEFAULTS, "overrides": {"type": "array", "maxItems": 0}}),
        "targets": {"type": "array", "items": TARGET, "minItems": 1},
    },
    description=TEXT,
    options=fields(
        {
            "reduceOptions": REDUCE,
            "colorMode": {"enum": ["value", "background", "none"]},
            "graphMode": {"enum": ["none", "line", "area"]},
        }
    ),
    transformations={"type": "array", "items": fields({"id": TEXT, "options": {"type": "object"}})},
)
VARIABLE = fields(
    {"name": TEXT, "type": {"enum": ["query", "datasource"]}, "query": TEXT, "label": TEXT},
    datasource=SOURCE,
    refresh={"enum": [0, 1, 2]},
    includeAll={"type": "boolean"},
    multi={"type": "boolean"},
    allValue=TEXT,
    current=fields({"text": TEXT, "value": TEXT}),
)
GRAFANA = fields(
    {
        "title": TEXT,
        "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "version": COUNT,
        "panels": {"type": "array", "items": PANEL},
        "templating": fields({"list": {"type": "array", "items": VARIABLE}}),
        "time": fields({"from": TEXT, "to": TEXT}),
        "refresh": {"type": "string", "pattern": "^[0-9]+[smhd]$"},
    },
    tags={"type": "array", "items": TEXT},
    editable={"type": "boolean"},
    timezone={"enum": ["", "browser", "utc"]},
)
"""The fields that the dashboard has, as Grafana knows them: names and types of kinds/dashboard/dashboard_kind.cue, of
the stat panel's options and of Prometheus' query in github.com/grafana/grafana. Grafana ignores a misspelled field."""


def test_the_dashboard_has_only_fields_that_grafana_knows() -> None:
    validator = Draft202012Validator(GRAFANA)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(DASHBOARD)] == []
    for panel in ("fieldconfig", "gridpos"):
        wrong = json.loads(json.dumps(DASHBOARD))
        wrong["panels"][0][panel] = {}
        assert not validator.is_valid(wrong)


def test_panels_have_what_grafana_needs_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, two in combinations([panel["gridPos"] for panel in panels], 2):
        apart = any(
            first[at] + first[size] <= second[at]
            for first, second in ((one, two), (two, one))
            for at, size in ("xw", "yh")
        )
        assert apart, (one, two)


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
    assert "16 rules found" in promtool("check", "rules", "alerts.yaml")
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
    metrics.verified({"containerd": (1, 0)})
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
    metrics.drifted(1)
    metrics.error("decision")
    metrics.connected(True)
    metrics.policy(policy(mode="Audit"), 5.0)
    metrics.compiled(5.0)
    metrics.answer("cold", "size", 0.0003)
    metrics.dropped()
    metrics.verified({"containerd": (5, 1)})
    metrics.authorities({"/ca.pem": [1.0, 9e9]}, 5.0)
    metrics.stale({"/ca.pem": 1})


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
