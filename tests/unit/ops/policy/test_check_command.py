"""`policy check` for several files, standard input, and the formats of code review."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest

from unit.support import called, document, reassert

pytestmark = marks.promise(
    "All errors of a policy are reported at once, each with line, column and a correction, as text, JSON and "
    "GitHub annotations"
)

GOOD = document({"name": "r", "env": [{"name": "A", "value": "x"}]})
WARNED = document(
    {"name": "r", "annotations": [{"name": "a/b", "absent": True, "of": "Pod"}], "env": [{"name": "A", "value": "x"}]}
)
BAD = "apiVersion: reassert/v1\nkind: NodePolicy\nspec: {mod: x, exclud: {}}\n"
COMPLAINT = "unknown field 'mod'; did you mean mode?"
SECOND = ":3:16: error: unknown field 'exclud'; did you mean exclude?\n"


@pytest.fixture
def files(root_dir: Path) -> dict[str, str]:
    found = {}
    for name, text in (("good", GOOD), ("warned", WARNED), ("bad", BAD)):
        path = root_dir / f"{name}.yaml"
        path.write_text(text)
        found[name] = str(path)
    return found


def checked(*arguments: str, **options: Any) -> tuple[int, str, str]:
    done = reassert("policy", "check", *arguments, **options) if options else called("policy", "check", *arguments)
    return done.returncode, done.stdout, done.stderr


def test_several_files_are_all_checked(files: dict[str, str]) -> None:
    status, out, err = checked(files["good"], files["bad"], files["warned"])
    assert status == 1
    assert [line.partition(":")[0] for line in out.splitlines()] == [files["good"], files["warned"]]
    assert out.startswith(f"{files['good']}: valid, 1 rule, sha256 ")
    assert f"{files['bad']}:3:8: error: {COMPLAINT}" in err
    assert f"{files['warned']}:" in err


def test_standard_input_is_checked() -> None:
    assert checked("-", input=BAD) == (1, "", f"stdin:3:8: error: {COMPLAINT}\nstdin{SECOND}")
    status, out, err = checked("-", input=GOOD)
    assert (status, out.partition(",")[0], err) == (0, "stdin: valid", "")


def test_file_that_is_missing_does_not_hide_the_others(files: dict[str, str]) -> None:
    status, out, err = checked("/nonexistent/x.yaml", files["good"])
    assert (status, err) == (1, "reassert: /nonexistent/x.yaml: No such file or directory\n")
    assert out.startswith(files["good"])


def test_warnings_fail_with_strict_alone(files: dict[str, str]) -> None:
    Path(files["warned"]).chmod(0o666)
    status, _, err = checked(files["warned"])
    assert (status, err.count(": warning: ")) == (0, 1), "who may write to a file of a checkout says nothing"
    assert checked("--strict", files["warned"])[0] == 1
    assert checked("--strict", files["good"])[0] == 0


def test_json(files: dict[str, str]) -> None:
    status, out, _ = checked("-o", "json", files["good"], files["bad"])
    good, bad = json.loads(out)["files"]
    assert status == 1
    assert (good["valid"], good["rules"], good["problems"], len(good["sha256"])) == (True, 1, [], 64)
    problem = {"line": 3, "column": 8, "severity": "error", "message": COMPLAINT}
    assert (bad["file"], bad["valid"], bad["problems"][:1], len(bad["problems"])) == (files["bad"], False, [problem], 2)


def test_github_annotations_are_escaped(root_dir: Path) -> None:
    path = root_dir / "a,b.yaml"
    path.write_text("apiVersion: reassert/v1\nkind: NodePolicy\nspec: {'50%\\n': x}\n")
    status, out, _ = checked("-o", "github", str(path))
    assert status == 1
    [line] = out.splitlines()
    assert line.startswith(f"::error file={root_dir}/a%2Cb.yaml,line=3,col=8::unknown field '50%25")


def test_a_file_that_cannot_be_read_has_a_place_in_code_review() -> None:
    assert checked("-o", "github", "/nonexistent")[:2] == (
        1,
        "::error file=/nonexistent,line=1,col=1::/nonexistent: No such file or directory\n",
    )


def test_node_says_which_hostpath_a_container_cannot_read(root_dir: Path) -> None:
    (root_dir / "ca.pem").write_text("x")
    (root_dir / "ca.pem").chmod(0o640)
    (root_dir / "dir").mkdir(mode=0o700)
    (root_dir / "open.pem").write_text("x")
    mounts = [
        {"hostPath": f"{root_dir}/{name}", "mountPath": f"/{name}"} for name in ("ca.pem", "dir", "open.pem", "gone")
    ]
    path = root_dir / "p.yaml"
    path.write_text(document({"name": "r", "mounts": mounts}))
    status, _, err = checked("--node", str(path))
    assert status == 1  # for the one that is gone
    first, second = (line for line in err.splitlines() if "only root" in line and "can read it" in line)
    assert ": warning: rule r: hostPath" in first
    assert "ca.pem has mode 0640" in first
    assert first.endswith("ca.pem`") and "run `chmod o+r /" in first
    assert "dir has mode 0700" in second


@pytest.mark.parametrize("mount", ["Directories", "Files", "Aside"])
def test_what_a_trust_rule_costs_is_a_note_that_fails_nothing(mount: str, root_dir: Path) -> None:
    path = root_dir / "trust.yaml"
    path.write_text(document({"name": "r", "trust": {"bundle": "company", "mount": mount}}))
    status, _, err = checked(str(path), "--strict")
    assert status == 0
    assert f": note: mount: {mount}: " in err
    assert err.count("\n") == 1
    found = json.loads(checked(str(path), "-o", "json")[1])["files"][0]
    assert ([p["severity"] for p in found["problems"]], found["valid"]) == (["note"], True)
    assert "::notice file=" in checked(str(path), "-o", "github")[1]
