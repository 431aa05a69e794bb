"""docs/status.svg and docs/nodeenforcements.svg: what the commands print on a booted node.

    sudo REASSERT_PICTURES=1 tests/run.sh tests/e2e/node/test_pictures.py       writes them

The table of `kubectl` is made of the columns of the chart's definition and of what the node's program says in three
states of one node, each under another name, as the chart's pods write it. What differs from run to run is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from typing import Any

import marks
import pytest
import recording
import yaml
from harness.paths import TOP

from e2e.cri.hostile import ENV
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG, FORMATS, RUNC, containerd_config
from e2e.node.wired import FILES, PACKAGED, POLICY, POLICY_FILE, package

SUITE = "trixie"
COLUMNS = 116
"""Of the terminal in the picture."""
LATER = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.later]
  runtime_type = "io.containerd.runc.v2"
"""
"""A handler that the engine gets after the install."""

ALIKE = (
    (r"(containerd \d+\.\d+)\S*", r"\1"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "2026-01-31T12:00:00Z"),
    (r"\b(now|\d+ (s|min|seconds?|minutes?)( \d+ s)? ago)\b", "2 min ago"),
    (r"(^reassert .* on )[^,]+", r"\1gpu-01"),
    (r"\d+(\.\d+)? MiB", "25 MiB"),
)
"""What differs from run to run, and what is shown for it."""
AGE = "2m"
"""How long ago each node was looked at, in the table."""


def reassert(node: BootedNode, *arguments: str) -> str:
    """What a command prints, whatever its exit status."""
    done = node.run(PACKAGED, *arguments, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def on_terminal(node: BootedNode, *arguments: str) -> str:
    """What it prints on a terminal."""
    command = shlex.join([PACKAGED, *arguments])
    done = node.run("script", "-qec", f"stty cols {COLUMNS}; {command}", "/dev/null", check=False)
    return done.stdout.replace("\r", "")


def enforcement(node: BootedNode, name: str) -> dict[str, Any]:
    """The node's NodeEnforcement under a name, with the state of the node's condition."""
    state, _, message = reassert(node, "status", "--output=condition").strip().partition(" ")
    wanted = hashlib.sha256(node.path(POLICY_FILE).read_bytes()).hexdigest()
    said = [f"--state={state}", f"--message={message}", f"--wanted={wanted}"]
    status = json.loads(reassert(node, "status", "--output=enforcement", *said))
    return {"metadata": {"name": name}, "status": status}


def table(objects: list[dict[str, Any]]) -> str:
    """As `kubectl get` shows them: the columns of priority 0."""
    definition = yaml.safe_load((TOP / "packaging/kubernetes/chart/files/nodeenforcements.yaml").read_text())
    [version] = definition.get("spec", definition)["versions"]
    columns = [each for each in version["additionalPrinterColumns"] if not each.get("priority")]
    rows = [["NAME", *(each["name"].upper() for each in columns)]]
    for each in sorted(objects, key=lambda one: str(one["metadata"]["name"])):
        cells = [AGE if column["type"] == "date" else _at(each, column["jsonPath"]) for column in columns]
        rows.append([each["metadata"]["name"], *cells])
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    lines = ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _at(value: Any, path: str) -> str:
    for name in path.lstrip(".").split("."):
        value = value.get(name, {})
    return "" if value == {} else str(value)


def compare(name: str, command: str, text: str) -> None:
    """The picture has this text, or is written with it."""
    for pattern, same in ALIKE:
        text = re.sub(
            pattern,
            lambda found, same=same: found.expand(same).ljust(len(found[0])),
            text,
            flags=re.MULTILINE,  # type: ignore[misc]  # mypy sees no type of a lambda's default
        )
    text = "\n".join(map(str.rstrip, text.splitlines()))
    picture, made = TOP / f"docs/{name}.svg", recording.drawn(text, command)
    if os.environ.get("REASSERT_PICTURES"):
        picture.write_text(made)
    there, wanted = (list(map(_without_versions, recording.text_of(each))) for each in (picture.read_text(), made))
    assert there == wanted, "REASSERT_PICTURES=1 writes it"


def _without_versions(line: str) -> str:
    """A release changes the version, and Debian that of the engine, and with it the width of a column."""
    return re.sub(" {2,}", "  ", re.sub(r"\d+\.\d+\.\d+", "0.0.0", line))


@pytest.fixture
def node(boot: Boot) -> BootedNode:
    files = {**FILES, POLICY_FILE: POLICY.replace("  rules:", "  mode: Enforce\n  rules:")}
    node = boot(SUITE, config=containerd_config(FORMATS[SUITE], (RUNC,)), files=files)
    package(node)
    return node


@marks.promise(
    "The pictures of `status` and of the chart's objects have what the commands print", about="Packages and cluster"
)
def test_pictures_have_what_the_commands_print(node: BootedNode) -> None:
    reassert(node, "install", "--engine", "containerd")
    pod = node.cri.run_pod("")
    pod.run(env=[pair for pair in ENV if pair[0] == "NVIDIA_VISIBLE_DEVICES"])
    reassert(node, "audit")
    reassert(node, "verify")
    compare("status", "sudo reassert status", on_terminal(node, "status"))
    objects = [enforcement(node, "gpu-01")]
    node.path(CONFIG).write_text(node.path(CONFIG).read_text() + LATER)
    node.run("systemctl", "restart", "containerd")
    objects.append(enforcement(node, "gpu-02"))
    reassert(node, "policy", "audit")
    node.run("systemctl", "stop", "containerd")
    node.path(CONFIG).write_text(node.path(CONFIG).read_text().removesuffix(LATER))
    node.run("systemctl", "start", "containerd")
    reassert(node, "verify")
    objects.append(enforcement(node, "cpu-01"))
    compare("nodeenforcements", "kubectl get nodeenforcements", table(objects))
