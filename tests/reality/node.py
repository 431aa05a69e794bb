"""A scratch node for the cases: the files that a policy reserves, real runtimes of several Debians."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness.node import Node, write_program
from harness.paths import BUSYBOX, REASSERT, ROOTS, RUNTIMES
from harness.root import OverlayRoot

from reality.warm import Agents
from reality.watch import Watch, cpu_of, differences, entries, told, waited

SCRATCH = Path(os.environ.get("REALITY_SCRATCH", "/run/reassert-reality"))
"""A tmpfs of this run alone (run.sh)."""

LIBC = ctypes.CDLL(None, use_errno=True)

HOST = {f"host/{name}": path for name, path in RUNTIMES.items()}
ROOTED = {f"{root}/{name}": path for root in ("trixie", "forky") for name, path in RUNTIMES.items()}

SHIM = """#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  word=$1 left=$((left - 1))
  shift
  case $word in
  --platform | --strange) left=$((left - 1)); shift ;;
  *) set -- "$@" "$word" ;;
  esac
done
for word; do
  case $word in restore | frobnicate) echo "$word" >>{asked}; exit 0 ;; esac
done
exec {real} "$@"
"""
"""In front of a real runtime: global options of other runtimes, which take the next word, and verbs that it may lack.

It writes those down. A real `restore` needs criu and a checkpoint; that the runtime is asked is enough to know.
"""

GPUS = {"gpu0": (240, 0), "gpu1": (240, 1)}
"""Device nodes of the node that a policy can keep for those whom they are allocated to; no driver has these numbers."""

UNWATCHED = (
    *("work", "state", "log", "log.json", "given", "asked", "output", "agent", "xdg", "node", "lib"),
    *("root-host", "root-trixie", "root-forky", "host", "trixie", "forky"),
)
"""In a worker's directory: what every start writes, and what is watched in another way. Agents write agent-*.stderr."""


_COMPILED_AT = re.compile(rb'"(compiledAt|since)":"[^"]*"')


def runtimes() -> dict[str, str]:
    """Name and path of each real runtime that is there. `host/` is this machine's, the others those of build/roots."""
    found = {name: path for name, path in HOST.items() if os.access(path, os.X_OK)}
    rooted = {name: path for name, path in ROOTED.items() if (ROOTS / name.split("/")[0] / path.lstrip("/")).exists()}
    return found | rooted


def mount(source: str, target: Path, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    if LIBC.mount(source.encode(), os.fsencode(target), kind and kind.encode(), flags, data.encode() or None):
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def unmount(target: Path) -> None:
    """Take away what is mounted at a path, at once."""
    LIBC.umount2(os.fsencode(target), 2)  # MNT_DETACH


@dataclass(frozen=True)
class Done:
    """How a command ended. `status` 124: it took too long."""

    status: int
    output: str
    cpu: float = 0
    peak: int = 0
    """KiB."""


class WatchedNode(Node):
    """A worker's node, whose files are watched. `files`: what policies name as NODE. `work`: where bundles are."""

    def __init__(self, name: str, agent: bool = False) -> None:
        super().__init__(SCRATCH / name, policy="")
        self.files = self.directory / "node"
        self.work = self.directory / "work"
        for path in (self.files, self.store, self.work):
            path.mkdir()
        self._policy_text = ""
        self._compiled = Done(1, "")
        self._roots: dict[str, OverlayRoot] = {}
        self._watches: dict[str, Watch] = {}
        (self.directory / "busybox").write_bytes(Path(BUSYBOX).read_bytes())
        (self.directory / "busybox").chmod(0o755)
        (self.directory / "empty").touch()
        self._make_files()
        self._files = entries(self.files)
        self._is_spoilt = False
        self._own = entries(self.directory, UNWATCHED)
        self._stored: dict[str, bytes] = {}
        self.agents = Agents(self) if agent else None

    def changed(self) -> list[str]:
        """What of the files that policies name is not as it was at the last call."""
        now = entries(self.files)
        names = differences(self._files, now)
        self._files = now
        self._is_spoilt = self._is_spoilt or bool(names)
        return [told(name, now) for name in names]

    def restore(self) -> None:
        """Make the files that policies name anew if they were changed."""
        self.changed()
        if self._is_spoilt:
            unmount(self.files / "ca/sub")
            shutil.rmtree(self.files)
            self.files.mkdir()
            self._make_files()
            self._files = entries(self.files)
            self._is_spoilt = False

    def elsewhere(self) -> list[str]:
        """Everything else of the node that is not as it was at the last call."""
        own = entries(self.directory, UNWATCHED)
        names = [str(self.directory / name) for name in differences(self._own, own) if not name.endswith(".stderr")]
        self._own = own
        # by content: an agent that sees a new policy compiles it too, perhaps after `use` did
        files = [path for path in self.store.glob("[!.]*") if path.name != "unchanged-starts"]
        stored = {str(path): _COMPILED_AT.sub(b"", path.read_bytes()) for path in files}
        names += sorted({name for name, _ in stored.items() ^ self._stored.items()})
        self._stored = stored
        return names + [name for watch in self._watches.values() for name in watch.changed()]

    def _make_files(self) -> None:
        ca = self.files / "ca"
        (ca / "certs/extra").mkdir(parents=True)
        (ca / "private").mkdir()
        (ca / "ca.crt").write_text("company ca\n")
        (ca / "certs/company.crt").write_text("company certs\n")
        (ca / "certs/ca-certificates.crt").write_text("company bundle below\n")
        (ca / "sub").mkdir()
        mount("tmpfs", ca / "sub", "tmpfs", 0, "size=64k")
        (ca / "sub/inner.crt").write_text("company inner\n")
        (self.files / "bundle.pem").write_text("company bundle\n")
        (self.files / "linked").symlink_to("ca")
        (self.files / "linked.pem").symlink_to("bundle.pem")
        (self.files / "dev").mkdir()
        for name, numbers in GPUS.items():
            os.mknod(self.files / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(*numbers))
        victim = {"ociVersion": "1.0.2", "process": {"env": [], "args": ["x"], "cwd": "/"}, "root": {"path": "rootfs"}}
        (self.files / "victim/rootfs").mkdir(parents=True)  # another container's bundle
        (self.files / "victim/config.json").write_text(json.dumps({**victim, "linux": {"namespaces": []}}))
        (self.files / "gpu").write_text("GPU-of-the-node\n")
        (self.files / "others").write_text("not root's\n")
        os.chown(self.files / "others", 1000, 1000)

    def placed(self, text: str) -> str:
        """A text with `{NODE}` replaced by the directory of the node's files."""
        return text.replace("{NODE}", str(self.files))

    def use(self, policy: dict[str, Any]) -> Done:
        """Put a policy in force, as happens long before a container starts."""
        text = self.placed(json.dumps(policy, indent=1))
        if text != self._policy_text:
            for old in self.store.glob("*"):
                old.unlink()
            self.write_policy(text)
            self._compiled = self.run([str(REASSERT), "policy", "compile", *self.options()[:4]])
            self._policy_text = text
            self.elsewhere()
        return self._compiled

    def real(self, runtime: str, other_name: str = "", shim: bool = False) -> str:
        """Path of a real runtime. `other_name`: a link of that file name to it. `shim`: with SHIM in front."""
        path = {**HOST, **ROOTED}[runtime]
        name = other_name or Path(path).name
        if shim:
            script = self.directory / runtime / "shim" / name
            if not script.exists():
                asked = self.directory / "asked"
                write_program(
                    script, SHIM.replace("{asked}", str(asked)).replace("{real}", self.real(runtime, other_name))
                )
            return str(script)
        if not other_name:
            return path
        link = self.directory / runtime / other_name
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        return str(link)

    def asked(self) -> list[str]:
        """Verbs that SHIM was given since the last call."""
        file = self.directory / "asked"
        verbs = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return verbs

    def wrapper(self, runtime: str, other_name: str = "", shim: bool = False) -> str:
        """Path of the wrapper in front of a real runtime, made by the program under test."""
        path = self.directory / runtime / f"reassert-{other_name or 'plain'}{'-shim' if shim else ''}"
        if not path.exists():
            self.write_dispatcher(path, runtime, "--real", self.real(runtime, other_name, shim))
        return str(path)

    def write_dispatcher(self, path: Path, runtime: str, *options: str) -> None:
        """Write what the program under test makes for an engine, in the root file system of a runtime."""
        made = self.run([str(REASSERT), "dispatcher", *options, *self.options()], runtime)
        if made.status:
            raise RuntimeError(made.output)
        write_program(path, made.output)

    def root(self, runtime: str) -> OverlayRoot:
        """The root file system of a runtime."""
        root = runtime.split("/", maxsplit=1)[0]
        if root not in self._roots:
            directory = self.directory / f"root-{root}"
            directory.mkdir()
            lower = Path("/") if root == "host" else (ROOTS / root).resolve()
            self._roots[root] = OverlayRoot(
                directory,
                lower,
                [SCRATCH, REASSERT.parent],
                inside=f"mount -o remount,bind,ro '.{REASSERT.parent}'",  # it is the machine's own
                options=("--propagation", "slave"),
            )
            self._watches[root] = Watch(directory / "upper", lower, self._roots[root].pid, SCRATCH)
        return self._roots[root]

    @cache  # noqa: B019  # one node lives as long as its process
    def version(self) -> str:
        """The version of the program under test."""
        return self.run([str(REASSERT), "--version"]).output.split()[-1]

    def agent_cpu(self) -> float:
        """Seconds of CPU that the agents have used."""
        return sum(map(cpu_of, self.agents.pids())) if self.agents else 0.0

    def run(
        self,
        command: list[str],
        runtime: str = "host/",
        env: dict[str, str] | None = None,
        stdin: Path | None = None,
        cwd: str = "/",
        fds: tuple[int, ...] = (),
        timeout: float = 60,
    ) -> Done:
        """A command in the root file system of a runtime, its two outputs as one text.

        Containers inherit its descriptors, so they are files: never a pipe, never /dev/null.
        """
        output = self.directory / "output"
        with output.open("w") as out, (stdin or self.directory / "empty").open() as given:
            process = subprocess.Popen(
                self.root(runtime).command(*command),
                stdin=given,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                cwd=cwd,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})},
            )
            status, cpu, peak = waited(process, timeout)
        return Done(status, output.read_text(errors="replace"), cpu, peak)

    def close(self) -> None:
        """End the agents, and the namespaces of the other Debians."""
        if self.agents:
            self.agents.close()
        for root in self._roots.values():
            root.close()
