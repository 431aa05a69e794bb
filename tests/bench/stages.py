"""The duration of each stage of a start: `tests/bench/run.sh profile`.

strace records the time of the few system calls between two stages. With its seccomp filter all other calls run at full
speed. A recorded call costs about 20 microseconds, so the sum is a little longer than an untraced start.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.__main__ import TMPFS, machine, with_tmpfs
from bench.cases import TINY, USUAL
from bench.container import Container
from bench.measure import ENVIRONMENT, Failed, timed
from bench.node import REASSERT, Node
from bench.stats import estimate

Landmark = tuple[str, Callable[[str], bool]]

EXE = str(REASSERT.resolve())


def _execs(path: str) -> Callable[[str], bool]:
    return lambda call: call.startswith(f'execve("{path}"')


def _opens(part: str) -> Callable[[str], bool]:
    return lambda call: call.startswith("openat(") and part in call and " = -1 " not in call


LANDMARKS: tuple[Landmark, ...] = (
    ("sh, the dispatcher", _execs(EXE)),
    ("bootloader, until it runs itself again", _execs(EXE)),
    ("bootloader", _opens("libpython")),
    ("libpython: load, relocate; interpreter core", _opens("/encodings/__init__.pyc")),
    ("interpreter: encodings, main", _opens(f'"{EXE}"')),
    ("modules: unpacked, until the first C extension", _opens("/_json.")),
    ("modules: run; command line", _opens('/config.json"')),
    ("read and parse config.json; check the policy's owner", _opens("/store/")),
    ("read the policy; decide; event", _opens("/events.jsonl")),
    ("apply; render", _opens("/.config.json.")),
    ("write, fsync, rename", lambda call: call.startswith("rename(")),
    ("exec of the real runtime", _execs("/bin/true")),
)


def stages(command: list[str]) -> dict[str, float]:
    """Milliseconds of each stage of one run."""
    with tempfile.NamedTemporaryFile(dir=TMPFS) as log:
        line = ["strace", "-qq", "-f", "--seccomp-bpf", "-ttt", "-s", "256", "-o", log.name]
        timed([*_found(line), "-e", "trace=execve,openat,rename,exit_group", *command], ENVIRONMENT)
        calls = list(_calls(log.read().decode("utf-8", "replace")))
    begin = at = calls[0][0]
    position, found = 1, {}
    for name, reached in LANDMARKS:
        for offset, (when, call) in enumerate(calls[position:]):
            if reached(call):
                found[name] = (when - at) * 1e3
                at, position = when, position + offset + 1
                break
    found["all of it"] = (at - begin) * 1e3
    return found


def _found(line: list[str]) -> list[str]:
    path = subprocess.run(["which", line[0]], capture_output=True, text=True, check=True).stdout.strip()
    return [path, *line[1:]]


def _calls(text: str) -> Iterator[tuple[float, str]]:
    for line in text.splitlines():
        _, when, call = line.split(maxsplit=2)
        yield float(when), call


def main() -> int:
    """Print the stages of a create whose real runtime does nothing, for two sizes of config.json."""
    parser = argparse.ArgumentParser("tests/bench/run.sh profile", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    with_tmpfs(TMPFS)
    node = Node(TMPFS, "/usr/sbin/runc")
    policy = node.policy(30)
    sums: dict[str, dict[str, list[float]]] = {}
    for label, size in (("5 kB", TINY), ("30 kB", USUAL)):
        container = Container(node, node.dispatcher(policy, "/bin/true"), node.bundle(label, size), "profile")
        container.create()
        for _ in range(options.rounds):
            container.bundle.fresh()
            for name, milliseconds in stages(container.create_command()).items():
                sums.setdefault(name, {}).setdefault(label, []).append(milliseconds)
    table = {name: {label: estimate(values) for label, values in found.items()} for name, found in sums.items()}
    for name, found in table.items():
        print(f"{name:<56}" + "".join(f"{label:>8} {value.median:6.2f}" for label, value in found.items()))
    options.output.mkdir(parents=True, exist_ok=True)
    rows = {name: {label: value.median for label, value in found.items()} for name, found in table.items()}
    (options.output / "profile.json").write_text(json.dumps({"machine": machine(node.runc), "ms": rows}, indent=1))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(str(error))
