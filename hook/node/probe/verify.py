"""`reassert node verify`: starts a normal and a hostile container per handler and compares both with the policy."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from dataclasses import dataclass, replace

from hook.base.errors import describe
from hook.base.system import timestamp
from hook.decide import gather
from hook.node.agent import last_starts
from hook.node.engines.base import HOOK, RUNTIME, AnyEngine, Handler
from hook.node.errors import NodeError
from hook.node.probe import hostile, observe
from hook.node.probe import ways as device_ways
from hook.node.probe.report import (
    ABSENT,
    BLOCKED,
    COLD,
    EXPOSED,
    PROTECTED,
    UNTRIED,
    WARM,
    Accepted,
    Finding,
    Report,
    Tried,
)
from hook.node.probe.starter import Gone, Lacking, NotStarted, Pairs, Running, Starter, scratch
from hook.node.probe.ways import Way
from hook.plan import Container, Facts, Plan, plan
from hook.policy.model import AUDIT, Match, Policy, excluded
from hook.reserve import Edit
from hook.reserve.env import SetEnv
from hook.reserve.exclusive import Closed
from hook.reserve.mounts import PlaceMount

ATTEMPTS = 3
"""Attempts until a container lives long enough: kubelet ends pods that it does not know every two seconds."""

_OURS = re.compile(
    r"reassert: refused"
    r"|executing hook `[^`]*/reassert(-hook)?` \(exit code: 1\)"
    r"|executing \[reassert hook [^]]*\]: exit status 1"
)
"""Matches a refusal of reassert in an engine's message. crun, and podman for precreate, leave out the hook's output."""


BY_DESIGN = frozenset(("mount", "stage", "bundle", "path", "pipe", "size"))
"""Reasons of a cold start that lie in the container, the policy or the runtime (docs/agent.md). All others: the agent
could have answered, and did not."""

INNOCENT = "a container that overrides nothing"


class NothingToVerify(NodeError):
    """The policy reserves nothing for a test container, so there is nothing to compare."""


def probe(starter: Starter, handler: str) -> None:
    """Starts a container that overrides nothing, waits for its program, and removes it. Raises NodeError."""
    for attempt in range(1, ATTEMPTS + 1):
        running = starter.start(handler)
        try:
            running.environ()
            return
        except Gone:
            if attempt == ATTEMPTS:
                raise
        finally:
            running.remove()


def verify(
    engine: AnyEngine,
    handlers: list[Handler],
    policy: Policy,
    starter: Starter,
    output: str,
    accepted: Accepted | None = None,
    agent: bool = False,
) -> int:
    """Print what a hostile container of each handler got. `output`: table or json. `agent`: as in `examine`.

    Returns 0 if every handler is protected and every part was tried or is accepted as not tried, NOTHING if the policy
    reserves nothing for a test container, else 1. Raises NodeError if no test container can be started; OSError.
    """
    nothing = ""
    try:
        findings, others = examine(handlers, policy, starter, agent=agent)
    except NothingToVerify as error:
        nothing = str(error)
        findings, others = [Finding(handler, UNTRIED, [nothing]) for handler in handlers], {}
    report = Report(engine, policy, findings, others, accepted or Accepted(), nothing)
    print(report.as_json() if output == "json" else report.as_table())
    return report.status()


def examine(
    handlers: list[Handler], policy: Policy, starter: Starter, directory: str = "/run", agent: bool = False
) -> tuple[list[Finding], dict[str, str]]:
    """Starts hostile containers. Returns a finding per handler, and the rules that were not tried with the reason.

    `directory`: for what the containers mount. `agent`: whether a resident agent answers starts; then everything is
    tried once more with containers that it does not answer. Raises NothingToVerify, NodeError, OSError.
    """
    matches, others = _rules(policy, starter)
    facts = gather(policy, starter.identity, matches)
    volumes = scratch(directory)
    try:
        rules = [match.rule for match in matches]
        closed = device_ways.closed_world(rules, facts, starter.identity)
        attempt = Attempt(policy, starter, matches, facts, volumes, closed, device_ways.ways(rules, closed))
        starter.prepare()
        if not (attempt.env(False) or attempt.mounts(False) or any(not way.absent for way in attempt.ways)):
            raise NothingToVerify(f"no rule of {policy.path} reserves anything for a container without devices")
        tried = both_ways if agent else Attempt.finding
        return [tried(attempt, handler) for handler in handlers], others
    finally:
        shutil.rmtree(volumes, ignore_errors=True)


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


def both_ways(attempt: Attempt, handler: Handler) -> Finding:
    """The worse of two findings, of starts that the agent answers and of starts that it does not."""
    since = timestamp(time.time_ns())
    first = attempt.finding(handler)
    if not {RUNTIME, HOOK} & set(handler.wired):
        return first
    reasons = _why_none_was_warm(since)
    marks = attempt.starter.marks
    marks.cold = True
    try:
        second = attempt.finding(handler)
    finally:
        marks.cold = False
    if reasons:  # what was meant to be warm was not
        saw = f"no start was warm: {', '.join(reasons)}; see `reassert node status`"
        fault = "" if BY_DESIGN.issuperset(reasons) else saw
        return replace(first, saw=[*first.saw, saw], ways={WARM: UNTRIED, COLD: second.result}, never_warm=fault)
    ways = {WARM: first.result, COLD: second.result}
    if _badness(second) > _badness(first):
        return replace(second, saw=[f"in a cold start: {text}" for text in second.saw], ways=ways)
    both = [] if second.result != first.result else ["the same in a cold start"]
    return replace(first, saw=[*first.saw, *both], ways=ways)


def _badness(finding: Finding) -> tuple[int, int]:
    order = ("", PROTECTED, UNTRIED, BLOCKED, EXPOSED)
    return order.index(finding.result), order.index(finding.executed)


def _why_none_was_warm(since: str) -> list[str]:
    """The reasons, if events of probes since a time are there and all say that their start was cold."""
    found = [event for event in last_starts() if event.get("probe") and str(event.get("timestamp", "")) >= since]
    if any(event["start"] == WARM for event in found):
        return []
    return sorted({str(event.get("cold", "")) or COLD for event in found})


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
    ways: list[Way]

    def env(self, gentle: bool) -> list[tuple[str, str]]:
        """Returns the hostile env of these rules (`hostile.env`)."""
        return hostile.env([match.rule for match in self.matches], gentle)

    def mounts(self, gentle: bool) -> list[tuple[str, str]]:
        """Returns the hostile mounts of these rules (`hostile.mounts`), from a new directory."""
        directory = tempfile.mkdtemp(dir=self.volumes)
        return hostile.mounts([match.rule for match in self.matches], self.facts.absent_sources, directory, gentle)

    def finding(self, handler: Handler) -> Finding:
        """Returns the finding of a handler: starts a normal container, then a hostile one.

        If the hostile one is refused, a further one overrides only what reassert corrects without a refusal.
        """
        if not handler.runtime:
            return Finding(handler, UNTRIED, ["it calls no OCI runtime of this node; --adapter nri reaches it"])
        innocent = self._once(handler, [], [])
        if innocent.result in (BLOCKED, UNTRIED):
            return innocent
        hostile = self._with_ways(self._hostile(handler), handler)
        if innocent.result == EXPOSED and hostile.result != EXPOSED:
            saw = [f"in a container that overrides nothing: {text}" for text in innocent.saw]
            return replace(hostile, result=EXPOSED, saw=[*saw, *hostile.saw], started=EXPOSED)
        return hostile

    def _with_ways(self, finding: Finding, handler: Handler) -> Finding:
        """Returns the finding with what became of each way to ask for devices."""
        tried = [device_ways.try_way(way, handler, self.starter, self.closed, _refused) for way in self.ways]
        if not tried:
            return finding
        saw = [f"{each.name}: {each.saw}" for each in tried if each.result == EXPOSED]
        held = [each.name for each in tried if each.result == PROTECTED]
        held = [f"of no use: {', '.join(held)}"] if held else []
        result = EXPOSED if saw else finding.result
        return replace(finding, result=result, saw=[*saw, *finding.saw, *held], asked=(*finding.asked, *tried))

    def _hostile(self, handler: Handler) -> Finding:
        """Starts a container with every override; if it is refused, one without those that are always refused."""
        first = self._once(handler, self.env(False), self.mounts(False))
        if first.result != PROTECTED or first.executed or not (self.env(True) or self.mounts(True)):
            return first
        second = self._once(handler, self.env(True), self.mounts(True))
        return replace(second, saw=list(dict.fromkeys(first.saw + second.saw)))

    def _once(self, handler: Handler, env: list[tuple[str, str]], mounts: list[tuple[str, str]]) -> Finding:
        """Starts one container and returns its finding; BLOCKED if one that overrides nothing does not start."""
        innocent = not (env or mounts)
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                running = self.starter.start(handler.name, env, mounts)
            except NotStarted as error:
                reason = str(error)
                if not _OURS.search(reason):
                    continue
                if innocent:
                    return Finding(handler, BLOCKED, [f"{INNOCENT} does not start: {_refusal(reason)}"])
                return Finding(handler, PROTECTED, [_refusal(reason)])
            except NodeError as error:
                return Finding(handler, UNTRIED, [str(error)])
            try:
                return self._look(handler, running, env, mounts)
            except Gone as error:
                reason = str(error)
            except (NodeError, OSError) as error:
                return Finding(handler, UNTRIED, [describe(error)])
            finally:
                running.remove()
        if innocent:
            return Finding(handler, BLOCKED, [f"{INNOCENT} does not start: {reason}"])
        return Finding(handler, UNTRIED, [f"{INNOCENT} starts; a hostile one could not be started: {reason}"])

    def _look(self, handler: Handler, running: Running, env: Pairs, mounts: Pairs) -> Finding:
        reserved = [mount for match in self.matches for mount in match.rule.mounts]
        rules: list[dict[str, object]] = [{"allow": False, "access": "rwm"}]  # devices are not looked at
        mounts_there = observe.mounts(running.pid, reserved)
        there = Container(self.starter.identity, running.environ(), mounts_there, self.facts, device_rules=rules)
        decided = plan(self.policy, there, self.matches)
        wrong = [_say(edit) for edit in decided.edits]
        wrong = wrong or [str(reason) for reason in decided.denials + decided.errors]
        if not (env or mounts):
            return Finding(handler, EXPOSED if wrong else PROTECTED, wrong)
        try:
            left = [_say(edit) for edit in decided.env.differences(running.exec_environ())]
            executed = EXPOSED if left else PROTECTED
            said = [f"executed in it: {text}" for text in left if text not in wrong]
        except NodeError as error:
            executed, said = UNTRIED, [f"exec {UNTRIED}: {error}"]
        asked = [self._exec_env(running, decided)] if env and executed == PROTECTED else []
        if asked and asked[0].result == EXPOSED:
            executed, said = EXPOSED, [asked[0].saw]
        if wrong or executed == EXPOSED:
            around = [] if handler.wired else ["it is not wired: every pod that may use it bypasses reassert"]
            started = EXPOSED if wrong else PROTECTED
            return Finding(handler, EXPOSED, wrong + said + around, executed, started, asked=tuple(asked))
        counted = [f"{len(names)} {kind}" for kind, names in (("env", dict(env)), ("mounts", dict(mounts))) if names]
        also = "; in exec too" if executed == PROTECTED else ""
        return Finding(
            handler, PROTECTED, [f"put back: {', '.join(counted)}{also}", *said], executed, asked=tuple(asked)
        )

    def _exec_env(self, running: Running, decided: Plan) -> Tried:
        """What a process gets whose caller sets reserved env, as `kubectl exec --env` and `docker exec --env` do."""
        name = "exec-env"
        try:
            left = [_say(edit) for edit in decided.env.differences(running.exec_environ(self.env(True)))]
        except Lacking as error:
            return Tried(name, ABSENT, str(error))
        except NodeError as error:
            return Tried(name, UNTRIED, str(error))
        return Tried(name, EXPOSED, f"executed with env of its caller: {left[0]}") if left else Tried(name, PROTECTED)


def _refused(message: str) -> str:
    """Returns reassert's part of an engine's message, "" if reassert did not refuse the container."""
    return _refusal(message) if _OURS.search(message) else ""


def _refusal(message: str) -> str:
    """Returns reassert's part of an engine's message; containerd 1.x, docker and podman append their own."""
    at = message.find("reassert: refused")
    if at < 0:
        return "refused by the hook; the reason is in the event log, the engine does not show it"
    return re.sub(
        r"(: unknown)?( Error: failed to start containers: \S+)?( time=\"[^\"]*\" level=.*)?$", "", message[at:]
    )


def _say(edit: Edit) -> str:
    """Returns an edit that is still needed as a message about what is wrong."""
    if isinstance(edit, SetEnv) and edit.value is not None:
        is_now = f"is {edit.before[-1]}" if edit.before else "is not set"
        return f"env {edit.name} {is_now}, the policy wants {edit.value}"
    if isinstance(edit, PlaceMount):
        there = ", ".join(str(mount["destination"]) for mount in edit.before) or "no mount of the policy"
        wanted = f"{edit.mount['source']} {edit.mount['options']}" if edit.mount else "nothing"
        return f"mount {edit.name}: {there} is mounted, the policy wants {wanted}"
    return f"{edit.kind} {edit.name} is there, the policy wants it absent"
