"""The rows of tests/innocents."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).resolve().parents[2] / "innocents"

EXCLUDED = "kube-system"
"""What the default policy and docs/policy.md's example exclude."""


@dataclass(frozen=True)
class Row:
    """One agent, as tests/innocents/README.md says what each field means."""

    name: str
    source: str
    topic: str
    id: str = ""
    engine: str = "containerd"
    namespace: str = ""
    static: bool = False
    hostNetwork: bool = False  # noqa: N815  # Kubernetes' spelling
    hostPID: bool = False  # noqa: N815  # likewise
    hostIPC: bool = False  # noqa: N815  # likewise
    securityContext: dict[str, Any] = field(default_factory=dict)  # noqa: N815  # likewise
    annotations: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    automountServiceAccountToken: bool = True  # noqa: N815  # likewise
    volumes: list[dict[str, Any]] = field(default_factory=list)
    emptyDirs: list[str] = field(default_factory=list)  # noqa: N815  # likewise
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def repository(self) -> str:
        """OWNER/NAME of the source, at GitHub or GitLab."""
        return self.source.partition(" ")[0]

    @property
    def url(self) -> str:
        """The project's page."""
        return f"https://{'gitlab' if self.repository.startswith('gitlab') else 'github'}.com/{self.repository}"

    @property
    def is_pod(self) -> bool:
        """Whether kubelet starts it."""
        return self.engine == "containerd"

    def where(self) -> list[str]:
        """The namespaces that it is tried in: its own, and one that no policy excludes."""
        return [self.namespace, "agents"] if self.namespace == EXCLUDED and not self.static else [self.namespace]


@cache
def rows() -> dict[str, Row]:
    """Every row, by its name."""
    found = {}
    for path in sorted(DATA.glob("*.yaml")):
        for given in yaml.safe_load(path.read_text()):
            row = Row(topic=path.stem, **given)
            assert row.name not in found, f"{path}: {row.name} stands twice"
            found[row.name] = row
    return found
