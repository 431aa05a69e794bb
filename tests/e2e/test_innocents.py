"""Every agent of tests/innocents starts under the default policy and docs/policy.md's, corrected, and can work."""

from __future__ import annotations

from collections.abc import Iterator

import marks
import pytest
from harness.paths import RUNTIMES
from harness.tools import scratch

from e2e.innocents import containers, nri
from e2e.innocents.containers import Tried
from e2e.innocents.node import InnocentNode
from e2e.innocents.rows import EXCLUDED, Row, rows
from e2e.innocents.verdict import DEFAULT, EXAMPLE, corrected, judge
from e2e.runtimes import EXHAUSTIVE

pytestmark = marks.promise(
    "An agent of [tests/innocents](innocents/README.md) starts under the default policy in Enforce mode and "
    "under the policy at the top of docs/policy.md, corrected, and can read and write what it needs, or that page says "
    "why not",
    about="Trials",
)

TURNS = {name: [*RUNTIMES][number % 2] for number, name in enumerate(rows())}
"""The runtime of a row where it has only one."""

OTHER = {name: next(runtime for runtime in RUNTIMES if runtime != turn) for name, turn in TURNS.items()}
"""The other one, under the other policy: each row starts with both."""

DEFAULTS = [(runtime, name) for name in rows() for runtime in RUNTIMES if EXHAUSTIVE or runtime == TURNS[name]]

COLD = [name for number, name in enumerate(rows()) if EXHAUSTIVE or number % 10 == 0]
"""Rows that start without the agent too: the same functions decide, so a tenth is enough."""

EXCEPTED = DEFAULT.replace("  rules:\n", "  nodePaths: {except: {namespaces: ['*']}}\n  rules:\n", 1)

REFUSED = [name for name, row in rows().items() if row.refused]

POD_ROWS = [name for name, row in rows().items() if row.is_pod]


@pytest.fixture(scope="module")
def innocent_node() -> Iterator[InnocentNode]:
    """The node of all rows."""
    node = InnocentNode(scratch())
    try:
        node.build_trust()
        node.set_policy(DEFAULT)
        node.start_agent()
        yield node
    finally:
        node.close()


def started(node: InnocentNode, row: Row, namespace: str, runtime: str) -> Tried:
    """The row behind the wrapper."""
    containers.prepare(node, row)
    return containers.start(node, row, runtime, containers.spec(row, namespace))


@pytest.mark.parametrize(("runtime", "name"), DEFAULTS)
def test_starts_under_the_default_policy(innocent_node: InnocentNode, runtime: str, name: str) -> None:
    innocent_node.set_policy(DEFAULT)
    for namespace in rows()[name].where():
        for _ in range(10):
            tried = started(innocent_node, rows()[name], namespace, innocent_node.wrapper(runtime))
            if all(event.get("cold") != "long" for event in tried.events):
                break  # else a loaded machine made the agent late: front waits one second
        judge(rows()[name], tried, namespace)
        assert {event.get("cold", "mount") for event in tried.events} <= {"mount"}, "the agent did not answer"


@pytest.mark.parametrize("name", COLD)
def test_starts_without_the_agent(innocent_node: InnocentNode, name: str) -> None:
    innocent_node.set_policy(DEFAULT)
    namespace = rows()[name].where()[-1]
    wrapper = innocent_node.wrapper(TURNS[name], cold=True)
    judge(rows()[name], started(innocent_node, rows()[name], namespace, wrapper), namespace)


@pytest.mark.parametrize("name", REFUSED)
def test_starts_where_the_administrator_excepts_its_namespace(innocent_node: InnocentNode, name: str) -> None:
    """The way out that each refusal names: the volumes stay, and the rules hold."""
    innocent_node.set_policy(EXCEPTED)
    row = rows()[name]
    namespace = row.where()[-1]
    containers.prepare(innocent_node, row)
    config = containers.spec(row, namespace)
    config["process"]["args"][-1] = containers.script(row, excluded=True)
    tried = containers.start(innocent_node, row, innocent_node.wrapper(TURNS[name]), config)
    assert tried.said == ["innocent begins"], tried.output
    assert not [entry for entry in tried.env if entry.startswith("PYTHONHTTPSVERIFY=")]


@pytest.mark.parametrize("name", rows())
def test_starts_under_the_policy_of_readme(innocent_node: InnocentNode, name: str) -> None:
    innocent_node.set_policy(EXAMPLE)
    row, namespace = rows()[name], rows()[name].where()[-1]
    tried = started(innocent_node, row, namespace, innocent_node.wrapper(OTHER[name]))
    judge(row, tried, namespace)
    if tried.started and namespace != EXCLUDED:
        corrected(innocent_node, row, tried)


@pytest.mark.parametrize("name", POD_ROWS)
def test_starts_with_the_nri_plugin_and_the_hook(innocent_node: InnocentNode, name: str) -> None:
    """The plugin answers over its socket; the hook, as its second line, looks at what the runtime made of it."""
    innocent_node.set_policy(EXAMPLE)
    row, namespace = rows()[name], rows()[name].where()[-1]
    containers.prepare(innocent_node, row)
    config = containers.spec(row, namespace)
    if namespace != EXCLUDED:  # NRI refuses a name that has to be absent, instead of removing it
        nri.use_base_spec(config["process"])
    refusal, config = nri.adjusted(innocent_node, row, namespace, config)
    if refusal:
        assert row.refused, refusal
        assert "of reassert" in refusal
        return
    tried = containers.start(innocent_node, row, RUNTIMES[TURNS[name]], config)
    judge(row, tried, namespace)
    if tried.started and namespace != EXCLUDED:
        corrected(innocent_node, row, tried)
