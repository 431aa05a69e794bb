"""`reassert node verify` against real containerds: what it says of handlers that are wired, and of those that are not."""

from __future__ import annotations

import json

import pytest

from e2e.conftest import RUNTIMES
from e2e.cri.conftest import CRI_POLICY
from e2e.cri.node import Containerd
from e2e.probe.conftest import Verify

WIDE = CRI_POLICY + "  - {name: proxies, env: [{name: '*_PROXY', absent: true}]}\n"
DENY = WIDE.replace("- name: company-ca\n", "- name: company-ca\n    onConflict: Deny\n")


def test_wired_handlers_are_protected(verify: Verify, containerd: Containerd) -> None:
    verified = verify(*RUNTIMES, policy=WIDE)
    assert verified.status == 0, verified
    for finding in verified.findings.values():
        assert finding["result"] == "protected"
        assert finding["saw"] == ["put back: 4 env, 2 mounts"]
        assert finding["exec"] == "protected"
    assert verified.report["protected"] is True
    assert containerd.pods() == []
