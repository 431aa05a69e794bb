"""Who acts in the simulated node: the real front, agent, cold start and compiler, and models of their surroundings.

Models: an OCI runtime, two engines, kubelet, an administrator, systemd, connections that send nothing or nonsense.
"""

from __future__ import annotations

import _ctypes
import argparse
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from invariants import EVENTS, LOG_LIMIT, PAUSE, POLICY, Rules, Start, Watch
from world import (
    Exited,
    Lock,
    Open,
    Package,
    Process,
    Socket,
    SystemCalls,
    Violation,
    World,
    connect,
    send,
)

ROOT = Path(__file__).resolve().parents[2]
STORE, SOCKET = "/var/lib/reassert", "/run/reassert/agent/agent.sock"
RUNC, HOOK, REAL = "/usr/local/sbin/reassert-runc", "/usr/local/sbin/reassert-hook", "/usr/sbin/runc"
FRONT, SHELL, PROGRAM, AGENT = "/opt/reassert/front", "/bin/sh", "/opt/reassert/reassert", "agent"
KUBELET = "/var/lib/kubelet"
CHECKPOINT = f"{KUBELET}/device-plugins/kubelet_internal_checkpoint"
MOUNT, SOURCE = "/etc/ssl", "/etc/company"
SECOND = 1_000_000_000
MOST = 64
"""The most containers that start at once."""

CHUNK = 1000
"""Bytes of one write(2) of engines, kubelet and the administrator."""

UNKNOWN = "--shim-trace"
"""A global option with a value, which the runtime knows and reassert does not."""

_CALL = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_int, *[ctypes.c_long] * 4)
_GONE = -4096


class Front:
    """packaging/front/front.c of a version, compiled as a library (front.c). One copy for each process at once."""

    def __init__(self, world: World, calls: SystemCalls, tree: Path, version: str, directory: Path) -> None:
        self._world, self._calls, self._directory = world, calls, directory
        self._library = directory / f"front-{version}.so"
        self._free: list[Path] = []
        self._count = 0
        source = Path(__file__).with_name("front.c")
        given = [f'-DVERSION="{version}"', f'-DFRONT="{tree}/packaging/front/front.c"']
        flags = ["-shared", "-fPIC", "-O1", "-w", *given]
        subprocess.run(["gcc", *flags, "-o", str(self._library), str(source)], check=True)  # the compiler

    def run(self, process: Process) -> int:
        """front's main(), in the current actor. Raises what ends or replaces the process."""
        if not self._free:
            self._count += 1
            copy = self._directory / f"{self._library.stem}-{self._count}.so"
            shutil.copy(self._library, copy)
            self._free.append(copy)
        path = self._free.pop()
        library = ctypes.PyDLL(str(path))
        ended: list[BaseException] = []

        def machine(number: int, a: int, b: int, c: int, d: int) -> int:
            try:
                return self._call(number, a, b, c, d)
            except OSError as error:
                return -(error.errno or errno.EIO)
            except BaseException as error:
                ended.append(error)
                return _GONE

        argv = [os.fsencode(argument) for argument in process.argv]
        vector = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
        empty = (ctypes.c_char_p * 1)(None)
        status = library.run_front(_CALL(machine), len(argv), vector, empty)
        _ctypes.dlclose(library._handle)
        self._free.append(path)
        if ended:
            raise ended[0]
        return int(status)

    def _call(self, number: int, a: int, b: int, c: int, d: int) -> int:  # noqa: PLR0912  # a table of calls
        w, calls = self._world, self._calls
        match number:
            case 0:
                return calls.open(_text(a), b)
            case 1:
                data = calls.read(a, c)
                ctypes.memmove(b, data, len(data))
                return len(data)
            case 2:
                calls.close(a)
            case 3:
                w.step()
                return w.current.process.opened(Open(Socket(w.current.process)))
            case 4:
                connect(w, _socket(w, a), _text(b))
            case 5:
                w.step()
                peer = _socket(w, a).peer
                assert peer is not None
                return w.current.process.opened(Open(peer.owner)) if b == 77 else peer.owner.pid
            case 6:
                w.step()
                pid = _text(a).split("/")[2]
                if pid != "self" and w.processes[int(pid)].status is not None:
                    raise OSError(errno.ENOENT, "ended")
            case 7:
                w.step()
                send(w, _socket(w, a), ctypes.string_at(b, c), [w.description(d)])
                return c
            case 8:
                w.step()
                target = w.description(a).target
                deadline = w.now + b * 1_000_000
                while not target.ready():
                    if w.now >= deadline:
                        return 0
                    w.block([target], deadline)
                return 1
            case 9:
                w.step()
                frames = _socket(w, a).frames
                data = frames.popleft()[0] if frames else b""
                ctypes.memmove(b, data, min(len(data), c))
                return len(data)
            case 10:
                return calls.write(a, ctypes.string_at(b, c)) if a != 2 else c
            case 11:
                return calls.memfd_create("stdin", 0)
            case 12:
                return calls.lseek(a, b, c)
            case 13:
                return calls.dup2(a, b)
            case 14:
                vector = ctypes.cast(b, ctypes.POINTER(ctypes.c_char_p))
                argv: list[str] = []
                while (argument := vector[len(argv)]) is not None:
                    argv.append(os.fsdecode(argument))
                calls.execve(_text(a), argv, None)
            case 15:
                raise Exited(a)
            case 16:
                return w.now
        return 0


def _text(address: int) -> str:
    return os.fsdecode(ctypes.string_at(address))


def _socket(world: World, fd: int) -> Socket:
    target = world.description(fd).target
    assert isinstance(target, Socket)
    return target


class SimulatedNode:
    """The node: its files, programs, and all who act on it. `tree`: the source tree whose code runs."""

    def __init__(self, seed: int, steps: int, tree: Path = ROOT) -> None:
        self.world = w = World(seed, steps)
        self.chance, self.calls, self.tree = w.chance, SystemCalls(w), tree
        self.watch = Watch(w)
        self.versions = ("1", "2")
        self.version = "1"
        self.numbers = self.policies = 0
        self._last_draft = 0.0
        self.by_pid: dict[int, Start] = {}
        self.allocated: dict[str, str] = {}
        self.agent: Process | None = None
        self._kubelet = Lock(w)
        self.directory = tempfile.TemporaryDirectory(prefix="simulator-")
        given = {
            "hook.core.linux.look": {"look": self._look, "look_at_processes": lambda *_, **__: []},
            "hook.core.linux.look_node_paths": {
                "Known": dict,
                "look_at_node_paths": lambda *_, **__: SimpleNamespace(
                    denials=[], audited=[], node_paths=[], read_only=[]
                ),
            },
            "hook.core.linux.mountns": {
                **{name: lambda *_: None for name in ("own_directories", "few_arenas", "trim_memory")},
                "OldKernel": type("OldKernel", (Exception,), {}),
                "own_root": lambda: "/",
                "root_of": lambda proc: "/",
                "open_plain": lambda path, flags=os.O_PATH: self.calls.open(path, flags),
                "mount_tmpfs": self._mount_tmpfs,
                "unmount": self._unmount,
            },
            "hook.entry.mount_points": {"missing": lambda *_: []},  # nothing here is built
            "hook.core.linux.early": {"astray": lambda *_, **__: []},
            "hook.core.linux.foresee": {"foresee": lambda done, *_, **__: done},
            **{f"hook.core.linux.{name}": {} for name in ("gvisor", "idmap", "lookdevices", "place")},
        }
        self.packages = {version: Package(w, tree, version, given) for version in self.versions}
        fronts = {v: Front(w, self.calls, tree, v, Path(self.directory.name)) for v in self.versions}
        w.programs = {
            FRONT: lambda process: fronts[self._version_of(process)].run(process),
            SHELL: self._cold,
            REAL: self._runtime,
            PROGRAM: self._compile,
            AGENT: self._agent,
        }
        self._fill()
        w.on_interrupt, w.on_short_write, w.on_change = self._interrupt, self.watch.short_write, self.watch.changed
        w.on_log_closed = self.watch.closed
        for package in self.packages.values():
            for name in ("agent.service", "entry.runtime", "entry.hook", "compile.command"):
                package.load(f"hook.{name}")
        everybody = [self._engine] * 2 + [self._administrator, self._systemd, self._stranger, self._sky]
        for act in everybody:
            process = Process(w, None, [act.__name__], None)
            w.processes[process.pid] = process
            w.start(process, lambda act=act: act(), act.__name__)  # type: ignore[misc]  # each its own

    def _fill(self) -> None:
        w = self.world
        for directory in (
            STORE,
            f"{KUBELET}/pods",
            "/run/containerd",
            "/run/crio",
            SOURCE,
            "/proc",
            "/var/log/reassert",
        ):
            w.make(directory)
        w.make("/run/reassert/agent", mode=0o700)
        w.make("/etc/reassert")
        w.make(CHECKPOINT, b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')
        w.watched[EVENTS] = self.watch.new_log
        w.make(REAL, b"", 0o755)
        self._install(self.version)
        text = self._drafted()
        w.make(POLICY, text.encode())
        self.watch.edited()

    def _install(self, version: str) -> None:
        """The dispatchers of a version: what front reads of them (hook.entry.dispatcher)."""
        cmdline = self.packages["1"].load("hook.entry.cmdline")
        passed = [verb for verb, change in cmdline.VERBS.items() if not change]
        lines = {
            "decided": " ".join(cmdline.EDITING_VERBS),
            "passed": " ".join(passed),
            "values": "--log --log-format --root --criu --cgroup-manager --log-level",
            "flags": "--debug --systemd-cgroup --no-pivot",
            "socket": SOCKET,
            "policy": POLICY,
            "store": STORE,
            "events": EVENTS,
        }
        for path, more in ((RUNC, {"real": REAL, "hook": HOOK}), (HOOK, {})):
            text = "".join(f"# {name}: {value}\n" for name, value in {**lines, **more}.items())
            self.world.make(path, f"#!{FRONT}\n# {version}\n{text}\n".encode(), 0o755)

    def _version_of(self, process: Process) -> str:
        return bytes(self.world.node(process.argv[1]).data).split(b"\n")[1].decode().removeprefix("# ")

    # Programs.

    def _cold(self, process: Process) -> int:
        """The script of a dispatcher, and the program that it executes."""
        _, script, reason, *arguments = process.argv
        process.is_ours = True
        package = self.packages[self._version_of(process)]
        where = [reason, "--policy", POLICY, "--store", STORE, "--events", EVENTS]
        try:
            if script == HOOK:
                return int(package.load("hook.entry.hook").main([*where, *arguments]))
            more = ["--real", REAL, "--hook", HOOK, "--", *arguments]
            return int(package.load("hook.entry.runtime").main([*where, *more], {}))
        except Exception as error:
            self.world.fail(error)  # start.py would say that it is a defect
            raise

    def _compile(self, process: Process) -> int:
        package = self.packages[self.version]
        parser = package.load("hook.resident.parser").Parser()
        package.load("hook.compile.command").add_only_compile(parser)
        options = parser.parse_args(process.argv[process.argv.index("compile") :])
        try:
            return int(options.run(options))
        except OSError:
            return 1

    def _agent(self, process: Process) -> int:
        process.is_agent, process.is_ours, self.watch.agent = True, True, process
        chosen = argparse.Namespace(socket=SOCKET, policy=POLICY, store=STORE, events=EVENTS)
        package = self.packages[process.argv[1]]
        metrics = package.load("hook.resident.metrics").NoMetrics
        return int(package.load("hook.agent.service").main(chosen, metrics, None))

    def _runtime(self, process: Process) -> int:
        """An OCI runtime: reads config.json, makes the mounts, calls the hooks, starts the container."""
        arguments = iter(process.argv[1:])
        options: dict[str, str] = {}
        words: list[str] = []
        for argument in arguments:
            if argument in ("--log", "--log-format", "--root", "--bundle", "--pid-file", UNKNOWN):
                options[argument] = next(arguments)
            else:
                words.append(argument)
        if words[0] != "create":
            return 0
        start = process.case
        config = f"{options['--bundle']}/config.json"
        fd = self.calls.open(config, os.O_RDONLY)
        start.config = b"".join(iter(lambda: self.calls.read(fd, 65536), b""))
        self.calls.close(fd)
        spec = json.loads(start.config)
        self.by_pid[process.pid] = start
        for mount in spec["mounts"]:
            astray = start.has_link and mount["destination"] == MOUNT  # a link of the image leads it elsewhere
            start.table.setdefault("/astray" if astray else mount["destination"], []).append(mount["source"])
        start.phase = "hooks"
        for hook in spec.get("hooks", {}).get("createRuntime", ()):
            if self._called(process, hook, start) != 0:
                start.phase = "refused"
                return 1
        start.phase = "started"
        start.table_at_start = {path: list(sources) for path, sources in start.table.items()}
        start.env_at_start = list(spec["process"]["env"])
        self.watch.started(start)
        return 0

    def _called(self, process: Process, hook: dict[str, Any], start: Start) -> int | None:
        reader, writer = self.calls.pipe2(0)
        state = {"ociVersion": "1.0.2", "id": start.id, "pid": process.pid, "bundle": start.bundle}
        child = self.world.spawn([hook["path"], *hook["args"][1:]], start, process)
        child.give(0, self.world.description(reader))
        self.calls.close(reader)
        self.calls.write(writer, json.dumps(state).encode())
        self.calls.close(writer)
        return self.world.wait(child, self.world.now + hook["timeout"] * SECOND)

    # The kernel's mounts, by which a look places what is missing.

    def _look(
        self, pid: int, rootfs: str, reserved: Any, spec: Any, before_mounting: Any, still_waits: Any, table: Any
    ) -> tuple[list[Any], list[Any]]:
        start = self.by_pid[pid]
        still_waits()
        missing = [edit for edit in reserved if edit.mount and start.table.get(edit.name, [])[-1:] != [edit.source()]]
        if missing:
            before_mounting()
        for edit in missing:
            for _ in range(4):  # open_tree(2), mount_setattr(2), openat2(2), move_mount(2)
                self.world.step()
            self.watch.mounted(start, edit.name, edit.source())
        return missing, []

    def _mount_tmpfs(self, path: str, options: str) -> None:
        w = self.world
        w.step()
        above, name, node = w.find(path)
        assert node is not None
        from world import Inode

        above.entries[name] = Inode(w, node.mode, 7)
        above.entries[name].covered = node

    def _unmount(self, path: str) -> None:
        w = self.world
        w.step()
        above, name, node = w.find(path, follow=False)
        if node is None or node.covered is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        above.entries[name] = node.covered

    # Who acts.

    def _engine(self) -> None:
        """Starts containers, at times 64 at once, and runs until the end of the simulation."""
        w, chance = self.world, self.chance
        is_crio = self.watch.engines % 2 == 1
        self.watch.engines += 1
        while True:
            most = MOST if chance.random() < 0.02 else 1 + int(chance.random() * 4)
            running = []
            for _ in range(most):
                self.numbers += 1
                start = Start(self.numbers, is_crio, chance)
                running.append(w.start(w.current.process, lambda start=start: self._run(start), "pod"))  # type: ignore[misc]  # each its own
            for actor in running:
                while not actor.done:
                    w.block([actor.ended])
            if w.steps >= w.limit:
                w.finish()
            w.sleep(int(chance.random() * SECOND / 10))

    def _run(self, start: Start) -> None:
        """One container, from kubelet's record to its removal."""
        w, calls, watch = self.world, self.calls, self.watch
        pod = f"{KUBELET}/pods/{start.uid}"
        calls.mkdir(pod)
        self._record(start)
        watch.begins(start)
        try:
            calls.mkdir(start.bundle)
            self._write(f"{start.bundle}/config.json", json.dumps(start.spec()).encode())
            start.directory = w.node(start.bundle)
        except OSError:  # the engine has no room for it
            pass
        else:
            more = [UNKNOWN, "/run/trace"] if start.is_odd else []
            command = [RUNC, "--root", "/run/runc", "--log", f"{start.bundle}/log.json", "--log-format", "json", *more]
            command += ["create", "--bundle", start.bundle, "--pid-file", f"{start.bundle}/pid", start.id]
            process = w.spawn(command, start, w.current.process, start.bundle)
            start.status = w.wait(process, w.now + 120 * SECOND)
            watch.ends(start)
            if self.chance.random() < 0.3:
                w.sleep(int(self.chance.random() * 3 * SECOND))  # late writers show
            watch.after(start, calls)
            w.wait(w.spawn([RUNC, "--root", "/run/runc", "delete", start.id], start, w.current.process))
        watch.leaves(start)
        self.by_pid = {pid: other for pid, other in self.by_pid.items() if other is not start}
        self._tidy(start.bundle)
        self.allocated.pop(start.uid, None)
        self._tidy(pod)

    def _tidy(self, directory: str) -> None:
        above, name, node = self.world.find(directory)
        if node is not None:
            self.world.step()
            del above.entries[name]
            self.world.forget(node)

    def _write(self, path: str, data: bytes, pause: int = 0) -> None:
        """A file in place. `pause`: how long its writer waits at most between two writes. Raises OSError."""
        fd = self.calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for at in range(0, len(data), CHUNK):
                chunk = data[at : at + CHUNK]
                if self.calls.write(fd, chunk) < len(chunk):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                if pause:
                    self.world.sleep(int(self.chance.random() * pause))
        finally:
            self.calls.close(fd)

    def _record(self, start: Start) -> None:
        """kubelet's checkpoint, which it replaces before it asks for the container."""
        with self._kubelet:
            self.allocated[start.uid] = start.allocated()
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        entries = ",".join(filter(None, self.allocated.values()))
        devices = f"[{entries}]" if entries else "null"
        text = f'{{"Data":{{"PodDeviceEntries":{devices},"RegisteredDevices":{{}}}},"Checksum":1}}'
        temporary = f"{CHECKPOINT}.new"
        self._write(temporary, text.encode())
        self.calls.rename(temporary, CHECKPOINT)

    def _drafted(self, again: bool = False) -> str:
        """The text of a new policy. `again`: as the last one, but for its value."""
        self.policies += 1
        if not again:
            self._last_draft = self.chance.random()
        rules = Rules(self.policies, Random(self._last_draft))  # a seed reproduces a run
        self.watch.draft(rules)
        return rules.text

    def _administrator(self) -> None:
        """Edits the policy: by rename, in place, with errors, and cut off."""
        w, calls, watch, chance = self.world, self.calls, self.watch, self.chance
        while True:
            is_correction = chance.random() < 0.2  # of the same size, and at once
            most = w.tick if is_correction else max(SECOND * 0.6, 6 * w.tick)  # the compiler waits for two ticks
            w.sleep(int(chance.random() * most))
            text, way = self._drafted(is_correction).encode(), chance.random()
            way = 0.7 if is_correction else way
            if not watch.is_compiled():
                way = 0.5
            if way < 0.15:
                text = text.replace(b'"rules"', b'"rulez"')
                watch.broken()
            if way < 0.6:
                self._write(f"{POLICY}.new", text)
                watch.about_to_edit()
                calls.rename(f"{POLICY}.new", POLICY)
                watch.edited()
                continue
            watch.about_to_edit()
            if way > 0.9:  # docs/policy.md: a copy that ends with a line is not known to be interrupted
                text = text[: chance.choice([at for at in range(1, len(text)) if text[at - 1 : at] != b"\n"])]
                watch.broken()
            self._write(POLICY, text, SECOND // 5 if chance.random() < 0.3 else 0)
            watch.edited()

    def _systemd(self) -> None:
        """Starts the agent again when it has ended; now and then of another version, after an upgrade."""
        w, chance = self.world, self.chance
        while True:
            self.agent = agent = w.spawn([AGENT, self.version], None)
            while w.wait(agent, w.now + int(chance.random() * 20 * SECOND)) is None:
                if chance.random() < 0.5:
                    self.version = "2" if self.version == "1" else "1"
                    self._install(self.version)
                    w.sleep(int(chance.random() * SECOND))
                    self.watch.fault("agent")  # docs/internals/agent.md: it may end between a correction and its event
                    agent.signal = signal.SIGTERM
                    for actor in agent.actors[:1]:
                        w.wake(actor)
            w.sleep(int(chance.random() * SECOND / 2))

    def _stranger(self) -> None:
        """Connects to the agent, and sends nothing, nonsense, or too late."""
        w, chance = self.world, self.chance
        while True:
            w.sleep(int(chance.random() * SECOND))
            own = Socket(w.current.process)
            fd = w.current.process.opened(Open(own))
            try:
                connect(w, own, SOCKET)
                if chance.random() < 0.5:
                    w.sleep(int(chance.random() * 2 * SECOND))
                if chance.random() < 0.7:
                    send(w, own, b"reassert-front/1\0" + bytes(chance.choices(b"\0ab/", k=20)), [])
                    w.sleep(int(chance.random() * SECOND))
            except OSError:
                pass
            self.calls.close(fd)

    def _sky(self) -> None:
        """What befalls the node from outside: the disk is full for a time, descriptors are short, reads are."""
        w, chance, watch = self.world, self.chance, self.watch
        while True:
            w.sleep(int(chance.random() * 4 * SECOND))
            fate = chance.random()
            w.short_reads = int(chance.random() < 0.5)
            if fate < 0.3:
                w.full = True
                watch.fault("full")
                w.sleep(int(chance.random() * SECOND / 2))
                w.full = False
                watch.fault("full")
            elif fate < 0.5:
                w.no_descriptor = 1
                watch.fault("descriptors")
                w.sleep(int(chance.random() * SECOND))
                w.no_descriptor = 0
            elif fate < 0.6:
                self._fill_log()

    def _fill_log(self) -> None:
        """The event log gets other lines, until a few more are too much for the file."""
        fd = self.calls.open(EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        room = LOG_LIMIT - len(self.world.node(EVENTS).data) - int(self.chance.random() * 8000)
        if room > 100:
            self.calls.write(fd, b'{"other": "%s"}\n' % (b"x" * room))
        self.calls.close(fd)

    def _interrupt(self) -> None:
        """At a random step: an actor stands still for a while, or a process is killed."""
        w, fate = self.world, self.chance.random()
        is_agent = w.current.process.is_agent
        if fate < (0.03 if is_agent else 0.003):
            case = w.current.process.case
            pause = int(self.chance.random() ** 2 * PAUSE)
            if case:
                case.stalled += pause
            w.block([], w.now + pause)
        elif fate > 0.999:
            process = w.current.process
            if is_agent:
                if self.chance.random() < 0.1:
                    self.watch.fault("agent")
                    process.end(-9)
            elif process.case and process.argv[0] not in (REAL, RUNC):
                process.case.faults.add("kill")
                if process.argv[0] == PROGRAM:
                    self.watch.fault("compiler")
                process.end(-9)


def simulate(seed: int, steps: int, tree: Path = ROOT) -> SimulatedNode:
    """Runs the node. Raises Violation, with the seed and the step."""
    node = SimulatedNode(seed, steps, tree)
    try:
        node.world.run()
    except (Violation, Exception) as error:
        raise Violation(f"seed {seed}, step {node.world.steps}: {type(error).__name__}: {error}") from error
    finally:
        node.directory.cleanup()
    return node
