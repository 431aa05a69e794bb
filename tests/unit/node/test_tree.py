"""Programs side by side in one place, of which one is called."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import marks
import pytest

from hook.node import systemd
from hook.node.change import tree
from hook.node.change.files import FILE, State, look, put
from hook.node.change.program import program
from hook.node.errors import NodeError
from unit.node.opt import Opt
from unit.ownmachine import Machine

pytestmark = marks.promise("Containers start and keep running while the program, the agent or the plugin is replaced")


@pytest.fixture
def opt(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opt:
    """With a program in place."""
    opt = Opt(tmp_path, monkeypatch)
    opt.install("first")
    return opt


def changed() -> list[str]:
    """Paths that an installation of the running program would change."""
    return [path for path, state in program(prepare=False) if state and not state.same(look(path))]


def test_same_content_changes_nothing(opt: Opt) -> None:
    assert changed() == []
    (opt.frozen("first") / "lib/code").chmod(0o600)  # under another umask
    assert changed() == []
    assert opt.place.stat().st_mode & 0o022 == 0


def test_another_content_takes_its_place_and_the_first_one_goes(opt: Opt) -> None:
    opt.install("second")
    assert opt.in_place() == "second"
    tree.tidy(stays=0, patience=0.2)
    assert opt.names() == {"reassert", "start"}
    assert changed() == []


@pytest.mark.native
def test_what_runs_stays_until_it_has_ended(opt: Opt) -> None:
    executable = (opt.place / "reassert").resolve()
    shutil.copy("/bin/sleep", executable)
    with subprocess.Popen([executable, "60"]) as running:
        opt.install("second")
        tree.tidy(stays=0, patience=0.2)
        assert executable.exists()
        running.kill()
    tree.tidy(stays=0, patience=0.2)
    assert opt.names() == {"reassert", "start"}


def test_damaged_program_is_replaced_beside_it(opt: Opt) -> None:
    code = (opt.place / "reassert").resolve().parent / "lib/code"
    code.chmod(0o666)
    assert len(changed()) == 3  # the directory, `start`, the link
    opt.install("first")
    assert code.exists()
    tree.tidy(stays=0, patience=0.2)
    assert opt.in_place() == "first"
    assert not code.exists()
    assert changed() == []


def test_what_is_not_ours_stays(opt: Opt) -> None:
    (opt.place / "lib").mkdir()
    (opt.place / "README").touch()
    opt.install("second")
    tree.tidy(stays=0, patience=0.2)
    assert opt.names() == {"reassert", "start", "lib", "README"}


def test_place_that_others_can_write_is_refused(opt: Opt) -> None:
    opt.place.chmod(0o775)
    with pytest.raises(NodeError, match="is not a directory that only root can write to"):
        program()
    opt.place.rename(opt.place.parent / "elsewhere")
    opt.place.symlink_to("elsewhere")
    with pytest.raises(NodeError, match="is not a directory that only root can write to"):
        program()


def test_package_has_the_same_layout(opt: Opt, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    tree.lay_out(str(opt.frozen("first")), str(tmp_path / "root"), str(opt.place))
    assert (tmp_path / "root/start").read_text() == (opt.place / "start").read_text()
    assert os.readlink(tmp_path / "root/reassert") == os.readlink(opt.place / "reassert")


def test_front_is_switched_with_the_program(opt: Opt, tmp_path: Path) -> None:
    front = opt.place / "front"
    assert not os.path.lexists(front)
    built = opt.frozen("second") / "front"
    built.write_text("front 2\n")
    built.chmod(0o755)
    opt.install("second")
    assert front.read_text() == "front 2\n"
    assert front.resolve().parent == (opt.place / "reassert").resolve().parent
    (tmp_path / "root").mkdir()
    tree.lay_out(str(opt.frozen("second")), str(tmp_path / "root"), str(opt.place))
    assert os.readlink(tmp_path / "root/front") == os.readlink(front)
    built.unlink()
    opt.install("third")
    assert front.exists()  # a dispatcher may name it until all is done
    tree.tidy(stays=0, patience=0.2)
    assert not os.path.lexists(front)


@pytest.mark.parametrize("words", [["create", "--bundle", "/b", "c"], ["exec", "--process=/p", "c"]])
def test_starts_that_are_under_way_are_waited_for(words: list[str]) -> None:
    """As long as the patience lasts."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60; :", *words], start_new_session=True) as running:
        began = time.monotonic()
        tree.let_starts_end(1)
        assert time.monotonic() - began >= 1
        os.killpg(running.pid, signal.SIGKILL)


_WITHOUT_ARGUMENTS = """
import ctypes, struct, sys, time
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_size_t
line = open("/proc/self/stat").read().rpartition(")")[2].split()
fields = (int(line[n - 3]) for n in (26, 27, 28, *range(45, 52)))
code, end_code, stack, data, end_data, brk, arguments, _, env, end_env = fields
map = (code, end_code, data, end_data, brk, libc.sbrk(0), stack, arguments, arguments, env, end_env, 0, 0, -1)
PR_SET_MM, PR_SET_MM_MAP = 35, 14
described = struct.pack("12QIi", *map)
assert libc.prctl(PR_SET_MM, PR_SET_MM_MAP, described, len(described), 0) == 0
print(open("/proc/self/cmdline").read(), flush=True)
time.sleep(60)
"""


def test_a_start_in_the_middle_of_execve_is_waited_for() -> None:
    """Its arguments are empty then, as those of this process, which takes them away from itself (prctl(2))."""
    command = [sys.executable, "-c", _WITHOUT_ARGUMENTS, "create", "--bundle", "/b", "c"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout
        assert running.stdout.readline() == b"\n"
        began = time.monotonic()
        tree.let_starts_end(1)
        waited = time.monotonic() - began
        running.kill()
    assert waited >= 1


@pytest.mark.parametrize("what", ["source", "copy"])
def test_a_program_that_changes_while_it_is_installed_is_not_put_in_place(opt: Opt, what: str) -> None:
    """The copy has the fingerprint of what it was copied from only if neither has changed since that was read."""
    source = opt.frozen("second")
    content = tree.fingerprint(str(source), laid_out=True)
    if what == "copy":
        tree.prepare(str(source))
    (source if what == "source" else Path(tree.STAGING)).joinpath("lib/code").write_text("second?")
    if what == "source":
        tree.prepare(str(source))
    with pytest.raises(NodeError, match="is not the program to install"):
        tree.place(f"{tree.PLACE}/{content[:12]}", content)
    assert opt.in_place() == "first"


def test_a_program_gets_the_labels_of_its_place_before_anything_calls_it(
    opt: Opt, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy has the label of its original: engines may not execute what was unpacked in a home."""
    log = tmp_path / "ran"
    machine.program("restorecon", f'echo "$*; $(readlink {opt.place}/reassert)" >> {log}')
    monkeypatch.setattr(systemd, "SELINUX", str(tmp_path / "enforce"))
    opt.install("second")
    assert not log.exists()
    before = os.readlink(opt.place / "reassert")
    (tmp_path / "enforce").write_text("1")
    opt.install("third")
    assert log.read_text().splitlines()[0] == f"-R {opt.place}; {before}"
    assert opt.in_place() == "third"


def test_a_new_file_in_the_place_gets_its_label_and_no_other_file(
    opt: Opt, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package's program lies elsewhere, its dispatchers in /opt, whose type engines may not execute."""
    log = tmp_path / "ran"
    machine.program("restorecon", f'for path; do :; done; echo "$*: $(cat $path)" >> {log}')
    monkeypatch.setattr(systemd, "SELINUX", str(tmp_path / "enforce"))
    (tmp_path / "enforce").write_text("1")
    put(str(tmp_path / "config.toml"), State(b"1", FILE, 0o644, os.getuid(), os.getgid()))
    put(f"{opt.place}/reassert-runc", State(b"2", FILE, 0o755, os.getuid(), os.getgid()))
    assert log.read_text() == f"-R {opt.place}/reassert-runc: 2\n"
