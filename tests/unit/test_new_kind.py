"""A kind is added to a copy of the tree by the recipe of docs/architecture.md, and every command is run with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unit.support import CONTAINERD, ROOT, config, document

KIND = """
from hook.core.reserve import Edit

KIND = FIELD = "rlimits"


class SetLimits(Edit):
    kind = KIND

    def __init__(self, rule, limits, before):
        super().__init__(rule, "process.rlimits")
        self.limits, self.before = limits, before

    def conflict(self):
        return "rlimits are reserved and were others" if self.before else ""

    def before_and_after(self):
        return self.before, self.limits


def want(rules, container, outcome):
    for rule in rules:
        limits = rule.raw_lists.get(FIELD)
        if limits and container.start.rlimits is None:
            outcome.cannot_tell(rule.name, KIND, "this adapter does not see rlimits")
        elif limits and container.start.rlimits != limits:
            outcome.edits.append(SetLimits(rule.name, limits, container.start.rlimits))


def apply(outcome, target):
    for edit in outcome.edits:
        if edit.kind == KIND:
            target.rlimits = edit.limits
"""

RECIPE = {
    "core/policy/schema.json": [
        (
            '"annotations": {\n          "description": "Ann',
            '"rlimits": {"type": "array"}, "annotations": {"description": "Ann',
        )
    ],
    "core/plan.py": [
        ('"annotation", SHARED', '"annotation", "rlimits", SHARED'),
        ("import annotations, devices  # few", "import annotations, devices, rlimits  # few"),
        ("return env, mounts, devices, annotations", "return env, mounts, devices, annotations, rlimits"),
    ],
    "core/container/start.py": [
        ("    pod_annotations: ", '    rlimits: "list[Json] | None" = None\n    pod_annotations: ')
    ],
    "core/container/spec.py": [
        (
            "            self.mounts = _mounts(",
            '            self.rlimits = _objects(self._process.get("rlimits", (None,))[0], "process.rlimits")\n'
            "            self.mounts = _mounts(",
        ),
        ("self.device_rules, self.hooks\n", "self.device_rules, self.hooks, self.rlimits\n"),
        ("device_rules, hooks = self._original", "device_rules, hooks, rlimits = self._original"),
        (
            "        if self.env != env:\n",
            "        if self.rlimits != rlimits:\n"
            '            at = self._members["process"][1]\n'
            '            splices.append(splice(self._process, at, "rlimits", encode(self.rlimits)))\n'
            "        if self.env != env:\n",
        ),
        ('_STRICT = ("mounts",', '_STRICT = ("rlimits", "mounts",'),
        ('user capabilities")\n', 'user capabilities rlimits")\n_LIMIT = _names("type soft hard")\n'),
        ("(self.mounts, _MOUNT)\n", "(self.mounts, _MOUNT)\n        _check_names_of_each(self.rlimits, _LIMIT)\n"),
    ],
    "entry/preload.py": [("processes, volumes\n", "processes, rlimits, volumes\n")],
}
"""By file of hook/: what is replaced by what."""

LIMITS = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]
RULE = {"name": "limits", "rlimits": LIMITS}
UNSEEN = "rule limits: this adapter does not see rlimits"
POD = "kind: Pod\nmetadata: {name: web, namespace: team-a}\nspec: {containers: [{name: c}]}\n"

RESIDENT = """
import json, sys
from pathlib import Path
from hook.core.container.identity import identify
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.ops.audit.judge import actual
from unit.nri.support import running
from unit.support import policy
directory, rule = Path(sys.argv[1]), json.loads(sys.argv[2])
spec = Spec((directory / "config.json").read_bytes(), "config.json")
decided = Case("audit", "", lambda: policy(rule)).decide(identify(spec), actual(spec, ["A=1"]))
with running(directory, (directory / "policy.yaml").read_text()) as plugin:
    print(json.dumps([decided.is_empty(), plugin.create(["A=1"]).status.message]))
"""
"""audit's decision about a container that is as the policy wants it, and NRI's answer, which does not see rlimits."""


class Tree:
    """The copy, with a policy and a bundle."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "config.json"
        shutil.copytree(ROOT / "hook", directory / "hook", ignore=shutil.ignore_patterns("__pycache__"))
        (directory / "hook/core/reserve/rlimits.py").write_text(KIND)
        for file, replaced in RECIPE.items():
            text = (directory / "hook" / file).read_text()
            for old, new in replaced:
                assert text.count(old) == 1, f"RECIPE replaces what hook/{file} no longer has: {old}"
                text = text.replace(old, new)
            (directory / "hook" / file).write_text(text)
        (directory / "policy.yaml").write_text(document(RULE))
        (directory / "other.yaml").write_text(document({**RULE, "onConflict": "Deny"}))
        (directory / "pod.yaml").write_text(POD)
        self.config.write_text(json.dumps(config(["A=1"], annotations=CONTAINERD)))
        self.where = ["--policy", f"{directory}/policy.yaml", "--store", f"{directory}/s"]
        self.log = ["--events", f"{directory}/events.jsonl"]

    def run(self, *arguments: str, status: int = 0, text: str = "") -> str:
        """What a command of the copy prints."""
        path = {"PATH": os.defpath, "PYTHONPATH": f"{self.directory}:{ROOT}/tests"}
        command = arguments if arguments[0] == "-c" else (str(self.directory / "hook/__main__.py"), *arguments)
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, input=text, env=path, cwd="/", timeout=60
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def runtime(self, *arguments: str) -> None:
        root = ["--", "--root", f"{self.directory}/state"]
        self.run("runtime", "--real", "/bin/true", *self.where, *self.log, *root, *arguments)

    def hook(self, status: int) -> str:
        state = {"ociVersion": "1.0.2", "id": "0a", "status": "creating", "pid": 1, "bundle": str(self.directory)}
        return self.run("hook", *self.where, *self.log, "createRuntime", status=status, text=json.dumps(state))


@pytest.fixture
def tree(root_dir: Path) -> Tree:
    return Tree(root_dir)


def test_the_page_names_the_same_files() -> None:
    section = (ROOT / "docs/architecture.md").read_text().partition("## Add a reserved kind")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| hook/(\S+)", section, re.MULTILINE)) - {"core/reserve/KIND.py"} == set(RECIPE)
    assert "rule.raw_lists[FIELD]" in section
    assert "rule.raw_lists.get(FIELD)" in KIND


@pytest.mark.slow
def test_every_command_knows_a_kind_that_was_added_by_the_recipe(tree: Tree) -> None:
    assert "a hook cannot set rlimits" in tree.hook(1)
    tree.runtime("create", "--bundle", str(tree.directory), "0a")
    made: dict[str, Any] = json.loads(tree.config.read_text())
    assert made["process"]["rlimits"] == LIMITS
    assert tree.hook(0) == ""
    process = tree.directory / "process.json"
    process.write_text(json.dumps({"args": ["sh"], "env": []}))
    (tree.directory / "state/0a").mkdir(parents=True)
    (tree.directory / "state/0a/state.json").write_text(json.dumps({"bundle": str(tree.directory)}))
    tree.runtime("exec", "--process", str(process), "0a")

    policy = ["--policy", f"{tree.directory}/policy.yaml"]
    assert "started unchanged" in tree.run("explain", "--config", str(tree.config), *policy)
    assert UNSEEN in tree.run("explain", *policy, f"{tree.directory}/pod.yaml")
    case = {"name": "pod", "pod": "pod.yaml", "expect": {"refusal": "does not see rlimits"}}
    test = {"kind": "PolicyTest", "policy": "policy.yaml", "cases": [case]}
    (tree.directory / "reassert-test.yaml").write_text(json.dumps(test))
    tree.run("policy", "test", str(tree.directory))
    two = [f"{tree.directory}/{name}.yaml" for name in ("policy", "other")]
    assert "onConflict" in tree.run("policy", "diff", *two, status=1)
    assert "RLIMIT_NOFILE" in tree.run("policy", "show", *tree.where)
    assert "rlimits" in tree.run("events", *tree.log, "-o", "json")
    assert "rlimits" in tree.run("report", *tree.log)

    drifts, refusal = json.loads(tree.run("-c", RESIDENT, str(tree.directory), json.dumps(RULE)).splitlines()[0])
    misspelled = {**made["process"], "rlimits": [{"Type": "RLIMIT_NOFILE"}]}
    tree.config.write_text(json.dumps({**made, "process": misspelled}))
    assert "is spelled 'type'" in tree.run("explain", "--config", str(tree.config), *policy, status=1)
    assert drifts, "audit compares what it sees"
    assert UNSEEN in refusal
