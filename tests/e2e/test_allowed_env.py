"""Env with allowed values under the real runtimes: what the first process and an exec have."""

from __future__ import annotations

import json

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.tools import run

from e2e.runtimes import guarded

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  rules:
  - name: allowed
    env:
    - {name: GPUS, oneOf: [none, void], else: void}
    - {name: HOME, pattern: "/home/*", oneOf: [/root], else: /home/app, default: /home/app}
    - {name: DEBUG, oneOf: ["0"]}
    - {name: LEVEL, oneOf: [low, high], else: Deny}
"""

FIELDS = ("GPUS", "HOME", "DEBUG", "LEVEL")


def chosen(environ: list[str]) -> list[str]:
    """The entries of the names of POLICY."""
    return sorted(entry for entry in environ if entry.partition("=")[0] in FIELDS)


@pytest.fixture
def node(node: Node) -> Node:
    """A node with POLICY."""
    node.compile(POLICY)
    return node


CASES = {
    "allowed": (
        ["GPUS=none", "HOME=/home/a", "DEBUG=0", "LEVEL=low"],
        ["DEBUG=0", "GPUS=none", "HOME=/home/a", "LEVEL=low"],
    ),
    "not allowed": (["GPUS=all", "HOME=/home/../etc", "DEBUG=1"], ["GPUS=void", "HOME=/home/app"]),
    "unset": ([], ["HOME=/home/app"]),
    "twice, the last allowed": (["GPUS=all", "GPUS=none", "HOME=/root"], ["GPUS=none", "HOME=/root"]),
    "twice, the first allowed": (["GPUS=none", "GPUS=all", "HOME=/root"], ["GPUS=void", "HOME=/root"]),
}
"""The env that a pod's author asks for, and what a process has."""


@marks.claim("allowed-env", "runtime")
@marks.claim("exec", "runtime")
@pytest.mark.parametrize("case", CASES)
def test_a_process_has_an_allowed_value_and_an_exec_too(each: str, node: Node, bundle: Bundle, case: str) -> None:
    asked, wanted = CASES[case]
    bundle.spec["process"]["env"] += asked
    bundle.pod()
    bundle.save()
    with Running(node.dispatcher(each), bundle) as container:
        assert chosen(container.environ()) == wanted
        assert chosen(container.exec("/bin/env").splitlines()) == wanted
        process = bundle.directory / "process.json"  # an engine writes the env that the pod asked for
        process.write_text(json.dumps({**bundle.spec["process"], "args": ["/bin/env"]}))
        done = run(container.runtime, "exec", "--process", str(process), container.id)
        assert chosen(done.stdout.splitlines()) == wanted


@marks.claim("exec", "runtime")
def test_the_caller_of_an_exec_may_choose_an_allowed_value_and_no_other(each: str, node: Node, bundle: Bundle) -> None:
    bundle.spec["process"]["env"] += ["GPUS=all", "HOME=/home/a"]
    bundle.pod()
    bundle.save()
    with Running(node.dispatcher(each), bundle) as container:
        for given, gpus, home in (
            (["GPUS=none", "HOME=/home/b"], "none", "/home/b"),
            (["GPUS=all", "HOME=/tmp", "DEBUG=1"], "void", "/home/app"),
            (["A=1"], "void", "/home/a"),
        ):
            options = tuple(part for entry in given for part in ("-e", entry))
            env = container.exec("/bin/env", options=options).splitlines()
            assert chosen(env) == [f"GPUS={gpus}", f"HOME={home}"]
        done = run(container.runtime, "exec", "-e", "LEVEL=top", container.id, "/bin/env", check=False)
        assert done.returncode != 0
        assert "env LEVEL was set to a value that is not allowed" in done.stderr
        assert "top" not in done.stderr


@marks.claim("allowed-env", "runtime@wrapper", "hook@createRuntime", "hook@createContainer")
def test_else_deny_refuses_the_container(way: tuple[str, str], node: Node, bundle: Bundle) -> None:
    real, adapter = way
    bundle.spec["process"]["env"] += ["GPUS=none", "HOME=/root", "LEVEL=secret"]
    bundle.pod()
    assert guarded(adapter, real, node, bundle).create() != 0
    event = node.logged()[-1]
    assert event["event"] == "container.denied"
    [reason] = event["denials"]
    assert reason["message"] == "env LEVEL was set to a value that is not allowed"
    assert "secret" not in json.dumps(event)


@marks.claim("allowed-env", "hook")
@pytest.mark.parametrize("stage", ["createRuntime", "createContainer"])
def test_a_hook_lets_allowed_values_through_and_refuses_what_it_cannot_correct(
    real: str, node: Node, bundle: Bundle, stage: str
) -> None:
    """runc and crun take the last of two values, so two of which the last is allowed need no correction."""
    usual = list(bundle.spec["process"]["env"])
    for asked, started in (
        (["GPUS=all", "GPUS=none", "HOME=/root"], True),
        (["HOME=/home/x"], True),
        (["GPUS=all", "HOME=/root"], False),
        ([], False),  # without HOME a runtime sets it by the image's /etc/passwd
    ):
        bundle.spec["process"]["env"] = usual + asked
        bundle.pod()
        container = guarded(stage, real, node, bundle)
        try:
            assert (container.create() == 0) == started, (asked, container.output())
        finally:
            run(real, "delete", "--force", container.id, check=False)
