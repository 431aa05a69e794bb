"""An engine is added to a copy of the tree by the recipe of docs/internals/architecture.md: one file and one row.

Every command is run with it, and what was forgotten has a test that names it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.ownmachine import Machine
from unit.support import CONTAINERD, ROOT, config, document

ENGINE = '''
"""toyd: one file with a line for each runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from hook.node import systemd
from hook.node.artifacts.dispatchers import behind, is_wired
from hook.node.change.files import look
from hook.node.engines.base import RUNTIME, Base, Choice, Config, Daemon, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.nodefiles import THIS_NODE, NodeFiles
from hook.node.probe.starter import Starter

CONFIG = "/etc/toy.conf"


@dataclass(frozen=True)
class ToyConfig(Config):
    """/etc/toy.conf."""

    runtimes: dict[str, str]
    node: NodeFiles = THIS_NODE

    @classmethod
    def of(cls, content: bytes) -> Self:
        """The configuration that a file has."""
        return cls(dict(line.split("=", 1) for line in content.decode().split()))

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        return [
            Handler(name, behind(path, self.node), (RUNTIME,) if is_wired(path, self.node) else ())
            for name, path in self.runtimes.items()
        ]

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        wiring = Wiring(files=self.node)
        before = base(CONFIG)
        if before is None:
            raise NodeError(f"{CONFIG} is missing")
        theirs = self.of(before.content).runtimes
        wiring.expected = {name: wiring.add_dispatcher(path, choice) for name, path in theirs.items()}
        text = "".join(f"{name}={path}\\\\n" for name, path in wiring.expected.items())
        wiring.references.append((CONFIG, before.with_content(text.encode())))
        wiring.add_cri(choice.adapters, "toy", "unix:///run/toy.sock")
        return wiring


class Toy(Daemon[ToyConfig]):
    """The toyd of this node."""

    name = "toy"
    adapters = (RUNTIME,)
    config_class = ToyConfig

    def __init__(self, version: str) -> None:
        self.title = f"toyd {version}"

    @classmethod
    def find(cls) -> Self:
        return cls(".".join(map(str, systemd.version_of("toyd", (1, 0)))))

    def read(self) -> ToyConfig:
        state = look(CONFIG)
        return ToyConfig.of(state.content if state else b"")

    def check(self, config: ToyConfig, wiring: Wiring) -> None:
        if wiring.expected not in (None, config.runtimes):
            raise NodeError(f"toyd reads {config.runtimes}")

    def running(self) -> bool:
        return True

    def restart(self) -> None:
        pass

    def starter(self, config: ToyConfig) -> Starter:
        raise NodeError("toyd starts no test containers")
'''

ROW = """
        EngineFacts(
            name="toy",
            daemon="hook.node.engines.toy:Toy",
            sign="toyd",
            units=(),
            endpoints=("toy.sock",),
            brings_kubelet=False,
            containers=CONTAINERD,
            runs_pods=True,
            unknown=("images",),
            traces=Traces(states=("/run/toy",), bundles=(), names=("/var/lib/toy/*.json",)),
            seen={"/run/toy.sock": "toyd's socket"},
            closed=("/run/toy.sock/", "/etc/toy.conf/"),
        ),
"""

BEFORE_ROW = '        EngineFacts(\n            name="crio",\n'

TEST = "tests/unit/node/engines/test_toy.py"

FORGOTTEN = {
    "test_no_container_reaches_its_sockets_and_files": (
        "hook/core/reserve/node_paths.py",
        '    "/etc/rancher/",\n',
        '    "/etc/rancher/",\n    "/etc/toy.conf/",\n    "/run/toy.sock/",\n',
    ),
    "test_the_chart_offers_those_that_run_pods": (
        "packaging/kubernetes/chart/values.schema.json",
        '"containerd", "crio",',
        '"containerd", "toy", "crio",',
    ),
    "test_a_page_says_how_it_is_wired_and_on_what_that_was_tried": (
        "docs/engines.md",
        "## CDI\n",
        "## toy\n\n- **tried on:** nothing\n\n## CDI\n",
    ),
    "test_its_configurations_from_real_nodes_have_tests": (
        TEST,
        "",
        "from hook.node.engines.toy import ToyConfig\n\n\ndef test_a_line_is_a_runtime() -> None:\n"
        '    assert ToyConfig.of(b"a=/b").runtimes == {"a": "/b"}\n',
    ),
}
"""By the test in unit/node/engines/test_facts.py that names it: a file, and what is replaced by what."""

FIRST_READ = {
    "packaging/kubernetes/chart/values.yaml": ("# containerd, crio, ", "# containerd, toy, crio, "),
    "install.sh": ("--engine containerd|crio|", "--engine containerd|toy|crio|"),
    "README.md": ("| CRI-O | its", "| toy | | | all |\n| CRI-O | its"),
    "docs/engines.md": ("| CRI-O | its", "| toy | | | all |\n| CRI-O | its"),
}
"""What one test in that file compares with all rows."""

PROGRAM = """
import sys
sys._MEIPASS, sys.executable = "", sys.argv[1]
from hook.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""The commands of the copy, as those of a frozen program."""

ID = "a" * 64


class Tree:
    """The copy, on a node with toyd."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine, self.directory = machine, directory
        kept = (
            *("hook", "docs/engines.md", "README.md", "install.sh", "packaging/kubernetes/chart"),
            *("packaging/systemd", "config/policy.yaml", "tests/marks.py", "tests/harness"),
            *(f"tests/unit/{name}" for name in ("__init__.py", "support.py", "node/__init__.py")),
            *(f"tests/unit/node/engines/{path.name}" for path in (ROOT / "tests/unit/node/engines").glob("*.py")),
        )
        for name in kept:
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, target)
        (directory / "hook/node/engines/toy.py").write_text(ENGINE.lstrip().replace("\\\\n", "\\n"))
        self.replace("hook/node/engines/facts.py", BEFORE_ROW, ROW.lstrip("\n") + BEFORE_ROW)
        (directory / "dist/lib").mkdir(parents=True)
        (directory / "dist/lib/code").touch()
        start = f'PYTHONPATH={directory} exec {sys.executable} {directory}/hook/__main__.py "$@"'
        machine.file(f"{directory}/dist/reassert", f"#!/bin/sh\n{start}\n", 0o755)  # it compiles the policy

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.directory / file
        text = path.read_text() if path.exists() else ""
        assert (text.count(old) == 1) if old else not text, f"{file} no longer has: {old}"
        path.write_text(text.replace(old, new) if old else new)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": os.defpath, "PYTHONPATH": f"{self.directory}:{self.directory}/tests"}
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=path, cwd=self.directory, timeout=600)

    def run(self, *arguments: str, status: int = 0) -> str:
        """What a command of the copy prints."""
        done = self.python("-c", PROGRAM, f"{self.directory}/dist/reassert", *arguments)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def forgotten(self) -> set[str]:
        """The tests of each engine's row that fail for toy."""
        test = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/node/engines/test_facts.py"]
        said = self.python(*test, "tests/unit/node/engines/test_pure.py").stdout
        assert " passed" in said, said
        return set(re.findall(r"^FAILED [^:]+::(\w+)", said, re.MULTILINE))


@pytest.fixture
def tree(machine: Machine, tmp_path: Path) -> Tree:
    machine.program("toyd", "echo toyd 1.2.3")
    for name in ("runc", "crun"):
        machine.program(name, ":")
    machine.file("/etc/reassert/policy.yaml", document({"name": "r", "env": [{"name": "A", "value": "1"}]}))
    machine.file("/etc/toy.conf", "usual=/usr/local/sbin/runc\nother=/usr/local/sbin/crun\n")
    return Tree(machine, tmp_path)


@pytest.fixture
def container(tree: Tree) -> Iterator[str]:
    """The id of one that runs, by the record that toyd's runtime has of it."""
    bundle = tree.directory / "bundle"
    tree.machine.file(f"{bundle}/config.json", json.dumps(config(["A=1"], annotations=CONTAINERD)))
    with subprocess.Popen(["unshare", "--mount", "sleep", "60"], env={"A": "1", "PATH": os.defpath}) as process:
        record = {"init_process_pid": process.pid, "config": {"labels": [f"bundle={bundle}"]}}
        tree.machine.file(f"/run/toy/{ID}/state.json", json.dumps(record))
        tree.machine.file("/var/lib/toy/names.json", json.dumps({"ID": ID, "Name": "toy-name"}))
        yield ID
        process.kill()


def test_the_page_names_the_same_files() -> None:
    section = (
        (ROOT / "docs/internals/architecture.md").read_text().partition("## Add an engine")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (\S+) \|", section, re.MULTILINE)[1:]
    recipe, forgotten = rows[:2], [name.replace("NAME", "toy") for name in rows[2:]]
    assert recipe == ["hook/node/engines/NAME.py", "hook/node/engines/facts.py"]
    assert {file for file, _, _ in FORGOTTEN.values()} <= {*forgotten}
    assert [file for file in FIRST_READ if file not in section] == []


@pytest.mark.slow
def test_every_command_knows_an_engine_that_is_one_file_and_one_row(tree: Tree, container: str) -> None:
    before = Path("/etc/toy.conf").read_text()
    shown: dict[str, Any] = json.loads(tree.run("status", "-o", "json", status=3))
    assert shown["engines"]["toy"]["title"] == "toyd 1.2.3"
    install = "install", "--engine", "toy", "--no-agent", "--no-probe"
    assert "+++ /etc/toy.conf" in tree.run(*install, "--dry-run")
    tree.run(*install)
    assert "/opt/reassert/reassert-crun" in Path("/etc/toy.conf").read_text()
    assert Path("/var/lib/reassert/cri/toy").read_text() == "/run/toy.sock\n"
    handlers = json.loads(tree.run("status", "-o", "json"))["engines"]["toy"]["handlers"]
    assert [each["wired"] for each in handlers] == [["runtime"], ["runtime"]]
    images = {"name": "i", "match": {"images": ["x/*"]}, "env": [{"name": "B", "value": "1"}]}
    other = tree.machine.file(f"{tree.directory}/other.yaml", document(images))
    assert "which is never known under toy" in tree.run("policy", "check", "--node", str(other))
    [found] = json.loads(tree.run("audit", container, "-o", "json"))["containers"]
    assert (found["engine"], found["state"]) == ("containerd", "in policy")
    (tree.directory / "bundle/config.json").unlink()
    assert "toy-name" in tree.run("audit", container, status=4)
    tree.machine.program("crio", "exit 1")
    tree.machine.file("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/toy.sock\n")
    assert "toyd 1.2.3 is wired already" in tree.run("install", "--no-agent", "--no-probe")
    tree.run("uninstall", "--engine", "toy")
    assert Path("/etc/toy.conf").read_text() == before


@pytest.mark.slow
def test_what_was_forgotten_is_named(tree: Tree) -> None:
    first_read = {"test_what_an_operator_reads_first_names_each_engine"}
    assert tree.forgotten() == FORGOTTEN.keys() | first_read
    for file, old, new in FORGOTTEN.values():
        tree.replace(file, old, new)
    for file, (old, new) in FIRST_READ.items():
        assert tree.forgotten() == first_read, f"before {file} has its name"
        tree.replace(file, old, new)
    assert tree.forgotten() == set()
    [body] = re.findall(r"    assert ToyConfig.*\n", (tree.directory / TEST).read_text())
    tree.replace(TEST, body, "    ToyConfig\n")
    assert tree.forgotten() == {"test_its_configurations_from_real_nodes_have_tests"}
    row = 'unknown=("images",),\n            traces=Traces(states=("/run/toy",)'
    tree.replace("hook/node/engines/facts.py", row, row.partition("\n            ")[2])
    done = tree.python("-c", "import hook.node.engines.facts")
    assert "missing 1 required positional argument: 'unknown'" in done.stderr


@pytest.mark.slow
def test_a_method_that_was_forgotten_is_named(tree: Tree) -> None:
    tree.replace("hook/node/engines/toy.py", "        wiring.add_cri(", "        str(")
    assert "test_a_start_knows_the_socket_of_an_engine_that_it_can_ask" in tree.forgotten()
    tree.replace("hook/node/engines/toy.py", "    def check(", "    def checks(")
    assert "test_its_class_has_its_name" in tree.forgotten()
