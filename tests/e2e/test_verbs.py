"""Every verb of a runtime: what can change env, mounts, devices or rules of a container is decided or refused.

The line is the engine's, or a user's of podman with --runtime-flag. Cold and warm: the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED, Node
from harness.paths import REASSERT
from harness.tools import run

from e2e.agent.support import Agent
from e2e.runtimes import EACH, real_runtime
from e2e.test_exclusive import ALLOW_ALL, Machine
from hook.core.base.text import WHERE_TO_LOOK
from hook.entry.cmdline import EDITING_VERBS, VERBS, Invocation

AUDIT = POLICY.replace("spec:", "spec:\n  mode: Audit", 1)
NOTHING = POLICY.replace("[kube-system]", "[default]")

STAND_IN = """#!/bin/sh
printf 'ran %s\\n' "$*"
cat
"""
"""In the place of a runtime that has a verb or option which no real one here has."""


@pytest.fixture(params=["cold", "warm"])
def start(request: pytest.FixtureRequest, node: Node) -> Iterator[str]:
    """Whether the agent answers."""
    yield request.param


@pytest.fixture
def agent(node: Node) -> Iterator[Agent]:
    found = Agent(node)
    yield found
    if found.process:
        found.stop()


def wrapped(node: Node, agent: Agent, real: str, start: str, only: bool = True) -> str:
    """What an engine calls for a runtime. `only`: nothing else than the agent may answer a warm start."""
    if start == "cold":
        return node.dispatcher(real)
    node.compile(node.policy.read_text())
    agent.start()
    file = agent.dispatcher(real)
    return agent.only_warm(file) if only else file


def stand_in(node: Node) -> str:
    path = node.directory / "stand-in"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


def called(runtime: str, bundle: Bundle, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run(runtime, *arguments, check=False, input=stdin, cwd=bundle.directory)


def events(node: Node) -> list[str]:
    return [event["event"] for event in node.logged() if not event["event"].startswith("agent.")]


# The table


@marks.claim("verbs", "runtime")
@pytest.mark.parametrize("each", EACH)
def test_every_verb_of_a_real_runtime_is_in_the_table(node: Node, each: str) -> None:
    said = run(real_runtime(each, node.directory), "--help").stdout
    listed = said.partition("COMMANDS:")[2].partition("\n\n")[0]
    verbs = re.findall(r"^\s+([a-z-]+)(?:, h)?\s", listed, re.MULTILINE)
    assert {"create", "run", "exec", "update", "start", "kill", "delete", "state"} <= set(verbs)
    assert set(verbs) - set(VERBS) == set()


@marks.claim("verbs", "runtime")
@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("verb", EDITING_VERBS)
def test_every_option_of_a_real_runtime_is_in_the_table(node: Node, each: str, verb: str) -> None:
    said = run(real_runtime(each, node.directory), verb, "--help", check=False).stdout
    named = re.findall(r"^ +(?:-[a-zA-Z?], )?--([a-z0-9-]+)", said, re.MULTILINE)
    assert {"pid-file", "resources"} & set(named) or (verb, each) == ("restore", "crun")  # Debian 12's has no criu
    assert [name for name in named if Invocation([verb, f"--{name}=x", "id"]).doubt()] == []


@marks.claim("verbs", "runtime")
@marks.hole(
    "An option that no runtime has (`create --mount /a:/b`) reached the real runtime, though --help said that"
    " it is refused",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("each", EACH)
def test_option_that_no_runtime_has_is_refused(node: Node, bundle: Bundle, agent: Agent, each: str, start: str) -> None:
    """A later runtime may change anything by it."""
    bundle.pod()
    bundle.save()
    runtime = wrapped(node, agent, real_runtime(each, node.directory), start)
    for option in (["--mount", "/a:/b"], ["--mount=/a:/b"]):
        done = called(runtime, bundle, "create", *option, "--bundle", str(bundle.directory), "id")
        assert done.returncode == 1
        assert "no supported runtime has the option --mount of create" in done.stderr
        assert node.logged()[-1]["event"] == "container.denied"


@marks.claim("verbs", "runtime")
def test_front_dispatcher_and_wrapper_treat_each_verb_by_the_table(node: Node, agent: Agent, bundle: Bundle) -> None:
    """Verbs that change nothing reach the runtime without reassert: the program is not there, nor an agent."""
    node.compile()
    real = stand_in(node)
    front, script = agent.only_warm(agent.dispatcher(real)), Path(node.dispatcher(real))
    script.write_text(script.read_text().replace(str(REASSERT), "/bin/false"))
    for verb, changed in VERBS.items():
        line = ["--root", "/r", "--log=/dev/null", verb, "id"]
        through_front, through_sh = called(front, bundle, *line), called(str(script), bundle, *line)
        if verb not in EDITING_VERBS:
            wrapper = ("runtime", "--real", real, *node.options(), "--", *line)
            through_wrapper = called(str(REASSERT), bundle, *wrapper)
        if not changed:
            said = {done.stdout for done in (through_wrapper, through_front, through_sh)}
            assert (said, events(node)) == ({f"ran {' '.join(line)}\n"}, []), verb
            continue
        assert (through_front.returncode, through_front.stdout) == (99, ""), verb
        assert (through_sh.returncode, through_sh.stdout) == (1, ""), verb
        if verb not in EDITING_VERBS:
            assert (through_wrapper.returncode, through_wrapper.stdout) == (1, ""), verb
            assert through_wrapper.stderr.startswith(f"reassert: refused id: {verb} can change {changed}, ")
            assert events(node) == ["container.denied"], verb
            node.events.unlink()


@pytest.mark.parametrize("each", EACH)
def test_features_pass_byte_for_byte(node: Node, agent: Agent, each: str, start: str) -> None:
    real = real_runtime(each, node.directory)
    direct = subprocess.run([real, "features"], capture_output=True, check=False)
    through = subprocess.run([wrapped(node, agent, real, start), "features"], capture_output=True, check=False)
    assert (direct.returncode, direct.stdout) == (through.returncode, through.stdout)


# What the verb is


EDITED = [
    "--platform ptrace run",
    "--platform ptrace --debug --network none run",
    "--unknown run",
    "--unknown -h run",
    "--unknown --version run",
    "--rootless state run",
    "--help --help=false run",
]
REFUSED = [
    "run -h -h=false",
    "--unknown ptrace run",
    "--unknown state run",
    "--unknown state create",
    "--unknown --root run",
    "--unknown state --root /r restore",
    "--rootless run",
    "--rootless run state",
    "--un.known=x --unknown delete run",
    "-x state run",
    "--unknown frobnicate",
    "frobnicate",
    "runn",
    "--root /r -- frobnicate",
    "mounts add",
]


@marks.claim("verbs", "runtime")
@marks.hole(
    "An unknown option with a value started a container unedited, without an event",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@marks.hole(
    "A help or version option that a later one took back (`run -h -h=false`), which counts for runc, started "
    "a container unedited",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
def test_no_start_passes_unedited_whatever_the_options_before_it(
    node: Node, agent: Agent, bundle: Bundle, start: str
) -> None:
    """The value of an unknown option counted as the verb."""
    node.compile()
    runtime = wrapped(node, agent, stand_in(node), start)
    for line in EDITED + REFUSED:
        bundle.save()
        before = len(events(node))
        done = called(runtime, bundle, *line.split(), "--bundle", str(bundle.directory), "id")
        assert (done.returncode, done.stdout[:4]) == ((0, "ran ") if line in EDITED else (1, "")), (line, done.stderr)
        assert (WANTED in bundle.saved()["process"]["env"]) == (line in EDITED), line
        if line in REFUSED:
            assert done.stderr.startswith("reassert: refused "), line
            assert events(node)[before:] == ["container.denied"], line


UNKNOWN = [
    "create --unknown --pid-file id",
    "create --unknown --bundle elsewhere",
    "create --unknown -h --bundle BUNDLE id",
    "create --unknown=x --",  # the id of a container of the working directory, for runc
    "exec --unknown other id /bin/true",
    "update --unknown other id",
    "update --unknown -r file id",
]


@marks.claim("verbs", "runtime")
@marks.hole(
    "runc takes an option that its verb does not have for the container's id if only `--` follows: such a "
    "command line passed unedited",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
    found="fuzz",
)
def test_an_unknown_option_of_a_verb_hides_nothing(node: Node, agent: Agent, bundle: Bundle, start: str) -> None:
    node.compile()
    runtime = wrapped(node, agent, stand_in(node), start)
    for line in UNKNOWN:
        done = called(runtime, bundle, *line.replace("BUNDLE", str(bundle.directory)).split())
        assert (done.returncode, done.stdout) == (255 if line.startswith("exec") else 1, ""), line
        assert re.search("the (unknown )?option --unknown|no container id before --", done.stderr), line
    assert events(node) == ["container.denied"] * len(UNKNOWN)


def test_audit_mode_only_logs_a_verb(node: Node, agent: Agent, bundle: Bundle, start: str) -> None:
    node.compile(AUDIT)
    before = bundle.config.read_bytes()
    runtime = wrapped(node, agent, stand_in(node), start)
    lines = ["frobnicate id", "--unknown state run id", "mounts add id f", "restore id"]
    for line in lines:
        done = called(runtime, bundle, *line.split())
        assert (done.returncode, done.stdout) == (0, f"ran {line}\n")
    assert bundle.config.read_bytes() == before
    assert events(node) == ["container.would-deny"] * len(lines)


# update


@pytest.fixture
def machine(node: Node, bundle: Bundle) -> Machine:
    return Machine(node, bundle)


WIDE = {"devices": [ALLOW_ALL], "pids": {"limit": 77}}
FORMS = ["--resources FILE", "--resources=FILE", "-r FILE", "--resources -", "--resources=-", "--resources FIFO"]


OPENED = ["No such device or address", *["Operation not permitted"] * 3, ""]


def opened(machine: Machine, container: Running) -> list[str]:
    """What the container gets that opens the nodes of Machine.check again."""
    return [machine.opens(container, f"/dev/{name}") for name in ("gpu1", "try0", "try2", "tryb", "null")]


def pids_limit(container: Running) -> str:
    of = {
        row.split(":")[1]: row.split(":")[2] for row in Path(f"/proc/{container.pid()}/cgroup").read_text().splitlines()
    }
    directory = f"/sys/fs/cgroup/pids{of['pids']}" if "pids" in of else f"/sys/fs/cgroup{of['']}"
    return Path(f"{directory}/pids.max").read_text().strip()


def update(runtime: str, container: Running, form: str, text: str) -> subprocess.CompletedProcess[str]:
    directory = container.bundle.directory
    file, fifo = directory / "resources", directory / "fifo"
    file.write_text(text)
    words = form.replace("FILE", str(file)).replace("FIFO", str(fifo)).split()
    if "FIFO" not in form:
        return run(runtime, "update", *words, container.id, check=False, input=text)
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f'cat "{file}" > "{fifo}"']) as writer:
        done = run(runtime, "update", *words, container.id, check=False)
        assert writer.wait(600) == 0
    return done


@marks.claim("update", "runtime")
@marks.hole(
    "Under crun, `update` gave back the devices that `exclusive` had taken",
    since="0.3.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("each", EACH)
def test_update_gives_no_device_back(machine: Machine, agent: Agent, each: str, form: str, start: str) -> None:
    """Issue 23, 3: crun wrote the engine's own device rules, which exclusive had corrected, to the cgroup."""
    machine.give("/dev/gpu0", 0)
    machine.rules.append(ALLOW_ALL)
    machine.bundle.save()
    runtime = wrapped(machine.node, agent, real_runtime(each, machine.node.directory), start, only=False)
    with Running(runtime, machine.bundle) as container:
        machine.check(container)
        done = update(runtime, container, form, json.dumps(WIDE))
        assert done.returncode == 0, done.stderr
        assert opened(machine, container) == OPENED
        assert pids_limit(container) == "77"


@pytest.mark.parametrize("each", EACH)
def test_an_update_without_device_rules_is_executed_as_it_is(
    machine: Machine, agent: Agent, each: str, start: str
) -> None:
    machine.bundle.save()
    runtime = wrapped(machine.node, agent, real_runtime(each, machine.node.directory), start, only=False)
    with Running(runtime, machine.bundle) as container:
        machine.check(container)
        done = run(runtime, "update", "--pids-limit", "78", container.id)
        assert (done.returncode, pids_limit(container)) == (0, "78")
        assert opened(machine, container) == OPENED


@marks.claim("update", "runtime")
@pytest.mark.parametrize(
    "text",
    [
        '{"Devices": [{"allow": true, "access": "rwm"}]}',
        '{"pids": {"limit": 5}, "devices": [], "devices": [{"allow": true, "access": "rwm"}]}',
        '{} {"devices": [{"allow": true, "access": "rwm"}]}',
        "{'devices': [{'allow': true, 'access': 'rwm'}]}",
        "[]",
        "",
    ],
)
@pytest.mark.parametrize("each", ["runc", "crun-forky"])
def test_resources_that_can_be_read_in_two_ways_are_refused(machine: Machine, each: str, text: str) -> None:
    machine.give("/dev/gpu0", 0)
    machine.bundle.save()
    runtime = machine.node.dispatcher(real_runtime(each, machine.node.directory))
    with Running(runtime, machine.bundle) as container:
        done = update(runtime, container, "--resources=-", text)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"reassert: refused {container.id}: update: the resources: " in done.stderr
        assert machine.node.logged()[-1]["event"] == "container.denied"
        machine.check(container)


def test_update_of_a_container_without_decided_devices_passes_byte_for_byte(
    node: Node, agent: Agent, bundle: Bundle, start: str
) -> None:
    """It has reserved env and mounts, and nothing about its devices."""
    node.compile()
    real = stand_in(node)
    runtime = wrapped(node, agent, real, start)
    root = bundle.directory.parent / "state"
    (root / "id").mkdir(parents=True)
    (root / "id/status").write_text(json.dumps({"bundle": str(bundle.directory)}))
    assert called(runtime, bundle, "create", "--bundle", str(bundle.directory), "id").returncode == 0
    text = '{ "devices" : [{"allow":true}], "x":\t1e400}'
    line = ["--root", str(root), "update", "--resources=-", "id"]
    assert called(runtime, bundle, *line, stdin=text).stdout == f"ran {' '.join(line)}\n{text}"


def test_update_of_a_container_that_is_not_found_is_refused(
    node: Node, agent: Agent, bundle: Bundle, start: str
) -> None:
    node.compile()
    runtime = wrapped(node, agent, stand_in(node), start)
    line = ["--root", str(bundle.directory), "update", "--resources=-", "nobody"]
    done = called(runtime, bundle, *line, stdin="{}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "refused nobody: update: the real runtime's state of the container is not in " in done.stderr
    assert events(node) == ["container.denied"]


# restore


@marks.claim("restore", "runtime")
@marks.hole(
    "`restore` started a container with the env and mounts of its checkpoint, under crun without an event",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("each", EACH)
def test_restore_is_refused_where_anything_is_reserved(
    node: Node, agent: Agent, bundle: Bundle, each: str, start: str
) -> None:
    """Issue 23, 5: env and mounts are the checkpoint's. The lines are conmon's and containerd-shim-runc-v2's."""
    node.compile()
    bundle.pod()
    bundle.save()
    runtime = wrapped(node, agent, real_runtime(each, node.directory), start)
    before = bundle.config.read_bytes()
    where = ["--image-path", f"{bundle.directory}/checkpoint", "--work-path", str(bundle.directory)]
    for line in (
        ["restore", "--bundle", str(bundle.directory), "--pid-file", "/dev/null", "--detach", *where, "t-restored"],
        ["restore", *where, "--no-subreaper", "--detach", f"--bundle={bundle.directory}", "t-restored"],
        ["restore", *where, "-b", str(bundle.directory), "--tcp-established", "--file-locks", "t-restored"],
    ):
        done = called(runtime, bundle, *line)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "reassert: refused default/p/c: rule company-ca: a restored container has the env and mounts of its "
            f"checkpoint, which reassert cannot correct{WHERE_TO_LOOK}\n"
        )
    assert bundle.config.read_bytes() == before
    assert [
        (event["event"], event["container"]["container"], event["applied"])
        for event in node.logged()
        if "container" in event
    ] == [("container.denied", "c", False)] * 3


def test_restore_passes_where_nothing_is_reserved(node: Node, agent: Agent, bundle: Bundle, start: str) -> None:
    node.compile(NOTHING)
    bundle.pod()
    bundle.spec["annotations"]["reassert/decision"] = '{"version":1,"env":{},"absent":[],"devices":false}'
    bundle.save()
    line = ["restore", f"--bundle={bundle.directory}", "id"]
    done = called(wrapped(node, agent, stand_in(node), start), bundle, *line)
    assert done.stdout == f"ran {' '.join(line)}\n", done.stderr
    assert "reassert/decision" not in bundle.saved()["annotations"]
    assert events(node) == []


@marks.claim("restore", "hook")
@pytest.mark.parametrize("verb", ["restore", "create"])
def test_the_hook_alone_refuses_a_restore_of_runc(
    node: Node, agent: Agent, bundle: Bundle, start: str, verb: str
) -> None:
    """The hook's parent is a shell with runc's arguments. crun calls no hook at a restore."""
    node.compile(POLICY.replace("    mounts:", "    x:").partition("    x:")[0])
    bundle.pod()
    bundle.spec["process"]["env"].append(WANTED)
    bundle.save()
    state = {
        "ociVersion": "1.0.2",
        "id": "0a",
        "status": "creating",
        "pid": os.getpid(),
        "bundle": str(bundle.directory),
    }
    (bundle.directory / "state").write_text(json.dumps(state))
    hook = [str(REASSERT), "hook", *node.options()]
    if start == "warm":
        agent.start()
        hook = [agent.only_warm(agent.hook_file())]
    script = bundle.directory / verb
    script.write_text(f"{' '.join(hook)} createRuntime < state\nexit $?\n")
    done = run("sh", verb, "--image-path", "i", "--bundle", ".", "0a", check=False, cwd=bundle.directory)
    refusal = "rule company-ca: a restored container has the env and mounts of its checkpoint"
    assert (done.returncode, refusal in done.stderr) == ((1, True) if verb == "restore" else (0, False)), done.stderr
    assert events(node) == (["container.denied"] if verb == "restore" else [])
