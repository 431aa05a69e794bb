"""The pictures of docs/ that tests/pictures.py draws."""

from __future__ import annotations

import re
from xml.etree import ElementTree  # our own file

import pictures
import pytest
from bench import chart

NUMBERS = (pictures.RollOut(pictures.default_setting()), pictures.RollOut("1"))


@pytest.mark.parametrize("path", pictures.PICTURES)
def test_a_picture_is_what_would_be_drawn(path: str) -> None:
    there = (pictures.ROOT / path).read_text()
    assert there == pictures.PICTURES[path](), "run tests/pictures.py"
    root = ElementTree.fromstring(there)
    assert [root[0].text != "", root[1].text != ""] == [True, True], "a title and a description"
    assert "prefers-color-scheme: dark" in there
    pages = [page for page in (pictures.ROOT / "docs").rglob("*.md") if path.rpartition("/")[2] in page.read_text()]
    assert pages, "a page shows it"


def test_the_costs_are_those_of_the_page() -> None:
    costs = pictures.costs_in((pictures.ROOT / "docs/project/performance.md").read_text())
    assert len(costs) == 5
    there = (pictures.ROOT / "docs/project/start-cost.svg").read_text()
    assert all(f">+{value:g}</text>" in there for values in costs.values() for value in values)


def test_a_run_draws_its_own_percentiles() -> None:
    walls = {"runc": range(1, 101), "reassert": range(101, 201), "nvidia": range(51, 151), "before": range(1, 101)}
    rows = [
        {"case": chart.CASE, "contender": name, "rounds": 100, "samples": [(wall, 0.1) for wall in values]}
        for name, values in walls.items()
    ]
    machine = {"date": "2026-01-31", "cpus": 2, "kernel": "6.1", "runc": "runc version 1.1.5", "load": [7, 1, 1]}
    picture = chart.drawn({"machine": machine, "rows": rows})
    labels = [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    measured = [label for label in labels if label and label.endswith(" ms")]
    assert measured == ["50 ms", "99 ms", "150 ms", "199 ms", "100 ms", "149 ms"]
    assert {"runc", "reassert, cold", "nvidia-container-runtime"} <= set(labels)
    assert "Measured 2026-01-31 on 2 CPUs, Linux 6.1; load 7" in labels


def test_the_boundaries_are_those_of_the_table() -> None:
    listed = pictures.boundaries_in((pictures.ROOT / "docs/security.md").read_text())
    assert [line.split()[0] for line in listed] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("file", ["values.yaml", "templates/NOTES.txt"])
def test_the_chart_says_how_long_500_nodes_take(file: str) -> None:
    text = (pictures.ROOT / "packaging/kubernetes/chart" / file).read_text().replace("\n  # ", " ")
    told = r"about (\d+) s[:,] (?:so )?500 nodes take (\d+) minutes with (\d+%), and ([\d.]+) hours with (\d)"
    [said] = re.findall(told, text)
    default, one = NUMBERS
    minutes, hours = default.told().removesuffix(" min"), one.told().removesuffix(" h")
    assert said == (str(pictures.NODE_SECONDS), minutes, default.setting, hours, one.setting)


def test_the_page_has_the_same_times() -> None:
    page = (pictures.ROOT / "docs/kubernetes.md").read_text()
    assert f"Computed from {pictures.NODE_SECONDS} s for a node" in page
    for each in (*NUMBERS, pictures.RollOut("25%")):
        [row] = re.findall(rf"^\| {each.setting}[^|]*\|[^|]*\| ([^|]+) \|", page, re.MULTILINE)
        assert row == each.told()
