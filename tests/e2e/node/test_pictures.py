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
from dataclasses import dataclass
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


@dataclass
class Node:
    """A booted node with reassert, and what its pod would have written."""

    booted: BootedNode
    objects: list[dict[str, Any]]

    def reassert(self, *arguments: str) -> str:
        """What a command prints, whatever its exit status."""
        done = self.booted.run(PACKAGED, *arguments, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def on_terminal(self, *arguments: str) -> str:
        """What it prints on a terminal."""
        command = shlex.join([PACKAGED, *arguments])
        done = self.booted.run("script", "-qec", f"stty cols {COLUMNS}; {command}", "/dev/null", check=False)
        return done.stdout.replace("\r", "")

    def keep(self, name: str) -> None:
        """Keep the node's NodeEnforcement under a name, with the state of the node's condition."""
        state, _, message = self.reassert("status", "--output=condition").strip().partition(" ")
        wanted = hashlib.sha256(self.booted.path(POLICY_FILE).read_bytes()).hexdigest()
        said = [f"--state={state}", f"--message={message}", f"--wanted={wanted}"]
        status = json.loads(self.reassert("status", "--output=enforcement", *said))
        self.objects.append({"metadata": {"name": name}, "status": status})


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
def node(boot: Boot) -> Node:
    files = {**FILES, POLICY_FILE: POLICY.replace("  rules:", "  mode: Enforce\n  rules:")}
    booted = boot(SUITE, config=containerd_config(FORMATS[SUITE], (RUNC,)), files=files)
    package(booted)
    return Node(booted, [])


@marks.promise(
    "The pictures of `status` and of the chart's objects have what the commands print", about="Packages and cluster"
)
def test_pictures_have_what_the_commands_print(node: Node) -> None:
    booted = node.booted
    node.reassert("install", "--engine", "containerd")
    pod = booted.cri.run_pod("")
    pod.run(env=[pair for pair in ENV if pair[0] == "NVIDIA_VISIBLE_DEVICES"])
    node.reassert("audit")
    node.reassert("verify")
    compare("status", "sudo reassert status", node.on_terminal("status"))
    node.keep("gpu-01")
    booted.path(CONFIG).write_text(booted.path(CONFIG).read_text() + LATER)
    booted.run("systemctl", "restart", "containerd")
    node.keep("gpu-02")
    node.reassert("policy", "audit")
    booted.run("systemctl", "stop", "containerd")
    booted.path(CONFIG).write_text(booted.path(CONFIG).read_text().removesuffix(LATER))
    booted.run("systemctl", "start", "containerd")
    node.reassert("verify")
    node.keep("cpu-01")
    compare("nodeenforcements", "kubectl get nodeenforcements", table(node.objects))
