"""Starts hostile containers under a runtime or an engine, and looks whether what the node reserves still holds.

README.md says how to use it and what a case is. It needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import by_cri
import by_docker
import by_oci
import results
from base import MARKER, Broken, Refused, Stop, Stopped, data, fit, make_files

PROBE = ".hostile-pod"
"""The file that every container tries to write to reserved directories."""
GOOD = ("held", "refused", "not run")
HALVES = {"hostile": "cases.json", "innocents": "innocents.json"}
KINDS = ("oci", "cri", "docker")
"""The ways in which a case is started."""
_TEXTS, _ANY = [str], {"": object}
CASE: dict[str, Any] = {
    **dict.fromkeys(("id", "name", "severity", "from", "why", "start"), str),
    **dict.fromkeys(("on", "check", "env", "devices", "capabilities", "not_on_node"), _TEXTS),
    "privileged": bool,
    "annotations": {"": str},
    "volumes": {"": _ANY},
    "mounts": [{"volume": str, "host": str, "at": str, "readOnly": bool, "optional": bool}],
    **dict.fromkeys(("image", "spec"), _ANY),
    "inside": [_TEXTS],
    "works": [_TEXTS],
    "outside": [{"rename": _TEXTS}],
    "exec": {"how": str, "env": _TEXTS},
}
"""The form of a case (base.fit)."""
EXPECTATION: dict[str, Any] = {"env": {"": str | None}, "mounts": {"": str}, "devices": [str]}
CHECKS = {"env", "exec", "mounts", "devices"}
STOP = Stop()


@dataclass
class Reserved:
    """What the node reserves: values by name (None: absent), sources on the node by path in containers, devices."""

    env: dict[str, str | None]
    mounts: dict[str, str]
    devices: list[str]

    @classmethod
    def read(cls, text: str, path: str) -> Reserved:
        """Reads an expectation. Raises Broken if the node has not what it names."""
        try:
            read = json.loads(text)
            fit(read, EXPECTATION, path)
        except ValueError as error:
            raise Broken(str(error) if path in str(error) else f"{path}: {error}") from None
        found = cls(read.get("env", {}), read.get("mounts", {}), read.get("devices", []))
        for inside, source in found.mounts.items():
            if not Path(source).is_file() and not (Path(source).is_dir() and any(Path(source).iterdir())):
                raise Broken(f"{path}: {source}, reserved at {inside}, is no file or directory with files on this node")
        for device in found.devices:
            try:
                os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK))
            except OSError as error:
                raise Broken(f"{path}: the node itself cannot open {device}: {error.strerror}") from None
        return found

    def placeholders(self) -> list[list[dict[str, str]]]:
        """What the placeholders of each kind stand for: one entry for each reserved name, absent name, path, device."""
        paths, devices = [], []
        for path, source in self.mounts.items():
            inner = next((entry.name for entry in sorted(Path(source).glob("*/")) if entry.is_dir()), None)
            above = os.path.dirname(path)
            paths.append({"path": path, "base": os.path.basename(path)})
            paths[-1] |= {"below": f"{path}/{inner}"} if inner else {}
            paths[-1] |= {"above": above} if above != "/" else {}
        for device in self.devices:
            about = os.stat(device)
            numbers = {"major": str(os.major(about.st_rdev)), "minor": str(os.minor(about.st_rdev))}
            kind = "b" if stat.S_ISBLK(about.st_mode) else "c"
            devices.append({"device": device, "dir": os.path.dirname(device), "type": kind, **numbers})
        return [
            [{"name": name, "value": value} for name, value in self.env.items() if value is not None],
            [{"gone": name} for name, value in self.env.items() if value is None],
            paths,
            devices,
        ]

    def variants(self, case: dict[str, Any], fixed: dict[str, str]) -> list[dict[str, Any]]:
        """The case for each reserved thing that its placeholders can stand for; none if there is no such thing."""
        text = json.dumps(case)
        choices = []
        for kind in self.placeholders():
            used = {word for word in _WORDS[len(choices)] if f"{{{word}}}" in text}
            choices.append([one for one in kind if used <= one.keys()] if used else [{}])
        filled = []
        for chosen in itertools.product(*choices):
            one = text
            for word, value in [*fixed.items(), *(item for part in chosen for item in part.items())]:
                one = one.replace(f"{{{word}}}", json.dumps(value)[1:-1])
            filled.append(json.loads(one))
        return filled

    def on_node(self) -> dict[str, tuple[int, bytes]]:
        """Mode and content of every file below the reserved sources."""
        found = {}
        for top in self.mounts.values():
            for path in [Path(top), *sorted(Path(top).rglob("*"))]:
                mode = path.lstat().st_mode
                content = os.fsencode(os.readlink(path)) if stat.S_ISLNK(mode) else b""
                found[str(path)] = (mode, path.read_bytes() if stat.S_ISREG(mode) else content)
        return found


_WORDS = (("name", "value"), ("gone",), ("path", "base", "below", "above"), ("device", "dir", "type", "major", "minor"))


class Look:
    """What is wrong with a running container, as its own processes see it."""

    def __init__(self, container: Any, reserved: Reserved, case: dict[str, Any], seconds: float) -> None:
        self.container = container
        self.reserved = reserved
        self.case = case
        self.environ = self._wait(seconds)
        # What the looks need must work: else a failure would count as "it cannot open the device".
        tools = {"cat", "head", "ls", *(command[0] for command in case.get("inside", []))}
        script = "; ".join(["set -e", ": </proc/1/stat", f"touch /{PROBE}", *(f"command -v {one}" for one in tools)])
        status, _, errors = container.exec("sh", "-c", script)
        if status:
            raise Broken(f"`{script}` failed in the container: {errors.strip()}")

    def _wait(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while True:
            status, output, errors = self.container.exec("cat", "/proc/1/environ")
            environ = _split(output)
            if status == 0 and MARKER in environ:
                return environ
            if time.monotonic() > deadline:
                raise Broken(f"the env of its first process was not seen: {errors.strip() or environ}")
            time.sleep(0.05)

    def wrong(self) -> list[str]:
        """Everything that the case says must be true, and is not."""
        found = []
        own = [entry for entry in self.case.get("env", []) if entry.partition("=")[0] not in self.reserved.env]
        found += [f"its own env {entry!r} is gone" for entry in own if entry not in self.environ]
        for command in self.case.get("inside", []):
            self.container.exec(*command)
        for check in self.case["check"]:
            found += getattr(self, f"_{check}")()
        for command in self.case.get("works", []):
            status, _, errors = self.container.exec(*command)
            found += [f"`{' '.join(command)}` failed in it: {errors.strip()}"] if status else []
        return found

    def _env(self) -> list[str]:
        return self._compare(self.environ, "")

    def _exec(self) -> list[str]:
        status, output, errors = self.container.exec("cat", "/proc/self/environ", extra=self.case.get("exec"))
        if status:
            return [] if "exec" in self.case else [f"an ordinary exec failed: {errors.strip()}"]
        return self._compare(_split(output), " in exec")

    def _compare(self, environ: list[str], where: str) -> list[str]:
        found = []
        for name, value in self.reserved.env.items():
            there = [entry for entry in environ if entry.partition("=")[0] == name]
            if there != ([] if value is None else [f"{name}={value}"]):
                found.append(f"env{where}: {', '.join(there) or name + ' is absent'}")
        return found

    def _mounts(self) -> list[str]:
        found = []
        for path, source in self.reserved.mounts.items():
            writes = ["touch", f"{path}/{PROBE}"]
            if os.path.isfile(source):
                writes = ["sh", "-c", f": >>{path}"]
                if not self._same(path, Path(source)):
                    found.append(f"{path} is not the node's")
            for directory, inner, files in os.walk(source):
                inside = path + directory[len(source) :]
                _, output, _ = self.container.exec("ls", "-A", inside)
                foreign = set(output.decode(errors="replace").split("\n")) - {""} ^ {*inner, *files} - {PROBE}
                found += [f"{inside} differs from the node's: {', '.join(sorted(foreign))}"] if foreign else []
                for name in files:
                    if foreign or not self._same(f"{inside}/{name}", Path(directory, name)):
                        found.append(f"{inside}/{name} is not the node's")
            if not found and self.container.exec(*writes)[0] == 0:
                found.append(f"{path} can be written")
        return found

    def _same(self, path: str, source: Path) -> bool:
        """Whether a file has the node's content. It may be /dev/zero without an end, or a silent terminal."""
        content = source.read_bytes()
        try:
            return bool(self.container.exec("head", "-c", str(len(content) + 1), path)[1] == content)
        except Broken:
            return False

    def _devices(self) -> list[str]:
        opens = [device for device in self.reserved.devices if not self.container.exec("sh", "-c", f": <{device}")[0]]
        return [f"it can open {device}" for device in opens]


def _split(environ: bytes) -> list[str]:
    return environ.decode(errors="surrogateescape").removesuffix("\0").split("\0")


def run_variant(
    engine: Any, reserved: Reserved, case: dict[str, Any], scratch: Path, seconds: float
) -> tuple[str, list[str]]:
    """Starts the container of one variant. Returns its result, one of GOOD, "FAILED" or "error", and the reasons."""
    before = reserved.on_node()
    STOP.look()
    try:
        container = engine.start(case, scratch)
    except Refused as error:
        outcome, reasons = ("FAILED" if case.get("start") == "must" else "refused"), [str(error)]
    except Broken as error:
        return "error", [str(error)]
    else:
        try:
            for step in case.get("outside", []):
                os.rename(*(scratch / "volumes" / name for name in step["rename"]))
            with STOP:
                reasons = Look(container, reserved, case, seconds).wrong()
        except (Broken, OSError) as error:
            return "error", [str(error)]
        finally:
            container.remove()
        outcome = "FAILED" if reasons else "held"
    written = [name for name in case.get("not_on_node", []) if (scratch / "volumes" / name).exists()]
    changed = sorted(path for path, _ in before.items() ^ reserved.on_node().items())
    for source in filter(os.path.isdir, reserved.mounts.values()):
        Path(source, PROBE).unlink(missing_ok=True)
    if written or changed:
        return "FAILED", [*reasons, *(f"it made a file on the node: {name}" for name in written),
                          *(f"{path} changed on the node" for path in changed)]  # fmt: skip
    return outcome, reasons


def run_case(engine: Any, reserved: Reserved, case: dict[str, Any], top: Path, seconds: float) -> dict[str, Any]:
    """Tries every variant of a case. Returns its row: id, name, severity, from, why, result, reasons."""
    row = {word: case.get(word, "") for word in ("id", "name", "severity", "from", "why")}
    if engine.kind not in case.get("on", KINDS):
        return row | {"result": "not run", "reasons": [f"not for {engine.kind}"]}
    outcomes: set[str] = set()
    reasons: list[str] = []
    scratch = top / "case"
    for variant in reserved.variants(case, {"volumes": str(scratch / "volumes"), "unique": top.name}):
        shutil.rmtree(scratch, ignore_errors=True)
        # An agent's hostPaths that this node has.
        variant["mounts"] = [m for m in variant.get("mounts", []) if not m.get("optional") or Path(m["host"]).exists()]
        for name, files in variant.get("volumes", {}).items():
            (scratch / "volumes" / name).mkdir(parents=True)
            make_files(scratch / "volumes" / name, files)
        (scratch / "volumes").mkdir(parents=True, exist_ok=True)
        outcome, found = run_variant(engine, reserved, variant, scratch, seconds)
        outcomes.add(outcome)
        reasons += [reason for reason in found if reason not in reasons]
    result = next((one for one in ("error", "FAILED", "held", "refused") if one in outcomes), "not run")
    return row | {"result": result, "reasons": reasons or ([] if outcomes else ["nothing of the kind is reserved"])}


def read_cases(text: str) -> list[dict[str, Any]]:
    """The cases of a file. Raises ValueError for one that would test less than its author meant."""
    read = json.loads(text)
    if not isinstance(read, list) or not read or not all(isinstance(case, dict) for case in read):
        raise ValueError("not a list of objects")
    for case in read:
        name = case.get("name")
        for word in ("name", "why", "check"):
            if word not in case:
                raise ValueError(f"case {name}: it has no {word}")
        fit(case, CASE, f"case {name}")
        if unknown := {*case["check"]} - CHECKS or {*case.get("on", ())} - {*KINDS}:
            raise ValueError(f"case {name}: unknown: {', '.join(sorted(unknown))}")
        sources = [mount.get("host") or mount.get("volume") for mount in case.get("mounts", ()) if "at" in mount]
        if not all(sources) or len(sources) < len(case.get("mounts", ())) or not str(name).isprintable():
            raise ValueError(f"case {name}: a mount without `at` and `volume` or `host`, or a name of several lines")
    return read


def choose(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The cases that the command line asks for."""
    cases: list[dict[str, Any]] = []
    try:
        for path in given.cases or ():
            cases += read_cases(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"{path}: {error}")
    for half, name in () if given.cases else HALVES.items():
        cases += read_cases(data(name)) if given.half in (None, half) else []
    unknown = set(given.case) - {word for case in cases for word in (case["name"], case.get("id"))}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; --list prints all")
    return [case for case in cases if not given.case or given.case & {case["name"], case.get("id")}]


def usual(made: list[Path]) -> str:
    """The default expectation, less devices that this node lacks. Makes the sources that it lacks; `made` gets them."""
    expected = json.loads(data("expect.json"))
    for source in map(Path, expected["mounts"].values()):
        missing = [above for above in (*reversed(source.parents), source) if not above.exists()]
        if missing:
            file = source if source.suffix else source / "certs/reserved.crt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("by the node\n")
            made += missing[:1]
    return json.dumps(expected | {"devices": [path for path in expected["devices"] if os.path.exists(path)]})


def engine_of(given: argparse.Namespace) -> Any:
    """What the command line says to start containers with. Raises Broken."""
    if given.runtime:
        return by_oci.Runtime(given.runtime, given.busybox)
    if given.docker:
        return by_docker.Docker(given.docker, given.busybox, given.handler)
    return by_cri.Engine(given.cri, given.image, given.handler, given.namespace, given.cgroup_parent)


def say(text: str) -> int:
    """Prints a text. The exit status: 2 if it could not be written."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left of it
        print(f"hostile-pod: standard output: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def main() -> int:
    """Exit status: 0 everything held, 1 a case failed, 2 a case or the suite could not be run."""
    parser = argparse.ArgumentParser(prog="hostile-pod", description=__doc__.partition("\n")[0])
    option = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--runtime", metavar="PATH", help="an OCI runtime, or a wrapper of one")
    what.add_argument("--cri", metavar="SOCKET", help="an engine's, such as /run/containerd/containerd.sock")
    what.add_argument("--docker", metavar="COMMAND", help="docker, or podman, with options if it needs some")
    what.add_argument("--list", action="store_true", help="print the cases and why they matter; run nothing")
    option("--case", metavar="NAME", action="append", default=[], help="run this case alone, by name or id; repeatable")
    option("--cases", metavar="FILE", action="append", help="cases in place of the suite's own")
    option("--half", choices=HALVES, help="only the hostile, or only the agents that many nodes run")
    option("--expect", metavar="FILE", help="what is reserved (default: README.md)")
    option("-o", "--output", choices=("table", "json", "junit", "tap"), default="table", help="default: table")
    option("--scratch", metavar="DIR", default="/var/lib", help="where volumes and bundles are made")
    option("--seconds", metavar="N", type=float, default=30, help="how long a container's program may take to start")
    option("--busybox", metavar="PATH", default="/bin/busybox", help="used in place of this node's sh, cat, ls, …")
    option("--image", default="docker.io/library/busybox:latest", help="--cri: pulled if the node lacks it")
    option("--handler", default="", help="the runtime handler of --cri, or the runtime of --docker")
    option("--namespace", default="hostile-pod", help="--cri: the namespace of the pods")
    option("--cgroup-parent", default="", help="--cri: the cgroup of the pods")
    given = parser.parse_args()
    given.case = {*given.case}
    cases = choose(parser, given)
    if given.list:
        return say("\n".join(f"{case.get('id', '')} {case['name']}: {case['why']}".lstrip() for case in cases))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup(1)
            signal.signal(number, STOP)
    engine = None
    made: list[Path] = []
    try:
        top = Path(tempfile.mkdtemp(prefix="hostile-pod-", dir=given.scratch))
        made = [top]
        expect = Path(given.expect).read_text("utf-8") if given.expect else usual(made)
        reserved = Reserved.read(expect, given.expect or "expect.json")
        engine = engine_of(given)
        rows = [run_case(engine, reserved, case, top, given.seconds) for case in cases]
    except (Broken, OSError, Stopped) as error:
        print(f"hostile-pod: {error}", file=sys.stderr)
        return 2
    finally:
        if engine is not None:
            engine.close()
        for path in made:
            shutil.rmtree(path, ignore_errors=True)
    found = {row["result"] for row in rows}
    unknown = say(results.FORMATS[given.output](rows)) or "error" in found or found == {"not run"}
    return 2 if unknown else int("FAILED" in found)
