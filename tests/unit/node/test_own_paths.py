"""Paths with reassert's name, in what packages, units, the chart and the program write and execute."""

from __future__ import annotations

import re
from pathlib import Path

import marks

from hook.core.reserve.node_paths import ENGINE_PATHS, REASSERT_PATHS, reaches

ROOT = Path(__file__).parents[3]
PATH = re.compile(r"(?<![\w}/])/(?:etc|opt|usr|var|run|srv)/[\w./@*-]*reassert[\w./@*-]*")

NOT_OWN = {
    "/etc/cdi/reassert.json": "an engine reads each CDI spec there: who writes there adds another one",
    "/usr/bin/reassert": "device plugins have /usr/bin writable, and who writes there replaces sh; its program is own",
    "/usr/local/share/reassert": "in the chart's image only",
    "/usr/share/doc/reassert": "no start and no unit reads it",
    "/usr/share/reassert/": "a package copies it when it is first installed; containers have /usr/share writable",
    "/var/lib/reassert-demo.": "of the demo, which wires nothing into an engine",
}
"""By the beginning of a path: why a container may have a writable volume of it."""


def written() -> dict[str, str]:
    """The paths, each with a file that has it. What lies below hook/ops asks a node and is asked by no engine."""
    files = [ROOT / "install.sh"]
    for top in ("packaging", "hook"):
        files += [file for file in sorted((ROOT / top).rglob("*")) if file.is_file() and file.suffix != ".pyc"]
    found: dict[str, str] = {}
    for file in files:
        for path in PATH.findall(file.read_text("utf-8", "replace")):
            found.setdefault(path.rstrip("./*"), str(file.relative_to(ROOT)))
    return found


@marks.hole(
    "A writable volume of the chart's /var/lib/reassert-kubernetes, of /usr/local/bin or of install's staging"
    " directory replaced a program that root of the node executes"
)
def test_each_is_reasserts_own_or_has_a_reason() -> None:
    paths = written()
    assert {"/var/lib/reassert-kubernetes", "/usr/local/bin/reassert", "/opt/.reassert.reassert-aside"} <= paths.keys()
    missing = {
        path: file
        for path, file in paths.items()
        if not any(reaches(path, each) for each in (*REASSERT_PATHS, *ENGINE_PATHS))
        and not path.startswith(tuple(NOT_OWN))
    }
    assert missing == {}


def test_each_reason_has_a_path() -> None:
    assert {reason for reason in NOT_OWN if not any(path.startswith(reason) for path in written())} == set()
