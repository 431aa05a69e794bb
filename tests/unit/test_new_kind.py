"""A kind is added to a copy of the tree by the recipe of internals/architecture.md, and every command is run with it.

A list of config.json (process.rlimits), and a single value (process.oomScoreAdj) that can be 0 or missing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import marks
import pytest

from unit.changed_tree import Recipe, Tree, changed, run_in
from unit.support import ROOT

pytestmark = marks.promise("A reserved kind that is added by the recipe works with every command", about="Decision")

KIND = """
from hook.core.container.start import Unseen
from hook.core.reserve.edits import Edit

KIND = FIELD = "FIELD_NAME"


class Set(Edit):
    kind = KIND

    def __init__(self, rule, wanted, before):
        super().__init__(rule, "process.FIELD_NAME")
        self.wanted, self.before = wanted, before

    def conflict(self):
        return "" if self.before is None else "FIELD_NAME is reserved and was something else"

    def before_and_after(self):
        return self.before, self.wanted


def concerns(rules, container):
    return any(FIELD in rule.raw for rule in rules)


def want(rules, container, plan):
    before = container.start.MEMBER
    for rule in rules:
        if FIELD not in rule.raw:
            continue
        wanted = rule.raw[FIELD]
        if isinstance(before, Unseen):
            plan.cannot_tell(rule.name, KIND, "this adapter does not see FIELD_NAME")
        elif before != wanted:
            plan.edits.append(Set(rule.name, wanted, before))


def apply(plan, target):
    for edit in plan.edits:
        if edit.kind == KIND:
            target.MEMBER = edit.wanted
"""


def recipe(field: str, member: str, schema: str, read: str, check: str) -> Recipe:
    """The changes for a member of OCI's process. `read`, `check`: how its value is read and its spelling checked."""
    kind = KIND.replace("FIELD_NAME", field).replace("MEMBER", member)
    return {
        "hook/compile/schema.json": [
            (
                '"annotations": {\n          "description": "Ann',
                f'"{field}": {schema}, "annotations": {{"description": "Ann',
            )
        ],
        f"hook/core/reserve/{member}.py": [("", kind)],
        "hook/core/plan.py": [
            ("    node_paths,\n    shared_processes,\n", f"    node_paths,\n    {member},\n    shared_processes,\n"),
            (
                "    unsafe_annotations,\n    node_paths,\n)",
                f"    unsafe_annotations,\n    {member},\n    node_paths,\n)",
            ),
        ],
        "hook/core/container/start.py": [
            ("    pod_annotations: ", f"    {member}: object = UNSEEN\n    pod_annotations: ")
        ],
        "hook/core/container/spec.py": [
            (
                "            self.annotations = _string_map(",
                f"            self.{member} = {read}\n            self.annotations = _string_map(",
            ),
            ("self.device_rules, self.hooks\n", f"self.device_rules, self.hooks, self.{member}\n"),
            ("device_rules, hooks = self._original", f"device_rules, hooks, {member} = self._original"),
            (
                "        if self.env != env:\n",
                f"        if self.{member} != {member}:\n"
                '            at = self._members["process"][1]\n'
                f'            splices.append(splice(self._process, at, "{field}", encode(self.{member})))\n'
                "        if self.env != env:\n",
            ),
            ('user capabilities")\n', f'user capabilities {field}")\n{check}'),
        ],
    }


LIMITS = recipe(
    "rlimits",
    "rlimits",
    '{"description": "As in OCI process", "type": "array"}',
    '_objects(self._process.get("rlimits", (None,))[0], "process.rlimits")',
    '_LIMIT = _names("type soft hard")\n',
)
OF_MOUNTS = '(self.member("mounts"), _MOUNT)\n'
LIMITS["hook/core/container/spec.py"] += [  # type: ignore[operator]  # a list
    ('_STRICT = ("mounts",', '_STRICT = ("rlimits", "mounts",'),
    (OF_MOUNTS, f"{OF_MOUNTS}        _check_names_of_each(self.rlimits, _LIMIT)\n"),
]
SCORE = recipe(
    "oomScoreAdj",
    "oom_score",
    '{"description": "As in OCI process", "type": "integer"}',
    '_integer(self._process.get("oomScoreAdj", (None,))[0], "process.oomScoreAdj")',
    """


def _integer(value: object, what: str) -> object:
    if type(value) not in (int, type(None)):
        raise Malformed(f"{what} is not an integer")
    return value


""",
)

LIMIT = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]
CASES = [
    pytest.param(LIMITS, "rlimits", LIMIT, [[{"type": "RLIMIT_CORE", "hard": 0, "soft": 0}]], id="list"),
    pytest.param(SCORE, "oomScoreAdj", 0, [None, 500], id="zero"),
    pytest.param(SCORE, "oomScoreAdj", -500, [0], id="scalar"),
]
"""The recipe, the field, the value that is reserved, and others that a container has; None: the member is missing."""


def built(root_dir: Path, made_by: Recipe, field: str, value: object) -> Tree:
    return Tree(root_dir, made_by, {"name": "r", field: value})


@pytest.mark.parametrize("made_by", [LIMITS, SCORE], ids=["list", "scalar"])
def test_the_page_names_the_same_files(made_by: Recipe) -> None:
    section = (
        (ROOT / "docs/internals/architecture.md")
        .read_text()
        .partition("## Add a reserved kind")[2]
        .partition("\n## ")[0]
    )
    page = set(re.findall(r"^\| (hook/\S+)", section, re.MULTILINE)) - {"hook/core/reserve/KIND.py"}
    assert page == {file for file in made_by if "/reserve/" not in file}
    assert len(made_by) == 5
    assert "rule.raw[FIELD]" in section
    assert "rule.raw[FIELD]" in KIND


@pytest.mark.slow
@pytest.mark.parametrize(("made_by", "field", "value", "others"), CASES)
def test_every_command_knows_a_kind_that_was_added_by_the_recipe(
    root_dir: Path, made_by: Recipe, field: str, value: object, others: list[object]
) -> None:
    tree = built(root_dir, made_by, field, value)
    for other in others:
        tree.put({} if other is None else {field: other})
        assert f"a hook cannot set {field}" in tree.hook(1)
        assert "started corrected" in tree.explain()
        tree.create()
        assert tree.process()[field] == value
        assert tree.hook(0) == ""
        assert "started unchanged" in tree.explain()
    tree.exec()

    unseen = f"rule r: this adapter does not see {field}"
    is_right, refusal = tree.resident()
    assert is_right, "audit compares what it sees"
    assert unseen in refusal, "NRI does not see it"
    tree.put({field: others[-1]})
    assert not tree.resident()[0]
    assert unseen in tree.explain(f"{tree.directory}/pod.yaml", status=1)
    tree.test({"refusal": f"does not see {field}"})
    two = [f"{tree.directory}/{name}.yaml" for name in ("policy", "other")]
    assert "onConflict" in tree.run("policy", "diff", *two, status=1)
    shown: Any = json.loads(tree.run("policy", "show", *tree.where, "-o", "json"))
    assert shown["policy"]["spec"]["rules"][0][field] == value
    assert field in tree.run("events", *tree.log, "-o", "json")
    assert field in tree.run("report", *tree.log)


@pytest.mark.slow
def test_members_that_runtimes_read_differently_are_refused(root_dir: Path) -> None:
    tree = built(root_dir, LIMITS, "rlimits", LIMIT)
    tree.put({"rlimits": [{"Type": "RLIMIT_NOFILE"}]})
    assert "is spelled 'type'" in tree.explain(status=1)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, "0", 0.0])
def test_a_value_of_another_type_is_not_the_reserved_one(root_dir: Path, wrong: object) -> None:
    tree = built(root_dir, SCORE, "oomScoreAdj", 0)
    tree.put({"oomScoreAdj": wrong})
    assert "process.oomScoreAdj is not an integer" in tree.explain(status=1)


PAGES = "tests/unit/test_pages.py"
SPELLING = "tests/unit/core/container/test_spec.py::test_the_spelling_of_each_member_that_is_read_is_checked"

STEPS = "tests/unit/compile/test_compiler.py"
"""Its last test looks at the fields of a rule and at the steps of plan()."""


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["hook/compile/schema.json", "hook/core/plan.py"])
def test_a_field_without_a_step_and_a_step_without_a_field_are_named(root_dir: Path, forgotten: str) -> None:
    changed(root_dir, {file: made for file, made in SCORE.items() if file != forgotten}, "tests", "config", "docs")
    one = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "belongs_to_a_step_of_plan", f"{root_dir}/{STEPS}")
    assert "oomScoreAdj" in run_in(root_dir, *one, status=1)


@pytest.mark.slow
def test_a_kind_that_the_pages_do_not_have_is_named(root_dir: Path) -> None:
    named = {
        "docs/events.md": ("`kind` (`env`, ", "`kind` (`oomScoreAdj`, `env`, "),
        "hook/ops/metrics/prometheus.py": ("; kind: env, ", "; kind: oomScoreAdj, env, "),
    }
    changed(root_dir, SCORE, "tests", "config", "docs", "packaging", "README.md")
    one = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "every_kind_is_named", f"{root_dir}/{PAGES}")
    for file, replaced in named.items():
        assert "oomScoreAdj" in run_in(root_dir, *one, status=1)
        (root_dir / file).write_text((root_dir / file).read_text().replace(*replaced))
    run_in(root_dir, *one)


@pytest.mark.slow
def test_a_member_whose_spelling_is_not_checked_is_named(root_dir: Path) -> None:
    spec = "hook/core/container/spec.py"
    for read_as, checked in (("oomScoreAdj", ""), ("oomScoreadj", "oomScoreAdj"), ("oomScoreadj", "oomScoreadj")):
        made = [(old, new.replace('_process.get("oomScoreAdj', f'_process.get("{read_as}')) for old, new in SCORE[spec]]
        made = [(old, new.replace("capabilities oomScoreAdj", f"capabilities {checked}")) for old, new in made]
        directory = root_dir / f"{read_as}-{checked}"
        changed(directory, {spec: made}, "tests")
        test = f"{directory}/{SPELLING}"
        assert read_as in run_in(directory, "-m", "pytest", "-q", "-p", "no:cacheprovider", test, status=1)


@pytest.mark.slow
def test_a_member_that_start_or_spec_lacks_refuses_the_container(root_dir: Path) -> None:
    for forgotten, why in (
        ("spec", "this adapter does not see oomScoreAdj"),
        ("start", "has no attribute 'oom_score'"),
    ):
        directory = root_dir / forgotten
        directory.mkdir()
        without = {file: made for file, made in SCORE.items() if file != f"hook/core/container/{forgotten}.py"}
        tree = built(directory, without, "oomScoreAdj", 0)
        assert why in (tree.resident()[1] if forgotten == "start" else tree.create(status=1))
