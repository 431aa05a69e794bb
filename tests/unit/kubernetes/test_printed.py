"""The values that pages give to Helm: README, and each page with a command of Helm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import marks
import pytest
import yaml

from unit.kubernetes.chart import Object, helm, objects
from unit.support import ROOT

COMMAND = re.compile(r"^    (helm (?:install|upgrade) \S+ packaging/(?:.*\\\n)*.*)$", re.MULTILINE)


def printed() -> Iterator[tuple[Path, str]]:
    """Each command of Helm with the chart of this repository, and its page."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for command in COMMAND.findall(page.read_text()):
            yield page, command.replace("\\\n", " ").replace("…", "")


def values(command: str) -> Object:
    """What `--set` and `--set-file` in a command make of the chart's values. The file is config/policy.yaml."""
    given: Object = {}
    words = shlex.split(command)
    for option, word in pairwise(words):
        if option not in ("--set", "--set-file"):
            continue
        path, _, text = word.partition("=")
        value: Any = (ROOT / "config/policy.yaml").read_text() if option == "--set-file" else yaml.safe_load(text) or ""
        into = given
        for part in path.split(".")[:-1]:
            into = into.setdefault(part, {})
        into[path.split(".")[-1]] = value
    return given


@marks.promise(
    "Every value that a page gives to Helm is one of the chart's, with what the page says", about="Packages and cluster"
)
@pytest.mark.parametrize(("page", "command"), [*printed()])
def test_helm_takes_the_values_of_a_page(page: Path, command: str) -> None:
    given = values(command)
    helm()
    found = objects(given)
    [policy] = {each["data"]["policy.yaml"] for each in found if "policy.yaml" in each.get("data", {})}
    preset = given.get("policy", {}).get("preset")
    assert ("mode: Audit" in policy) or not preset, f"{page}: a preset is in Audit mode"


def test_pages_have_such_commands() -> None:
    assert {page.name for page, _ in printed()} >= {"README.md", "kubernetes.md", "devices.md", "trust.md"}
