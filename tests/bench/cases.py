"""The benchmarks. Each function is a group for `--only`; every round measures each contender once."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.paths import REASSERT

from bench.container import Container, process_file
from bench.labels import Engine
from bench.measure import Action, Sample, interleaved, peak
from bench.node import Contender, MeasuredNode, Setup, add_hook, correct
from bench.resident import measure as resident
from bench.results import Results
from bench.together import together

TINY, USUAL = 5_000, 30_000
BASE, AGAIN = "runc", "runc again"
WARM = ", warm"
"""How the name of a contender with an agent ends."""
PROBES, PROBING = 25, "25 execs a second"
PLAIN, ANOTHER = "no podSelector", "podSelector, first of a pod"
REQUESTS, FULL = 100_000, 60
SAID_AGAIN = 15.0
"""Seconds between two lines of progress."""
SLEEP = ["/bin/sleep", "1000"]


class Bench:
    """The nodes and bundles, the contenders, and the results."""

    def __init__(self, setup: Setup, peers: dict[str, str], rounds: int) -> None:
        self.setup = setup
        self.peers = peers
        self.rounds = rounds
        self.results = Results()
        self._numbers = itertools.count()

    def unique(self) -> str:
        """A container's id."""
        return f"bench-{next(self._numbers)}"

    def contenders(self, real: str = "", rules: int = 30) -> list[tuple[Contender, bool]]:
        """runc twice, reassert, the peers; with each whether its bundle asks for the peer's device."""
        real = real or self.setup.runc
        found = [(Contender(BASE, (real,)), False), (Contender(AGAIN, (real,)), False)]
        for node in self.setup.nodes(rules):
            found += [(node.cold(real), False), (node.warm(real), False)]
        for name, path in self.peers.items():
            found.append((self.setup.peer(name, path, real), True))
        return found

    def stub(self) -> str:
        """A runtime that does nothing, by the name that peers expect."""
        path = self.setup.top / "runc"
        if not path.exists():
            path.symlink_to("/bin/true")
        return str(path)

    def containers(self, case: str, size: int, args: list[str] | None = None) -> dict[str, Container]:
        """A container for each contender, in a bundle of its own."""
        made = {}
        for contender, device in self.contenders():
            bundle = self.setup.bundle(f"{case} {contender.name}", size, args, device)
            made[contender.name] = Container(self.setup, contender, bundle, self.unique())
        return made

    def measure(self, case: str, actions: dict[str, Action], rounds: int = 0, base: str = BASE) -> None:
        """Run and keep."""
        samples = interleaved(actions, rounds or self.rounds, progress(case, rounds or self.rounds))
        for name, values in samples.items():
            self.results.add(case, name, values, samples[base] if base and name != base else None)


def progress(case: str, rounds: int) -> Callable[[int], None]:
    """Print the progress on stderr: in one line of a terminal, else a line now and then."""
    terminal, said = sys.stderr.isatty(), time.monotonic()

    def say(done: int) -> None:
        nonlocal said
        if terminal or done == rounds or time.monotonic() - said > SAID_AGAIN:
            said = time.monotonic()
            begin, end = ("\r", "") if terminal and done < rounds else ("\r" if terminal else "", "\n")
            print(f"{begin}{case}: {done} of {rounds} rounds", end=end, file=sys.stderr, flush=True)

    return say


def life(bench: Bench) -> None:
    """create + start + delete, and each of the three alone, from the same rounds."""
    for label, size in (("5 kB", TINY), ("30 kB", USUAL)):
        verbs: dict[str, dict[str, list[Sample]]] = {}

        def action(container: Container, verbs: dict[str, dict[str, list[Sample]]] = verbs) -> Action:
            def run() -> Sample:
                taken = container.life()
                for verb, sample in taken.items():
                    verbs.setdefault(verb, {}).setdefault(container.contender.name, []).append(sample)
                return sum(taken.values(), Sample(0, 0))

            return run

        containers = bench.containers(f"life {label}", size)
        bench.measure(f"life, {label}", {name: action(container) for name, container in containers.items()})
        for verb, taken in verbs.items():
            for name, samples in taken.items():  # the first is the warming one
                base = None if name == BASE else taken[BASE][1:]
                bench.results.add(f"{verb}, {label}", name, samples[1:], base)


def verbs(bench: Bench) -> None:
    """The verbs of a running container: state, kill (a signal that it ignores), exec with a process file."""
    containers = bench.containers("verbs", USUAL, SLEEP)
    for container in containers.values():
        container.create()
        container.start()
    try:
        for verb, rest in (("state", []), ("kill", ["CONT"])):
            bench.measure(
                f"{verb}, 30 kB",
                # mypy cannot infer a lambda whose defaults bind the loop's variables
                {name: lambda c=c, v=verb, r=rest: c.call(v, c.id, *r) for name, c in containers.items()},  # type: ignore[misc]  # mypy sees no type of a lambda's default
            )
        bench.measure("exec, 30 kB", {name: _exec(container) for name, container in containers.items()})
    finally:
        for container in containers.values():
            container.clean()


def _exec(container: Container) -> Action:
    write = process_file(container.bundle)

    def run() -> Sample:
        return container.call("exec", "--process", write(), container.id)

    return run


def hook(bench: Bench) -> None:
    """The time of a prestart hook in `runc create`."""
    setup = bench.setup
    nodes = setup.nodes(30)
    hooks: dict[str, tuple[MeasuredNode, tuple[str, ...]]] = {
        BASE: (nodes[0], ()),
        AGAIN: (nodes[0], ()),
        "/bin/true": (nodes[0], ("/bin/true",)),
    }
    for node in nodes:
        hooks[f"{node.name}, verifies"] = node, (node.program, "hook", *node.options(), "prestart")
        hooks[f"{node.name}, verifies, warm"] = node, (node.warm_hook(), "prestart")
    if "nvidia" in bench.peers:
        hooks["nvidia"] = nodes[0], (bench.peers["nvidia"] + "-hook", "prestart")
    actions: dict[str, Action] = {}
    for name, (node, command) in hooks.items():
        bundle = setup.bundle(f"hook {name}".replace("/", "-"), USUAL)
        correct(bundle, node)
        if command:
            add_hook(bundle, *command)
        actions[name] = Container(setup, Contender(name, (setup.runc,)), bundle, bench.unique()).only_create
    bench.measure("prestart hook, 30 kB", actions)


def memory(bench: Bench) -> None:
    """Peak memory and time of the wrappers, with a real runtime that does nothing."""
    containers = {}
    for contender, device in bench.contenders(bench.stub()):
        bundle = bench.setup.bundle(f"memory {contender.name}", USUAL, None, device)
        containers[contender.name] = Container(bench.setup, contender, bundle, bench.unique())
    bench.measure("wrapper alone, 30 kB", {name: container.create for name, container in containers.items()})
    for name, container in containers.items():
        container.bundle.save()
        row = bench.results.find("wrapper alone, 30 kB", name)
        if row is not None:
            row.peak_mb = peak(container.create_command(), container.contender.environment)


def labels(bench: Bench) -> None:
    """What a podSelector adds to a create, before a runtime that does nothing: the engine is asked for the labels.

    Warm, the first container of each pod asks, and later ones do not. The answer comes at once (bench.labels).
    """
    setup, stub = bench.setup, bench.stub()
    asking = setup.node(1, ", podSelector: {matchLabels: {app: shop}}")
    engine = Engine(asking.store)
    contenders = {}
    for node, name in ((setup.node(1), PLAIN), (asking, "podSelector")):
        contenders[f"{name}, cold"] = node.cold(stub)
        contenders[f"{name}{WARM}"] = node.warm(stub)
    contenders[f"{ANOTHER}{WARM}"] = contenders[f"podSelector{WARM}"]
    actions: dict[str, Action] = {}
    for name, contender in contenders.items():
        container = Container(setup, contender, setup.bundle(f"labels {name}", USUAL), bench.unique())
        actions[name] = _in_another_pod(container) if name.startswith(ANOTHER) else container.create
    case = "create for a rule by labels"
    samples = interleaved(actions, bench.rounds, progress(case, bench.rounds))
    for name, values in samples.items():
        base = None if name.startswith(PLAIN) else samples[PLAIN + (WARM if name.endswith(WARM) else ", cold")]
        bench.results.add(case, name, values, base)
    questions = 2 * (bench.rounds + 1) + 1  # cold, of another pod, and once of the first pod
    if engine.asked != questions:
        raise SystemExit(f"the engine was asked {engine.asked} times, not {questions}")


def _in_another_pod(container: Container) -> Action:
    numbers = itertools.count(1)

    def run() -> Sample:
        container.bundle.spec["annotations"]["io.kubernetes.cri.sandbox-id"] = f"{next(numbers):064x}"
        return container.create()

    return run


def probes(bench: Bench) -> None:
    """Execs at the rate of 250 pods with a probe each 10 s, before a runtime that does nothing: CPU time of each.

    A share of the agent's CPU time in the same seconds is a part of each warm exec.
    """
    for contender, device in bench.contenders(bench.stub()):
        bundle = bench.setup.bundle(f"probes {contender.name}", USUAL, None, device)
        container = Container(bench.setup, contender, bundle, bench.unique())
        state = Path(bench.setup.root, container.id)
        state.mkdir(parents=True)
        (state / "state.json").write_text(json.dumps({"config": {"labels": [f"bundle={bundle.directory}"]}}))
        container.create()
        run = _exec(container)
        run()
        before, due, samples = bench.setup.agents_cpu(), time.monotonic(), []
        for _ in range(PROBES * bench.rounds // 2):
            samples.append(run())
            due = max(due + 1 / PROBES, time.monotonic() - 0.5)
            time.sleep(max(0.0, due - time.monotonic()))
        share = (bench.setup.agents_cpu() - before) / len(samples) if contender.name.endswith(WARM) else 0.0
        samples = [Sample(sample.wall, sample.cpu + share) for sample in samples]
        first = bench.results.find(PROBING, BASE)
        base = [Sample(*pair) for pair in first.samples] if first else None
        bench.results.add(PROBING, contender.name, samples, base)


def agent(bench: Bench) -> None:
    """The agent's memory with the NRI plugin in it, after REQUESTS requests of all kinds."""
    directory = bench.setup.top / "resident"
    directory.mkdir()
    count = REQUESTS if bench.rounds >= FULL else REQUESTS // 25
    resident(str(REASSERT), directory, count)


GROUPS: dict[str, Callable[[Bench], None]] = {
    "life": life,
    "verbs": verbs,
    "hook": hook,
    "together": lambda bench: together(bench, USUAL),
    "memory": memory,
    "labels": labels,
    "probes": probes,
    "agent": agent,
}
