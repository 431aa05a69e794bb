"""Every command escapes control characters and escape sequences of a pod's text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import marks
import pytest

from hook.core.base.finding import ERROR, NOTE, OK, WARNING, Finding
from hook.node.change.files import FILE, State
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.shown import shown
from hook.node.engines.base import AnyEngine, Handler
from hook.node.loaded import Loaded
from hook.node.probe.report import EXPOSED, HandlerResult, Report
from hook.nri import ttrpc
from hook.ops.health.node import EngineState, Node
from hook.ops.health.status import Status, as_json, as_page, as_table
from unit.support import CONTAINERD, ROOT, bind, called, config, document, policy, reassert

pytestmark = marks.promise(
    "No text of a pod controls a terminal, a browser, a shell or a field of the journal", about="Events and metrics"
)

EVIL = "\x1b]0;owned\x07\x1b[2J\r\b\x7f\x9b31m\u202eesrever\u2066\u2028\u200b\x85"
"""Sets the title, clears the screen, goes back to the line's start, rubs out, colours by a C1 control, turns round."""

LINES = "\nresult     started unchanged\n"
"""What would forge a line of `explain`."""

RULE = {
    "name": "ca",
    "match": {"namespaces": ["*"], "containerNames": ["*"], "images": ["*"]},
    "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "N_*", "absent": True}],
    "mounts": [{"hostPath": "/etc", "mountPath": "/etc/ssl"}],
    "annotations": [{"name": "evil*", "absent": True}],
}


def assert_harmless(output: str, lines: str = "\n") -> None:
    """Assert that the text has only printable characters and newlines."""
    bad = {character for character in output if not character.isprintable() and character not in lines}
    assert bad == set()


class Files:
    """A policy, and a config.json with escape sequences in every field that a pod's author can set."""

    def __init__(self, directory: Path, evil: str = EVIL, **spec: Any) -> None:
        self.directory, self.config, self.policy = directory, directory / "config.json", directory / "policy.yaml"
        self.policy.write_text(document(RULE, **spec))
        notes = {key: value + evil for key, value in CONTAINERD.items() if not key.endswith("-type")}
        notes["io.kubernetes.cri.container-type"] = "container"
        self.config.write_text(
            json.dumps(
                config(
                    [f"CA={evil}", f"N_{evil}={evil}", "CA"],
                    [bind(f"/etc/ssl/{evil}", f"/{evil}"), bind("/etc/ssl", evil)],
                    {**notes, f"evil{evil}": evil},
                )
            )
        )


@pytest.fixture(params=["Override", "Deny"])
def files(request: pytest.FixtureRequest, root_dir: Path) -> Files:
    made = Files(root_dir)
    made.policy.write_text(document({**RULE, "onConflict": request.param}))
    return made


@pytest.mark.parametrize("output", ["table", "diff", "json"])
def test_explain(files: Files, output: str) -> None:
    done = called("explain", str(files.config), "--policy", str(files.policy), "-o", output)
    refused = '"Deny"' in files.policy.read_text()
    assert done.returncode == int(refused), done.stderr
    assert_harmless(done.stdout)
    assert_harmless(done.stderr)
    if output != "json":
        assert ("\\u202e" in done.stdout) is (output == "table" or not refused), "what the pod wrote is shown, escaped"


@marks.cve("CVE-2026-25996")
@marks.hole(
    "Escape sequences and newlines of a pod forged results on terminals", since="0.1.0", fixed="0.2.0", severity="low"
)
def test_explain_lets_nobody_forge_a_line(root_dir: Path) -> None:
    files = Files(root_dir, LINES)
    done = called("explain", str(files.config), "--policy", str(files.policy))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("result")] == ["result     started corrected"]
    assert all(
        not line or line.startswith(("RULE", "ca ", "c", "policy", " " * 11, "loses      ", "result"))
        for line in done.stdout.splitlines()
    )


def test_explain_of_a_name_with_a_surrogate_is_no_traceback(root_dir: Path) -> None:
    files = Files(root_dir, "\ud800")
    done = reassert("explain", str(files.config), "--policy", str(files.policy))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\ud800" in done.stdout


def test_errors_of_commands(root_dir: Path) -> None:
    for arguments in (
        ("explain", f"{root_dir}/{EVIL}"),
        ("policy", "check", f"{root_dir}/{EVIL}"),
        ("explain", "/etc/hostname", "--policy", f"{root_dir}/{EVIL}"),
    ):
        done = called(*arguments)
        assert done.returncode == 1
        assert "\\x1b" in done.stderr
        assert_harmless(done.stdout + done.stderr)


def test_policy_check(root_dir: Path) -> None:
    """YAML's own escapes bring in what a YAML file must not hold."""
    source = root_dir / "policy.yaml"
    evil = json.dumps(EVIL)[1:-1]
    for text in (
        document(RULE).replace('"ca"', f'"{evil}"'),
        document(RULE, **{EVIL: 1}),
        document(RULE, mode=EVIL),
        document({**RULE, "env": [{"name": f"A={EVIL}", "value": "1"}]}),
        document({**RULE, "mounts": [{"hostPath": EVIL, "mountPath": f"/proc/{EVIL}"}]}),
        document({**RULE, "match": {"images": [EVIL]}}, {**RULE, "name": EVIL}),
        f"{EVIL}",
        "a: \u202e{",
    ):
        source.write_text(text)
        done = called("policy", "check", str(source))
        assert_harmless(done.stdout + done.stderr)
        assert done.stdout + done.stderr


def test_policy_show(root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    where = ("--policy", str(source), "--store", f"{root_dir}/s")
    for value in (EVIL, "Zürich"):
        source.write_text(document({**RULE, "env": [{"name": "CA", "value": f"a{value}"}]}))
        done = called("policy", "show", *where)
        assert done.returncode == 0, done.stderr
        assert_harmless(done.stdout + done.stderr)
    assert "aZürich" in done.stdout
    source.write_text(f"{EVIL}: [")
    done = called("policy", "show", *where)
    assert "# HELD BACK" in done.stdout
    assert_harmless(done.stdout)


def adapter(files: Files, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    where = [f"--policy={files.policy}", f"--store={files.directory}/s", f"--events={files.directory}/events.jsonl"]
    program = [sys.executable, str(ROOT / "hook" / "__main__.py")]
    if arguments[0] == "runtime":
        command = [*program, "runtime", "--real", "/bin/true", *where, "--", *arguments[1:]]
    else:
        command = [*program, "hook", *where, arguments[1]]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=600)


@marks.hole("Escape sequences and newlines of a pod forged results on terminals")
@pytest.mark.parametrize("kind", ["json", "text"])
def test_refusal_of_the_wrapper_and_its_log(root_dir: Path, kind: str) -> None:
    """Engines decode the log's message and print it: it is harmless decoded, too."""
    files = Files(root_dir)
    files.policy.write_text(document({**RULE, "onConflict": "Deny"}))
    log = root_dir / "log"
    done = adapter(files, "runtime", "--log", str(log), "--log-format", kind, "create", "--bundle", str(root_dir), "0a")
    assert done.returncode == 1
    assert "\\x1b" in done.stderr
    for text in (done.stdout, done.stderr, log.read_text()):
        assert_harmless(text)
    told = json.loads(log.read_text())["msg"] if kind == "json" else json.loads(log.read_text().partition("msg=")[2])
    assert told + "\n" == done.stderr
    assert_harmless((root_dir / "events.jsonl").read_text())


def test_exec_that_is_refused_names_its_container_harmlessly(root_dir: Path) -> None:
    files = Files(root_dir)
    state = root_dir / "state" / EVIL
    state.mkdir(parents=True)
    (state / "state.json").write_text("{")
    done = adapter(files, "runtime", "--root", f"{root_dir}/state", "exec", EVIL, "sh")
    assert done.returncode == 255
    assert_harmless(done.stderr)


def test_refusal_of_a_hook(root_dir: Path) -> None:
    files = Files(root_dir)
    files.policy.write_text(document({**RULE, "onConflict": "Deny"}))
    state = json.dumps({"ociVersion": "1.0.2", "id": EVIL, "status": "creating", "pid": 1, "bundle": str(root_dir)})
    done = adapter(files, "hook", "createRuntime", text=state)
    assert done.returncode == 1
    assert done.stderr.startswith("reassert: refused team-a\\x1b]0\\x3bowned")
    assert_harmless(done.stderr)


CODE = ";x$(>OWNED)`>OWNED`|x>OWNED<OWNED&&>OWNED&>OWNED #(x)"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["create", "exec", "createRuntime"])
def test_refusal_is_no_code_for_a_shell(root_dir: Path, way: str) -> None:
    """A message can land in a file that a shell reads, whoever opened it."""
    files = Files(root_dir, CODE)
    files.policy.write_text(document({**RULE, "onConflict": "Deny"}))
    text = json.dumps({"ociVersion": "1.0.2", "id": CODE, "status": "creating", "pid": 1, "bundle": str(root_dir)})
    if way in ("create", "exec"):
        arguments = ["create", "--bundle", str(root_dir), CODE] if way == "create" else ["exec", CODE, "sh"]
        done = adapter(files, "runtime", "--root", f"{root_dir}/state", "--log", f"{root_dir}/log", *arguments)
    else:
        done = adapter(files, "hook", way, text=text)
    assert done.returncode in (1, 255)
    assert "\\x24\\x28>" not in done.stderr
    assert "\\x24\\x28\\x3eOWNED\\x29" in done.stderr
    (root_dir / "empty").mkdir()
    for said in (done.stderr, (root_dir / "log").read_text() if way == "create" else ""):
        subprocess.run(["sh"], input=said, cwd=root_dir / "empty", text=True, capture_output=True, timeout=600)
        assert list((root_dir / "empty").iterdir()) == []


def test_refusal_is_bounded(root_dir: Path) -> None:
    files = Files(root_dir, "a" * 100_000)
    files.policy.write_text(document({**RULE, "onConflict": "Deny"}))
    log = root_dir / "log"
    done = adapter(
        files, "runtime", "--log", str(log), "--log-format", "json", "create", "--bundle", str(root_dir), "0"
    )
    assert done.returncode == 1
    assert len(done.stderr.encode()) < 4200
    assert log.stat().st_size < 4400


def test_refusal_of_the_plugin() -> None:
    for text in (EVIL, "\x1b" * 100_000):
        [message] = ttrpc.Assembler().feed(ttrpc.refusal(1, ttrpc.PERMISSION_DENIED, text))
        response = ttrpc.read_response(message)
        assert_harmless(response.status.message, "")
        assert len(response.status.message) <= 4096


def engine(**fields: Any) -> AnyEngine:
    return cast(AnyEngine, SimpleNamespace(title="containerd", name="containerd", verb="restart", **fields))


def test_node_status() -> None:
    """Notes, problems and hints quote engines' answers and containers' names."""
    handler = Handler(f"h{EVIL}", f"/r{LINES}", ("runtime",), EVIL)
    state = EngineState(engine(running=lambda: True), OwnerRecord(), None, Loaded([handler]))
    said = [Finding(severity, f"p{LINES}", EVIL, LINES) for severity in (ERROR, WARNING, NOTE, OK)]
    found = Status(Node(Record("/nowhere", {}), [state], {}), said)
    table, page = as_table(found), as_page(found)
    assert_harmless(table)
    assert_harmless(page)
    assert (len(table.splitlines()), len(page.splitlines())) == (13, 13)
    assert_harmless(as_json(found))


def test_node_plan(root_dir: Path) -> None:
    path = root_dir / "config.toml"
    path.write_text(f"a{EVIL}\n\tb\n")
    diff = shown([(str(path), State(f"c{EVIL}\n\tc\n".encode(), FILE, 0o644))])
    assert "\n-\tb\n+\tc" in diff, "a tab is harmless, and files have them"
    assert_harmless(diff, "\n\t")
    assert "\\x1b" in diff


@marks.hole("Escape sequences and newlines of a pod forged results on terminals")
def test_node_verify() -> None:
    node = policy(RULE)
    node.warning = EVIL
    handler = Handler(f"h{EVIL}", "runc", (), EVIL)
    findings = [HandlerResult(handler, EXPOSED, [EVIL, LINES], EXPOSED)]
    report = Report(engine(), node, findings, {f"r{EVIL}": f"{EVIL}{LINES}"}, beside=[EVIL])
    assert_harmless(report.as_table())
    assert "result     started unchanged" not in report.as_table().splitlines()
    assert_harmless(Report(engine(), node, [], {}, nothing=EVIL).as_table())
