"""Fixtures of the tests of `reassert trust`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.ops.trust.build import Built, Sources, build
from unit.ops.trust.authority import Made, bundle, ca, roots


class TrustStore:
    """A directory with system roots, sources and a trust store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.system = directory / "system.pem"
        self.system.write_bytes(bundle(*roots()))
        self.sources = directory / "trust.d"
        self.sources.mkdir()
        self.store = directory / "store"
        self.live = self.store / "live"

    def add(self, name: str, *made: Made) -> str:
        """A source with these certificates."""
        path = self.sources / name
        path.write_bytes(bundle(*made))
        return str(path)

    def build(self, allow_removal: bool = False) -> Built:
        """Build of all that is there."""
        return build(str(self.store), Sources([str(self.sources)], str(self.system), allow_removal=allow_removal))

    def files(self) -> dict[str, bytes]:
        """The live files."""
        return {str(path.relative_to(self.live)): path.read_bytes() for path in self.live.rglob("*") if path.is_file()}


@pytest.fixture
def trust(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path)


@pytest.fixture
def built(trust: TrustStore) -> TrustStore:
    """With a first generation."""
    trust.add("company.pem", ca("Company CA"))
    trust.build()
    return trust
