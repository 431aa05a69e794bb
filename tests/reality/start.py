"""One start of a case under a real runtime, through one adapter, and what came of it."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.paths import REASSERT

from reality.bundle import SLEEP, Bundle, fifo_in_image
from reality.hostile import call, is_apart, make_nodes, marks, opened
from reality.look import View, environ, look
from reality.node import GPUS, Done, WatchedNode
from reality.reading import Case, Feature, features, read
from reality.warm import Record

ADAPTERS = ("runtime", "hook", "both")

BARE = "none"
"""The real runtime without us."""

PATIENCE = 20
"""Seconds for a runtime's init to become the container's program, on a busy machine."""


@dataclass
class Exec:
    """What a process of an `exec` has. `status`: of the command that started it."""

    feature: Feature
    status: int
    output: str
    env: list[bytes] = field(default_factory=list)


@dataclass
class Verb:
    """Another call of the runtime for a container that runs. `asked`: the runtime was really asked for it."""

    feature: Feature
    status: int
    output: str
    asked: bool = False


@dataclass
class Outcome:
    """What came of a start. `view` is what the process had when it started, `later` after the sidecar's work.

    `ours`: the refusal was reassert's, not the runtime's own.
    """

    started: bool
    output: str
    ours: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    view: View | None = None
    later: View | None = None
    execs: list[Exec] = field(default_factory=list)
    timed_out: bool = False
    leaked: list[str] = field(default_factory=list)
    """Mounts of the container that the node has too, below the bundle."""
    verbs: list[Verb] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    """Devices of the node that the container may open when it starts, `opened_later` after all calls of the runtime."""
    opened_later: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    """Traps of the image into which a process ran."""
    elsewhere: list[str] = field(default_factory=list)
    """What of the node changed that is not the container's, nor named by the policy."""
    cpu: float = 0
    peak: int = 0
    """Seconds of CPU and most KiB of the runtime and everything it called, and of the agent."""


class Start:
    """Makes the bundle, starts the container, looks, and takes everything away again.

    `warm`: on a node with an agent, whether it is asked. `record`: what is compared there.
    """

    def __init__(self, node: WatchedNode, case: Case, runtime: str, adapter: str, name: str, warm: bool = True) -> None:
        self.node = node
        self.case = case
        self.runtime = runtime
        self.adapter = adapter
        self.id = name
        other = features(case, "runtime-name")
        # the link is of the kind that this runtime is: crun's name for a runc would be another state directory
        file_name = other[0]["name"].replace("RUNTIME", runtime.split("/")[1]) if other else ""
        shim = bool(features(case, "global", "verb"))
        self.command = node.real(runtime, file_name, shim)
        if adapter in ("runtime", "both"):
            self.command = (
                node.agents.dispatcher(runtime, file_name, warm, shim)
                if node.agents
                else node.wrapper(runtime, file_name, shim)
            )
        self.warm = warm and bool(node.agents) and adapter != BARE
        self.hook = [str(REASSERT), "hook", *node.options()]
        if node.agents:
            self.hook = [node.agents.hook(runtime, warm)]
        self.record = Record(warm)
        self.env: dict[str, str] = {}
        self.options = ["--root", str(node.directory / "state" / runtime)]
        if features(case, "own-root", "audit"):
            self.options = []
        if features(case, "xdg") and runtime.endswith("crun"):
            self.options = []
            self.env["XDG_RUNTIME_DIR"] = str(node.directory / "xdg")
            (node.directory / "xdg").mkdir(exist_ok=True)
        for one in features(case, "global"):
            self.options = [*one["words"], *self.options] if one["first"] else [*self.options, *one["words"]]
        self.pid = 0
        self.cpu, self.peak = 0.0, 0
        self.forged: list[str] = []
        self.console: _Console | None = None
        """Held while the container lives: a hang-up would end it before its program runs."""

    def run(self, paths: list[str], remount: list[str] | None = None, hook: dict[str, Any] | None = None) -> Outcome:
        """Start it and look at `paths`; `remount`: those whose mounts it makes writable. `hook`: one that is bare's."""
        self.node.events.unlink(missing_ok=True)
        self.node.asked()
        began = self.node.agent_cpu()
        bundle = Bundle(self.node, self.case, self.id)
        try:
            outcome = self._run_in(bundle, paths, remount or [], hook)
            outcome.ran = marks(bundle.rootfs, self.node.root(self.runtime).path("/"))
            outcome.cpu, outcome.peak = self.cpu + self.node.agent_cpu() - began, self.peak
        finally:
            self.record.add_file(self.node.events)
            self._end()
            if self.console:
                self.console.close()
            bundle.close()
        outcome.elsewhere = self.node.elsewhere() + self.forged
        return outcome

    def _run_in(self, bundle: Bundle, paths: list[str], remount: list[str], hook: dict[str, Any] | None) -> Outcome:
        done = self._create(bundle, hook)
        if self.warm:
            for one in features(self.case, "caller"):
                if is_apart(one):
                    call(self.node, self.runtime, one, bundle.rootfs)
        if done.status:
            return self._refused(done)
        leaked = bundle.mounted()
        if not leaked:  # what it removes would be the node's
            bundle.sidecar("created")
        done = self._run("start", self.id)
        if done.status or not self._alive():
            return self._refused(done)
        outcome = Outcome(True, done.output, view=look(self.pid, paths, remount))
        gpus = [self.node.files / "dev" / name for name in GPUS]
        outcome.opened = opened(self.pid, gpus)
        outcome.execs = [self._exec(bundle, one) for one in features(self.case, "exec")]
        outcome.leaked = leaked
        if not leaked and bundle.sidecar("started"):
            outcome.later = look(self.pid, paths)
        outcome.events = self._logged()
        outcome.verbs = [self._verb(bundle, one) for one in features(self.case, "verb")]
        outcome.opened_later = opened(self.pid, gpus)
        for one in features(self.case, "audit") if self.adapter != BARE else ():
            make_nodes(self.pid, one["nodes"])
            self.node.run([str(REASSERT), one["command"], *self.node.options()[:4]], self.runtime)
        return outcome

    def _verb(self, bundle: Bundle, feature: Feature) -> Verb:
        name, arguments = feature["verb"], [feature["verb"]]
        if name == "update":
            resources = bundle.directory / "resources.json"
            resources.write_text(json.dumps(feature["resources"]))
            arguments += ["--resources", str(resources)]
        elif name == "restore":
            arguments += ["--bundle", str(bundle.path), "--image-path", str(bundle.volumes), "--detach"]
        done = self._run(*arguments, self.id if name != "restore" else f"{self.id}-restored")
        return Verb(feature, done.status, done.output, name in self.node.asked())

    def _create(self, bundle: Bundle, hook: dict[str, Any] | None) -> Done:
        if (
            self.adapter == "hook"
        ):  # it cannot set env; something before it did, as the NRI plugin and base_runtime_spec do
            reserved = read(self.case)
            env = bundle.spec["process"]["env"]
            wanted = reserved.env | {name: reserved.chosen(name, []) for name in reserved.allowed}
            given = {entry.partition("=")[0] for entry in env} & {*reserved.allowed}
            if reserved.enforced:
                env += [f"{name}={value}" for name, value in wanted.items() if value is not None and name not in given]
        bundle.write(self._hook() if self.adapter in ("hook", "both") else hook)
        pid_file = bundle.directory / "pid"
        arguments = ["create", "--bundle", str(bundle.path), "--pid-file", str(pid_file)]
        if features(self.case, "tty"):
            self.console = _Console(bundle.directory / "console")
            arguments += ["--console-socket", str(self.console.path)]
        with _Flip(bundle, features(self.case, "flip")):
            done = self._run(*arguments, self.id)
        self.record.add_file(bundle.config)
        if pid_file.exists():
            self.pid = int(pid_file.read_text() or 0)
        return done

    def _hook(self) -> dict[str, Any]:
        return {
            "path": self.hook[0],
            "args": [*self.hook, "createRuntime"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": 30,
        }

    def _run(self, *arguments: str, fds: tuple[int, ...] = ()) -> Done:
        patience = 10 if fifo_in_image(self.case) else 20 if features(self.case, "many", "chain", "rules") else 60
        options, log = list(self.options), self.node.directory / "log.json"
        if self.node.agents:
            options += ["--log", str(log)]
            options += ["--log-format", "json"] if self.case["engine"]["name"] != "podman" else []
            log.unlink(missing_ok=True)
        done = self.node.run([self.command, *options, *arguments], self.runtime, self.env, fds=fds, timeout=patience)
        self.cpu, self.peak = self.cpu + done.cpu, max(self.peak, done.peak)
        if self.node.agents:
            self.record.add(f"{arguments[0]}, status {done.status}", done.output)
            self.record.add("arguments", self.node.agents.given())
            self.record.add_file(log)
        return done

    def _alive(self) -> bool:
        """Whether the container's program runs: the runtime's init has become it."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if Path(f"/proc/{self.pid}/cmdline").read_bytes().startswith(SLEEP[0].encode()):
                    return True
                if Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return False
            except OSError:
                return False
            time.sleep(0.002)
        return False

    def _refused(self, done: Done) -> Outcome:
        events = self._logged()
        said = any(
            event["event"] in ("container.denied", "container.error") and event["level"] == "error" for event in events
        )
        ours = said or "reassert: " in done.output
        return Outcome(False, done.output, ours, events, timed_out=done.status == 124)

    def _logged(self) -> list[dict[str, Any]]:
        if not self.node.events.exists():
            return []
        events = [json.loads(line) for line in self.node.events.read_text().splitlines()]
        self.forged += [f"event of {event['id']}" for event in events if event.get("id", self.id) == "outsider"]
        return [event for event in events if event.get("id", self.id) != "outsider"]

    def _exec(self, bundle: Bundle, feature: Feature) -> Exec:
        pid_file = bundle.directory / "exec-pid"
        pid_file.unlink(missing_ok=True)
        arguments = ["exec", "--detach", "--pid-file", str(pid_file)]
        fds: tuple[int, ...] = ()
        if feature["how"] in ("file", "pipe"):
            process = {
                **bundle.spec["process"],
                "args": SLEEP,
                "env": ["PATH=/bin", *feature["env"]],
                "terminal": False,
            }
            process.update(feature.get("members", {}))
            text = json.dumps(process, separators=(",", ":"))
            if feature["how"] == "file":
                path = bundle.directory / "process.json"
                path.write_text(text)
                arguments += ["--process", str(path), self.id]
            else:
                reader, writer = os.pipe()
                os.write(writer, text.encode())
                os.close(writer)
                fds = (reader,)
                arguments += ["--process", f"/proc/self/fd/{reader}", self.id]
        else:
            for entry in feature["env"]:  # of "plain" there is none
                arguments += ["--env=" + entry] if feature["how"] == "--env=" else [feature["how"], entry]
            arguments += [self.id, *SLEEP]
        try:
            done = self._run(*(part.replace("\0", "") for part in arguments), fds=fds)
        finally:
            for fd in fds:
                os.close(fd)
        if feature["how"] == "file":
            self.record.add_file(path)
        result = Exec(feature, done.status, done.output)
        if done.status == 0 and pid_file.exists():
            pid = int(pid_file.read_text())
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:  # until the runtime's init has become the program
                with suppress(OSError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(SLEEP[0].encode()):
                        result.env = environ(pid)
                        break
                time.sleep(0.002)
            _kill(pid)
        return result

    def _end(self) -> None:
        if self.pid:
            _kill(self.pid)
        root = self.node.directory / "state" / self.runtime
        if (root / self.id).exists() or str(root) not in self.options:
            # SHIM takes away what only it knows
            real = self.node.real(self.runtime, shim=bool(features(self.case, "global")))
            self.node.run([real, *self.options, "delete", "--force", self.id], self.runtime, self.env)


def _kill(pid: int) -> None:
    """End a process; this program is its reaper (PR_SET_CHILD_SUBREAPER)."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for _ in range(100000):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            if not Path(f"/proc/{pid}").exists():
                return
        time.sleep(0.002)


class _Console:
    """The engine's end of a terminal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        # a path of a socket is short, and a worker's work directory is not always
        here = os.open(path.parent, os.O_PATH)
        self._socket.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
        self._socket.listen(1)
        self._socket.settimeout(20)
        self._held: list[int] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            peer, _ = self._socket.accept()
            with peer:
                _, ancillary, _, _ = peer.recvmsg(4096, socket.CMSG_SPACE(16))
                for _, _, data in ancillary:
                    self._held += array.array("i", data[: len(data) - len(data) % 4])

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        for fd in self._held:
            os.close(fd)


class _Flip:
    """Another container that changes a volume all the time while ours is created: a directory and a link in turn."""

    def __init__(self, bundle: Bundle, flips: list[Feature]) -> None:
        self._pairs = [(bundle.volumes / one["volume"] / one["path"].strip("/"), one["to"]) for one in flips]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> _Flip:
        if self._pairs:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._pairs:
            self._thread.join()

    def _work(self) -> None:
        path, target = self._pairs[0]
        aside, link = path.with_name(path.name + ".aside"), path.with_name(path.name + ".link")
        with suppress(OSError):
            link.symlink_to(target)
        while not self._over.wait(0.0005):
            with suppress(OSError):
                os.rename(path, aside)
                os.rename(link, path)
            if self._over.wait(0.0005):
                return
            with suppress(OSError):
                os.rename(path, link)
                os.rename(aside, path)
