"""Which running containers still call a runtime."""

from __future__ import annotations

import json
from pathlib import Path

from hook.node.engines.shims import preexisting_pods, users
from hook.node.systemd import option

DISPATCHER = "/opt/reassert/reassert-runc"


def bundle(state: Path, name: str, **files: str) -> None:
    directory = state / "io.containerd.runtime.v2.task" / "moby" / name
    directory.mkdir(parents=True)
    for file, text in files.items():
        (directory / file.replace("_json", ".json")).write_text(text)


def test_each_container_counts_once_and_only_for_its_own_runtime(tmp_path: Path) -> None:
    assert users(DISPATCHER, str(tmp_path)) == 0
    bundle(tmp_path, "a", runtime=DISPATCHER, options_json=f'{{"binary_name":"{DISPATCHER}"}}')
    bundle(tmp_path, "b", options_json=f'{{"root":"/r","binary_name":"{DISPATCHER}"}}')
    bundle(tmp_path, "c", runtime="runc", options_json='{"binary_name":"runc"}')
    bundle(tmp_path, "d", runtime=f"{DISPATCHER}-2\n", options_json=f'{{"binary_name":"{DISPATCHER}-2"}}')
    assert users(DISPATCHER, str(tmp_path)) == 2
    assert users(f"{DISPATCHER}-2", str(tmp_path)) == 1


def test_options_of_a_daemon_in_both_spellings() -> None:
    arguments = ["dockerd", "-H", "fd://", "--host=unix:///a", "--debug", "--config-file"]
    assert option(arguments, "-H", "--host") == ["fd://", "unix:///a"]
    assert option(arguments, "--config-file") == [""]
    assert option(arguments, "--data-root") == []


def pod(state: Path, name: str, binary: str, kind: str = "sandbox") -> None:
    """The bundle of a container of the CRI plugin's, in a pod of that name."""
    notes = {"container-type": kind, "sandbox-namespace": "shop", "sandbox-name": name}
    config = {"process": {}, "annotations": {f"io.kubernetes.cri.{key}": value for key, value in notes.items()}}
    directory = state / "io.containerd.runtime.v2.task" / "k8s.io" / f"{name}-{kind}"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "options.json").write_text(json.dumps({"binary_name": binary} if binary else {}))


def test_pods_of_before_are_those_whose_sandbox_calls_no_dispatcher(tmp_path: Path) -> None:
    dispatcher = tmp_path / "reassert-runc"
    dispatcher.write_text('#!/bin/sh\n# written by reassert: a test\nexec /usr/sbin/runc "$@"\n')
    pod(tmp_path, "ours", str(dispatcher))
    pod(tmp_path, "a", "")
    pod(tmp_path, "a", "", "container")
    pod(tmp_path, "b", "/usr/bin/crun")
    bundle(tmp_path, "of-docker", options_json="{}")
    broken = tmp_path / "io.containerd.runtime.v2.task" / "k8s.io" / "broken"
    broken.mkdir()
    (broken / "options.json").write_text("{")
    assert [str(identity) for identity in preexisting_pods(str(tmp_path))] == ["shop/a/container", "shop/b/container"]
