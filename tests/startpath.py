"""The start path as it is: the modules that real commands execute, and the bytes of their code.

    sudo build/venv-test/bin/python tests/startpath.py            the totals of each command
    sudo build/venv-test/bin/python tests/startpath.py --modules  and the modules of a corrected create

The commands run from the checkout, by the code that starts the frozen program (packaging/frozen_start.py). Root: a
policy below a directory of another user is not used. unit/test_import_budget.py holds the rules.
"""

from __future__ import annotations

import json
import marshal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "packaging")]

import frozen_start  # noqa: E402  # after the path is set
from harness.node import Node  # noqa: E402  # likewise
from unit.support import CONTAINERD, bind, config, document  # noqa: E402  # likewise

PYTHON = [sys.executable, "-I", "-S"]
"""Isolated and without `site`, as the frozen program runs."""

RULE = {
    "name": "r",
    "match": {"namespaces": ["team-*"]},
    "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "N_*", "absent": True}],
}
MOUNT = {"hostPath": "/etc", "mountPath": "/etc/ssl"}

_TELLING = """
import marshal, posix, sys
sys.path.insert(0, {root!r})
before = set(sys.modules)
def telling(function):
    def told(*arguments):
        executed = {{name for name, module in sys.modules.items() if type(module).__name__ != "Lazy"}}
        posix.write(posix.open({file!r}, posix.O_WRONLY | posix.O_CREAT), " ".join(executed - before).encode())
        function(*arguments)
    return told
posix.execve, posix._exit = telling(posix.execve), telling(posix._exit)
{first}
with open({code!r}, "rb") as start:
    code = marshal.load(start)
exec(code)
"""
"""Runs the start's code, and writes the modules that were executed to a file before the process becomes another one."""


def executed(
    directory: Path, *arguments: str, text: str = "", first: str = ""
) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that a command executes beyond those of an interpreter that does nothing. `first`: code before it."""
    code, file = directory / "start", directory / "modules"
    if not code.exists():
        code.write_bytes(marshal.dumps(frozen_start.start_code(str(ROOT))))
    file.unlink(missing_ok=True)
    telling = _TELLING.format(root=str(ROOT), code=str(code), file=str(file), first=first)
    command = [*PYTHON, "-c", telling, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, input=text, timeout=600)
    assert file.exists(), result.stderr
    return set(file.read_text().split()), result


def size(modules: set[str]) -> tuple[int, int]:
    """The number of our modules among these, and the bytes of their code together."""
    own = [module for module in modules if module.partition(".")[0] == "hook"]
    return len(own), sum(len(marshal.dumps(frozen_start.code(module))) for module in own)


class Start(Node):
    """A node with a compiled policy, and containerd's bundle of a pod's container that overrides reserved entries."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, policy="")
        self.bundle = directory / "bundle"
        self.config = self.bundle / "config.json"
        self.bundle.mkdir()
        self.compile(document({**RULE, "mounts": [MOUNT]}))
        self.write(["CA=/tmp/x", "N_A=1"])

    def write(self, env: list[str], has_volume: bool = True) -> None:
        """A container's config.json. Without a volume, a hook has no mounts to look at."""
        volume = bind("/etc/ssl/certs", "/var/lib/kubelet/pods/0a/volumes/kubernetes.io~configmap/ca")
        self.config.write_text(json.dumps(config(env, [volume] if has_volume else [], CONTAINERD)))

    def runtime(self, *arguments: str) -> set[str]:
        """The modules of `reassert runtime`, which must have executed the real runtime."""
        command = ["runtime", "--real", "/bin/true", *self.options(), "--", "--root", f"{self.directory}/state"]
        modules, result = executed(self.directory, *command, *arguments)
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
        return executed(self.directory, "hook", *self.options(), stage, text=text)

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
        start.compile(document({**RULE, "match": {"namespaces": ["other"]}, "mounts": [MOUNT]}))
        found["create that changes nothing"] = start.create()
        start.write(["CA=/tmp/x"], has_volume=False)
        found["hook that verifies"] = start.hook("createRuntime", start.state())[0]
    if sys.argv[1:] == ["--modules"]:
        for module in sorted(corrected):
            print(f"{size({module})[1] or '':>6}  {module}")
    for command, modules in found.items():
        count, total = size(modules)
        print(f"{command:40} {count:3} modules  {total:7} bytes")


if __name__ == "__main__":
    main()
