"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.bundle import Bundle
from harness.node import POLICY, Node
from harness.paths import BUSYBOX, REASSERT, RUNTIMES
from harness.tools import remove_tree, scratch

from e2e.runtimes import EACH, EXHAUSTIVE, WAYS, real_runtime, usual

pytest.register_assert_rewrite("e2e.hostile_mounts", "e2e.node.dumped")  # a failure there shows both sides too


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All of them need the frozen program and engines. Of all combinations with a runtime there are the usual ones.

    With REASSERT_EXHAUSTIVE=1, or if a test is chosen by its name, there are all of them. Nothing is skipped for a
    missing tool: tests/run.sh installs them. What is missing fails, by name.
    """
    here = Path(__file__).parent
    ours = [item for item in items if item.path.is_relative_to(here)]
    for item in ours:
        item.add_marker("frozen")
        item.add_marker("engine")
    needed = [*RUNTIMES.values(), BUSYBOX, str(REASSERT)]
    missing = [tool for tool in needed if not os.access(tool, os.X_OK)]
    if missing and ours and not config.getoption("fast"):
        pytest.exit(f"missing for the end-to-end tests: {', '.join(missing)}; run tests/run.sh", returncode=3)
    chosen = config.option.keyword or any("::" in argument for argument in config.args)
    if not chosen and not config.getoption("fast") and not EXHAUSTIVE:
        kept = usual(items)
        staying = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in staying])
        items[:] = kept


@pytest.fixture
def node() -> Iterator[Node]:
    """A test node with the default test policy."""
    directory = scratch()
    yield Node(directory)
    remove_tree(directory)


@pytest.fixture(scope="module")
def module_node() -> Iterator[Node]:
    """A test node for a whole module, with a compiled policy."""
    directory = scratch()
    node = Node(directory)
    node.compile()
    yield node
    remove_tree(directory)


@pytest.fixture
def compiled_node(module_node: Node) -> Iterator[Node]:
    """The module's node, for each test with the default test policy and an empty event log."""
    usual = module_node.policy.read_text()
    yield module_node
    module_node.events.unlink(missing_ok=True)
    if module_node.policy.read_text() != usual:
        module_node.compile(POLICY)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A temporary directory that only root can write to."""
    path = scratch()
    yield path
    remove_tree(path)


@pytest.fixture
def bundle(directory: Path) -> Bundle:
    """A new OCI bundle whose container sleeps, at a path of containerd's CRI plugin."""
    return Bundle(directory / "k8s.io" / "bundle")


@pytest.fixture(params=sorted(RUNTIMES))
def real(request: pytest.FixtureRequest) -> str:
    """Path of each real OCI runtime in turn."""
    return RUNTIMES[request.param]


@pytest.fixture(params=EACH)
def each(request: pytest.FixtureRequest, node: Node) -> str:
    """Path of each real OCI runtime and of the newer Debians' in turn."""
    return real_runtime(request.param, node.directory)


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest, node: Node) -> tuple[str, str]:
    """Path of a real runtime, and an adapter in front of it."""
    name, adapter = request.param
    return real_runtime(name, node.directory), adapter


@pytest.fixture(params=[(name, adapter) for name in EACH for adapter in ("wrapper", "createRuntime")], ids="-".join)
def pair(request: pytest.FixtureRequest, node: Node) -> tuple[str, str]:
    """Path of a real runtime, and an adapter that sees what a container reaches: the wrapper, or the hook."""
    name, adapter = request.param
    return real_runtime(name, node.directory), adapter


@pytest.fixture
def runtime(node: Node, real: str) -> str:
    """Path of a `reassert-runc` in front of each real runtime in turn."""
    node.compile()
    return node.dispatcher(real)
