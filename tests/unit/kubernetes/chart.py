"""The chart, rendered by Helm's own library."""

from __future__ import annotations

import json
import platform
from functools import cache
from typing import Any

from harness.tools import need
from ruamel.yaml import YAML

from unit.support import ROOT

KUBERNETES = ROOT / "packaging" / "kubernetes"
CHART = KUBERNETES / "chart"
NAMESPACE = "kube-system"
IMAGE = {"image": {"repository": "registry.example/reassert"}}

Object = dict[str, Any]


def helm() -> Any:
    """The library's module; there is one for x86-64 only."""
    need(platform.machine() == "x86_64", "Helm's library for this processor (helm-python-sdk)")
    import helm_python

    helm_python.disable_logging()
    return helm_python


def load(text: str) -> list[Any]:
    """The documents of a YAML file."""
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document is not None]


def text(values: Object | None = None, namespace: str = NAMESPACE, name: str = "reassert") -> dict[str, str]:
    """What `helm template` makes of the chart, by template. Raises helm_python.HelmError."""
    with helm().Chart.load(CHART) as chart:
        rendered = chart.render({**IMAGE, **(values or {})}, name=name, namespace=namespace)
    return {path.removeprefix("reassert/templates/"): content for path, content in rendered.items()}


def objects(values: Object | None = None, **release: str) -> list[Object]:
    """Every object of a release."""
    made: list[Object] = json.loads(_objects(json.dumps(values), **release))
    return made


@cache
def _objects(values: str, **release: str) -> str:
    """The same in JSON. Several tests look at one release, and to parse its YAML takes longer than to render it."""
    rendered = text(json.loads(values), **release)
    return json.dumps([each for path, content in rendered.items() if path != "NOTES.txt" for each in load(content)])


def find(found: list[Object], kind: str, name: str = "") -> Object:
    """The only object of a kind, or the one of this name."""
    (only,) = [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return only


def is_hook(each: Object) -> bool:
    """Whether it is there only while Helm deletes the release."""
    return "helm.sh/hook" in each["metadata"].get("annotations", {})
