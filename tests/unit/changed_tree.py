"""A copy of the tree in which a test makes a change that a recipe describes, and runs every command with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unit.support import CONTAINERD, ROOT, config, document

Recipe = Mapping[str, Sequence[tuple[str, str]]]
"""By file of the repository: what is replaced by what. "" is replaced by a whole new file."""

POD = "kind: Pod\nmetadata: {name: web-1, namespace: team-a}\nspec: {containers: [{name: app}]}\n"

RESIDENT = """
import json, sys
from pathlib import Path
from hook.core.container.identity import identify
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.ops.audit.judge import actual
from unit.nri.support import running
from unit.support import WithPolicy, policy
directory, rule = Path(sys.argv[1]), json.loads(sys.argv[2])
spec = Spec((directory / "config.json").read_bytes(), "config.json")
decided = Case(WithPolicy(policy(rule), "audit"), "").decide(identify(spec), actual(spec, ["A=1"]))
with running(directory, (directory / "policy.yaml").read_text()) as plugin:
    print(json.dumps([decided.is_empty(), plugin.create(["A=1"]).status.message]))
"""
"""Whether audit finds the container as the policy wants it, and why NRI's plugin refuses it."""


def changed(directory: Path, recipe: Recipe, *parts: str) -> None:
    """Copy hook/ and `parts` of the repository, and make the changes of a recipe in them."""
    for part in ("hook", *parts):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (directory / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, directory / part)
    for file, replaced in recipe.items():
        path = directory / file
        if not path.parent.exists():
            continue
        for old, new in replaced:
            text = path.read_text() if path.exists() else ""
            assert old == text == "" or text.count(old) == 1, f"the recipe replaces what {file} does not have: {old}"
            path.write_text(text.replace(old, new) if old else new)


def run_in(directory: Path, *command: str, status: int = 0, text: str = "") -> str:
    """What a command prints that runs with the copy's hook/, and with its tests/ if it has them."""
    tests = directory if (directory / "tests").exists() else ROOT
    path = {"PATH": os.defpath, "PYTHONPATH": f"{directory}:{tests}/tests"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, input=text, env=path, cwd="/", timeout=600
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def list_of(said: str) -> list[Any]:
    """The list in JSON that a script printed. The plugin's operation log can have a line before it."""
    found: list[Any] = json.loads(next(line for line in said.splitlines() if line.startswith("[")))
    return found


class Tree:
    """A changed tree, with a policy of one rule and a bundle."""

    def __init__(self, directory: Path, recipe: Recipe, rule: dict[str, Any]) -> None:
        self.directory = directory
        self.rule = rule
        self.config = directory / "config.json"
        changed(directory, recipe)
        (directory / "policy.yaml").write_text(document(rule))
        (directory / "other.yaml").write_text(document({**rule, "onConflict": "Deny"}))
        (directory / "pod.yaml").write_text(POD)
        self.put({})
        self.policy = ["--policy", f"{directory}/policy.yaml"]
        self.where = [*self.policy, "--store", f"{directory}/s"]
        self.log = ["--events", f"{directory}/events.jsonl"]

    def put(self, process: dict[str, Any], env: Sequence[str] = ("A=1",)) -> None:
        """Write the config.json of a container. `process`: members of its process beside `env`."""
        made = config([*env], annotations=CONTAINERD)
        self.config.write_text(json.dumps({**made, "process": {**made["process"], **process}}))

    def process(self) -> dict[str, Any]:
        """The process of config.json."""
        made: dict[str, Any] = json.loads(self.config.read_text())["process"]
        return made

    def run(self, *arguments: str, status: int = 0, text: str = "") -> str:
        """What a command of the copy prints."""
        return run_in(self.directory, f"{self.directory}/hook/__main__.py", *arguments, status=status, text=text)

    def runtime(self, *arguments: str, status: int = 0) -> str:
        root = ["--", "--root", f"{self.directory}/state"]
        return self.run("runtime", "--real", "/bin/true", *self.where, *self.log, *root, *arguments, status=status)

    def create(self, status: int = 0) -> str:
        return self.runtime("create", "--bundle", str(self.directory), "0a", status=status)

    def exec(self) -> None:
        """An exec in the created container, with a process file."""
        file, state = self.directory / "process.json", self.directory / "state/0a"
        file.write_text(json.dumps({"args": ["sh"], "env": []}))
        state.mkdir(parents=True)
        (state / "state.json").write_text(json.dumps({"bundle": str(self.directory)}))
        self.runtime("exec", "--process", str(file), "0a")

    def hook(self, status: int) -> str:
        state = {"ociVersion": "1.0.2", "id": "0a", "status": "creating", "pid": 1, "bundle": str(self.directory)}
        return self.run("hook", *self.where, *self.log, "createRuntime", status=status, text=json.dumps(state))

    def explain(self, *what: str, status: int = 0) -> str:
        """`explain` of config.json, or of `what`."""
        given = what or (str(self.config),)
        return self.run("explain", *self.policy, *given, status=status)

    def test(self, expected: dict[str, Any], **fields: Any) -> None:
        """`policy test` with one case: the pod. `fields`: more of the case."""
        case = {"name": "pod", "pod": "pod.yaml", "expect": expected, **fields}
        test = {"kind": "PolicyTest", "policy": "policy.yaml", "cases": [case]}
        (self.directory / "reassert-test.yaml").write_text(json.dumps(test))
        self.run("policy", "test", str(self.directory))

    def resident(self) -> tuple[bool, str]:
        """See RESIDENT."""
        is_empty, refusal = list_of(run_in(self.directory, "-c", RESIDENT, str(self.directory), json.dumps(self.rule)))
        return is_empty, refusal
