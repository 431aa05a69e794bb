"""`reassert explain`: the decision about a bundle, for people. Reads what an adapter reads and changes nothing."""

from __future__ import annotations

import difflib
import json
import os
import sys
from typing import Any

from hook.base.system import Untrusted, read_file, trusted
from hook.base.terminal import table
from hook.base.text import printable
from hook.container.identity import Identity, identify
from hook.container.model import Container
from hook.container.spec import LIMIT, Spec
from hook.decide import Case
from hook.plan import Plan
from hook.policy import store
from hook.policy.compiler import compile_bytes, read_source
from hook.policy.match import Match
from hook.policy.model import Policy
from hook.reserve import decision
from hook.reserve.env import Reserved
from hook.reserve.outcome import Edit


def explain(config: str, policy_file: str | None, store_directory: str, output: str) -> int:
    """Print the decision; returns 0 also for a container that would be refused. Raises ReassertError, OSError."""
    policy = _policy(policy_file, store_directory)
    spec = Spec(read_file(config, LIMIT), config)
    case = Case("explain", "", lambda: policy)
    decided = case.decide(identify(spec, copied=True), spec)
    container = case.container
    if output == "json":
        print(json.dumps(as_json(decided, container, config), indent=2))
    elif output == "diff":
        sys.stdout.write(_diff(decided, spec, config))
    else:
        print(_table(decided, container, config))
    return 0


def _policy(policy_file: str | None, store_directory: str) -> Policy:
    """A draft is compiled here and kept nowhere; without one, what is in force on this node."""
    if policy_file is None:
        return store.load(store.SOURCE, store_directory)
    content, _ = read_source(policy_file)
    compiled = compile_bytes(policy_file, content)
    for problem in compiled.warnings:
        print(problem.at(policy_file), file=sys.stderr)
    try:
        trusted(os.path.abspath(policy_file))
    except Untrusted as error:
        warning = f"{policy_file}: warning: on a node this file would be refused: {error}"
        print(printable(warning), file=sys.stderr)
    return compiled.policy()


def as_json(decided: Plan, container: Container, config: str) -> dict[str, Any]:
    """The whole decision as data."""
    who = container.identity
    return {
        "config": config,
        "container": {
            "engine": who.engine or None,
            "kubernetes": who.kubernetes,
            **{key: getattr(who, key) for key in ("namespace", "pod", "uid", "container", "image", "labels")},
            "types": list(who.types),
        },
        "policy": {
            "path": decided.policy.path,
            "sha256": decided.policy.fingerprint,
            "mode": decided.policy.mode,
            "heldBack": decided.policy.warning or None,
        },
        "excluded": decided.excluded or None,
        "rules": [
            {
                "name": match.rule.name,
                "applies": match.applies,
                "because": [
                    {"condition": v.field, "wanted": v.wanted, "seen": v.seen, "met": v.met} for v in match.verdicts
                ],
                "unknown": match.unknown(),
            }
            for match in decided.matches
        ],
        "allocations": [
            {"resource": a.resource, "deviceIDs": a.device_ids, "env": a.env, "cdiDevices": a.cdi}
            for a in container.facts.allocations
        ],
        "edits": [edit.describe() for edit in decided.edits],
        "denials": [reason.describe() for reason in decided.denials],
        "errors": [reason.describe() for reason in decided.errors],
        "outcome": _outcome(decided, container),
    }


_CORRECTED = "started corrected: config.json already is what the wrapper made of it when the container was created"


def _outcome(decided: Plan, container: Container) -> str:
    if not decided.edits and not decided.refusal() and decision.ANNOTATION in container.annotations:
        return _CORRECTED
    if decided.refusal():
        return "refused: " + decided.refusal()
    if decided.excluded:
        return f"left alone: excluded by {decided.excluded}"
    if decided.audit_only() and not decided.is_empty():
        return "started unchanged: mode is Audit"
    return "started corrected" if decided.edits else "started unchanged"


def _table(decided: Plan, container: Container, config: str) -> str:
    parts = [*_identity(container.identity, config), _line("policy", f"{decided.policy.path} ({decided.policy.mode})")]
    if decided.policy.warning:
        parts.append(_line("WARNING", decided.policy.warning))
    if decided.matches:
        rows = [[match.rule.name, "yes" if match.applies else "no", _why(match)] for match in decided.matches]
        parts += ["", table(rows, ["RULE", "APPLIES", "WHY"])]
    for allocation in container.facts.allocations:
        what = " ".join([f"{name}={value}" for name, value in allocation.env.items()] + allocation.cdi)
        parts += ["", _line("allocated", f"{allocation}: {what}")]
    if decided.edits:
        rows = [[edit.rule, edit.kind, edit.name, *_words(edit)] for edit in decided.edits]
        parts += ["", table(rows, ["RULE", "WHAT", "NAME", "BEFORE", "AFTER"])]
    for label, reasons in (("denied", decided.denials), ("error", decided.errors)):
        for reason in reasons:
            parts += ["", _line(label, str(reason))]
    return "\n".join([*parts, "", _line("result", _outcome(decided, container))])


def _line(label: str, text: str) -> str:
    """One line, whatever a pod's author wrote into the text."""
    return f"{label:10} {printable(text)}"


def _identity(who: Identity, config: str) -> list[str]:
    if who.kubernetes is False:
        kind = f"of no pod ({who.engine})" if who.engine else "of no pod"
    elif who.kubernetes is None:
        kind = "unknown: annotations of more than one engine"
    else:
        kind = f"{who} ({who.engine}, {' or '.join(who.types)})"
    known = " ".join(f"{key}={value}" for key, value in who.as_dict().items())
    lines = [_line("config", config), _line("container", kind)]
    return [*lines, _line("", known)] if known else lines


def _why(match: Match) -> str:
    if not match.verdicts:
        return "no conditions: every container"
    counts = match.applies or not match.rule.skip_unknown
    words = []
    for verdict in match.verdicts:
        if verdict.met is None:
            words.append(f"{verdict.field} cannot be seen here, {'counts as met' if counts else 'does not count'}")
        else:
            words.append(f"{verdict.field} {verdict.seen} {'is' if verdict.met else 'is not'} {verdict.wanted}")
    return "; ".join(words)


def _words(edit: Edit) -> tuple[str, str]:
    before, after = edit.words()
    return before, f"{after} from {edit.origin}" if edit.origin else after


def _diff(decided: Plan, spec: Spec, config: str) -> str:
    """Unified diff of config.json, indented on both sides, as the runtime adapter would leave it."""
    before = json.dumps(json.loads(spec.render()), indent=2).splitlines(keepends=True)
    if not decided.refusal() and not decided.audit_only():
        decided.apply(spec)
        spec.annotations = decision.stamp(spec.annotations, decided.env, decided.policy.fingerprint)
    elif decided.audit_only():
        spec.annotations = decision.stamp(spec.annotations, Reserved({}, []), "")
    after = json.dumps(json.loads(spec.render()), indent=2).splitlines(keepends=True)
    name = printable(config)  # the lines themselves are JSON in ASCII
    return "".join(difflib.unified_diff(before, after, name, name + " (corrected)", n=2))
