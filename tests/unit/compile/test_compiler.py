"""The compiler's output: defaults, normalised paths, selectors, the text of the store."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.compile import compiler
from hook.compile.check import schema
from hook.compile.compiler import _COMPILED, compile_bytes
from hook.compile.in_force import read_source, refresh
from hook.core.base.errors import ReassertError
from hook.core.base.logfile import LOG_LIMIT, LOGS_KEPT
from hook.core.plan import STEPS
from hook.core.policy.store import Stored, file_key, store_path
from unit.support import ROOT, document, policy, problems, rule

pytestmark = marks.promise(
    "The compiled policy equals the file, and `policy show` prints it as a policy file", about="Policy"
)

A = {"name": "a", "env": [{"name": "A", "value": "1"}]}


def mount(**fields: Any) -> list[object]:
    """The compiled form of one mount."""
    (one,) = rule(env=[], mounts=[{"hostPath": "/h", "mountPath": "/m", **fields}]).mounts
    return [one.source, one.destination, one.options, one.allow_below, one.skip_missing]


def test_mount_is_bound_private_and_read_only_unless_told() -> None:
    assert mount() == ["/h", "/m", ["rbind", "rprivate", "ro"], [], False]


def test_mount_options_replace_only_their_own_kind() -> None:
    assert mount(readOnly=False, options=["bind", "nosuid"])[2] == ["bind", "rprivate", "rw", "nosuid"]
    assert mount(options=["rslave", "noexec"])[2] == ["rbind", "rslave", "ro", "noexec"]


def test_mount_paths_are_cleaned_once() -> None:
    cleaned = mount(hostPath="//h/./x/", mountPath="/m//n/", allowBelow=["/m/n/./o/"], onMissingSource="Skip")
    assert cleaned == ["/h/x", "/m/n", ["rbind", "rprivate", "ro"], ["/m/n/o"], True]


def test_mode_and_failure_policy_default_to_the_strict_ones() -> None:
    strict, lax = policy(A), policy(A, mode="Audit", failurePolicy="Ignore")
    assert (strict.mode, strict.failure_policy) == ("Enforce", "Fail")
    assert (lax.mode, lax.failure_policy) == ("Audit", "Ignore")


@pytest.mark.parametrize(
    ("given", "compiled"),
    [
        ({}, []),
        ({"journal": True}, [LOG_LIMIT, LOGS_KEPT, True]),
        ({"keep": 2}, [LOG_LIMIT, 2, False]),
        ({"maxSizeMiB": 8}, [8 << 20, LOGS_KEPT, False]),
    ],
)
def test_what_the_event_log_is_not_given_has_its_default(given: dict[str, object], compiled: list[object]) -> None:
    assert policy(A, eventLog=given).event_log == compiled


def test_compiled_rule_survives_its_line() -> None:
    full = {
        "name": "full",
        "match": {
            "namespaces": ["a"],
            "podSelector": {"matchLabels": {"x": "y"}, "matchExpressions": [{"key": "z", "operator": "Exists"}]},
            "ifUnknown": "Skip",
        },
        "env": [{"name": "F", "valueFrom": {"file": "/f"}}, {"name": "G_*", "absent": True}],
        "onConflict": "Deny",
    }
    (one,) = policy(full).candidates(None)
    assert one.conditions == {"namespaces": ["a"], "podSelector": [["x", "In", ["y"]], ["z", "Exists", []]]}
    written = [{"name": env.name, **env.as_written()} for env in one.env]
    assert written == full["env"]
    assert (one.skip_unknown, one.deny) == (True, True)


def test_fingerprint_is_the_files_own() -> None:
    text = document(A).encode()
    assert compile_bytes("p", text).policy().fingerprint != compile_bytes("p", text + b"\n").policy().fingerprint


def test_stored_policy_is_the_compiled_one(root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    source.write_text(document(A, mode="Audit"))
    stored = Stored(refresh(str(source), str(root_dir)))
    key = file_key(source.stat())
    assert stored.has_compiled(key)
    loaded = stored.policy(str(source), key, "")
    assert (loaded.mode, [one.name for one in loaded.candidates("x")], loaded.warning) == ("Audit", ["a"], "")


def test_source_edited_while_it_is_read_is_compiled_again(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit between the two looks at the file must not leave its new status beside its old content."""
    source = root_dir / "policy.yaml"
    source.write_text(document(A))
    fstat = os.fstat

    def edit_in_between(fd: int) -> os.stat_result:
        before = fstat(fd)
        was_read = os.lseek(fd, 0, os.SEEK_CUR) > 0
        source.write_text(document(A, mode="Audit"))
        return fstat(fd) if was_read else before

    monkeypatch.setattr(os, "fstat", edit_in_between)
    content, status = read_source(str(source))
    assert file_key(status) != file_key(source.stat()) or content == source.read_bytes()


def test_settings_of_the_file_are_in_the_header() -> None:
    settings: dict[str, Any] = {
        "mode": "Audit",
        "failurePolicy": "Ignore",
        "exclude": {"namespaces": ["a"], "containerTypes": ["sandbox"]},
        "kubelet": {"root": "/k//"},
        "allowedAnnotations": ["x/y"],
    }
    header = compile_bytes("p", document(A, **settings).encode()).header
    assert [header[key] for key in ("mode", "failurePolicy", "excludedNamespaces", "excludedTypes", "kubeletRoot")] == [
        *("Audit", "Ignore", ["a"], ["sandbox"], "/k"),
    ]
    assert header["allowedAnnotations"] == ["x/y"]


def test_missing_source_is_told(root_dir: Path) -> None:
    with pytest.raises(ReassertError, match="No such file"):
        read_source(str(root_dir / "none"))


def test_huge_source_is_refused_and_not_read_whole(root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    source.touch()
    os.truncate(source, 1 << 40)
    with pytest.raises(ReassertError, match="larger than the limit of 16777216 bytes"):
        read_source(str(source))


def test_store_names_never_clash() -> None:
    paths = ["/a/b", "/a-b", "/a\\b", "/a\\x2db"]
    names = {store_path(path, "/s") for path in paths}
    assert len(names) == len(paths)
    assert all(name.count("/") == 2 for name in names)


SHIPPED = [ROOT / "config" / "policy.yaml", *sorted((ROOT / "config" / "examples").glob("*.yaml"))]


def test_examples_are_shipped() -> None:
    assert len(SHIPPED) >= 5


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_policy_has_no_errors(path: Path) -> None:
    assert [problem.at(path.name) for problem in problems(path.read_bytes()) if problem.severity == "error"] == []


def test_header_of_no_policy_has_all_that_a_compiled_one_has() -> None:
    compiled = compile_bytes("p", document(A).encode()).header
    assert set(json.loads(json.dumps(compiled))) == set(compiler.NO_RULES)


def test_each_field_that_is_compiled_as_it_is_belongs_to_a_step_of_plan() -> None:
    """Else a rule with it would do nothing, and nobody would say so."""
    of_rule = set(schema()["$defs"]["rule"]["properties"])
    assert of_rule - {*_COMPILED} == {step.FIELD for step in STEPS if hasattr(step, "FIELD")}
