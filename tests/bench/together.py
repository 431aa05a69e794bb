"""Many creations at once: the group `together`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.bundle import Bundle

from bench.container import Container
from bench.measure import ENVIRONMENT, Action, Failed, Sample, finish, spawn
from bench.node import Contender, add_hook

if TYPE_CHECKING:
    from bench.cases import Bench

COUNT, RULES = 64, 30
CREATIONS = f"{COUNT} creations at once"
EMPTY = "runc, and a hook that does nothing"
"""What any hook costs: runc starts a process for it in each creation. reassert's look at the mounts needs one."""
WRAPPERS = f"{COUNT} creations at once, before a runtime that does nothing"


def together(bench: Bench, size: int) -> None:
    """64 concurrent creates, from the first command to the end of the last one; the agent's CPU time counts too.

    runc takes most of that time, and not the same in each round. So the wrappers are measured alone too.
    """
    for case, real, rounds in (
        (CREATIONS, "", max(bench.rounds // 10, 6)),
        (WRAPPERS, bench.stub(), max(bench.rounds // 3, 6)),
    ):
        actions: dict[str, Action] = {}
        for contender, device in bench.contenders(real):
            name = f"{'wrappers' if real else 'together'} {contender.name}"
            bundles = [bench.setup.bundle(f"{name}/{number}", size, None, device) for number in range(COUNT)]
            actions[contender.name] = _action(bench, contender, bundles, removed=not real)
        if not real:
            bundles = [bench.setup.bundle(f"empty-hook/{number}", size) for number in range(COUNT)]
            for bundle in bundles:
                add_hook(bundle, "/bin/true")
            actions[EMPTY] = _action(bench, Contender(EMPTY, (bench.setup.runc,)), bundles, removed=True)
        node = bench.setup.node(RULES)
        before = node.answered()
        bench.measure(case, actions, rounds)
        answered = node.answered() - before
        # With the real runtime each has a hook too. The count has one round more: the first, which is not measured.
        sent = COUNT * (rounds + 1) * (1 if real else 2)
        found = ", ".join(f"{name} {count}" for name, count in answered.items())
        print(f"{case}: of {sent} requests to the agent, it answered {found or 'none'}", file=sys.stderr)


def _action(bench: Bench, contender: Contender, bundles: Sequence[Bundle], removed: bool) -> Action:
    def run() -> Sample:
        containers = [Container(bench.setup, contender, bundle, bench.unique()) for bundle in bundles]
        for container in containers:
            container.bundle.save()
        before = bench.setup.agents_cpu()
        try:
            commands = [container.create_command() for container in containers]
            sample = _all(commands, contender.environment, [container.log for container in containers])
        except Failed:
            for container in containers:
                container.clean()
            raise
        agents = bench.setup.agents_cpu() - before
        if removed:
            _remove(containers)
        return sample + Sample(0, agents)

    return run


def _all(commands: Sequence[Sequence[str]], environment: Mapping[str, str], outputs: Sequence[str]) -> Sample:
    """Run all at once. Raises Failed, after the end of the last one."""
    started = [spawn(command, environment, output) for command, output in zip(commands, outputs, strict=True)]
    begin = started[0][1]
    samples, failed = [], None
    for (pid, _), command, output in zip(started, commands, outputs, strict=True):
        try:
            samples.append(finish(pid, begin, command, output))
        except Failed as error:
            failed = failed or error
    if failed:
        raise failed
    return Sample(max(sample.wall for sample in samples), sum(sample.cpu for sample in samples))


def _remove(containers: Sequence[Container]) -> None:
    """Take created containers away, all at once. `delete --force` of each waits 100 ms for the end of its process."""
    for container in containers:
        container.kill()
    for container in containers:
        container.wait()
    setup = containers[0].setup
    commands = [(setup.runc, "--root", setup.root, "delete", container.id) for container in containers]
    _all(commands, ENVIRONMENT, [container.log for container in containers])
