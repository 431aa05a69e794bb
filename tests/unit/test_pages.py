"""The documentation: generated parts are up to date, names of the code are right, and no link is dead."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.core import events
from hook.core.decide import CONFIG, Case, Done
from hook.core.policy import compiler
from hook.core.policy.check import schema
from hook.core.reserve import Reason
from hook.nri import report
from hook.ops.audit import drift
from unit.support import ROOT, container, policy

HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
VERSION = re.compile(r"\d\.\d\.\d")
HTML = re.compile(r"<!--.*?-->", re.DOTALL)


def packaged() -> Any:
    """packaging/deb/docs.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("deb_docs", ROOT / "packaging/deb/docs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return HTML.sub("", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL))


def anchors(path: Path) -> set[str]:
    """What `#` can name in a page, as GitHub makes it of headings."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(path)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def dead_links(page: Path, top: Path) -> Iterator[str]:
    """Links of a page to a file that is not there, out of `top`, or to a heading that the file does not have."""
    for target in LINK.findall(prose(page)):
        name, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or not path.is_relative_to(top) or (anchor and anchor not in anchors(path)):
            yield f"{page.relative_to(top)}: {target}"


PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "tests/*.md", "tests/*/*.md", "packaging/**/*.md", "tests/fixtures/**/*.md")
    for path in ROOT.glob(pattern)
)


def test_no_link_is_dead() -> None:
    assert [link for page in PAGES for link in dead_links(page, ROOT)] == []


def test_no_link_is_dead_in_the_debian_package_and_in_the_archive_of_a_release(tmp_path: Path) -> None:
    """They have no sources and no tests."""
    packaged().main(tmp_path / "deb")
    assert (tmp_path / "deb/examples/alerts.yaml").is_file()
    for directory in ("docs", "config", "packaging/monitoring", "packaging/systemd", "packaging/kubernetes/chart"):
        shutil.copytree(ROOT / directory, tmp_path / "archive" / directory)
    for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "install.sh"):
        shutil.copy(ROOT / name, tmp_path / "archive")
    packaged().without_dead_links(tmp_path / "archive")
    for top, kept in (("deb", "](debian.md)"), ("archive", "](docs/node.md)")):
        pages = sorted((tmp_path / top).rglob("*.md"))
        assert {"README.md", "policy.md", "SECURITY.md"} <= {page.name for page in pages}
        assert [link for page in pages for link in dead_links(page, tmp_path / top)] == []
        assert kept in (tmp_path / top / "README.md").read_text(), "links between pages stay"


@pytest.mark.slow
def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/pages.py"), "--check"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_hole_is_tried_by_a_test() -> None:
    """That these tests exist, tests/pages.py looks."""
    holes = tomllib.loads((ROOT / "tests/track-record.toml").read_text())["hole"]
    assert [hole["gave"] for hole in holes if not hole["tests"]] == []
    assert len({hole["gave"] for hole in holes}) == len(holes)
    for hole in holes:
        assert hole.keys() - {"command"} == {"gave", "introduced", "found", "fixed", "tests"}, hole
        assert hole["found"] in ("review", "fuzz", "user"), hole
        assert all(VERSION.fullmatch(hole[name]) for name in ("introduced", "fixed")), hole
        assert hole["introduced"] <= hole["fixed"], hole
    fixed = [hole["fixed"] for hole in holes]
    assert fixed == sorted(fixed)


def test_no_page_has_marks_of_a_merge() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    assert [page.name for page in pages if re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE)] == []


def test_workflows_run_actions_of_a_known_commit_with_no_more_rights_than_they_need() -> None:
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", workflow.read_text())
        assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action)] == []
        assert "\npermissions:\n  contents: read\n" in workflow.read_text()
        keeps = "with: {persist-credentials: false}"  # tests of a pull request could read the token
        assert len([action for action in used if "/checkout@" in action]) == workflow.read_text().count(keeps)


def test_every_page_is_in_the_index() -> None:
    listed = set(LINK.findall((ROOT / "docs/README.md").read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - listed == {"README.md"}


def test_the_page_on_stability_names_the_version_of_policies() -> None:
    page = (ROOT / "docs/stability.md").read_text()
    assert re.findall(r"apiVersion: ([^`\s]+)", page) == [schema()["properties"]["apiVersion"]["const"]]


# -- docs/events.md


EVENTS = (ROOT / "docs/events.md").read_text()


def test_every_event_is_described() -> None:
    kinds = {events.EDITED, events.DENIED, events.WOULD_DENY, events.ERROR, events.HELD, events.REMOUNTABLE}
    kinds |= {events.NODE_PATHS, events.INEXACT, drift.EVENT, compiler.LOADED}
    kinds |= {report.CONNECTED, report.DISCONNECTED, report.VIOLATION, report.RELIEVED}
    source = "".join(path.read_text() for path in (ROOT / "hook").rglob("*.py"))
    kinds |= set(re.findall(r'"((?:agent|handler)\.\w+)"', source))
    described = re.findall(r"^\| `((?:container|policy|nri|agent|handler)\.[\w-]+)` \|", EVENTS, re.MULTILINE)
    assert kinds == set(described)
    changes = {f"node.{what}" for what in ("install", "upgrade", "uninstall", "purge")}
    assert changes == set(re.findall(r"`(node\.\w+)`", EVENTS))


def test_every_field_of_an_event_is_described() -> None:
    node = policy({"name": "a", "env": [{"name": "A", "value": "1"}], "onConflict": "Deny"})
    case = Case("runtime", "0a", lambda: node)
    target = container(["A=2"])
    decided = case.decide(target.identity, target.start)
    event = case.event(decided, Done(CONFIG, [Reason("a", "", "late")])) or {}
    described = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", EVENTS, re.MULTILINE))))
    written = {**event, "probe": True, "warning": "", "truncated": [], "omitted": {}, "nodePaths": []}
    assert written.keys() - described == set()
    for entry in (*event["edits"], *event["denials"]):  # type: ignore[misc]  # events are plain objects
        assert set(entry) - set(re.findall(r"`(\w+)`", EVENTS)) == set()
    source = "".join(path.read_text() for path in (ROOT / "hook").rglob("*.py"))
    table = EVENTS.partition("## Fields of an event")[2].partition("\n## ")[0]
    fields = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert [field for field in fields if f'"{field}"' not in source and f"{field}=" not in source] == []
    assert len(fields) > 20


# -- docs/architecture.md, and the README.md of each directory of hook/

GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "docs/architecture.md", *sorted((ROOT / "hook").rglob("README.md"))]


def test_what_a_guide_names_is_there() -> None:
    """Paths count from the repository, hook/, tests/ or the page. NAME and KIND stand for what is added there."""
    assert [f"{page.relative_to(ROOT)}: {name}" for page in GUIDES for name in sorted(named_and_missing(page))] == []


def named_and_missing(page: Path) -> set[str]:
    """What a page names and nothing is: a file, or a member of a class."""
    named = set(re.findall(r"(?<![\w/.])[\w/]+\.(?:py|sh)\b|[\w/]+/schema\.json", prose(page).replace("\\_", "_")))
    tops = (ROOT, ROOT / "hook", ROOT / "hook/core", ROOT / "tests", page.parent)
    real = {re.sub(r"/\w*(NAME|KIND)\.py", "", name) for name in named}
    missing = {name for name in real if not any((top / name).exists() for top in tops)}
    code = "".join(path.read_text() for path in (ROOT / "hook").rglob("*.py"))
    for owner, name in re.findall(r"`([A-Z]+[a-z]\w*)\.([a-z]\w*)", prose(page)):
        if not re.search(rf"^class {owner}\b(?:(?!^class )[\s\S])*?(?:def |self\.|^    ){name}\b", code, re.MULTILINE):
            missing.add(f"{owner}.{name}")
    return missing
