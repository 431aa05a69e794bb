"""The start path as it is: the modules and the bytes of code that real commands load.

    sudo build/venv-test/bin/python tests/startpath.py            the totals of each command
    sudo build/venv-test/bin/python tests/startpath.py --modules  and the modules of a corrected create

The commands run unfrozen under `-X importtime`, which lists every module that the interpreter loads. Root: a policy
below a directory of another user is not used. unit/test_import_budget.py holds the rules and the maximum.
"""

from __future__ import annotations

import ast
import json
import marshal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from unit.support import CONTAINERD, bind, config, document  # noqa: E402  # after the path is set

from hook.core.policy.compiler import refresh  # noqa: E402  # likewise

PYTHON = [sys.executable, "-I", "-S", "-X", "importtime"]
"""Isolated and without `site`, as the frozen program runs."""

RULE = {
    "name": "r",
    "match": {"namespaces": ["team-*"]},
    "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "N_*", "absent": True}],
}
MOUNT = {"hostPath": "/etc", "mountPath": "/etc/ssl"}


def imported(*command: str, text: str = "") -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that a command loads beyond those of an interpreter that does nothing."""

    def modules(stderr: str) -> set[str]:
        lines = [line for line in stderr.splitlines() if line.startswith("import time:")]
        return {line.rpartition("|")[2].strip() for line in lines[1:]}

    idle = subprocess.run([*PYTHON, "-c", "pass"], capture_output=True, text=True, check=True)
    result = subprocess.run([*PYTHON, *command], capture_output=True, text=True, input=text, timeout=60)
    own = modules(result.stderr)
    assert own, result.stderr
    return own - modules(idle.stderr), result


def code(module: str) -> int:
    """Bytes of one of our modules as the frozen program loads it: marshalled, without docstrings and assertions."""
    return len(marshal.dumps(compile(_file(module).read_text(), module, "exec", optimize=2)))


def _file(module: str) -> Path:
    path = ROOT / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def size(modules: set[str]) -> tuple[int, int]:
    """The number of our modules among these, and the bytes of their code together."""
    own = [module for module in modules if module.partition(".")[0] == "hook"]
    return len(own), sum(map(code, own))


def imports(module: str) -> Iterator[str]:
    """What one of our modules imports, also late: all but what is for the type checker."""
    pending: list[ast.AST] = [ast.parse(_file(module).read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("hook"))


def reachable(module: str = "hook.start", found: set[str] | None = None) -> set[str]:
    """Our modules that a command of the start path may load."""
    found = set() if found is None else found
    if module not in found and _file(module).exists():
        found.add(module)
        for name in imports(module):
            if name.partition(".")[0] == "hook":
                reachable(name.rpartition(".")[0], found)
                reachable(name, found)
    return found


class Start:
    """A node with a compiled policy, and containerd's bundle of a pod's container that overrides reserved entries."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bundle = directory, directory / "bundle"
        self.config = self.bundle / "config.json"
        self.bundle.mkdir()
        self.set_policy({**RULE, "mounts": [MOUNT]})
        self.write(["CA=/tmp/x", "N_A=1"])
        self.where = ["--policy", f"{directory}/policy.yaml", "--store", f"{directory}/s"]
        self.where += ["--events", f"{directory}/events.jsonl"]

    def set_policy(self, rule: dict[str, object], **spec: object) -> None:
        (self.directory / "s").mkdir(exist_ok=True)
        (self.directory / "policy.yaml").write_text(document(rule, **spec))
        refresh(f"{self.directory}/policy.yaml", f"{self.directory}/s")

    def write(self, env: list[str]) -> None:
        volume = bind("/etc/ssl/certs", "/var/lib/kubelet/pods/0a/volumes/kubernetes.io~configmap/ca")
        self.config.write_text(json.dumps(config(env, [volume], CONTAINERD)))

    def runtime(self, *arguments: str) -> set[str]:
        """The modules of `reassert runtime`, which must have executed the real runtime."""
        command = ["runtime", "--real", "/bin/true", *self.where, "--", "--root", f"{self.directory}/state"]
        modules, result = imported(str(ROOT / "hook" / "__main__.py"), *command, *arguments)
        assert result.returncode == 0, result.stderr
        return modules

    def create(self) -> set[str]:
        """The modules of a create."""
        return self.runtime("create", "--bundle", str(self.bundle), "0a")

    def exec(self, env: list[str]) -> tuple[set[str], list[str]]:
        """The modules of an exec of a process with this env, and the env that it gets."""
        state, process = self.directory / "state" / "0a", self.directory / "process.json"
        state.mkdir(parents=True)
        (state / "state.json").write_text(json.dumps({"config": {"labels": [f"bundle={self.bundle}"]}}))
        process.write_text(json.dumps({"args": ["sh"], "env": env}))
        modules = self.runtime("exec", "--process", str(process), "0a")
        return modules, json.loads(process.read_text())["env"]

    def hook(self, stage: str, text: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
        """The modules of `reassert hook`."""
        return imported(str(ROOT / "hook" / "__main__.py"), "hook", *self.where, stage, text=text)

    def state(self) -> str:
        """What a runtime gives a hook on stdin."""
        return json.dumps(
            {"ociVersion": "1.0.2", "id": "0a", "status": "creating", "pid": 1, "bundle": str(self.bundle)}
        )


def main() -> None:
    """Print the totals."""
    with tempfile.TemporaryDirectory(dir="/run") as directory:
        start = Start(Path(directory))
        corrected = start.create()
        assert "CA=/ca.pem" in start.config.read_text()
        found = {"create that corrects env and mounts": corrected, "exec": start.exec(["CA=/tmp/x"])[0]}
        start.set_policy({**RULE, "match": {"namespaces": ["other"]}, "mounts": [MOUNT]})
        found["create that changes nothing"] = start.create()
        found["hook that verifies"] = start.hook("createRuntime", start.state())[0]
    if sys.argv[1:] == ["--modules"]:
        for module in sorted(corrected):
            print(f"{code(module) if module.startswith('hook') else '':>6}  {module}")
    for command, modules in found.items():
        count, total = size(modules)
        print(f"{command:40} {count:3} modules  {total:7} bytes")


if __name__ == "__main__":
    main()
