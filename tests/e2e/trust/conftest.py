"""A trust store that `reassert trust build` made, servers that the company and an attacker signed, and an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.bundle import Bundle
from harness.paths import REASSERT
from harness.tools import remove_tree, run, scratch

from e2e.trust.authorities import Authority, serving
from e2e.trust.images import lay_out


@dataclass
class Company:
    """`store`: the trust store, with the company's CA. `attacker`: a CA that only images and pods bring."""

    directory: Path
    store: Path
    authority: Authority
    attacker: Authority
    ports: dict[str, int]

    def build(self, *authorities: Authority) -> None:
        """Build the store with other CAs."""
        pems = [str(authority.pem) for authority in authorities]
        run(str(REASSERT), "trust", "build", "--add", *pems, "--out", str(self.store), "--allow-removal")

    def policy(self, trust: str = "", more: str = "") -> str:
        """A policy with one rule that has `trust`, with more fields in it, and more fields of the rule."""
        head = "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - name: company-ca\n"
        return f"{head}    trust: {{bundle: {self.store}{trust}}}\n{more}"


@pytest.fixture(scope="module")
def company() -> Iterator[Company]:
    """The store of a whole module."""
    directory = scratch()
    authority, attacker = Authority(directory, "company"), Authority(directory, "attacker")
    with serving(authority) as port, serving(attacker) as other:
        made = Company(directory, directory / "trust", authority, attacker, {"company": port, "attacker": other})
        made.build(authority)
        yield made
    remove_tree(directory)


@pytest.fixture
def image(bundle: Bundle, company: Company) -> Iterator[Callable[[str], Bundle]]:
    """Makes the bundle's root one of a distribution, whose own files hold the attacker's CA. The network is the node's.

    Call it once.
    """

    def made(layout: str) -> Bundle:
        lay_out(bundle, layout, company.attacker.pem)
        linux = bundle.spec["linux"]
        linux["namespaces"] = [space for space in linux["namespaces"] if space["type"] != "network"]
        bundle.spec["process"]["env"] = ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        bundle.bind(company.directory, "/servers", "ro")
        bundle.save()
        return bundle

    yield made
    run("umount", str(bundle.rootfs), check=False)
