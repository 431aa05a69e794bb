"""The runtime wrapper with the real runc and crun: what the process sees."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from difflib import ndiff
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import WANTED, Node
from harness.paths import REASSERT
from harness.tools import need, remove_tree, run, scratch

pytestmark = marks.promise("The real runtime gets the engine's arguments, environment, descriptors, signals and limits")

DUMP = """\
#!/bin/busybox sh
for part in pid:$$ cwd:"$(busybox readlink /proc/$$/cwd)" args:"$*"; do echo "$part"; done
cd /proc/$$ || exit 1
for fd in fd/*; do echo "$fd $(busybox readlink $fd)"; done
busybox grep -E '^(Umask|SigBlk|SigIgn|NoNewPrivs|Seccomp|Groups|Cap)' status
busybox cat limits oom_score_adj personality
echo environ; busybox tr '\\0' '\\n' < environ | busybox sort
"""
"""A real runtime that says what it was given. busybox's own shell, static: it changes none of it."""


@marks.claim("env", "runtime")
@marks.claim("absent-env", "runtime")
@marks.claim("exec", "runtime")
@marks.claim("mounts", "runtime")
def test_a_pods_override_is_undone_in_the_process_and_in_exec(runtime: str, node: Node, bundle: Bundle) -> None:
    evil = bundle.directory / "evil"
    evil.mkdir()
    (evil / "evil.crt").write_text("evil\n")
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=/tmp/evil", "PYTHONHTTPSVERIFY=0", "OTHER=stays"]
    bundle.bind(evil, "/etc/ssl/certs", "ro")
    bundle.pod()
    bundle.save()
    with Running(runtime, bundle) as container:
        for env in (container.environ(), container.exec("/bin/env").split("\n")):
            assert WANTED in env
            assert "OTHER=stays" in env
            assert not [entry for entry in env if entry.startswith("PYTHONHTTPSVERIFY")]
        assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
        [mount] = container.mounts("/etc/ssl")
        assert (mount.root.endswith("/ca"), mount.point, mount.options[0]) == (True, "/etc/ssl", "ro")
    [event] = node.logged()
    assert event["event"] == "container.edited"
    assert event["container"]["namespace"] == "default"
    assert [edit["name"] for edit in event["edits"]] == ["REQUESTS_CA_BUNDLE", "PYTHONHTTPSVERIFY", "/etc/ssl"]


@marks.claim("exec", "runtime")
@marks.hole(
    "Under crun before 1.28, `exec --env` dropped the reserved names", since="0.1.0", fixed="0.2.0", severity="medium"
)
def test_env_on_the_exec_command_line_cannot_bring_a_reserved_name_back(runtime: str, bundle: Bundle) -> None:
    """crun before 1.28 takes it instead of the container's whole env."""
    bundle.pod()
    bundle.save()
    reserved = ("REQUESTS_CA_BUNDLE=x", "PYTHONHTTPSVERIFY=0")
    with Running(runtime, bundle) as container:
        for given in ([], reserved[:1], reserved):
            for spelling in ("-e {}", "--env={}"):
                options = " ".join(spelling.format(entry) for entry in (*given, "A=1")).split()
                env = container.exec("/bin/env", options=(*options, "--cwd", "/")).splitlines()
                assert {"A=1", WANTED} <= set(env)
                assert [entry for entry in env if entry.startswith(("REQUESTS", "PYTHON"))] == [WANTED], options


def process_file(bundle: Bundle) -> Path:
    """The file of an engine's `exec --process`: the pod's env, another user's file, with a mode."""
    path = bundle.directory / "process.json"
    process = {
        **bundle.spec["process"],
        "args": ["/bin/env"],
        "env": ["PATH=/bin", "REQUESTS_CA_BUNDLE=/tmp/evil", "A=1"],
    }
    path.write_text(json.dumps(process))
    os.chown(path, 1, 2)
    path.chmod(0o640)
    return path


@marks.claim("exec", "runtime")
@pytest.mark.parametrize("spelling", ["--process FILE", "--process=FILE", "-p FILE"])
def test_the_process_file_of_an_exec_is_corrected_and_keeps_owner_and_mode(
    runtime: str, bundle: Bundle, spelling: str
) -> None:
    with Running(runtime, bundle) as container:
        path = process_file(bundle)
        options = spelling.replace("FILE", str(path)).split(" ")
        env = run(runtime, "exec", *options, container.id).stdout.splitlines()
        assert WANTED in env
        assert "A=1" in env
        assert "REQUESTS_CA_BUNDLE=/tmp/evil" not in env
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1, 2, 0o640)
        assert [file.name for file in path.parent.glob(".*reassert*")] == []


@marks.claim("decision-annotation", "runtime")
def test_a_forged_decision_gains_nothing(runtime: str, bundle: Bundle) -> None:
    forged = {"version": 1, "policy": "", "env": {"REQUESTS_CA_BUNDLE": "/tmp/evil"}, "absent": []}
    bundle.pod(**{"reassert/decision": json.dumps(forged)})
    bundle.save()
    with Running(runtime, bundle) as container:
        assert WANTED in container.environ()
        assert WANTED in container.exec("/bin/env", options=("-e", "REQUESTS_CA_BUNDLE=x")).splitlines()
    stamped = json.loads(bundle.saved()["annotations"]["reassert/decision"])
    assert stamped["env"] == {"REQUESTS_CA_BUNDLE": WANTED.partition("=")[2], "PYTHONHTTPSVERIFY": None}


@marks.claim("decision-annotation", "runtime")
def test_a_forged_decision_is_removed_from_an_excluded_container(runtime: str, bundle: Bundle) -> None:
    bundle.pod("kube-system", **{"reassert/decision": "not even JSON", "kept": "as it is"})
    bundle.spec["process"]["env"].append("REQUESTS_CA_BUNDLE=own")
    bundle.save()
    with Running(runtime, bundle) as container:
        assert "REQUESTS_CA_BUNDLE=own" in container.environ()
        assert "A=1" in container.exec("/bin/env", options=("-e", "A=1")).splitlines()
    notes = bundle.saved()["annotations"]
    assert "reassert/decision" not in notes
    assert notes["kept"] == "as it is"


SHELLS = ("+ PWD=", "+ OLDPWD=", "+ SHLVL=", "+ _=")
"""What a /bin/sh adds where it is not there: dash the first, bash the others too. No runtime reads any."""


def changes(before: list[str], after: list[str]) -> list[str]:
    """The lines that differ, each with a sign."""
    return [line for line in ndiff(before, after) if line[0] in "+-"]


class RealRuntimeCall:
    """A call of a test program as the real runtime, directly and through reassert."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.bundle = Bundle(node.directory / "bundle")
        self.fake = node.directory / "fake"
        self.fake.write_text(DUMP)
        self.fake.chmod(0o755)
        node.compile()

    def given(
        self, env: dict[str, str] | None = None, before: tuple[str, ...] = (), fds: tuple[int, ...] = ()
    ) -> list[list[str]]:
        """What the real runtime was given: directly, through `reassert runtime`, through the dispatcher.

        `before`: a command that execs the rest of its arguments.
        """
        arguments = ["--log", "/dev/null", "create", "--bundle", str(self.bundle.directory), "an id", "two  spaces"]
        seen = []
        for command in (
            [str(self.fake)],
            [str(REASSERT), "runtime", "--real", str(self.fake), *self.node.options(), "--"],
            [self.node.dispatcher(str(self.fake))],
        ):
            self.bundle.save()
            with subprocess.Popen(
                [*before, *command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.node.directory,
                env=BASE if env is None else env,
                pass_fds=fds,
                text=True,
                errors="surrogateescape",
            ) as engine:
                output, errors = engine.communicate(timeout=600)
            assert engine.returncode == 0, errors
            assert output.startswith(f"pid:{engine.pid}\n"), output
            seen.append(re.sub(r"pipe:\[\d+\]", "a pipe", output).splitlines()[1:])
        assert "reassert/decision" in self.bundle.saved()["annotations"]
        return seen

    def same(
        self, env: dict[str, str] | None = None, before: tuple[str, ...] = (), fds: tuple[int, ...] = ()
    ) -> list[str]:
        """What the real runtime was given, once it is clear that reassert makes no difference."""
        direct, runtime, dispatcher = self.given(env, before, fds)
        assert changes(direct, runtime) == []
        assert [line for line in changes(direct, dispatcher) if not line.startswith(SHELLS)] == []
        return direct


def signals(given: list[str], field: str) -> set[int]:
    """Signal numbers in a mask of /proc/PID/status, without SIGQUIT, which the test program's shell changes."""
    [mask] = [int(line.split()[1], 16) for line in given if line.startswith(field + ":")]
    return {number for number in range(1, 65) if mask >> (number - 1) & 1} - {signal.SIGQUIT}


@pytest.fixture(scope="module")
def call() -> Iterator[RealRuntimeCall]:
    directory = scratch()
    yield RealRuntimeCall(Node(directory))
    remove_tree(directory)


BASE = {"PATH": "/usr/bin:/bin"}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "empty": {},
    "no HOME, no LANG": BASE,
    "LD_LIBRARY_PATH as containerd's shim has it": {**BASE, "LD_LIBRARY_PATH": "/opt/containerd/lib:"},
    "LD_LIBRARY_PATH of several": {**BASE, "LD_LIBRARY_PATH": ":/a:/b"},
    "LD_LIBRARY_PATH_ORIG alone": {**BASE, "LD_LIBRARY_PATH_ORIG": "/x"},
    "a name like PyInstaller's": {**BASE, "_PYI_X": "1", "_MEIPASS2": "/x"},
    "python's own": {**BASE, "PYTHONPATH": "/x", "PYTHONHOME": "/x", "PYTHONUTF8": "0", "PYTHONINSPECT": "1"},
    "a locale that is not there": {**BASE, "LC_ALL": "en_US.ISO-8859-1", "LANG": "tlh"},
    "the C locale": {**BASE, "LC_ALL": "C"},
    "directories that are not there": {**BASE, "TMPDIR": "/nowhere", "HOME": "/nowhere", "XDG_RUNTIME_DIR": "/nowhere"},
    "bytes that are no UTF-8": {**BASE, "A": "\udcff\udcfe", "B": "two\nlines"},
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_real_runtime_gets_the_engines_environment(call: RealRuntimeCall, name: str) -> None:
    call.same(env=ENVIRONMENTS[name])


def test_an_empty_library_path_never_becomes_ours(call: RealRuntimeCall) -> None:
    """It means the same as none, which is what PyInstaller's bootloader makes of it."""
    direct, runtime, _ = call.given(env={**BASE, "LD_LIBRARY_PATH": ""})
    assert changes(direct, runtime) == ["- LD_LIBRARY_PATH="]


@pytest.mark.parametrize("zone", ["Europe/Berlin", ":/etc/localtime", "UTC0:"])
def test_the_real_runtime_gets_the_engines_time_zone(call: RealRuntimeCall, zone: str) -> None:
    """Each has the dispatcher, which hides it from Python."""
    direct, _, dispatcher = call.given(env={**BASE, "TZ": zone})
    assert [line for line in changes(direct, dispatcher) if not line.startswith(SHELLS)] == []


def test_the_real_runtime_gets_the_engines_descriptors(call: RealRuntimeCall) -> None:
    path = call.node.directory / "extra"
    with path.open("w") as extra:
        assert f"fd/{extra.fileno()} {path}" in call.same(fds=(extra.fileno(),))


READ_ONLY_TMP = "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp && ! touch /tmp/x 2>/dev/null"
BEFORE: dict[str, tuple[tuple[str, ...], dict[str, set[int]]]] = {
    "a closed stdin": (("sh", "-c", 'exec "$@" <&- 3>&-', "sh"), {}),
    "umask and limits": (("sh", "-c", 'umask 0137; ulimit -n 99; exec "$@"', "sh"), {}),
    "a read-only tmp": (("unshare", "-m", "sh", "-c", f'{READ_ONLY_TMP} && exec "$@"', "sh"), {}),
    # Python ignores some signals, and shells SIGINT in what they run in the background: this test too, perhaps
    "default signals": (("env", "--default-signal"), {"SigIgn": set()}),
    "signals that the engine ignores or blocks": (
        ("env", "--ignore-signal=HUP,INT", "--block-signal=TERM,CHLD,PIPE"),
        {"SigIgn": {signal.SIGHUP, signal.SIGINT}, "SigBlk": {signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE}},
    ),
}
"""What an engine executes its runtime with, and the masks of signals that come of it."""


@pytest.mark.parametrize("name", BEFORE)
def test_the_real_runtime_gets_what_the_engine_set_up(call: RealRuntimeCall, name: str) -> None:
    before, masks = BEFORE[name]
    if "unshare" in before:
        need(run("unshare", "-m", "true", check=False).returncode == 0, "unshare -m (CAP_SYS_ADMIN)", installed=False)
    given = call.same(before=before)
    assert {field: signals(given, field) for field in masks} == masks
    assert ("Umask:\t0137" in given) == ("umask" in name)
