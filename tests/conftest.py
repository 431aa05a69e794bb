"""For all tests: what a test needs of the machine, what `--fast` leaves out for it, and what runs beside what."""

from __future__ import annotations

import gc
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

# Before anything imports grpc, whose library restarts its threads in each forked child otherwise. What a child closes
# of its parent's descriptors then ends it by abort(3).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import machine
import pytest
from harness.paths import REASSERT
from hypothesis import settings

BROWSER = "chromium-headless-shell"
PROMTOOL = Path(__file__).resolve().parents[1] / "build/promtool"
ENGINES = ("/usr/sbin/runc", "/usr/bin/crun", "/bin/busybox")


def several_users() -> bool:
    """Whether files and processes can be given to other users: as the machine's root, not as a user namespace's."""
    mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return os.geteuid() == 0 and mapped > 1


NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "root": ("to be root; root of a user namespace is enough", lambda: os.geteuid() == 0),
    "users": ("files and processes of several users: the machine's own root", several_users),
    "openat2": ("openat2(2)", machine.has_openat2),
    "userns": ("user namespaces of ordinary users", machine.users_make_namespaces),
    "native": ("no emulator, which /proc would show and which takes CPU time", machine.is_native),
    "peerpidfd": (
        "a kernel that tells of the end of a socket's peer: SO_PEERPIDFD, Linux 6.5",
        machine.tells_ends_of_peers,
    ),
    "traced": ("processes that can be traced: ptrace(2)", machine.traces),
    "slow": ("time: it takes seconds of CPU for what it proves", lambda: True),
    "frozen": ("the frozen program (packaging/build.sh)", lambda: os.access(REASSERT, os.X_OK)),
    "browser": ("a browser: chromium-headless-shell", lambda: shutil.which(BROWSER) is not None),
    "zsh": ("zsh", lambda: shutil.which("zsh") is not None),
    "fish": ("fish", lambda: shutil.which("fish") is not None),
    "promtool": ("promtool (tests/tool.sh)", lambda: os.access(PROMTOOL, os.X_OK)),
    "engine": ("real runtimes and engines", lambda: all(os.access(tool, os.X_OK) for tool in ENGINES)),
}
"""Markers: what a test needs of the machine, in words, and the probe for it."""

NEVER_FAST = ("slow", "frozen", "engine")
"""What `--fast` does without, though it may be there."""

NAMED = re.compile(rf"\bmark\.({'|'.join(name for name in NEEDS if name != 'root')})\b")
"""In the text of a file that has tests which `--fast` may leave out, whoever runs it."""

SUITES = ("bookworm", "trixie", "forky", "sid", "1.6", "1.7", "2.1")
"""Parameters with which a test has another node or another containerd."""

SLOWEST_FIRST = (
    "tests/e2e/packaging/test_core",
    "tests/e2e/agent/test_killed",
    "tests/e2e/cri",
    "tests/e2e/test_innocents",
    "tests/e2e/test_trial_is_enforcement",
    "tests/e2e/test_mounts",
    "tests/reality/",
    "tests/e2e/kubernetes/",
    "tests/e2e/nri",
    "tests/e2e/packaging/test_deb",
    "tests/e2e/node/test_agent_service",
    "tests/e2e/node/test_docker",
    "tests/e2e/node/test_containerd",
    "tests/e2e/node/",
    "tests/e2e/packaging/",
    "tests/e2e/agent/",
    "tests/e2e/sandboxes/",
    "tests/fuzz/",
    "tests/e2e/test_hostile_pod",
    "tests/unit/test_growth",
    "tests/e2e/trust/",
    "tests/e2e/",
    "tests/unit/test_simulator",
    "",
)
"""In which order groups of tests begin: the last one to begin is to be a short one."""

LEFT_OUT = pytest.StashKey[Counter[tuple[str, ...]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fast`, as tests/run.sh passes it."""
    text = "leave out what needs a frozen program, an engine, or what this machine lacks; try fewer examples"
    parser.addoption("--fast", action="store_true", help=text)
    parser.addoption("--rest", action="store_true", help="leave out what --fast runs, whoever runs it")


def pytest_configure(config: pytest.Config) -> None:
    """The markers, and how many examples a property is tried with (unit.support.examples)."""
    gc.disable()  # until the tests are collected: what that makes stays
    for name, (words, _) in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: needs {words}")
    for name in ("claim", "promise", "hole", "cve"):
        config.addinivalue_line("markers", f"{name}: what the test holds (tests/marks.py)")
    settings.register_profile("whole", deadline=None, derandomize=True)
    settings.register_profile("fast", deadline=None, derandomize=True, max_examples=20)
    settings.register_profile("explore", deadline=None, max_examples=300, print_blob=True)
    usual = "fast" if config.getoption("fast") and os.environ.get("CI") != "true" else "whole"
    settings.load_profile("explore" if os.environ.get("REASSERT_EXPLORE") else usual)  # tests/lab/explore.sh
    config.stash[LEFT_OUT] = Counter()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--rest`: a file of unit tests that `--fast` all runs. Each worker would import it for nothing."""
    is_unit = collection_path.is_relative_to(Path(__file__).parent / "unit") and collection_path.name[:5] == "test_"
    return True if config.getoption("rest") and is_unit and not NAMED.search(collection_path.read_text()) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--fast`: deselect what cannot run, and count it. Else what the machine lacks is skipped, see below."""
    if not config.getoption("fast"):
        items.sort(key=lambda item: _turn(item.nodeid))
        if config.getoption("rest"):  # tests/rootless.sh gives everybody the root of a user namespace
            tried = {item for item in items if item.nodeid.startswith("tests/unit/") and set(needed(item)) <= {"root"}}
            config.hook.pytest_deselected(items=list(tried))
            items[:] = [item for item in items if item not in tried]
        return
    there = {name for name, (_, probe) in NEEDS.items() if name not in NEVER_FAST and probe()}
    kept, left = [], []
    for item in items:
        lacking = tuple(name for name in needed(item) if name not in there)
        (left if lacking else kept).append(item)
        if lacking:
            config.stash[LEFT_OUT][lacking] += 1
        rest = item.nodeid.startswith("tests/unit/") and not set(needed(item)) <= {"root"}
        if rest and not NAMED.search(item.path.read_text()):
            raise pytest.UsageError(f"{item.nodeid}: --rest looks for the words `mark.NAME` in the file of such a test")
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def needed(item: pytest.Item) -> list[str]:
    """What a test needs: its markers, and root for a directory that only root writes or a machine of its own."""
    found = {marker.name for marker in item.iter_markers()}
    if {"root_dir", "machine"} & set(getattr(item, "fixturenames", ())):
        found.add("root")
    return [name for name in NEEDS if name in found]


def _turn(test: str) -> int:
    return next(turn for turn, start in enumerate(SLOWEST_FIRST) if test.startswith(start))


def group_of(test: str) -> str:
    """Tests of one group run one after the other in one process, so they have one booted node or one containerd.

    That is a file's tests with one suite of Debian; of tests/e2e/cri and tests/e2e/nri all files' with one containerd.
    The files about the Debian package share two packages. The targets of tests/fuzz have nothing in common.
    """
    file, _, name = test.partition("::")
    parameters = name.partition("[")[2].rstrip("]").split("-")
    suite = next((parameter for parameter in parameters if parameter in SUITES), "")
    shared = re.match("tests/e2e/(cri|nri)/", file)
    packages = file.startswith("tests/e2e/packaging/test_deb")
    if file.startswith("tests/fuzz/"):
        suite = parameters[0]
    return "tests/e2e/packaging/test_deb" if packages else f"{shared[0] if shared and suite else file} {suite}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist=loadscope` with the groups above."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector look at what tests make, not at the 6,000 tests again and again."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs something that this machine lacks, by its name."""
    for name in needed(item):
        words, probe = NEEDS[name]
        if not probe():
            pytest.skip(f"needs {words}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI (CI=true) a skip for something that the machine lacks is a failure."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped in CI: {call.excinfo and call.excinfo.value}"
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist hands its counts over: all of them collect the same."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = [[list(lacking), count] for lacking, count in session.config.stash[LEFT_OUT].items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over a worker's counts."""
    for lacking, count in getattr(node, "workeroutput", {}).get("left_out", []):
        node.config.stash[LEFT_OUT][tuple(lacking)] = count


def parts(reports: list[pytest.TestReport]) -> list[str]:
    """How long each group of tests took, longest first, and how long each worker had nothing to do at the end."""
    seconds: Counter[str] = Counter()
    ends: dict[str, float] = {}
    for report in reports:
        file = report.nodeid.partition("::")[0]
        seconds["/".join(file.split("/")[:3] if file.startswith("tests/e2e/") else file.split("/")[:2])] += (
            report.duration
        )
        worker = getattr(report, "worker_id", "")
        ends[worker] = max(ends.get(worker, 0.0), report.stop)
    lines = [f"{took:5.0f} s  {group}" for group, took in seconds.most_common()]
    last = max(ends.values(), default=0.0)
    return [
        *lines,
        *(f"{last - end:5.0f} s  {worker} idle at the end" for worker, end in sorted(ends.items()) if worker),
    ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """How long groups of tests took, with `--durations`; what `--fast` left out, and which command runs that."""
    if config.getoption("durations"):
        terminalreporter.section("seconds of a worker, by group")
        given = [report for kept in terminalreporter.stats.values() for report in kept]
        for line in parts([report for report in given if isinstance(report, pytest.TestReport)]):
            terminalreporter.line(line)
    if not config.getoption("fast"):
        return
    counts = config.stash[LEFT_OUT]
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.section("left out by --fast")
    for lacking, count in counts.most_common():
        terminalreporter.line(f"{count:5} tests need " + " and ".join(NEEDS[name][0] for name in lacking))
    if skipped:
        terminalreporter.line(f"{skipped:5} tests were skipped for what is named above")
    terminalreporter.line(
        "All tests of tests/e2e and tests/reality need the frozen program and real runtimes and engines."
    )
    terminalreporter.line(
        "Without CI=true, properties have a fifth of their examples. All tests and examples: sudo tests/run.sh"
    )
