"""What must come of a row: it starts, corrected, and keeps what it needs; or it is refused, as the row says."""

from __future__ import annotations

import re

from harness.paths import TOP

from e2e.innocents.containers import HOSTILE, Tried
from e2e.innocents.node import InnocentNode
from e2e.innocents.rows import EXCLUDED, Row

DEFAULT = (TOP / "config/policy.yaml").read_text().replace("  mode: Audit\n", "  mode: Enforce\n")
"""The default policy, after the only edit that it asks for."""

[EXAMPLE] = re.findall(r"```yaml\n(apiVersion: reassert/v1\n.*?)```", (TOP / "docs/policy.md").read_text(), re.DOTALL)
"""The policy at the top of docs/policy.md."""


def judge(row: Row, tried: Tried, namespace: str) -> None:
    """The container started and did its work, or it was refused where its row says so, with a way out."""
    if row.refused and namespace != EXCLUDED:
        assert not tried.started, f"it starts: its exception is to go\n{tried.output}"
        [reason] = tried.reasons()[:1]
        assert "of reassert" in reason
        return
    assert tried.started, tried.output
    assert tried.said == ["innocent begins"], tried.output
    assert "KEPT=by the image" in tried.env
    if namespace == EXCLUDED:
        assert "PYTHONHTTPSVERIFY=0" in tried.env, "the policy excludes the namespace"
    else:
        assert not [entry for entry in tried.env if entry.startswith("PYTHONHTTPSVERIFY=")]


def corrected(node: InnocentNode, row: Row, tried: Tried) -> None:
    """The container has what docs/policy.md's example reserves: the company's CA, and no GPU that was not allocated."""
    env = dict(entry.partition("=")[::2] for entry in tried.env)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env["REQUESTS_CA_BUNDLE"] != HOSTILE["REQUESTS_CA_BUNDLE"]
    assert node.company in tried.authorities, tried.output
