"""Each engine's row, and what else must know the engine. unit/test_new_engine.py runs this for a new one."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from dataclasses import MISSING, fields
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest

from hook.core.container import identity
from hook.core.facts import cri
from hook.core.reserve.node_paths import ENGINE_PATHS
from hook.node.engines.base import ADAPTERS, Config, Daemon
from hook.node.engines.facts import FACTS, EngineFacts
from unit.support import ROOT

CHART = ROOT / "packaging/kubernetes/chart"
ROWS = pytest.mark.parametrize("row", FACTS.values(), ids=[*FACTS])


def test_a_row_answers_every_question() -> None:
    assert [each.name for each in fields(EngineFacts) if each.default is not MISSING] == []
    assert [name for name, row in FACTS.items() if row.name != name] == []


@ROWS
def test_its_class_has_its_name(row: EngineFacts) -> None:
    module, _, name = row.daemon.partition(":")
    engine = getattr(import_module(module), name)
    assert issubclass(engine, Daemon)
    assert issubclass(engine.config_class, Config)
    assert engine.__abstractmethods__ == engine.config_class.__abstractmethods__ == frozenset()
    assert engine.name == row.name
    assert {*engine.adapters} <= {*ADAPTERS}
    assert engine.service in ("", *row.units)


@ROWS
def test_its_containers_are_known_by_what_the_engine_alone_writes(row: EngineFacts) -> None:
    """hook/core/container/identity.py has the proofs."""
    assert row.containers in (identity.CONTAINERD, identity.CRIO, identity.DOCKER, identity.PODMAN)


@ROWS
def test_no_container_reaches_its_sockets_and_files(row: EngineFacts) -> None:
    """hook/core/reserve/node_paths.py has the list for container starts, which load nothing of node/."""
    assert row.closed
    assert {*row.closed} <= {*ENGINE_PATHS}


def test_two_engines_are_never_taken_for_each_other() -> None:
    for one, other in combinations(FACTS.values(), 2):
        assert one.sign != other.sign
        assert not {*one.units} & {*other.units}
        assert not [part for part in one.endpoints if any(part in each or each in part for each in other.endpoints)]


def test_the_chart_offers_those_that_run_pods() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    [names] = re.findall(r'"engine": (\{"enum": \[[^]]*\]\})', json.dumps(schema))
    assert {*json.loads(names)["enum"]} == {"", *(name for name, row in FACTS.items() if row.runs_pods)}


@ROWS
def test_a_page_says_how_it_is_wired_and_on_what_that_was_tried(row: EngineFacts) -> None:
    sections = [
        section
        for section in (ROOT / "docs/engines.md").read_text().split("\n## ")[1:]
        if row.name in section.partition("\n")[0].lower().replace("-", "").split()
    ]
    assert sections, "docs/engines.md has no section about it"
    assert row.name == "containerd" or "**tried on:**" in sections[0]


@ROWS
def test_its_configurations_from_real_nodes_have_tests(row: EngineFacts) -> None:
    module, _, name = row.daemon.partition(":")
    files = [ROOT / f"tests/unit/node/engines/test_{word}.py" for word in module.split(".")[3:]]
    classes = {name, getattr(import_module(module), name).config_class.__name__}
    assert any(tries(file, classes) for file in files if file.exists()), f"none of {[*map(str, files)]} tries it"


def tries(file: Path, classes: set[str]) -> bool:
    """Whether a file has a test that asserts something, and uses one of the classes."""
    tree = ast.parse(file.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    asserts = any(isinstance(node, ast.Assert) for function in functions for node in ast.walk(function))
    return asserts and any(isinstance(node, ast.Name) and node.id in classes for node in ast.walk(tree))


@ROWS
def test_a_start_knows_the_socket_of_an_engine_that_it_can_ask(row: EngineFacts) -> None:
    """hook.core.facts.cri asks it about a pod's container. dockerd has no CRI: kubelet asks cri-dockerd."""
    module, _, name = row.daemon.partition(":")
    wires = sys.modules[getattr(import_module(module), name).config_class.wire.__module__]
    calls = [node.func for node in ast.walk(ast.parse(inspect.getsource(wires))) if isinstance(node, ast.Call)]
    adds = any(isinstance(call, ast.Attribute) and call.attr == "add_cri" for call in calls)
    assert adds == (row.runs_pods and row.containers in cri.SANDBOX_ID)


def test_what_an_operator_reads_first_names_each_engine() -> None:
    of_pods = [name for name, row in FACTS.items() if row.runs_pods]
    [choice] = re.findall(r'^  engine: "" # (.*?);', (CHART / "values.yaml").read_text(), re.MULTILINE)
    assert {*re.split(", | or ", choice)} == {*of_pods}
    [options] = re.findall(r"--engine ([\w|]+)", (ROOT / "install.sh").read_text())
    assert {*options.split("|")} == {*FACTS}
    for page in ("README.md", "docs/engines.md"):
        table = (ROOT / page).read_text().partition("| | in every test run |")[2].partition("\n\n")[0]
        cells = " ".join(row.split("|")[1] for row in table.splitlines()[2:] if row.startswith("|"))
        assert {*FACTS} - {*re.findall(r"[a-z][a-z0-9]+", cells.lower().replace("-", ""))} == set(), page
