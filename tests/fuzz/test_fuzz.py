"""Each target holds for its corpus and for mutations of it, and finds a bug that is put back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from unit.support import ROOT

HERE = ROOT / "tests/fuzz"
RUNS = {"cmdline": 60}
"""Of inputs, where they are not 3,000: one starts three runtimes. They are the same ones each time."""

BUGS = {
    "config": ("hook/core/container/spec.py", "check_names(self._members, _ROOT)", "pass"),
    "process": ("hook/entry/process.py", "check_names(self._members, PROCESS)", "pass"),
    "cmdline": ("hook/entry/cmdline.py", 'if long and (rest or "t" not in letters):', "if long:"),
    "nri": ("hook/nri/ttrpc.py", "del rest[:at]", "rest.clear()"),
    "checkpoint": ("hook/core/container/allocation.py", 'container in (None, entry.get("ContainerName"))', "True"),
    "claims": ("hook/core/container/claims.py", 'if crc32(text.encode()) != outer.get("Checksum"):', "if not text:"),
    "state": ("hook/core/container/runtime_records.py", "if len(set(bundles)) > 1:", "if len(bundles) > 9:"),
    "mountinfo": ("hook/core/base/mountinfo.py", 'lines.split("\\n")', "lines.splitlines()"),
    "certificate": ("hook/ops/trust/certificate.py", ".split()).lower()", ".split())"),
    "front": ("packaging/front/front.c", "if (*size && strings[*size - 1] != '\\0')", "if (0)"),
}
"""By target: a file, a text in it, and what it is replaced by. The first three and `state` were holes once.

The coverage of the package of that file guides the target here."""


def fuzz(target: str, tree: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run a target over the code of `tree`."""
    if target == "front":
        command = [str(scratch / "front"), "100000", "1", *map(str, sorted((HERE / "corpus/front").iterdir()))]
        sanitizers = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        source = f'-DFRONT="{tree}/packaging/front/front.c"'
        subprocess.run(["gcc", *sanitizers, "-DREPLAY", source, "-o", command[0], str(HERE / "front.c")], check=True)
    else:
        package = BUGS[target][0].rpartition("/")[0].replace("/", ".")
        command = [sys.executable, str(HERE / "drive.py"), target, "--tree", str(tree), "--guide", package]
        command += [f"-runs={RUNS.get(target, 3000)}", "-seed=1", f"-artifact_prefix={scratch}/"]
    return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)


@pytest.fixture(autouse=True)
def machine(target: str) -> None:
    if target != "front":
        pytest.importorskip("atheris", reason="atheris has wheels for x86_64 only")
    if target == "cmdline" and not all(map(shutil.which, ("runc", "crun", "runsc"))):
        pytest.skip("needs runc, crun and runsc")


@pytest.mark.parametrize("target", BUGS)
def test_target_holds(target: str, tmp_path: Path) -> None:
    done = fuzz(target, ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("target", BUGS)
def test_target_finds_a_bug_that_is_put_back(target: str, tmp_path: Path) -> None:
    file, old, new = BUGS[target]
    for part in ("hook", "packaging/front"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    text = (tmp_path / file).read_text()
    assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
    (tmp_path / file).write_text(text.replace(old, new))
    done = fuzz(target, tmp_path, tmp_path)
    assert done.returncode != 0, "it found nothing"
    said = done.stdout + done.stderr
    assert "Uncaught Python exception" in said or "not so" in said or "Sanitizer" in said, said[-3000:]
