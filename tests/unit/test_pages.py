"""The documentation: generated parts are up to date, names of the code are right, and no link is dead."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.compile import in_force
from hook.compile.check import schema
from hook.core import events
from hook.core import report as core_report
from hook.core.decide import Case
from hook.core.reserve.edits import Edit, Reason
from hook.core.verdict import CONFIG, Verdict
from hook.nri import report
from hook.ops.metrics import prometheus
from unit.support import ROOT, WithPolicy, container, policy

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
    for top, kept in (("deb", "](packages.md)"), ("archive", "](docs/node.md)")):
        pages = sorted((tmp_path / top).rglob("*.md"))
        assert {"README.md", "policy.md", "SECURITY.md"} <= {page.name for page in pages}
        assert [link for page in pages for link in dead_links(page, tmp_path / top)] == []
        assert kept in (tmp_path / top / "README.md").read_text(), "links between pages stay"


@pytest.mark.slow
def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/pages.py"), "--check"], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_marks_have_the_words_that_pages_know() -> None:
    """That each hole, promise and guard has a test, and its data once, tests/pages.py looks."""
    calls = [call for path in (ROOT / "tests").rglob("test_*.py") for call in marked(path, "hole")]
    assert len(calls) > 100
    for call in calls:
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        assert given.get("severity", "high") in ("high", "medium", "low"), ast.unparse(call)
        assert given.get("found", "review") in ("review", "fuzz", "user"), ast.unparse(call)
        if given:
            assert all(VERSION.fullmatch(given[name]) for name in ("since", "fixed")), ast.unparse(call)
            assert given["since"] <= given["fixed"], ast.unparse(call)
    assert {cve.here for cve in marks.CVES.values()} == {"guarded", "unaffected", "the engine's"}
    numbers = [number for cve in marks.CVES for number in re.findall(r"CVE-\d{4}-\d+", cve)]
    assert len(numbers) == len(set(numbers))


def marked(path: Path, mark: str) -> Iterator[ast.Call]:
    """The calls of `marks.MARK` in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"marks.{mark}":
            yield node


def test_no_page_has_marks_of_a_merge() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
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
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages - listed == {"README.md"}


def test_the_page_on_stability_names_the_version_of_policies() -> None:
    page = (ROOT / "docs/project/stability.md").read_text()
    assert re.findall(r"apiVersion: ([^`\s]+)", page) == [schema()["properties"]["apiVersion"]["const"]]


# -- docs/events.md


EVENTS, _, OPERATION = (ROOT / "docs/events.md").read_text().partition("\n## The operation log\n")
_TABLE = EVENTS.partition("## Fields of an event")[2].partition("\n## ")[0]
FIELDS = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", _TABLE, re.MULTILINE)))
"""Of an event about a container."""

MAY_QUOTE = {
    *("edits", "denials", "errors", "loses", "remountable", "nodePaths", "madeReadOnly", "wouldMakeReadOnly"),
    *("claims", "warning", "truncated"),
}
"""The fields in which there may be what a pod's author wrote. Of the first three a bug report has some members."""


def lines_of_the_operation_log() -> set[str]:
    """The first argument of each call that logs a line: of a function of oplog, also one that was chosen before."""
    found = set()
    for path in (ROOT / "hook").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            called, name = ast.unparse(node.func), node.args[0].value
            is_log = "oplog." in called or called == "log" or path.name == "oplog.py"
            if is_log and isinstance(name, str) and re.fullmatch(r"[a-z]+\.[a-z-]+", name):
                found.add(name)
    return found


def test_every_line_of_the_operation_log_is_described() -> None:
    """With what it means, and what to do."""
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \|$", OPERATION, re.MULTILINE)
    described = {name for names, _, _ in rows for name in re.findall(r"`([a-z]+\.[a-z-]+)`", names)}
    told_as_events = {report.CONNECTED, report.DISCONNECTED, report.VIOLATION, report.RELIEVED}
    assert lines_of_the_operation_log() | told_as_events == described


def test_every_event_is_described() -> None:
    kinds = {events.EDITED, events.DENIED, events.WOULD_DENY, events.ERROR, events.HELD, events.REMOUNTABLE}
    kinds |= {events.NODE_PATHS, events.INEXACT, events.DRIFTED, in_force.LOADED}
    kinds |= {report.CONNECTED, report.DISCONNECTED, report.VIOLATION, report.RELIEVED}
    source = "".join(path.read_text() for path in (ROOT / "hook").rglob("*.py"))
    kinds |= set(re.findall(r'"((?:agent|handler)\.\w+)"', source)) - lines_of_the_operation_log()
    described = re.findall(r"^\| `((?:container|policy|nri|agent|handler)\.[\w-]+)` \|", EVENTS, re.MULTILINE)
    assert kinds == set(described)
    changes = {f"node.{what}" for what in ("install", "upgrade", "uninstall", "purge", "problem", "solved")}
    assert changes == set(re.findall(r"`(node\.\w+)`", EVENTS))


def test_every_field_of_an_event_is_described() -> None:
    node = policy({"name": "a", "env": [{"name": "A", "value": "1"}], "onConflict": "Deny"})
    case = Case(WithPolicy(node), "0a")
    target = container(["A=2"])
    decided = case.decide(target.identity, target.start)
    event = case.event(decided, Verdict(CONFIG, [Reason("a", "", "late")])) or {}
    described = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", EVENTS, re.MULTILINE))))
    written = {**event, "probe": True, "warning": "", "truncated": [], "omitted": {}, "nodePaths": []}
    assert written.keys() - described == set()
    for entry in (*event["edits"], *event["denials"]):  # type: ignore[misc]  # events are plain objects
        assert set(entry) - set(re.findall(r"`(\w+)`", EVENTS)) == set()
    source = "".join(path.read_text() for path in (ROOT / "hook").rglob("*.py"))
    assert [field for field in FIELDS if f'"{field}"' not in source and f"{field}=" not in source] == []
    assert len(FIELDS) > 20


def test_of_every_field_of_an_event_it_is_known_whether_a_bug_report_may_have_it() -> None:
    assert {*core_report.HARMLESS} ^ {*FIELDS} == MAY_QUOTE
    assert {*core_report.HARMLESS} & MAY_QUOTE == set()


def kinds_of_edits(base: type[Edit] = Edit) -> set[str]:
    """What can be reserved and corrected: the kinds of the edits of each step of plan()."""
    ours = [each for each in base.__subclasses__() if each.__module__.startswith("hook.")]  # not those of other tests
    return {kind for each in ours for kind in (each.kind, *kinds_of_edits(each)) if kind}


def test_every_kind_is_named_where_edits_are_described() -> None:
    [page] = re.findall(r"An edit has `rule`.*?, `kind` \((.*?)\)", EVENTS, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", page)) == kinds_of_edits()
    [of_metrics] = [text for metric, text in prometheus._METRICS if metric.startswith("counter edits ")]
    [listed] = re.findall(r"; kind: (.*?);", of_metrics)
    assert set(re.split(r", | or ", listed)) == kinds_of_edits()


# -- docs/internals/architecture.md, and the README.md of each directory of hook/

GUIDES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs/internals/architecture.md",
    *sorted((ROOT / "hook").rglob("README.md")),
]


def test_what_a_guide_names_is_there() -> None:
    """Paths count from the repository, hook/, tests/ or the page. NAME and KIND stand for what is added there."""
    assert [f"{page.relative_to(ROOT)}: {name}" for page in GUIDES for name in sorted(named_and_missing(page))] == []


def named_and_missing(page: Path) -> set[str]:
    """What a page names and nothing is: a file, or a member of a class."""
    named = set(re.findall(r"(?<![\w/.-])[\w/-]+\.(?:py|sh)\b|[\w/]+/schema\.json", prose(page).replace("\\_", "_")))
    tops = (ROOT, ROOT / "hook", ROOT / "hook/core", ROOT / "tests", page.parent)
    real = {re.sub(r"/\w*(NAME|KIND)\.py", "", name) for name in named}
    missing = {name for name in real if not any((top / name).exists() for top in tops)}
    code = "".join(path.read_text() for path in (ROOT / "hook").rglob("*.py"))
    for owner, name in re.findall(r"`([A-Z]+[a-z]\w*)\.([a-z]\w*)", prose(page)):
        if not re.search(rf"^class {owner}\b(?:(?!^class )[\s\S])*?(?:def |self\.|^    ){name}\b", code, re.MULTILINE):
            missing.add(f"{owner}.{name}")
    return missing
