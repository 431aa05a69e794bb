"""Which running containers still call a runtime."""

from __future__ import annotations

from pathlib import Path

from hook.node.wiring.daemon import arguments_of, option
from hook.node.wiring.shims import users

DISPATCHER = "/usr/local/sbin/reassert-runc"


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


def test_process_that_is_none_has_no_arguments() -> None:
    assert arguments_of(0) == arguments_of(2**22 + 1) == []
