"""What a runtime makes in the root of a build for reserved mounts is removed, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import marks
import pytest
from harness.paths import TOP

from hook.compile.in_force import refresh
from hook.entry import mount_points
from hook.entry.cmdline import Invocation
from hook.entry.runtime import builds
from unit.entry.test_runtime import Wrapper
from unit.support import document

pytestmark = [
    pytest.mark.openat2,
    marks.promise(
        "A RUN step of `docker build` with BuildKit, of `podman build` and of buildah has the policy's env and mounts, "
        "and nothing of them stays in the image"
    ),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with /etc, and a link to it."""
    made = tmp_path / "rootfs"
    (made / "etc").mkdir(parents=True)
    (made / "link").symlink_to("/etc")
    (made / "dangling").symlink_to("/opt/ca")
    return made


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc", []),
        ("/etc/ssl/certs", ["/etc/ssl/certs", "/etc/ssl"]),
        ("/link/ssl", ["/etc/ssl"]),
        ("/dangling", ["/opt/ca", "/opt"]),
        ("/../../etc/ssl", ["/etc/ssl"]),
        ("/proc/1/root", []),
    ],
)
def test_what_a_runtime_will_make(root: Path, path: str, expected: list[str]) -> None:
    assert mount_points.missing(str(root), [path]) == expected


def test_empty_ones_are_removed_and_times_stay(root: Path) -> None:
    made = mount_points.missing(str(root), ["/etc/ssl/certs", "/etc/ca.pem", "/var/lib/full", "/var/lib/file"])
    (root / "etc/ssl/certs").mkdir(parents=True)
    (root / "etc/ca.pem").touch()
    (root / "var/lib/full/of").mkdir(parents=True)
    (root / "var/lib/file").write_text("the build's")
    os.utime(root / "etc", ns=(1, 2))
    mount_points.remove(str(root), made)
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == [
        *("dangling", "etc", "link", "var", "var/lib", "var/lib/file", "var/lib/full", "var/lib/full/of")
    ]
    assert (root / "etc").stat().st_mtime_ns == 2


@pytest.mark.parametrize("change", [pytest.param("chown", marks=pytest.mark.users), "chmod", ""])
@pytest.mark.root
def test_a_directory_that_the_build_has_changed_stays(root: Path, change: str) -> None:
    """A runtime makes all alike, but for crun, which makes those for a directory sticky."""
    made = mount_points.missing(str(root), ["/opt/app/deep/ca", "/opt/app/deep/ca.pem"])
    (root / "opt/app/deep/ca").mkdir(parents=True)
    (root / "opt/app/deep/ca").chmod(0o1755)
    (root / "opt/app/deep/ca.pem").touch(mode=0o700)
    if change == "chown":
        os.chown(root / "opt/app", 5, 6)
    elif change:
        (root / "opt/app").chmod(0o700)
    mount_points.remove(str(root), made)
    left = [str(path.relative_to(root)) for path in (root / "opt").rglob("*")]
    assert (left, (root / "opt").exists()) == (["opt/app"] if change else [], bool(change))


def test_a_link_that_the_build_puts_in_the_way_is_not_followed(root: Path, tmp_path: Path) -> None:
    made = mount_points.missing(str(root), ["/etc/ssl/certs"])
    (tmp_path / "node/certs").mkdir(parents=True)
    (root / "etc/ssl").symlink_to(tmp_path / "node")
    mount_points.remove(str(root), made)
    assert (tmp_path / "node/certs").exists()
    assert (root / "etc/ssl").is_symlink()


@pytest.mark.root
def test_all_stay_in_a_root_that_another_process_has(root: Path) -> None:
    """buildah runs two commands at once in one container, where both have mounts."""
    made = mount_points.missing(str(root), ["/etc/ssl/certs"])
    (root / "etc/ssl/certs").mkdir(parents=True)
    waits = f"import os, sys; os.chroot({str(root)!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"\n"
        mount_points.remove(str(root), made)
        other.communicate()
    assert (root / "etc/ssl/certs").exists()
    mount_points.remove(str(root), made)
    assert not (root / "etc/ssl").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run --bundle B --keep id", True),
        ("run --detach --bundle B id", False),
        ("run -d id", False),
        ("create --bundle B buildah-buildah123", True),
        ("create --bundle B 0a", False),
    ],
)
def test_whose_root_may_become_an_image(line: str, expected: bool) -> None:
    """Where a detached runtime ends, the container runs, and uses what it made."""
    assert builds(Invocation(line.split())) == expected


class Build(Wrapper):
    """A wrapper before a runtime that makes /etc/ssl, and then does what it is told."""

    def __init__(self, directory: Path, then: str) -> None:
        super().__init__(directory)
        self.source = directory / "company"
        self.source.mkdir()
        self.root = directory / "bundle/rootfs"
        (self.root / "etc").mkdir(parents=True)
        rule = {"name": "ca", "mounts": [{"hostPath": str(self.source), "mountPath": "/etc/ssl"}]}
        self.policy.write_text(document(rule))
        refresh(str(self.policy), f"{directory}/s")
        self.real.write_text(f"#!/bin/sh\nmkdir -p {self.root}/etc/ssl\n{then}\n")

    def popen(self) -> subprocess.Popen[str]:
        """A run that goes on."""
        command = self.command("run", "--bundle", str(self.config.parent), "id")
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def directory(root_dir: Path) -> Path:
    return root_dir


@pytest.mark.parametrize(("then", "status"), [("exit 42", 42), ("kill -9 $$", 137)])
def test_run_has_the_runtimes_exit_status_and_leaves_nothing(directory: Path, then: str, status: int) -> None:
    build = Build(directory, then)
    done = build.run("run", "--bundle", "bundle", "--keep", "id")
    assert (done.returncode, [*(build.root / "etc").iterdir()]) == (status, []), done.stderr
    assert json.loads(build.config.read_text())["mounts"][-1]["destination"] == "/etc/ssl"


def test_a_signal_reaches_the_runtime(directory: Path) -> None:
    build = Build(directory, "trap 'echo got; exit 3' TERM\necho ready\nwhile :; do sleep 0.02; done")
    with build.popen() as run:
        assert run.stdout
        assert run.stdout.readline() == "ready\n"
        run.send_signal(signal.SIGTERM)
        assert run.stdout.read() == "got\n"
    assert (run.returncode, [*(build.root / "etc").iterdir()]) == (3, [])


@pytest.mark.parametrize(
    ("before", "status"),
    [("fork", 128 + signal.SIGTERM), ("waitpid", 3), ("remove", 3)],
    ids=["when there is no handler yet", "when the runtime has ended", "when it is waited for"],
)
def test_a_signal_does_no_harm_at_any_moment(root: Path, before: str, status: int) -> None:
    """The wrapper gets it right after the fork, or before a call that follows the runtime's end."""
    code = f"""if True:
        import os, signal, sys
        from hook.entry import mount_points
        place = mount_points if {before!r} == "remove" else mount_points.posix
        real = getattr(place, {before!r})
        def interrupted(*arguments):
            result = real(*arguments) if {before!r} == "fork" else None
            if result != 0:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*arguments) if {before!r} != "fork" else result
        setattr(place, {before!r}, interrupted)
        runtime = "mkdir {root}/etc/ssl; {"exec sleep 1000" if before == "fork" else "exit 3"}"
        of = dict(rootfs={str(root)!r}, made=["/etc/ssl"], stays=False)
        sys.exit(mount_points.execute("/bin/sh", ["-c", runtime], {{}}, **of))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, text=True, capture_output=True, check=False)
    assert (done.returncode, [*(root / "etc").iterdir()]) == (status, []), done.stderr


def test_the_runtime_ends_with_a_wrapper_that_is_killed(directory: Path) -> None:
    """BuildKit's own runtime ends with dockerd (PR_SET_PDEATHSIG)."""
    build = Build(directory, "echo ready\nexec sleep 1000")
    with build.popen() as run:
        assert run.stdout
        assert run.stdout.readline() == "ready\n"
        run.kill()
        assert run.stdout.read() == "", "its output is closed, so it has ended"


def test_buildahs_container_has_a_poststop_hook_that_does_it(directory: Path) -> None:
    build = Build(directory, "exit 0")
    assert build.run("create", "--bundle", "bundle", "buildah-buildah1").returncode == 0
    (build.root / "etc/ssl").mkdir(exist_ok=True)
    [hook] = json.loads(build.config.read_text())["hooks"]["poststop"]
    assert hook["args"][-1] == "poststop"
    done = subprocess.run(hook["args"], input="{}", text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr, [*(build.root / "etc").iterdir()]) == (0, "", [])
    for program in ("/nowhere", "/bin/false"):  # after an uninstall
        args = [program if each == hook["args"][3] else each for each in hook["args"]]
        done = subprocess.run(args, input="{}", text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("status", "left"), [(0, ["ssl"]), (1, [])])
def test_what_buildahs_runtime_made_stays_only_if_it_did_not_fail(
    directory: Path, status: int, left: list[str]
) -> None:
    """crun calls no poststop hook for a container that it has not created."""
    build = Build(directory, f"exit {status}")
    assert build.run("create", "--bundle", "bundle", "buildah-buildah1").returncode == status
    assert [path.name for path in (build.root / "etc").iterdir()] == left


def test_what_the_runtime_writes_to_that_hook_is_read_when_the_program_is_gone(directory: Path) -> None:
    """crun ends by SIGPIPE if no process reads the state that it writes, and the build fails then."""
    build = Build(directory, "exit 0")
    assert build.run("create", "--bundle", "bundle", "buildah-buildah1").returncode == 0
    [hook] = json.loads(build.config.read_text())["hooks"]["poststop"]
    args = ["/nowhere" if each == hook["args"][3] else each for each in hook["args"]]
    with subprocess.Popen(args, stdin=subprocess.PIPE, text=True) as gone:
        assert gone.stdin
        gone.stdin.write("x" * (1 << 17))  # more than a pipe holds
