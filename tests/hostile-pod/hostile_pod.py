#!/usr/bin/env python3
"""Starts hostile containers under an OCI runtime or a CRI engine, and looks whether what the node reserves still holds.

README.md says how to use it and what a case is. It needs Python 3.11, and for --cri grpcio-tools.
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

HERE = Path(__file__).resolve().parent
MARKER = "HOSTILE_POD=1"
"""In the env of every container: once its first process has it, that is no longer the runtime's own process."""
PROBE = ".hostile-pod"
"""The file that every container tries to write to reserved directories."""
GOOD = ("held", "refused", "not run")
MEMBERS = {"name", "why", "on", "check", "start", "env", "exec", "volumes", "mounts", "devices", "capabilities"}
MEMBERS |= {"annotations", "inside", "works", "outside", "image", "spec", "not_on_node"}
CHECKS = {"env", "exec", "mounts", "devices"}


class Refused(Exception):
    """The container was not started; with the message."""


class Broken(Exception):
    """The case could not be tried, or what the container has could not be seen."""


@dataclass
class Reserved:
    """What the node reserves: values by name (None: absent), sources on the node by path in containers, devices."""

    env: dict[str, str | None]
    mounts: dict[str, str]
    devices: list[str]

    @classmethod
    def read(cls, path: Path) -> Reserved:
        """Reads an expectation. Raises Broken if the node has not what it names."""
        read = json.loads(path.read_text("utf-8"))
        found = cls(read.get("env", {}), read.get("mounts", {}), read.get("devices", []))
        for inside, source in found.mounts.items():
            if not Path(source).is_dir() or not any(Path(source).iterdir()):
                raise Broken(f"{path}: {source}, reserved at {inside}, is not a directory with files on this node")
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
            inner = next((entry.name for entry in sorted(Path(source).iterdir()) if entry.is_dir()), None)
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
        tools = {"cat", "ls", *(command[0] for command in case.get("inside", []))}
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
            for directory, inner, files in os.walk(source):
                inside = path + directory[len(source) :]
                _, output, _ = self.container.exec("ls", "-A", inside)
                foreign = set(output.decode(errors="replace").split("\n")) - {""} ^ {*inner, *files} - {PROBE}
                found += [f"{inside} differs from the node's: {', '.join(sorted(foreign))}"] if foreign else []
                for name in files:
                    if (
                        foreign
                        or self.container.exec("cat", f"{inside}/{name}")[1] != Path(directory, name).read_bytes()
                    ):
                        found.append(f"{inside}/{name} is not the node's")
            if not found and self.container.exec("touch", f"{path}/{PROBE}")[0] == 0:
                found.append(f"{path} can be written")
        return found

    def _devices(self) -> list[str]:
        opens = [device for device in self.reserved.devices if not self.container.exec("sh", "-c", f": <{device}")[0]]
        return [f"it can open {device}" for device in opens]


def _split(environ: bytes) -> list[str]:
    return environ.decode(errors="surrogateescape").removesuffix("\0").split("\0")


def make_files(directory: Path, files: dict[str, Any]) -> None:
    """Makes files of a volume or an image: path -> content, or {"link": target}, instead of what was there."""
    for name, content in files.items():
        path = directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.symlink_to(content["link"])
        else:
            path.write_text(content, "utf-8")


def run_variant(
    engine: Any, reserved: Reserved, case: dict[str, Any], scratch: Path, seconds: float
) -> tuple[str, list[str]]:
    """Starts the container of one variant. Returns its result, one of GOOD, "FAILED" or "error", and the reasons."""
    before = reserved.on_node()
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
            reasons = Look(container, reserved, case, seconds).wrong()
        except (Broken, OSError) as error:
            return "error", [str(error)]
        finally:
            container.remove()
        outcome = "FAILED" if reasons else "held"
    written = [name for name in case.get("not_on_node", []) if (scratch / "volumes" / name).exists()]
    changed = sorted(path for path, _ in before.items() ^ reserved.on_node().items())
    for source in reserved.mounts.values():
        Path(source, PROBE).unlink(missing_ok=True)
    if written or changed:
        return "FAILED", [*reasons, *(f"it made a file on the node: {name}" for name in written),
                          *(f"{path} changed on the node" for path in changed)]  # fmt: skip
    return outcome, reasons


def run_case(engine: Any, reserved: Reserved, case: dict[str, Any], top: Path, seconds: float) -> dict[str, Any]:
    """Tries every variant of a case. Returns its row: name, result, reasons, why."""
    row = {"name": case["name"], "why": case["why"]}
    if engine.kind not in case.get("on", ("oci", "cri")):
        return row | {"result": "not run", "reasons": [f"not for {engine.kind}"]}
    outcomes: set[str] = set()
    reasons: list[str] = []
    scratch = top / "case"
    for variant in reserved.variants(case, {"volumes": str(scratch / "volumes")}):
        shutil.rmtree(scratch, ignore_errors=True)
        for name, files in variant.get("volumes", {}).items():
            (scratch / "volumes" / name).mkdir(parents=True)
            make_files(scratch / "volumes" / name, files)
        (scratch / "volumes").mkdir(parents=True, exist_ok=True)
        outcome, found = run_variant(engine, reserved, variant, scratch, seconds)
        outcomes.add(outcome)
        reasons += [reason for reason in found if reason not in reasons]
    result = next((one for one in ("error", "FAILED", "held", "refused") if one in outcomes), "not run")
    return row | {"result": result, "reasons": reasons or ([] if outcomes else ["nothing of the kind is reserved"])}


def read_cases(path: Path) -> list[dict[str, Any]]:
    """The cases of a file. Raises ValueError for one that would test less than its author meant, OSError."""
    read = json.loads(path.read_text("utf-8"))
    if not isinstance(read, list) or not all(isinstance(case, dict) for case in read):
        raise ValueError("not a list of objects")
    for case in read:
        name = case.get("name")
        for word in ("name", "why", "check"):
            if word not in case:
                raise ValueError(f"case {name}: it has no {word}")
        if unknown := {*case} - MEMBERS or {*case["check"]} - CHECKS:
            raise ValueError(f"case {name}: unknown: {', '.join(sorted(unknown))}")
    return read


def choose(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The cases that the command line asks for."""
    cases: list[dict[str, Any]] = []
    for path in given.cases:
        try:
            cases += read_cases(path)
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {error}")
    unknown = set(given.case) - {case["name"] for case in cases}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; --list prints all")
    return [case for case in cases if not given.case or case["name"] in given.case]


def show(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Prints the results."""
    if as_json:
        print(json.dumps({"cases": rows}, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    print(f"{'CASE':{width}}  {'RESULT':8} REASON")
    for row in rows:
        more = f" (and {len(row['reasons']) - 1} more)" if len(row["reasons"]) > 1 else ""
        text = _printable("".join(row["reasons"][:1]))[:200] + more
        print(f"{row['name']:{width}}  {row['result']:8} {text}".rstrip())
    counts = {result: sum(row["result"] == result for row in rows) for result in (*GOOD, "FAILED", "error")}
    print("\n" + ", ".join(f"{number} {result}" for result, number in counts.items()))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def main() -> int:
    """Exit status: 0 everything held, 1 a case failed, 2 a case or the suite could not be run."""
    parser = argparse.ArgumentParser(prog="hostile-pod", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--runtime", metavar="PATH", help="an OCI runtime, or a wrapper of one")
    what.add_argument(
        "--cri", metavar="SOCKET", help="the CRI socket of an engine, such as /run/containerd/containerd.sock"
    )
    what.add_argument("--list", action="store_true", help="print the cases and why they matter; run nothing")
    parser.add_argument("--case", metavar="NAME", action="append", default=[], help="run this case alone; repeatable")
    parser.add_argument("--cases", metavar="FILE", type=Path, action="append", help="cases (default: cases.json)")
    parser.add_argument("--expect", metavar="FILE", type=Path, default=HERE / "expect.json", help="what is reserved")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--scratch", metavar="DIR", default="/var/lib", help="where volumes and bundles are made")
    parser.add_argument(
        "--seconds", metavar="N", type=float, default=30, help="how long a container's program may take to start"
    )
    parser.add_argument("--busybox", metavar="PATH", default="/bin/busybox", help="--runtime: a static busybox")
    parser.add_argument("--image", default="docker.io/library/busybox:latest", help="--cri: an image that the node has")
    parser.add_argument("--handler", default="", help="--cri: the runtime handler")
    parser.add_argument("--namespace", default="hostile-pod", help="--cri: the namespace of the pods")
    parser.add_argument("--cgroup-parent", default="", help="--cri: the cgroup of the pods")
    given = parser.parse_args()
    given.cases = given.cases or [HERE / "cases.json"]
    cases = choose(parser, given)
    if given.list:
        print("\n".join(f"{case['name']}: {case['why']}" for case in cases))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that the containers are removed
    top = Path(tempfile.mkdtemp(prefix="hostile-pod-", dir=given.scratch))
    try:
        reserved = Reserved.read(given.expect)
        if given.runtime:
            import oci  # only what is asked for: cri needs packages that a plain Python lacks

            engine: Any = oci.Runtime(given.runtime, given.busybox)
        else:
            import cri

            engine = cri.Engine(given.cri, given.image, given.handler, given.namespace, given.cgroup_parent)
        rows = [run_case(engine, reserved, case, top, given.seconds) for case in cases]
    except (Broken, OSError, ImportError) as error:
        print(f"hostile-pod: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(top, ignore_errors=True)
    show(rows, given.json)
    results = {row["result"] for row in rows}
    return 2 if "error" in results or results == {"not run"} else int("FAILED" in results)


if __name__ == "__main__":
    sys.modules["hostile_pod"] = sys.modules["__main__"]  # oci and cri import from it
    sys.exit(main())
