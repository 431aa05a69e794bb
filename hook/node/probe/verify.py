"""`reassert verify`: starts a normal and a hostile container per handler and compares both with the policy."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import timestamp
from hook.core.base.urls import without_credentials
from hook.core.container.start import Start
from hook.core.decide import Adapter
from hook.core.facts import Container, Facts
from hook.core.facts.gather import gather
from hook.core.linux.idmap import remountable
from hook.core.plan import Plan, plan
from hook.core.policy.entries import POD_UID
from hook.core.policy.model import AUDIT, Match, Policy, excluded
from hook.core.reserve.edits import Edit
from hook.core.reserve.exclusive import Closed
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import SetEnv
from hook.core.reserve.volumes import located
from hook.inside import observe
from hook.inside.process import ContainerGone, is_gvisor
from hook.node.agent import last_starts
from hook.node.engines.base import HOOK, RUNTIME, AnyEngine, Handler
from hook.node.errors import NodeError
from hook.node.probe import device_attempt, hostile
from hook.node.probe.device_attempt import DeviceAttempt
from hook.node.probe.readable import READER, to_open, unreadable
from hook.node.probe.report import (
    ABSENT,
    BLOCKED,
    COLD,
    EXPOSED,
    PROTECTED,
    UNTRIED,
    WARM,
    HandlerResult,
    Report,
    Tried,
)
from hook.node.probe.retry import refusal, run_probe, translate_exit
from hook.node.probe.starter import (
    NotRemoved,
    NotStarted,
    Pairs,
    Running,
    Starter,
    Unsupported,
    scratch,
)
from hook.resident import oplog
from hook.resident.terminal import columns, progress

BY_DESIGN = frozenset(("mount", "stage", "bundle", "path", "pipe", "size"))
"""Reasons of a cold start that lie in the container, the policy or the runtime (internals/agent.md). All others: the
agent could have answered, and did not."""

_EXEC_ENV = "exec-env"
INNOCENT = "a container that overrides nothing"


class NothingToVerify(NodeError):
    """The policy reserves nothing for a test container, so there is nothing to compare."""


def probe(starter: Starter, handler: str) -> None:
    """Starts a container that overrides nothing, waits for its program, and removes it. Raises NodeError."""
    run_probe(lambda: starter.start(handler), lambda running: running.environ())


def verify(
    engine: AnyEngine,
    handlers: list[Handler],
    policy: Policy,
    starter: Starter,
    output: str,
    accepted: Sequence[str] = (),
    beside: Sequence[str] = (),
    agent: bool = False,
) -> Report:
    """Print what a hostile container of each handler got. `output`: table, wide or json.

    `accepted`, `beside`: as in Report. `agent`: as in `examine`.

    Raises NodeError if no test container can be started; OSError.
    """
    nothing = ""
    try:
        findings, others = examine(handlers, policy, starter, agent=agent)
    except NothingToVerify as error:
        nothing = str(error)
        findings, others = [HandlerResult(handler, UNTRIED, [nothing]) for handler in handlers], {}
    report = Report(engine, policy, findings, others, accepted, beside, nothing)
    if not nothing:
        sources = dict.fromkeys(
            m.source for match in _rules(policy, starter)[0] for m in match.rule.mounts if "ro" in m.options
        )
        said = {source: remountable(source) for source in sources if os.path.lexists(source)}
        report.remountable.update({source: why for source, why in said.items() if why})
    for finding in findings:
        known = {"engine": engine.name, "handler": finding.handler.name, "result": finding.result}
        log = oplog.info if finding.result == PROTECTED or nothing else oplog.warning
        log("verify.handler", **known, executed=finding.executed or None, starts=finding.ways or None)
    for part, why in report.untried().items():
        oplog.warning("verify.untried", engine=engine.name, part=part, why=why)
    print(report.as_json() if output == "json" else report.as_table(columns(output)))
    return report


def examine(
    handlers: list[Handler], policy: Policy, starter: Starter, agent: bool = False
) -> tuple[list[HandlerResult], dict[str, str]]:
    """Starts hostile containers. Returns a finding per handler, and the rules that were not tried with the reason.

    `agent`: whether a resident agent answers starts; then everything is tried once more with containers that it does
    not answer. Raises NothingToVerify, NodeError, OSError.
    """
    matches, others = _rules(policy, starter)
    facts = gather(Adapter(), policy, starter.identity, matches)
    volumes = scratch()
    try:
        rules = [match.rule for match in matches]
        closed = device_attempt.closed_world(rules, facts, starter.identity)
        attempt = Attempt(policy, starter, matches, facts, volumes, closed, device_attempt.ways(rules, closed))
        starter.prepare()
        if not (attempt.env(False) or attempt.mounts(False) or any(not way.absent for way in attempt.ways)):
            raise NothingToVerify(f"no rule of {policy.path} reserves anything for a container without devices")
        tried = both_ways if agent else Attempt.finding
        return [attempt.reading(tried(attempt, handler)) for handler in handlers], others
    finally:
        shutil.rmtree(volumes, ignore_errors=True)
        if starter.identity.uid:  # kubelet would remove it too (hook.core.linux.volumes)
            shutil.rmtree(f"{policy.kubelet_root}/pods/{starter.identity.uid}", ignore_errors=True)


def _rules(policy: Policy, starter: Starter) -> tuple[list[Match], dict[str, str]]:
    if policy.missing:
        raise NodeError(f"no node policy: {policy.missing}")
    if policy.mode == AUDIT:
        raise NothingToVerify(f"the mode of {policy.path} is Audit, nothing is enforced")
    exclusion = excluded(policy, starter.identity)
    if exclusion:
        raise NothingToVerify(f"{policy.path} excludes {exclusion}")
    matches, others = hostile.covering(policy, starter.identity)
    if not matches:
        why = "".join(f"; rule {name}: {reason}" for name, reason in others.items())
        raise NothingToVerify(f"no rule of {policy.path} covers a test container{why}")
    return matches, others


def both_ways(attempt: Attempt, handler: Handler) -> HandlerResult:
    """The worse of two findings: of starts that the agent answers, and of starts that it does not answer."""
    since = timestamp(time.time_ns())
    first = attempt.finding(handler)
    if not {RUNTIME, HOOK} & set(handler.wired) or handler.name in attempt.starter.marks.unmarked:
        return first
    reasons = _why_none_was_warm(since)
    marks = attempt.starter.marks
    marks.cold = True
    try:
        second = attempt.finding(handler)
    finally:
        marks.cold = False
    if reasons:  # a start that should have been warm was cold
        saw = f"no start was warm: {', '.join(reasons)}; see `reassert status`"
        fault = "" if BY_DESIGN.issuperset(reasons) else saw
        return replace(first, saw=[*first.saw, saw], ways={WARM: UNTRIED, COLD: second.result}, never_warm=fault)
    ways = {WARM: first.result, COLD: second.result}
    if _badness(second) > _badness(first):
        return replace(second, saw=[f"in a cold start: {text}" for text in second.saw], ways=ways)
    both = [] if second.result != first.result else ["the same in a cold start"]
    return replace(first, saw=[*first.saw, *both], ways=ways)


def _badness(finding: HandlerResult) -> tuple[int, int]:
    order = ("", PROTECTED, ABSENT, UNTRIED, BLOCKED, EXPOSED)
    return order.index(finding.result), order.index(finding.executed)


def _why_none_was_warm(since: str) -> list[str]:
    """The reasons, if events of probes since a time are there and all say that their start was cold."""
    found = [event for event in last_starts() if event.get("probe") and str(event.get("timestamp", "")) >= since]
    if any(event["start"] == WARM for event in found):
        return []
    return sorted({str(event.get("cold", "")) or COLD for event in found})


@dataclass
class Seen:
    """What was seen of a container and, if something else ended it, of the next ones of the same kind.

    `decided`: the plan for its first process. `executed`: what is wrong in an executed process, or why that is not
    known. `asked`: what a process got when its caller set reserved env. None: not looked at yet. `cannot_exec`: why
    no program can be executed in it, or "".
    """

    decided: Plan | None = None
    executed: list[str] | str | None = None
    asked: Tried | None = None
    cannot_exec: str = ""

    def wrong(self) -> list[str]:
        """What is wrong with its first process."""
        decided = self.decided
        wrong = [_say(edit) for edit in decided.edits] if decided else []
        return wrong or [str(reason) for reason in (decided.denials + decided.errors if decided else ())]

    def leave(self, reason: str, env: bool) -> None:
        """Nothing else will be seen of it. `env`: whether the caller of an exec was to set env."""
        if self.executed is None:
            self.executed = reason
        elif env and self.executed == [] and self.asked is None:
            self.asked = Tried(_EXEC_ENV, UNTRIED, reason)


@dataclass
class Attempt:
    """The test containers for one policy. `volumes`: a directory for their volumes.

    `closed`: the devices that a test container must not have. `ways`: how one asks for devices.
    """

    policy: Policy
    starter: Starter
    matches: list[Match]
    facts: Facts
    volumes: str
    closed: Closed | None
    ways: list[DeviceAttempt]

    def env(self, gentle: bool) -> list[tuple[str, str]]:
        """Returns the hostile env of these rules (`hostile.env`)."""
        return hostile.env([match.rule for match in self.matches], gentle)

    def mounts(self, gentle: bool) -> list[tuple[str, str]]:
        """Returns the hostile mounts of these rules (`hostile.mounts`), from a new directory."""
        directory = tempfile.mkdtemp(dir=self.volumes)
        return hostile.mounts([match.rule for match in self.matches], self.facts.absent_sources, directory, gentle)

    def _of_pods(self) -> Iterator[str]:
        """Says of each rule that wants a directory of the pod that a test container has none."""
        for rule in (match.rule for match in self.matches):
            if any(mount.is_of_pod and not mount.skip_missing for mount in rule.mounts):
                cause = f"rule {rule.name} wants a directory for {POD_UID}, which no test container has"
                yield f"{cause}: let its match leave out what `reassert verify` starts (docs/sandboxes.md)"

    def finding(self, handler: Handler) -> HandlerResult:
        """Returns the finding of a handler: starts a normal container, then a hostile one.

        If the hostile one is refused, a further one overrides only what reassert corrects without a refusal.
        """
        if not handler.runtime:
            no_runtime = "it calls no OCI runtime of this node; --adapter nri reaches it"
            return HandlerResult(handler, UNTRIED, [handler.note or no_runtime])
        progress(f"handler {handler.name}: starting {INNOCENT}")
        innocent = self._once(handler, [], [])
        if innocent.result == BLOCKED:
            return replace(innocent, saw=[*innocent.saw, *self._of_pods()])
        if innocent.result in (UNTRIED, ABSENT):
            return innocent
        hostile = self._with_ways(self._hostile(handler), handler)
        if innocent.result == EXPOSED and hostile.result != EXPOSED:
            saw = [f"in a container that overrides nothing: {text}" for text in innocent.saw]
            return replace(hostile, result=EXPOSED, saw=[*saw, *hostile.saw], started=EXPOSED)
        return hostile

    def reading(self, finding: HandlerResult) -> HandlerResult:
        """Returns the finding with the reserved files that an ordinary process of a container cannot read."""
        if finding.result != PROTECTED or (finding.not_executed and not finding.executed):
            return finding
        mounts = [mount for match in self.matches for mount in match.rule.mounts]
        try:
            files = to_open(mount for mount in mounts if mount.source not in self.facts.absent_sources)
            if not files:
                return finding
            progress(f"handler {finding.handler.name}: reading what is reserved")
            found = run_probe(
                lambda: self.starter.start(finding.handler.name, extra=READER),
                lambda running: unreadable(running, files),
            )
        except NotRemoved:
            raise
        except (ReassertError, OSError) as error:
            return replace(finding, unread=describe(error))
        return replace(finding, unreadable=tuple(found))

    def _with_ways(self, finding: HandlerResult, handler: Handler) -> HandlerResult:
        """Returns the finding with what became of each way to ask for devices."""
        tried = [device_attempt.try_attempt(way, handler, self.starter, self.closed) for way in self.ways]
        if not tried:
            return finding
        saw = [f"{each.name}: {each.saw}" for each in tried if each.result == EXPOSED]
        held = [each.name for each in tried if each.result == PROTECTED]
        held = [f"of no use: {', '.join(held)}"] if held else []
        result = EXPOSED if saw else finding.result
        return replace(finding, result=result, saw=[*saw, *finding.saw, *held], asked=(*finding.asked, *tried))

    def _hostile(self, handler: Handler) -> HandlerResult:
        """Starts a container with all overrides; if it is refused, one without those that a correct node refuses."""
        progress(f"handler {handler.name}: starting a hostile container")
        first = self._once(handler, self.env(False), self.mounts(False))
        looked_at = first.executed or first.not_executed
        if first.result != PROTECTED or looked_at or not (self.env(True) or self.mounts(True)):
            return first
        second = self._once(handler, self.env(True), self.mounts(True))
        return replace(second, saw=list(dict.fromkeys(first.saw + second.saw)))

    def _once(self, handler: Handler, env: Pairs, mounts: Pairs) -> HandlerResult:
        """Starts one container and returns its finding; BLOCKED if one that overrides nothing does not start."""
        seen = Seen()
        try:
            run_probe(
                lambda: self.starter.start(handler.name, env, mounts),
                lambda running: self._look(running, seen, bool(env), bool(mounts)),
            )
        except NotRemoved:
            raise
        except (ReassertError, OSError) as error:
            if seen.decided is None:
                return _unseen(handler, error, innocent=not (env or mounts))
            seen.leave(describe(error), bool(env))
        return _seen(handler, seen, env, mounts)

    def _look(self, running: Running, seen: Seen, env: bool, mounts: bool) -> None:
        """Examines what was not seen yet. Raises ContainerGone, NotStarted, NodeError, OSError."""
        if seen.decided is None:
            mounts_of_all = [mount for match in self.matches for mount in match.rule.mounts]
            reserved = [located(mount, self.starter.identity) or mount for mount in mounts_of_all if mount.volume]
            reserved += [mount for mount in mounts_of_all if not mount.volume]
            rules: list[dict[str, object]] = [{"allow": False, "access": "rwm"}]  # devices are not looked at
            if is_gvisor(running.pid):
                mounts_there = observe.mounts_in_gvisor(running.content, reserved)
            else:
                mounts_there = observe.mounts(running.pid, reserved)
            there = Start(running.environ(), mounts_there, device_rules=rules, shared_processes="")
            seen.decided = plan(self.policy, Container(self.starter.identity, there, self.facts), self.matches)
        if (env or mounts) and seen.executed is None:
            try:
                seen.executed = _in_exec(running, seen.decided)
            except (ContainerGone, NotStarted):
                raise
            except Unsupported as error:
                seen.executed, seen.cannot_exec = [], str(error)
            except NodeError as error:
                seen.executed = str(error)
        if env and seen.executed == [] and seen.asked is None and not seen.cannot_exec:
            seen.asked = self._exec_env(running, seen.decided)

    def _exec_env(self, running: Running, decided: Plan) -> Tried:
        """What a process gets if its caller sets reserved env, as `docker exec --env` does."""
        try:
            left = _in_exec(running, decided, self.env(True))
        except (ContainerGone, NotStarted):
            raise
        except Unsupported as error:
            return Tried(_EXEC_ENV, ABSENT, str(error))
        except NodeError as error:
            return Tried(_EXEC_ENV, UNTRIED, str(error))
        saw = [f"executed with env of its caller: {text}" for text in left[:1]]
        return Tried(_EXEC_ENV, EXPOSED, saw[0]) if saw else Tried(_EXEC_ENV, PROTECTED)


def _in_exec(running: Running, decided: Plan, env: Pairs = ()) -> list[str]:
    """What is wrong with the env of an executed process. `env`: what its caller sets. Raises as `held` does."""
    with translate_exit(running):
        environ = running.exec_environ(env)
        return [_say(edit) for edit in decided.env.within(environ).differences(environ)]


def _unseen(handler: Handler, error: Exception, innocent: bool) -> HandlerResult:
    """The finding for a container that could not be looked at."""
    reason = describe(error)
    if isinstance(error, Unsupported):
        return HandlerResult(handler, ABSENT, [reason])
    if not isinstance(error, NotStarted):
        return HandlerResult(handler, UNTRIED, [reason])
    refused = refusal(reason)
    if innocent:
        return HandlerResult(handler, BLOCKED, [f"{INNOCENT} does not start: {refused or reason}"])
    if refused:
        return HandlerResult(handler, PROTECTED, [refused])
    return HandlerResult(handler, UNTRIED, [f"{INNOCENT} starts; a hostile one could not be started: {reason}"])


def _seen(handler: Handler, seen: Seen, env: Pairs, mounts: Pairs) -> HandlerResult:
    """The finding for a container that was looked at."""
    wrong = seen.wrong()
    if not (env or mounts):
        return HandlerResult(handler, EXPOSED if wrong else PROTECTED, wrong)
    untried = ""
    if seen.cannot_exec:
        executed, said, untried = "", [seen.cannot_exec], seen.cannot_exec
    elif isinstance(seen.executed, list):
        executed = EXPOSED if seen.executed else PROTECTED
        said = [f"executed in it: {text}" for text in seen.executed if text not in wrong]
    else:
        executed, said, untried = UNTRIED, [f"exec {UNTRIED}: {seen.executed}"], str(seen.executed)
    asked = (seen.asked,) if seen.asked else ()
    if seen.asked and seen.asked.result == EXPOSED:
        executed, said = EXPOSED, [seen.asked.saw]
    if wrong or executed == EXPOSED:
        around = [] if handler.wired else ["it is not wired: every pod that may use it bypasses reassert"]
        started = EXPOSED if wrong else PROTECTED
        return HandlerResult(handler, EXPOSED, wrong + said + around, executed, started, asked=asked)
    counted = [f"{len(names)} {kind}" for kind, names in (("env", dict(env)), ("mounts", dict(mounts))) if names]
    also = "; in exec too" if executed == PROTECTED else ""
    saw = [f"put back: {', '.join(counted)}{also}", *said]
    return HandlerResult(handler, PROTECTED, saw, executed, asked=asked, not_executed=untried)


def _say(edit: Edit) -> str:
    """Returns an edit that is still needed as a message about what is wrong."""
    if isinstance(edit, SetEnv) and edit.value is not None:
        is_now = f"is {edit.before[-1]}" if edit.before else "is not set"
        return without_credentials(f"env {edit.name} {is_now}, the policy wants {edit.value}")
    if isinstance(edit, PlaceMount):
        there = ", ".join(mount.destination for mount in edit.before) or "no mount of the policy"
        wanted = f"{edit.mount.source} {edit.mount.options}" if edit.mount else "nothing"
        return f"mount {edit.name}: {there} is mounted, the policy wants {wanted}"
    return f"{edit.kind} {edit.name} is there, the policy wants it absent"
