"""The runtime wrapper with a test program as the real runtime, which prints its arguments."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import marks
import pytest

from hook.compile.in_force import refresh
from hook.core.base.errors import Refused
from hook.core.base.text import WHERE_TO_LOOK
from hook.core.reserve.reserved_env import Reserved
from hook.entry import runtime
from hook.entry.caller import Caller, Options
from hook.entry.cmdline import Invocation
from hook.entry.process import ExecCaller, handle
from hook.entry.usage import ended
from hook.entry.write_spec import ANNOTATION, read, stamp
from unit.support import ROOT, config, document

pytestmark = marks.promise(
    "The real runtime gets the engine's arguments, environment, descriptors, signals and limits", about="Decision"
)

ABSENT = [{"name": "N", "absent": True}, {"name": "N_*", "absent": True}]
CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}, *ABSENT]}
ENGINE = {
    "PATH": "/bin",
    "LD_LIBRARY_PATH": "/opt/containerd/lib:",
    "TTRPC_ADDRESS": "/run/x",
    "EMPTY": "",
    "LANG": "C.UTF-8",
}


class Wrapper:
    """`reassert runtime` on a test node, with a bundle that overrides CA."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.config = directory, directory / "bundle" / "config.json"
        self.flags: list[str] = []
        self.config.parent.mkdir()
        self.policy = directory / "policy.yaml"
        self.policy.write_text(document(CA))
        refresh(str(self.policy), f"{directory}/s")
        self.config.write_text(json.dumps(config(["CA=/tmp/x", "N_A=1", "B=1"])))
        self.real = directory / "runc"
        self.real.write_text(
            f"#!{sys.executable} -I\nimport json, os, sys\n"
            "print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))\n"
        )
        self.real.chmod(0o755)

    def command(self, *arguments: str) -> list[str]:
        """The command line of a call with these arguments."""
        where = [
            *self.flags,
            f"--policy={self.policy}",
            f"--store={self.directory}/s",
            f"--events={self.directory}/events.jsonl",
        ]
        program = [sys.executable, str(ROOT / "hook" / "__main__.py"), "runtime", "--real", str(self.real)]
        return [*program, *where, "--", *arguments]

    def run(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        options = {"env": ENGINE, "cwd": self.directory, **options}
        # `options` are any of subprocess.run's, which its overloads cannot follow
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload,no-any-return]  # options of run

    def create(self) -> None:
        assert self.run("create", "--bundle", str(self.config.parent), "0a").returncode == 0

    def handed_on(self, *arguments: str) -> list[str]:
        """The arguments that the real runtime gets."""
        got: list[str] = json.loads(self.run("--root", str(self.directory), *arguments).stdout)[0][2:]
        return got

    def created(self) -> None:
        """Created, and known to the real runtime."""
        self.create()
        self.recorded()

    def recorded(self) -> None:
        """The real runtime's record of the container, as runc keeps it."""
        state = self.directory / "0a" / "state.json"
        state.parent.mkdir()
        labels = ["a=b", f"bundle={self.config.parent}"]
        state.write_text(json.dumps({"config": {"labels": labels}}))


@pytest.fixture
def wrapper(root_dir: Path) -> Wrapper:
    return Wrapper(root_dir)


def test_real_runtime_gets_arguments_cwd_and_environment_of_the_engine(wrapper: Wrapper) -> None:
    arguments = ["--root", "/r r", "create", "--bundle", str(wrapper.config.parent), "--pid-file", "", "é\n*", "0a"]
    result = wrapper.run(*arguments)
    assert json.loads(result.stdout) == [arguments, str(wrapper.directory), ENGINE]
    assert result.stderr == ""


def test_verbs_that_start_nothing_pass_through(wrapper: Wrapper) -> None:
    before = wrapper.config.read_bytes()
    for line in (["state", "0a"], ["--version"], [], ["kill", "create", "9"]):
        assert json.loads(wrapper.run(*line, cwd=wrapper.config.parent).stdout)[0] == line
    assert wrapper.config.read_bytes() == before


@pytest.mark.parametrize("verb", ["create", "run"])
def test_bundle_defaults_to_the_cwd(wrapper: Wrapper, verb: str) -> None:
    assert wrapper.run(verb, "0a", cwd=wrapper.config.parent).returncode == 0
    data = json.loads(wrapper.config.read_text())
    assert data["process"]["env"] == ["CA=/ca.pem", "B=1"]
    decision = read(data["annotations"])
    assert decision is not None
    assert (decision.env.values, decision.env.absent) == ({"CA": "/ca.pem", "N": None}, ["N_*"])


def test_missing_config_is_for_the_real_runtime_to_tell(wrapper: Wrapper) -> None:
    wrapper.config.unlink()
    assert wrapper.run("create", "--bundle", str(wrapper.config.parent), "0a").returncode == 0


@marks.hole(
    "A config.json behind a bundle's path of 4,090 bytes was handed on uncorrected",
    since="0.1.0",
    fixed="0.3.0",
    severity="low",
)
def test_config_that_only_a_runtime_reaches_is_refused(wrapper: Wrapper) -> None:
    """A runtime goes into the bundle first; for the whole path, a bundle's path of 4,090 bytes is too long."""
    long = 4090 - len(str(wrapper.directory))
    parts = ["x" * 99] * (long // 100 - 1) + ["y" * (long % 100 + 99)]
    deep = os.open(wrapper.directory, os.O_RDONLY)
    for part in parts:
        os.mkdir(part, dir_fd=deep)
        above, deep = deep, os.open(part, os.O_RDONLY, dir_fd=deep)
        os.close(above)
    os.rename(wrapper.config, "config.json", dst_dir_fd=deep)
    os.close(deep)
    result = wrapper.run("create", "--bundle", "/".join([str(wrapper.directory), *parts]), "0a")
    assert result.returncode != 0
    assert result.stderr.startswith("reassert: refused 0a: ")


def test_forged_decision_is_removed_in_audit_mode(wrapper: Wrapper) -> None:
    wrapper.policy.write_text(document(CA, mode="Audit"))
    forged = config(["CA=/tmp/x"], annotations={ANNOTATION: '{"version":1,"env":{"A":"1"},"absent":[]}', "x": "y"})
    wrapper.config.write_text(json.dumps(forged))
    wrapper.create()
    data = json.loads(wrapper.config.read_text())
    assert (data["process"]["env"], data["annotations"]) == (["CA=/tmp/x"], {"x": "y"})
    event = json.loads((wrapper.directory / "events.jsonl").read_text())
    assert (event["event"], event["applied"], len(event["edits"])) == ("container.edited", False, 1)


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_refusal_reaches_the_engine_on_stderr_and_in_its_log(wrapper: Wrapper, log_format: str) -> None:
    wrapper.policy.write_text(document({**CA, "onConflict": "Deny"}))
    log = wrapper.directory / "log"
    arguments = ["--log", str(log), "--log-format", log_format, "create", "--bundle", str(wrapper.config.parent), "0a"]
    result = wrapper.run(*arguments)
    reason = "reassert: refused a container of no pod: rule ca: env CA is reserved and was set to something else; "
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(reason)
    (line,) = log.read_text().splitlines()
    if log_format == "json":
        record = json.loads(line)
        assert (record["level"], record["msg"][: len(reason)], sorted(record)) == (
            "error",
            reason,
            ["level", "msg", "time"],
        )
    else:
        assert f'level=error msg="{reason}' in line


def test_real_runtime_that_is_not_there_is_told(wrapper: Wrapper) -> None:
    wrapper.real.unlink()
    result = wrapper.run("state", "0a")
    assert result.returncode == 1
    assert f"cannot run the real runtime {wrapper.real}" in result.stderr


def test_exec_gets_what_was_decided_at_create_whatever_the_policy_says_now(wrapper: Wrapper) -> None:
    wrapper.created()
    wrapper.policy.write_text(document({"name": "new", "env": [{"name": "B", "value": "2"}]}))
    process = wrapper.directory / "process.json"
    process.write_text(json.dumps({"args": ["sh"], "env": ["N_A=1", "CA=/tmp/x", "B=1"]}))
    os.chmod(process, 0o640)
    assert wrapper.handed_on("exec", "-p", str(process), "0a") == ["exec", "-p", str(process), "0a"]
    assert json.loads(process.read_text()) == {"args": ["sh"], "env": ["CA=/ca.pem", "B=1"]}
    assert process.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("given", "handed_on"),
    [
        ("-e CA=x", "-e CA=/ca.pem"),
        ("--env CA=x", "--env CA=/ca.pem"),
        ("--env=CA=x", "--env=CA=/ca.pem"),
        ("-eCA=x -e B=2", "-eCA=/ca.pem -e B=2"),
        ("-e CA", "-e CA=/ca.pem"),
        ("-e N_X=1 -e CAB=1 --env=N_Y=2 -t", "-e CA=/ca.pem -e CAB=1 -t"),
        ("-de N_X=1 -teN_X=1 -dteB=2", "-d -t -e CA=/ca.pem -dteB=2"),
        ("--env=B=1 --env=CA=x", "--env=B=1 --env=CA=/ca.pem"),
        ("--env N_X=1", ""),
    ],
)
def test_exec_env_of_reserved_names_is_replaced_or_taken_out(wrapper: Wrapper, given: str, handed_on: str) -> None:
    wrapper.created()
    line = ["exec", *given.split(), "0a", "cmd", "-e", "CA=x"]
    assert wrapper.handed_on(*line) == ["exec", *handed_on.split(), "0a", "cmd", "-e", "CA=x"]


@pytest.mark.parametrize("has_devices", [True, False])
@pytest.mark.parametrize("path", ["-", "FILE"])
def test_update_keeps_the_device_rules_that_were_decided(wrapper: Wrapper, path: str, has_devices: bool) -> None:
    """Engines hand those from before reassert to each update."""
    own = [{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}]
    annotations = stamp({}, Reserved({"CA": "/ca.pem"}, []), fingerprint="", has_devices=has_devices)
    made = config(["CA=/ca.pem"], linux={"resources": {"devices": own}}, annotations=annotations)
    wrapper.config.write_text(json.dumps(made))
    wrapper.recorded()
    wrapper.real.write_text(
        f"#!{sys.executable} -I\nimport sys\nprint(open(0 if sys.argv[-2] == '-' else sys.argv[-2]).read())\n"
    )
    given = {"cpu": {"shares": 2}, "devices": [{"allow": True, "access": "rwm"}]}
    (wrapper.directory / "FILE").write_text(json.dumps(given))
    with (wrapper.directory / "FILE").open() as stdin:
        result = wrapper.run("--root", str(wrapper.directory), "update", "-r", path, "0a", stdin=stdin)
    assert json.loads(result.stdout) == ({**given, "devices": own} if has_devices else given)


def test_update_whose_resources_cannot_be_read_is_refused(wrapper: Wrapper) -> None:
    wrapper.config.write_text(
        json.dumps(config(annotations=stamp({}, Reserved({}, []), fingerprint="", has_devices=True)))
    )
    wrapper.recorded()
    with open("/dev/zero") as endless:
        result = wrapper.run("--root", str(wrapper.directory), "update", "-r", "-", "0a", stdin=endless)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("reassert: refused 0a: update: the resources on stdin is larger than the limit")


def test_exec_in_a_container_from_before_passes_unchanged(wrapper: Wrapper) -> None:
    line = ["exec", "-e", "CA=x", "0a", "cmd"]
    state = wrapper.directory / "0a" / "status"  # crun's
    state.parent.mkdir()
    state.write_text(json.dumps({"bundle": str(wrapper.config.parent)}))
    assert wrapper.handed_on(*line) == line


def test_exec_in_a_container_that_is_found_nowhere_is_refused_with_where_it_was_looked_for(wrapper: Wrapper) -> None:
    result = wrapper.run("--root", str(wrapper.directory), "exec", "0a", "cmd")
    assert (result.returncode, result.stdout) == (255, "")
    assert result.stderr == (
        f"reassert: refused 0a: exec: the real runtime's state of the container is not in {wrapper.directory}/0a"
        f"{WHERE_TO_LOOK}\n"
    )


def test_exec_whose_decision_cannot_be_read_is_refused_with_runcs_status(wrapper: Wrapper) -> None:
    wrapper.created()
    for text in ('{"process":{},"annotations":{"reassert/decision":"{"}}', "{", None):
        if text is None:
            wrapper.config.unlink()
        else:
            wrapper.config.write_text(text)
        result = wrapper.run("--root", str(wrapper.directory), "exec", "0a", "cmd")
        assert (result.returncode, result.stdout) == (255, "")
        assert result.stderr.startswith("reassert: refused 0a: exec: ")


@pytest.mark.parametrize("verb", ["exec", "start"])
def test_a_shortage_of_the_node_is_an_error_and_no_denial(wrapper: Wrapper, verb: str) -> None:
    class Short(ExecCaller):
        def bundle(self, *_: object) -> str:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    where = [f"--policy={wrapper.policy}", f"--store={wrapper.directory}/s", f"--events={wrapper.directory}/events"]
    options = Options(["--real", str(wrapper.real), *where], ("real", "hook"))
    with pytest.raises(Refused, match="Too many open files"):
        handle(Invocation([verb, "0a", *(["cmd"] if verb == "exec" else [])]), Short(options, {}))
    [event] = [json.loads(line) for line in (wrapper.directory / "events").read_text().splitlines()]
    assert event["event"] == "container.error"


def test_refused_exec_is_logged_and_in_audit_mode_no_more_than_that(wrapper: Wrapper) -> None:
    line = ["--root", str(wrapper.directory), "exec", "0a", "cmd"]
    assert wrapper.run(*line).returncode == 255
    wrapper.policy.write_text(document(CA, mode="Audit"))
    assert json.loads(wrapper.run(*line).stdout)[0] == line
    events = [json.loads(line) for line in (wrapper.directory / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["mode"]) for event in events] == [
        ("container.denied", "Enforce"),
        ("container.would-deny", "Audit"),
    ]


@pytest.mark.parametrize(
    "line", ["create --help", "create -h 0a", "--version create 0a", "create", "exec -h 0a", "exec", "exec --help 0a x"]
)
def test_verb_that_starts_nothing_is_passed_on_as_it_is(wrapper: Wrapper, line: str) -> None:
    before = wrapper.config.read_bytes()
    assert json.loads(wrapper.run(*line.split(), cwd=wrapper.config.parent).stdout)[0] == line.split()
    assert wrapper.config.read_bytes() == before
    assert not (wrapper.directory / "events.jsonl").exists()


@pytest.mark.parametrize(
    "line",
    ["resurrect 0a", "mounts add 0a file", "--new state run 0a", "restore 0a", "create --fs-restore-image-path=i 0a"],
)
def test_what_cannot_be_corrected_is_refused(wrapper: Wrapper, line: str) -> None:
    """A runtime that learns a new way to start a process must not get an uncorrected config.json by it."""
    result = wrapper.run(*line.split(), cwd=wrapper.config.parent)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("reassert: refused ")
    [event] = (wrapper.directory / "events.jsonl").read_text().splitlines()
    assert json.loads(event)["event"] == "container.denied"


@pytest.mark.parametrize(("flags", "cold"), [([], None), (["--cold=timeout"], "timeout")])
def test_event_says_why_a_start_is_cold(wrapper: Wrapper, flags: list[str], cold: str | None) -> None:
    wrapper.flags = flags
    wrapper.create()
    [event] = map(json.loads, (wrapper.directory / "events.jsonl").read_text().splitlines())
    assert (event["start"], event.get("cold")) == ("cold", cold)


@pytest.mark.parametrize("env", [{}, {"env": None}, {"env": []}])
def test_a_container_without_env_gets_its_mount(wrapper: Wrapper, env: dict[str, object]) -> None:
    rule = {"name": "m", "mounts": [{"hostPath": str(wrapper.directory), "mountPath": "/m"}]}
    wrapper.policy.write_text(document(rule))
    refresh(str(wrapper.policy), f"{wrapper.directory}/s")
    data = config([])
    del data["process"]["env"]
    wrapper.config.write_text(json.dumps({**data, "process": {**data["process"], **env}}))
    wrapper.create()
    written = json.loads(wrapper.config.read_text())
    assert written["mounts"][-1]["destination"] == "/m"
    decision = read(written["annotations"])  # the hook completes its event
    assert decision and decision.draft
    assert (decision.draft["adapter"], decision.draft["edits"][0]["name"]) == ("runtime", "/m")  # type: ignore[index]  # a list of objects


@pytest.mark.parametrize("bundle", ["bundle", "bundle/", "./bundle", "{}/bundle"])
def test_hook_is_told_where_the_bundle_is_wherever_it_runs(wrapper: Wrapper, bundle: str) -> None:
    rule = {"name": "m", "mounts": [{"hostPath": str(wrapper.directory), "mountPath": "/m"}]}
    wrapper.policy.write_text(document(rule))
    refresh(str(wrapper.policy), f"{wrapper.directory}/s")
    assert wrapper.run("create", "--bundle", bundle.format(wrapper.directory), "0a").returncode == 0
    [hook] = json.loads(wrapper.config.read_text())["hooks"]["createRuntime"]
    told = hook["args"][hook["args"].index("--bundle") + 1], hook["args"][hook["args"].index("--config") + 1]
    assert all(path.startswith("/") and not path.endswith("/") for path in told)
    assert [os.path.realpath(path) for path in told] == [str(wrapper.config.parent), str(wrapper.config)]


@pytest.mark.parametrize("lost", [b'"B=1"', b'"CA=/ca.pem"'])
def test_a_config_that_is_not_what_was_written_is_refused(wrapper: Wrapper, lost: bytes) -> None:
    class Losing(Caller):
        def replace(self, path: str, data: bytes) -> None:
            super().replace(path, data.replace(lost, b'"X=1"'))

    where = [f"--policy={wrapper.policy}", f"--store={wrapper.directory}/s", f"--events={wrapper.directory}/e.jsonl"]
    arguments = ["--real", str(wrapper.real), *where, "--", "create", "--bundle", str(wrapper.config.parent), "0a"]
    options = Options(arguments, ("real", "hook"))
    with pytest.raises(Refused, match=f"config\\.json does not contain what was written to it{WHERE_TO_LOOK}$"):
        runtime.passed_on(Invocation(options.rest or []), Losing(options, {}))


def test_error_of_a_command_is_one_line_for_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    assert ended(Refused("no\nmore"), ["runtime", "--", "create"]) == 1
    assert capfd.readouterr().err == "reassert: no\\nmore\n"
