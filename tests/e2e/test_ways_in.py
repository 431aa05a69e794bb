"""Attacks on a policy through env, names and process files, each on real runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED, Node
from harness.paths import RUNTIMES
from harness.tools import run

from e2e.table import ROWS, place

IGNORE = POLICY.replace("spec:", "spec:\n  failurePolicy: Ignore", 1)
NO_SANDBOX = POLICY.replace("[kube-system]", "[kube-system], containerTypes: [sandbox]")
CONTAINERD = {
    "io.kubernetes.cri.container-type": "sandbox",
    "io.kubernetes.cri.sandbox-id": "0" * 64,
    "io.kubernetes.cri.sandbox-name": "p",
    "io.kubernetes.cri.sandbox-namespace": "kube-system",
    "io.kubernetes.cri.sandbox-uid": "1-2-3",
}
CRIO = {
    "io.container.manager": "cri-o",
    "io.kubernetes.cri-o.ContainerType": "sandbox",
    "io.kubernetes.pod.name": "p",
    "io.kubernetes.pod.namespace": "kube-system",
    "io.kubernetes.pod.uid": "1-2-3",
}


def events(node: Node) -> list[str]:
    return [event["event"] for event in node.logged()]


# NUL


NULS: dict[str, Any] = {
    "args": lambda spec: spec["process"]["args"].append("a\0b"),
    "annotation": lambda spec: spec.setdefault("annotations", {}).update({"a": "b\0"}),
}
NUL_ROWS = ["env-nul", "mount-nul"]
NAME = {"name": "REQUESTS_CA_BUNDLE", "value": "/etc/ssl/certs/ca-certificates.crt"}
"""Of a row's placeholders."""


@marks.claim("ambiguous-json", "runtime")
@marks.claim("failure-policy", "runtime")
@marks.hole(
    "A NUL after a reserved env name made crun drop the variable", since="0.1.0", fixed="0.2.0", severity="high"
)
@pytest.mark.parametrize("row", [*NUL_ROWS, *NULS])
def test_nul_in_a_spec_is_refused(node: Node, each: str, bundle: Bundle, row: str) -> None:
    node.compile(IGNORE)
    if row in NULS:
        NULS[row](bundle.spec)
    else:
        place(row, bundle, **NAME)
    bundle.save()
    line = Running(node.dispatcher(each), bundle).refused()
    assert "holds a NUL" in line
    assert events(node) == ["container.denied"]


def test_nul_in_a_spec_is_logged_in_audit_mode(node: Node, bundle: Bundle) -> None:
    node.compile(POLICY.replace("spec:", "spec:\n  mode: Audit", 1))
    place("env-nul", bundle, **NAME)
    bundle.save()
    with Running(node.dispatcher(RUNTIMES["crun"]), bundle):
        assert events(node) == ["container.would-deny"]


@marks.claim("ambiguous-json", "runtime")
@marks.hole("A NUL after a reserved env name made crun drop the variable")
def test_nul_in_a_process_file_of_exec_is_refused(node: Node, each: str, bundle: Bundle) -> None:
    node.compile()
    with Running(node.dispatcher(each), bundle) as container:
        path = process_file(bundle, "REQUESTS_CA_BUNDLE\0=x")
        done = run(container.runtime, "exec", "--process", str(path), container.id, check=False)
        assert (done.returncode, done.stdout) == (255, "")
        assert "holds a NUL" in done.stderr


# Members that Go takes for others


SPELLINGS = [
    *("mount-member", "env-spelling", "spelled-destination", "spelled-devices", "spelled-rules", "spelled-process"),
    *("spelled-hooks", "spelled-root"),
]


@marks.claim("ambiguous-json", "runtime")
@marks.claim("failure-policy", "runtime")
@marks.hole(
    "A member of config.json in another spelling (`Mounts`), or twice, counted only for runc",
    since="0.1.0",
    fixed="0.2.0",
    severity="low",
)
@pytest.mark.parametrize("row", SPELLINGS)
def test_member_in_another_spelling_is_refused(node: Node, real: str, bundle: Bundle, row: str) -> None:
    node.compile(IGNORE)
    place(row, bundle, **NAME)
    bundle.save()
    assert "is spelled" in Running(node.dispatcher(real), bundle).refused()


# Who says that it is a sandbox, or of kube-system


SANDBOXES = [name for name in ROWS if name.startswith("identity-")]


@marks.claim("exclusion", "runtime")
@marks.cve("CVE-2026-53488")
@marks.hole(
    "An image's annotations (podman) or docker's `--cgroup-parent` made a container an excluded sandbox",
    since="0.1.0",
    fixed="0.2.0",
    severity="high",
)
@marks.hole(
    "A podman user's `--cgroup-parent` of crio-… counted as a pod of an excluded namespace",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("name", SANDBOXES)
def test_nothing_that_a_user_or_image_can_write_excludes(node: Node, real: str, directory: Path, name: str) -> None:
    node.compile(NO_SANDBOX)
    bundle = Bundle(directory / "moby" / "0a")
    place(name, bundle, unique=directory.name, **NAME)
    bundle.save()
    with Running(node.dispatcher(real), bundle) as container:
        assert WANTED in container.environ()
        assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    assert events(node) == ["container.edited"]


@marks.claim("failure-policy", "runtime")
@marks.hole(
    "With `failurePolicy: Ignore`, a pod or an image that caused a failure kept its values",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
)
@pytest.mark.parametrize("mode", ["Enforce", "Audit"])
def test_annotations_of_two_engines_do_not_keep_an_allocation_that_nobody_gave(
    node: Node, real: str, bundle: Bundle, mode: str
) -> None:
    """failurePolicy: Ignore is for what the node cannot do, not for what a pod writes."""
    gpu = "env: [{name: GPU, valueFrom: {deviceAllocation: {default: void}}}]"
    spec = f"{{mode: {mode}, failurePolicy: Ignore, rules: [{{name: gpu, {gpu}}}]}}"
    node.compile(f"apiVersion: reassert/v1\nkind: NodePolicy\nspec: {spec}\n")
    bundle.spec["annotations"] = {**CONTAINERD, **CRIO}
    bundle.spec["process"]["env"].append("GPU=all")
    bundle.directory = bundle.directory.rename(bundle.directory.parent.parent / "bare")
    bundle.rootfs = bundle.directory / "rootfs"
    bundle.save()
    container = Running(node.dispatcher(real), bundle)
    if mode == "Audit":
        with container:
            assert "GPU=all" in container.environ()
    else:
        container.refused()
    assert events(node) == ["container.would-deny" if mode == "Audit" else "container.denied"]


# exec


def process_file(bundle: Bundle, *env: str) -> Path:
    path = bundle.directory / "process.json"
    process = {**bundle.spec["process"], "args": ["/bin/env"], "env": ["PATH=/bin", *env]}
    path.write_text(json.dumps(process))
    return path


NAMES = [("runc", "runc-1.1"), ("runc", "nvidia-container-runtime"), ("crun", "crun-wasm"), ("crun", "runc")]


@marks.claim("exec", "runtime")
@marks.hole(
    "`exec` was not corrected behind a runtime of another name, or crun with XDG_RUNTIME_DIR",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
)
@pytest.mark.parametrize(("which", "name"), NAMES)
@pytest.mark.parametrize("way", ["link", "script"])
def test_exec_is_corrected_behind_a_runtime_of_another_name(
    node: Node, bundle: Bundle, which: str, name: str, way: str
) -> None:
    node.compile()
    real = node.directory / name
    if way == "link":
        real.symlink_to(RUNTIMES[which])
    else:
        real.write_text(f'#!/bin/sh\nexec {RUNTIMES[which]} "$@"\n')
        real.chmod(0o755)
    with Running(node.dispatcher(str(real)), bundle) as container:
        path = process_file(bundle, "REQUESTS_CA_BUNDLE=/tmp/evil")
        assert WANTED in run(container.runtime, "exec", "--process", str(path), container.id).stdout.splitlines()
        assert WANTED in container.exec("/bin/env", options=("-e", "REQUESTS_CA_BUNDLE=x")).splitlines()


@marks.claim("exec", "runtime")
@marks.hole("`exec` was not corrected behind a runtime of another name, or crun with XDG_RUNTIME_DIR")
def test_exec_is_corrected_where_the_runtime_reads_xdg_runtime_dir(
    node: Node, each: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """crun takes it, runc as root does not."""
    node.compile()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(node.directory))
    with Running(node.dispatcher(each), bundle) as container:
        assert (node.directory / "crun" / container.id).exists() == ("crun" in each)
        path = process_file(bundle, "REQUESTS_CA_BUNDLE=/tmp/evil")
        assert WANTED in run(container.runtime, "exec", "--process", str(path), container.id).stdout.splitlines()


@marks.claim("exec-of-unknown", "runtime")
@marks.hole("`exec` was not corrected behind a runtime of another name, or crun with XDG_RUNTIME_DIR")
def test_exec_in_a_container_that_is_found_nowhere_is_refused(node: Node, real: str, bundle: Bundle) -> None:
    node.compile()
    done = run(node.dispatcher(real), "exec", "nobody", "/bin/env", check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (255, "", 1)
    assert "/run/runc/nobody" in done.stderr
    assert "/run/crun/nobody" in done.stderr


@marks.claim("exec-of-unknown", "runtime")
def test_exec_in_a_container_that_is_found_twice_is_refused(node: Node, bundle: Bundle) -> None:
    """Nobody but the runtime knows which of the two it will take."""
    node.compile()
    name = "twice-" + node.directory.name
    other = Bundle(node.directory / "other")
    one, two = Running(RUNTIMES["runc"], bundle), Running(node.dispatcher(RUNTIMES["crun"]), other)
    one.id = two.id = name
    with one, two:
        done = run(two.runtime, "exec", name, "/bin/env", check=False)
        assert done.returncode == 255
        assert "/run/runc" in done.stderr
        assert "/run/crun" in done.stderr


PIPES = {
    "substitution": 'exec "$R" exec -p <(cat "$P") "$ID"',
    "proc self fd": 'exec 9< <(cat "$P"); exec "$R" exec --process=/proc/self/fd/9 "$ID"',
    "stdin": 'cat "$P" | "$R" exec --process /dev/stdin "$ID"',
    "late": 'exec "$R" exec -p <(sleep 1; cat "$P") "$ID"',
    "fifo": 'mkfifo "$P.fifo"; cat "$P" > "$P.fifo" & "$R" exec -p"$P.fifo" "$ID"',
    "deleted file": 'exec 9< "$P"; rm "$P"; exec "$R" exec -p=/dev/fd/9 "$ID"',
}


@marks.claim("exec", "runtime")
@pytest.mark.parametrize("name", PIPES)
@pytest.mark.parametrize("large", [False, True], ids=["", "larger than a pipe"])
def test_process_file_of_exec_may_be_a_pipe(node: Node, each: str, bundle: Bundle, name: str, large: bool) -> None:
    node.compile()
    script = PIPES[name]
    if "-p=/" in script and "runc" not in each:
        script = script.replace("-p=/", "-p/")
    if '-p"' in script and "runc" in each:
        script = script.replace('-p"', '-p "')
    more = [f"A{number}={'x' * 1000}" for number in range(100)] if large else ["A=1"]
    with Running(node.dispatcher(each), bundle) as container:
        for runtime, wanted in ((container.runtime, WANTED), (each, "REQUESTS_CA_BUNDLE=/tmp/evil")):
            path = process_file(bundle, "REQUESTS_CA_BUNDLE=/tmp/evil", *more)
            env = {"R": runtime, "P": str(path), "ID": container.id, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            Path(f"{path}.fifo").unlink(missing_ok=True)
            done = run("bash", "-c", script, env=env)
            assert wanted in done.stdout.splitlines()
            assert more[-1] in done.stdout.splitlines()


def test_pipe_that_needs_no_correction_reaches_the_runtime(real: str, node: Node, bundle: Bundle) -> None:
    node.compile()
    with Running(real, bundle) as container:
        path = process_file(bundle, "A=1")
        done = run("bash", "-c", f'exec {node.dispatcher(real)} exec -p <(cat "{path}") {container.id}')
        assert "A=1" in done.stdout.splitlines()


def test_pipe_of_exec_leaves_no_descriptor_in_the_container(node: Node, each: str, bundle: Bundle) -> None:
    node.compile()
    with Running(node.dispatcher(each), bundle) as container:
        path = process_file(bundle, "A=1")
        process = {**json.loads(path.read_text()), "args": ["/bin/ls", "-l", "/proc/self/fd"]}
        path.write_text(json.dumps(process))
        seen = []
        for runtime in (each, container.runtime):
            script = f'exec {runtime} exec --preserve-fds 1 -p <(cat "{path}") {container.id} 3< /dev/null'
            lines = run("bash", "-c", script).stdout.splitlines()
            seen.append([line.split()[-3] for line in lines if "->" in line])
            assert "memfd" not in "".join(lines)
        assert seen[0] == seen[1]
