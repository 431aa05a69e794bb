"""The dispatcher `reassert-runc` under real shells, with test programs as reassert and as the real runtime."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import marks
import pytest
from harness.tools import need

from hook.core.base.errors import ReassertError
from hook.entry.cmdline import VERBS
from hook.entry.dispatcher import HEADER, dispatcher, launch_lines, stable_path, start_text, warm_hook
from unit.support import called, reassert

pytestmark = marks.promise("Verbs that start no process never start Python", about="Decision")

SHELLS = ("sh", "bash", "busybox")
"""The first is dash on Debian; tests/run.sh installs the last."""

AWKWARD = ["", " ", "a b", "*", "$HOME", "`id`", "'", '"', "\\", "a\nb", "é"]


def command_of(shell: str) -> list[str]:
    """The command of one of SHELLS. Fails in CI if it is missing."""
    need(shutil.which(shell) is not None, shell)
    return ["busybox", "sh"] if shell == "busybox" else [shell]


def program(path: Path) -> str:
    """An executable that prints its own name and arguments, each with a NUL behind it."""
    path.write_text(f"#!/bin/sh\nprintf '%s\\0' {path.name} \"$@\"\n")
    path.chmod(0o755)
    return str(path)


def words(printed: str) -> list[str]:
    """What `program` printed."""
    return printed.split("\0")[:-1]


@pytest.fixture(params=SHELLS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """Run the dispatcher under each shell; returns the started command."""
    directory = tmp_path / "it's a $dir"
    directory.mkdir()
    real, own = program(directory / "runc"), program(directory / "reassert")
    script = tmp_path / "reassert-runc"
    script.write_text(dispatcher(real, own, extra=["--policy", "/etc/a b"]))
    shell = command_of(request.param)

    def started(*arguments: str) -> list[str]:
        result = subprocess.run([*shell, str(script), *arguments], capture_output=True, text=True)
        assert result.stderr == ""
        return [word.replace(str(directory), "DIR") for word in words(result.stdout)]

    return started


@pytest.mark.parametrize(
    "line",
    [
        *[f"--root /r {verb} --bundle b" for verb, change in VERBS.items() if change],
        *["creates", "create-x", "--root /r unknown", "--platform ptrace state", "--platform ptrace run", "-- state"],
        *["--root state run", "state run", "--root", "--root state", "--rootless true state", "--help=x create"],
        *[" state", "--debugs state", "-= state"],
    ],
)
def test_what_is_not_known_to_change_nothing_goes_through_reassert(run: object, line: str) -> None:
    arguments = [*line.split(" "), *AWKWARD, "id"]
    expected = ["reassert", "runtime", "--real", "DIR/runc", "--policy", "/etc/a b", "--", *arguments]
    assert run(*arguments) == expected  # type: ignore[operator]  # a fixture that is a function


PASSED = [verb for verb, change in VERBS.items() if not change]


@pytest.mark.parametrize(
    ("options", "verbs"),
    [
        ("--root /r", PASSED),
        ("--root value", ["state", "--version", "-v", "--help"]),
        ("--debug --log-format=json --log option", ["features"]),
        ("--a=b", ["kill"]),
    ],
)
def test_verbs_that_change_nothing_reach_the_real_runtime_at_once(run: object, options: str, verbs: list[str]) -> None:
    for verb in verbs:
        arguments = [*options.split(), verb, "--force", *AWKWARD, "id"]
        assert run(*arguments) == ["runc", *arguments]  # type: ignore[operator]  # a fixture that is a function


def test_no_arguments_reach_the_real_runtime(run: object) -> None:
    assert run() == ["runc"]  # type: ignore[operator]  # a fixture that is a function


def test_real_runtime_must_be_executable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "gone", tmp_path / "file", tmp_path):
        with pytest.raises(ReassertError, match="is not an executable file"):
            dispatcher(str(path), "/r", extra=[])


def test_dispatcher_does_not_dispatch_to_itself(tmp_path: Path) -> None:
    first = tmp_path / "reassert-runc"
    first.write_text(dispatcher("/bin/true", "/r", extra=[]))
    first.chmod(0o755)
    with pytest.raises(ReassertError, match="it would call itself endlessly"):
        dispatcher(str(first), "/r", extra=[])


@pytest.mark.users
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("user", [0, pytest.param(65534, marks=pytest.mark.userns)])
def test_ordinary_users_of_podman_get_the_real_runtime(shell: str, user: int, root_dir: Path) -> None:
    """As podman without root starts a runtime: as root of a user namespace that is somebody's."""
    real, own, script = root_dir / "crun", root_dir / "reassert", root_dir / "reassert-podman-crun"
    for file in (real, own):
        file.write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
        file.chmod(0o755)
    script.write_text(dispatcher(str(real), str(own), extra=[], rootless=True))
    script.chmod(0o644)
    somebody = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "unshare", "--map-root-user"]
    command = [*(somebody if user else []), *command_of(shell), str(script)]
    done = subprocess.run([*command, "create", "id"], capture_output=True, text=True)
    wanted = "crun create id\n" if user else f"reassert runtime --real {real} -- create id\n"
    assert (done.stdout, done.stderr) == (wanted, "")


def test_command_prints_a_script_that_says_only_what_is_not_the_default() -> None:
    same = reassert("dispatcher", "--real", "/bin/true", "--reassert", "/r", "--policy", "/etc/reassert/policy.yaml")
    assert same.stdout == dispatcher("/bin/true", "/r", extra=[])
    other = reassert("dispatcher", "--real", "/bin/true", "--reassert", "/r", "--store", "/s")
    assert other.stdout == dispatcher("/bin/true", "/r", extra=["--store", "/s"])
    relative = reassert("dispatcher", "--real", "true")
    assert (relative.returncode, relative.stderr) == (2, "reassert: true is not an absolute path\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_start_file_says_what_to_run(shell: str, tmp_path: Path) -> None:
    """The dispatcher names no version, so it goes on working with the next one."""
    directory = tmp_path / "it's a $dir"
    (directory / "one").mkdir(parents=True)
    real = program(directory / "runc")
    (directory / "one/first").symlink_to(program(directory / "first"))
    (directory / "start").write_text("reassert=${0%/*}/one/first\n")
    script = directory / "reassert-runc"
    script.write_text(dispatcher(real, str(directory / "reassert"), extra=[]))
    command = [*command_of(shell), str(script)]
    first = subprocess.run([*command, "create", "a b"], capture_output=True, text=True)
    assert words(first.stdout) == ["first", "runtime", "--real", real, "--", "create", "a b"]
    (directory / "start").write_text("reassert=${0%/*}/second\n")
    program(directory / "second")
    second = subprocess.run([*command, "create"], capture_output=True, text=True)
    assert words(second.stdout)[0] == "second"
    other = subprocess.run([*command, "kill"], capture_output=True, text=True)
    assert words(other.stdout) == ["runc", "kill"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("theirs", ["", "/theirs"])
def test_a_start_file_goes_before_the_engines_libraries(shell: str, theirs: str, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.write_text(start_text("/it's a $dir/reassert"))
    command = [*command_of(shell), "-euc", f". '{start}'; printenv"]
    done = subprocess.run(command, env={"PATH": "/bin", "LD_LIBRARY_PATH": theirs}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {line for line in done.stdout.splitlines() if line.startswith(("_PYI", "LD_"))} == {
        "_PYI_ARCHIVE_FILE=/it's a $dir/reassert",
        "_PYI_PARENT_PROCESS_LEVEL=0",
        f"LD_LIBRARY_PATH=/it's a $dir/lib{':' if theirs else ''}{theirs}",
    }


@pytest.mark.parametrize("frozen", [True, False])
def test_bootloaders_environment_is_for_a_frozen_program_by_its_own_path(
    frozen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its libraries are not beside a link; and the real runtime of an unfrozen one would look for its own there."""
    if frozen:
        monkeypatch.setattr(sys, "_MEIPASS", "", raising=False)
    own = tmp_path / "reassert"
    (tmp_path / "link").symlink_to(program(own))
    for path, is_set in ((own, frozen), (tmp_path / "link", False)):
        script = f'{launch_lines(str(path))}\necho "$reassert"; printenv _PYI_ARCHIVE_FILE LD_LIBRARY_PATH'
        done = subprocess.run(["sh", "-c", script], env={"PATH": "/bin"}, capture_output=True, text=True)
        assert done.stdout.splitlines() == [str(path)] + ([str(path), f"{tmp_path}/lib"] if is_set else [])
        assert launch_lines(str(path), installed=True) == f". {tmp_path}/start"


def test_a_file_that_front_cannot_run_is_told(tmp_path: Path) -> None:
    def printed(front: str, socket: str = "/s") -> str:
        options = ["--real", "/bin/true", "--reassert", "/r", "--front", front, "--socket", socket]
        done = called("dispatcher", *options)
        assert (done.returncode == 0) is (done.stderr == "") is (done.stdout != "")
        return done.stdout or done.stderr

    longest = program(tmp_path / ("f" * (255 - len(f"#!{tmp_path}/\n"))))
    script = tmp_path / "runc"
    script.write_text(printed(longest))
    script.chmod(0o755)
    ran = subprocess.run([script, "create"], capture_output=True, text=True)
    assert words(ran.stdout) == [Path(longest).name, str(script), "create"]
    for front in (program(Path(f"{longest}f")), program(tmp_path / "a b")):
        assert f"{front} cannot be the interpreter of a file" in printed(front)
    Path(longest).chmod(0o644)
    for front in (longest, f"{tmp_path}/gone"):
        assert f"{front} is not an executable file" in printed(front)
    later = warm_hook("/r", front, where={"socket": "/s"}, extra=[], installed=True)
    assert later.startswith(f"#!{front}\n"), "an installation makes it afterwards"
    front = program(tmp_path / "front")
    room = HEADER - len("\n\n") - printed(front).index("\n\n")
    assert printed(front, "/s" + "x" * room).index("\n\n") == HEADER - len("\n\n")
    for socket in ("/s" + "x" * (room + 1), "/s\n"):
        assert "a path is too long for front or contains a line break" in printed(front, socket)


def test_engines_call_a_package_by_the_link_that_lasts(tmp_path: Path) -> None:
    (tmp_path / "content").mkdir()
    real = program(tmp_path / "content/reassert")
    assert stable_path(real) == real
    (tmp_path / "reassert").symlink_to("elsewhere/reassert")
    assert stable_path(real) == real
    (tmp_path / "reassert").unlink()
    (tmp_path / "reassert").symlink_to("content/reassert")
    assert stable_path(real) == str(tmp_path / "reassert")
