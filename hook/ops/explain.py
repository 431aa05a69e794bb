"""`reassert explain`: print the decision about a container, from its config.json or its pod. Nothing is changed."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from hook.core.audited import AuditedRules
from hook.core.base.errors import ReassertError, Usage
from hook.core.base.system import Untrusted, read_file, trusted
from hook.core.base.text import printable
from hook.core.base.urls import without_credentials
from hook.core.container.identity import Identity, identify
from hook.core.container.spec import LIMIT, Spec
from hook.core.decide import Case
from hook.core.facts import Container
from hook.core.plan import Plan
from hook.core.policy import store
from hook.core.policy.compiler import compile_bytes, read_source
from hook.core.policy.model import Match, Policy
from hook.core.reserve import Edit, Reserved
from hook.entry.write_spec import ANNOTATION, stamp
from hook.node.engines.base import NRI
from hook.node.terminal import table
from hook.node.words import actual, wanted, words


def add_commands(explain: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert explain` to the parser."""
    which = explain.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "pod",
        nargs="?",
        metavar="POD.yaml",
        help="file with a pod, which need not run. Exit status 1: the adapters decide differently",
    )
    which.add_argument("--bundle", metavar="DIR", help="OCI bundle")
    which.add_argument("--config", metavar="FILE", help="OCI config.json")
    which.add_argument(
        "--container", metavar="CONTAINER", help="a container that runs: its id, the id's beginning, or its name"
    )
    explain.add_argument(
        "--adapter",
        choices=("runtime", "nri", "hook"),
        help="of a POD.yaml; default: how this node is wired, else each adapter",
    )
    explain.add_argument("--gvisor", action="store_true", help="for gVisor's runsc, which gets no mount option rro")
    explain.add_argument("--policy", metavar="FILE", help="policy file to use instead of the policy in force")
    explain.add_argument("--store", metavar="DIR", default=store.STORE, help=argparse.SUPPRESS)
    explain.add_argument("-o", "--output", choices=("table", "json", "diff"), default="table")
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the decision. Returns 0 also for a container that is refused. Raises Usage, ReassertError, OSError."""
    if options.pod:
        if options.output == "diff":
            raise Usage("-o diff is for a config.json; a pod has none yet")
        return explain_pod(options.pod, options.policy, options.store, options.output, options.gvisor, options.adapter)
    if options.container:
        return explain_running(options.container, options.policy, options.store, options.output)
    config = options.config or os.path.join(options.bundle, "config.json")
    return explain(config, options.policy, options.store, options.output, gvisor=options.gvisor)


def explain_pod(
    file: str,
    policy_file: str | None,
    store_directory: str,
    output: str,
    gvisor: bool = False,
    adapter: str | None = None,
) -> int:
    """Print the decision about each container of a pod, as `adapter` makes it (hook.ops.policy.adapters.ways).

    Adapters that agree whether the container starts are shown once. Returns 1 if they do not agree. The image's ENV and
    what device plugins would allocate are not known. Raises ReassertError, OSError.
    """
    from hook.ops.policy import adapters
    from hook.ops.policy.pods import Given, Pod, documents

    policy = policy_of(policy_file, store_directory)
    pod = Pod(documents(file), file)
    shown: list[tuple[list[str], Plan, Case, str]] = []
    status = 0
    for kind, container in pod.containers():
        found: dict[bool, tuple[list[str], Plan, Case, str]] = {}
        for way in adapters.ways(adapter):
            case = Case("explain", "", lambda: policy)
            case.in_sentry = gvisor
            identity, start = pod.start(kind, container, Given(), NRI in way)
            adapters.add_base_env(way, policy, start, {})
            decided = case.decide(identity, start)
            refused = adapters.refusal(way, decided, case.container)
            outcome = f"refused: {refused}" if refused else _outcome(decided, case.container)
            same = found.setdefault(bool(refused), ([], decided, case, outcome))
            same[0].extend(way)
        shown += found.values()
        status = max(status, len(found) > 1)
    if output == "json":
        entries = [
            {**as_json(decided, case.container, file, case.audited_rules, outcome), "adapters": names}
            for names, decided, case, outcome in shown
        ]
        print(json.dumps(entries, indent=2))
        return status
    for number, (names, decided, case, outcome) in enumerate(shown):
        print("\n" if number else "", end="")
        print(_line("adapter", ", ".join(names)))
        print(as_table(decided, case.container, file, case.audited_rules, outcome))
    if status:
        print("reassert: the adapters decide differently; name one with --adapter", file=sys.stderr)
    return status


def explain(
    config: str, policy_file: str | None, store_directory: str, output: str, runs: bool = False, gvisor: bool = False
) -> int:
    """Print the decision. Returns 0 also for a container that is refused. Raises ReassertError, OSError.

    `runs`: it is the config.json of a container that runs, in the bundle that its engine made. `gvisor`: under runsc.
    """
    policy = policy_of(policy_file, store_directory)
    spec = Spec(read_file(config, LIMIT), config)
    bundle = os.path.dirname(os.path.abspath(config)).removesuffix("/userdata")  # CRI-O's
    case = Case("explain", os.path.basename(bundle), lambda: policy)
    case.asks = store_directory, None
    case.in_sentry = gvisor
    decided = case.decide(identify(spec, copied=not runs), spec)
    container = case.container
    outcome = _outcome_of_running(decided, container) if runs else _outcome(decided, container)
    if gvisor and decided.mounts and not decided.excluded:
        outcome += IN_SENTRY
    if output == "json":
        print(json.dumps(as_json(decided, container, config, case.audited_rules, outcome), indent=2))
    elif output == "diff":
        sys.stdout.write(_diff(decided, spec, config))
    else:
        print(as_table(decided, container, config, case.audited_rules, outcome))
    return 0


def explain_running(word: str, policy_file: str | None, store_directory: str, output: str) -> int:
    """The same for a container that runs, by its id, the beginning of its id, or its name."""
    from hook.ops.audit.inventory import GVISOR, chosen, running

    found = chosen(word, running())
    if not found.config:
        raise ReassertError(f"{found.id} runs (process {found.pid}), but its config.json is unknown: {found.problem}")
    return explain(found.config, policy_file, store_directory, output, runs=True, gvisor=found.problem == GVISOR)


def policy_of(policy_file: str | None, store_directory: str) -> Policy:
    """The given policy file, compiled but not stored; without one, the policy in force on this node."""
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


def as_json(
    decided: Plan, container: Container, config: str, audited: AuditedRules | None, outcome: str
) -> dict[str, Any]:
    """The decision as data."""
    identity = container.identity
    return {
        "config": config,
        "container": {
            "engine": identity.engine or None,
            "kubernetes": identity.kubernetes,
            **{key: getattr(identity, key) for key in ("namespace", "pod", "uid", "container", "image", "labels")},
            "types": list(identity.types),
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
                "tried": match.is_audited,
                "because": [
                    {"condition": c.field, "wanted": wanted(c), "seen": actual(c), "met": c.met}
                    for c in match.conditions
                ],
                "unknown": [condition.field for condition in match.conditions if condition.met is None],
            }
            for match in decided.matches
        ],
        "allocations": [
            {"resource": a.resource, "deviceIDs": a.device_ids, "env": a.env, "cdiDevices": a.cdi}
            for a in container.facts.allocations
        ],
        "claims": [{"name": c.name, "cdiDevices": c.cdi} for c in container.facts.claims],
        "inexactClaims": container.facts.inexact_claims or None,
        **_described(decided),
        "tried": _described(audited) if audited is not None else None,
        "outcome": outcome,
    }


def _described(decided: Plan | AuditedRules) -> dict[str, Any]:
    return {
        kind: [entry.describe() for entry in entries]
        for kind, entries in (("edits", decided.edits), ("denials", decided.denials), ("errors", decided.errors))
    }


IN_SENTRY = (
    ". gVisor's kernel makes the mounts: reassert verifies config.json and, at create, the links on the way; what is "
    "mounted stands in /proc/mounts of the container"
)
"""What a config.json does not show about reserved mounts under runsc (docs/runtime.md#gvisor)."""

_CORRECTED = "corrected by reassert at create: this config.json is already what the policy wants"


def _outcome(decided: Plan, container: Container) -> str:
    if not decided.edits and not decided.refusal() and ANNOTATION in container.start.annotations:
        return _CORRECTED
    if decided.refusal():
        return "refused: " + decided.refusal()
    if decided.excluded:
        return f"left alone: excluded by {decided.excluded}"
    if decided.audit_only() and not decided.is_empty():
        return "started unchanged: mode is Audit"
    return "started corrected" if decided.edits else "started unchanged"


def _outcome_of_running(decided: Plan, container: Container) -> str:
    if decided.excluded:
        return f"left alone: excluded by {decided.excluded}"
    if decided.is_empty():
        corrected = ANNOTATION in container.start.annotations
        return _CORRECTED if corrected else "created as the policy wants it: nothing to correct"
    would = "refused" if decided.refusal() else "corrected"
    if decided.audit_only():
        return "runs as it was created: mode is Audit"
    return f"its config.json is not what the policy wants: a new container would be {would}. See `reassert audit`"


def as_table(decided: Plan, container: Container, config: str, audited: AuditedRules | None, outcome: str) -> str:
    """The decision as text."""
    parts = [*_identity(container.identity, config), _line("policy", f"{decided.policy.path} ({decided.policy.mode})")]
    if decided.policy.warning:
        parts.append(_line("WARNING", decided.policy.warning))
    if decided.matches:
        rows = [
            [match.rule.name, "tried" if match.is_audited else "yes" if match.applies else "no", _why(match)]
            for match in decided.matches
        ]
        parts += ["", table(rows, ["RULE", "APPLIES", "WHY"])]
    for claim in container.facts.claims:
        parts += ["", _line("claimed", f"{claim}: {' '.join(claim.cdi)}")]
    if container.facts.inexact_claims:
        parts.append(_line("", f"perhaps not all of them: {container.facts.inexact_claims}"))
    for allocation in container.facts.allocations:
        what = " ".join([f"{name}={value}" for name, value in allocation.env.items()] + allocation.cdi)
        parts += ["", _line("allocated", f"{allocation}: {what}")]
    if decided.edits:
        parts += ["", _edits(decided.edits)]
    for label, reasons in (("denied", decided.denials), ("error", decided.errors)):
        for reason in reasons:
            parts += ["", _line(label, str(reason))]
    parts += ["", _line("result", outcome)]
    if audited:
        parts += ["", "the rules in Audit mode would do, if they were enforced:"]
        if audited.edits:
            parts.append(_edits(audited.edits))
        parts += [_line("refuse", str(reason)) for reason in [*audited.denials, *audited.errors]]
    return "\n".join(parts)


def _line(label: str, text: str) -> str:
    """One line of the table. Newlines and control characters of a pod's text are escaped."""
    return f"{label:10} {printable(text)}"


def _identity(identity: Identity, config: str) -> list[str]:
    if identity.kubernetes is False:
        kind = f"of no pod ({identity.engine})" if identity.engine else "of no pod"
    elif identity.kubernetes is None:
        kind = "unknown: annotations claim a pod, and nothing proves which engine wrote them"
    else:
        kind = f"{identity} ({identity.engine}, {' or '.join(identity.types)})"
    known = " ".join(f"{key}={value}" for key, value in identity.as_dict().items())
    lines = [_line("config", config), _line("container", kind)]
    return [*lines, _line("", known)] if known else lines


def _why(match: Match) -> str:
    if not match.conditions:
        return "no conditions: every container"
    counts = match.applies or match.is_audited or not match.rule.skip_unknown
    words = []
    for condition in match.conditions:
        if condition.met is None:
            words.append(f"{condition.field} is unknown here, {'counts as met' if counts else 'counts as not met'}")
        else:
            verb = "is" if condition.met else "is not"
            words.append(f"{condition.field} {actual(condition)} {verb} {wanted(condition)}")
    return "; ".join(words)


def _edits(edits: Iterable[Edit]) -> str:
    rows = []
    for edit in edits:
        before, after = words(edit)
        rows.append([edit.rule, edit.kind, edit.name, before, f"{after} from {edit.origin}" if edit.origin else after])
    return table(rows, ["RULE", "WHAT", "NAME", "BEFORE", "AFTER"])


def _diff(decided: Plan, spec: Spec, config: str) -> str:
    """Unified diff of config.json and of what the runtime wrapper makes of it, both indented."""
    before = json.dumps(json.loads(spec.render()), indent=2).splitlines(keepends=True)
    if not decided.refusal() and not decided.audit_only():
        decided.apply(spec)
        spec.annotations = stamp(spec.annotations, decided.env, decided.policy.fingerprint)
    elif decided.audit_only():
        spec.annotations = stamp(spec.annotations, Reserved({}, []), "")
    after = json.dumps(json.loads(spec.render()), indent=2).splitlines(keepends=True)
    name = printable(config)  # the lines themselves are JSON in ASCII
    lines = difflib.unified_diff(before, after, name, name + " (corrected)", n=2)
    return "".join(map(without_credentials, lines))
