"""The program of a release on booted nodes of each Debian: each adapter, and what a hostile pod gets.

tests/lab/release.sh runs this. The program is $REASSERT.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cri.client import CriError
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import FORMATS, containerd_config
from e2e.node.wired import FILES, Wirable, assert_put_back

HANDLERS = ("runc", "crun")


@pytest.fixture(scope="module", params=FORMATS)
def booted(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    config = containerd_config(FORMATS[request.param])
    files = {path: text for path, text in FILES.items() if "nvidia" not in path}
    return module_boot(request.param, config=config, files=files)


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """After every test reassert is taken out, and nothing is different from before."""
    wirable = Wirable(booted, booted.snapshot())
    yield wirable
    wirable.take_out()
    assert wirable.changes() == []


def test_the_wrapper(node: Wirable) -> None:
    node.install()
    assert node.verified() == {"crun": "protected", "runc": "protected"}
    for handler in HANDLERS:
        node.pod_gets(handler)


def test_the_hook_refuses(node: Wirable) -> None:
    node.install("--adapter", "hook", "--no-probe")
    for handler in HANDLERS:
        pod = node.hostile_pod(handler)
        with pytest.raises(CriError, match=r"NVIDIA_VISIBLE_DEVICES|error executing hook"):
            assert_put_back(pod)
        pod.remove()


def test_nri(node: Wirable) -> None:
    if node.booted.suite == "bookworm":  # containerd 1.6
        assert "NRI" in node.refuses("--adapter", "nri")
        return
    node.install("--adapter", "nri")
    for handler in HANDLERS:
        node.pod_gets(handler)
