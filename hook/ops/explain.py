"""`reassert explain`: print the decision about a container, from its config.json or its pod. Nothing is changed."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hook.compile.compiler import compile_bytes
from hook.compile.in_force import read_source
from hook.core.audited import AuditedRules
from hook.core.base.errors import ReassertError, Usage
from hook.core.base.system import Untrusted, read_file, trusted
from hook.core.base.text import joined, printable
from hook.core.base.urls import without_credentials
from hook.core.container.identity import Identity, identify
from hook.core.container.oci import Mount
from hook.core.container.spec import CONFIG_LIMIT, Spec
from hook.core.decide import Case
from hook.core.facts import Container, Facts
from hook.core.plan import Plan
from hook.core.policy import store
from hook.core.policy.model import Match, Policy, Rule
from hook.core.policy.sources import Allowed
from hook.core.policy.trust_layout import ASIDE_PATH, store_of
from hook.core.reserve.edits import Edit, Reason
from hook.core.reserve.losses import losses
from hook.core.reserve.reserved_env import Reserved
from hook.entry.write_spec import hidden, of_the_image, stamp
from hook.inside.running import Node, foreseen
from hook.node.engines.base import NRI
from hook.node.engines.facts import TRACES
from hook.node.words import actual, wanted, words
from hook.ops.adapter import Command
from hook.ops.at_create import is_corrected
from hook.ops.policy.pods import STDIN, UID
from hook.resident.terminal import OUTPUTS, columns, line, table

if TYPE_CHECKING:
    from hook.ops.policy.pods import Pod


def add_commands(explain: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert explain` to the parser."""
    explain.add_argument(
        "target",
        metavar="TARGET",
        help="a file: an OCI config.json, or YAML or JSON with pods or objects with a template of one, which need not "
        "run; an OCI bundle's directory; -: such a file on standard input; or a container that runs: its id, the id's "
        "beginning, or its name",
    )
    explain.add_argument(
        "--adapter",
        choices=("runtime", "nri", "hook", "all"),
        help="of a file with pods; all: each; default: how this node is wired, else runtime",
    )
    explain.add_argument("--workload", metavar="NAME", help="of a file with pods: only this one; NAME or KIND/NAME")
    explain.add_argument("--gvisor", action="store_true", help="for gVisor's runsc, which gets no mount option rro")
    explain.add_argument("--policy", metavar="FILE", help="policy file to use instead of the policy in force")
    explain.add_argument("--store", metavar="DIR", default=store.STORE, help=argparse.SUPPRESS)
    explain.add_argument("-o", "--output", choices=(*OUTPUTS, "diff"), default="table")
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the decision. Returns 1 for a container that is refused. Raises Usage, ReassertError, OSError."""
    target = options.target
    if target != STDIN and not os.path.lexists(target):
        return explain_running(target, options.policy, options.store, options.output)
    path = os.path.join(target, "config.json") if os.path.isdir(target) else target
    content = _content(path)
    if _has_pods(content, path):
        if options.output == "diff":
            raise Usage("-o diff is for a config.json; a pod has none yet")
        return explain_pods(options, content)
    return explain(path, options.policy, options.store, options.output, gvisor=options.gvisor, content=content)


def _content(path: str) -> bytes:
    """What a file has, or standard input. Raises ReassertError, OSError."""
    if path == STDIN:
        content = sys.stdin.buffer.read(CONFIG_LIMIT + 1)
    else:
        with open(path, "rb") as file:  # also a pipe: <(kubectl get pod …)
            content = file.read(CONFIG_LIMIT + 1)
    if len(content) > CONFIG_LIMIT:
        raise ReassertError(f"{path}: larger than the limit of {CONFIG_LIMIT} bytes")
    return content


def _has_pods(content: bytes, path: str) -> bool:
    """Whether a file has objects of Kubernetes, and is no config.json, which is JSON."""
    if not content.lstrip().startswith(b"{"):
        return not path.endswith("config.json")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return not path.endswith(".json")
    return "ociVersion" not in found and ("kind" in found or "items" in found)


@dataclass
class _Explained:
    """The decision about one container of a pod. `adapters`: those that agree whether it starts."""

    pod: Pod
    adapters: list[str]
    decided: Plan
    case: Case
    outcome: str
    seen: Plan

    def as_json(self, file: str) -> dict[str, Any]:
        """For programs."""
        found = as_json(self.decided, self.case.container, file, self.case.audited_rules, self.outcome, self.seen)
        return {**found, "workload": self.pod.workload, "adapters": self.adapters}


def explain_pods(options: argparse.Namespace, content: bytes) -> int:
    """Print the decision about each container of each pod of a file, as an adapter makes it. `content`: the file's.

    Of `--adapter all`, those that agree whether the container starts are shown once. Returns 1 if a container is
    refused. The image's ENV and what device plugins would allocate are not known. Raises ReassertError, OSError.
    """
    from hook.ops.policy import adapters
    from hook.ops.policy.pods import documents, pod, pods

    file = options.target
    policy = policy_of(options.policy, options.store)
    found = documents(file, content)
    chosen = [pod(found, file, options.workload)] if options.workload else pods(found, file)
    node = this_node()
    adapter_of = _Here if options.policy is None or adapters.is_wired() else _Elsewhere
    shown: list[_Explained] = []
    for each in chosen:
        for types, container in each.containers():
            of_container: dict[bool, _Explained] = {}
            for way in adapters.ways(options.adapter or adapters.DEFAULT):
                case = Case(adapter_of(policy, options.gvisor), "")
                one = _explained(each, types, container, way, case, node)
                same = of_container.setdefault(one.outcome.startswith(REFUSED), one)
                if same is not one:
                    same.adapters += one.adapters
            shown += of_container.values()
    if options.output == "json":
        print(json.dumps([one.as_json(file) for one in shown], indent=2))
    else:
        _print_pods(shown, file, node, columns(options.output))
    return int(any(one.outcome.startswith(REFUSED) for one in shown))


REFUSED = "refused: "
"""The beginning of the outcome of a container that does not start."""


def _explained(
    pod: Pod, types: tuple[str, ...], container: dict[str, Any], way: tuple[str, ...], case: Case, node: Node | None
) -> _Explained:
    from hook.ops.policy import adapters
    from hook.ops.policy.pods import Given

    identity, start = pod.start(types, container, Given(), NRI in way)
    adapters.add_base_env(way, case.adapter.policy(), start, {})
    decided = case.decide(identity, start)
    pod.check_needed(decided.denials)
    seen = foreseen(decided, start, node)
    case.would_refuse(seen.audited)
    refused = adapters.refusal(way, decided, case.container, seen)
    outcome = f"{REFUSED}{refused}" if refused else _outcome(decided, case.container) + _closed(decided, seen)
    return _Explained(pod, [*way], decided, case, outcome, seen)


def _print_pods(shown: list[_Explained], file: str, node: Node | None, width: int) -> None:
    several = len({one.pod.workload for one in shown}) > 1
    for number, one in enumerate(shown):
        print("\n" if number else "", end="")
        about = [*([("workload", one.pod.workload)] if several else []), ("adapter", ", ".join(one.adapters))]
        container, tried = one.case.container, one.case.audited_rules
        print(as_table(one.decided, container, file, tried, one.outcome, one.seen, about=about, width=width))
        if node is None and one.decided.node_paths_of_reassert:
            print(_line("assumed", ASSUMED, width))
        if one.decided.exclusive is not None:
            print(_line("not judged", OF_A_NODE, width))
        applied = [match.rule for match in one.decided.matches if match.applies]
        chosen = [env.name for rule in applied for env in rule.env if isinstance(env, Allowed)]
        for name, lacking in sorted(one.pod.not_given.get(one.case.container.identity.container or "", {}).items()):
            unsure = name in chosen or (name.endswith("*") and any(each.startswith(name[:-1]) for each in chosen))
            why = ": whether the policy allows its value is not known" if unsure else ""
            print(_line("not given", f"{lacking}, which sets {name}{why}", width))
    if any(isinstance(one.case.adapter, _Elsewhere) and one.case.adapter.has_assumed for one in shown):
        print("\n" + _line("assumed", ELSEWHERE, width))


OF_A_NODE = "which devices the container gets: rules with `exclusive` need a node; `reassert verify` tries them there"
"""What explain says of rules that a file of pods cannot show."""

ELSEWHERE = (
    "this machine is not a node with reassert: the policy's hostPaths, trust stores and value files are taken as there"
)


class _Here(Command):
    """For a container that would start on this machine. `store`: that of the node, if engine and kubelet are asked."""

    def __init__(self, policy: Policy, is_gvisor: bool, store: str = "") -> None:
        super().__init__("explain", policy)
        self.is_gvisor = is_gvisor
        self.learns, self.sockets = bool(store), store

    def facts(self, policy: Policy, identity: Identity, matches: list[Match], container_id: str) -> Facts:
        """See Adapter. What a hostPath has for a pod that is not created yet is taken as there."""
        facts = super().facts(policy, identity, matches, container_id)
        facts.absent_sources = {path for path in facts.absent_sources if UID not in path}
        return facts


class _Elsewhere(_Here):
    """For a container that would start on another machine, which has what the policy names.

    `has_assumed`: whether this machine lacks something of it.
    """

    has_assumed = False

    def add_mounted(self, facts: Facts, rules: list[Rule], mounts: list[Mount]) -> None:
        """See Adapter."""
        super().add_mounted(facts, rules, mounts)
        self.has_assumed = bool(facts.absent_sources or facts.unreadable)
        facts.files.update({path: f"<first line of {path}>" for path in facts.unreadable})
        facts.absent_sources, facts.unreadable = set(), {}


def explain(
    config: str,
    policy_file: str | None,
    store_directory: str,
    output: str,
    *,
    runs: bool = False,
    gvisor: bool = False,
    content: bytes | None = None,
) -> int:
    """Print the decision. Returns 1 for a container that is refused. Raises ReassertError, OSError.

    `runs`: it is the config.json of a container that runs, in the bundle that its engine made. `gvisor`: under runsc.
    `content`: the file's, None if it was not read; STDIN is in no bundle.
    """
    policy = policy_of(policy_file, store_directory)
    spec = Spec(read_file(config, CONFIG_LIMIT) if content is None else content, config)
    bundle = os.path.dirname(os.path.abspath(config)).removesuffix("/userdata")  # CRI-O's
    case = Case(_Here(policy, gvisor, store_directory), os.path.basename(bundle))
    decided = case.decide(identify(spec, copied=not runs), spec)
    container = case.container
    seen = foreseen(decided, spec, this_node())
    case.would_refuse(seen.audited)
    has_image = not runs and config != STDIN and os.path.isdir(os.path.join(bundle, str(spec.root.get("path", ""))))
    wrong = of_the_image(decided, spec, bundle) if has_image else []
    hides = hidden(decided, spec, bundle) if has_image and not decided.refusal() else []
    found = [*seen.denials, *wrong]
    is_refused = bool(decided.refusal() or (found and not decided.audit_only()))
    if is_refused and not decided.refusal():
        outcome = REFUSED + joined(found)
        if runs:
            outcome = "runs; a new container would be " + outcome
    else:
        outcome = _outcome_of_running(decided, container) if runs else _outcome(decided, container)
        outcome += _closed(decided, seen)
    if gvisor and decided.mounts and not decided.excluded:
        outcome += IN_SENTRY
    if output == "json":
        print(json.dumps(as_json(decided, container, config, case.audited_rules, outcome, seen, hides), indent=2))
    elif output == "diff":
        sys.stdout.write(_diff(decided, spec, config))
    else:
        width = columns(output)
        print(as_table(decided, container, config, case.audited_rules, outcome, seen, hides, width=width))
    return int(is_refused)


def explain_running(word: str, policy_file: str | None, store_directory: str, output: str) -> int:
    """The same for a container that runs, by its id, the beginning of its id, or its name."""
    from hook.inside.containers import GVISOR, chosen, running

    try:
        found = chosen(word, running(TRACES))
    except ReassertError as error:
        raise ReassertError(f"{word}: no file or directory has this name; as a container: {error}") from None
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


ASSUMED = (
    "no link and no mount of the node leads from a volume to reassert's own files; root is told by the mounts here"
)
"""What explain says of volumes where it cannot look."""


def this_node() -> Node | None:
    """The mounts of this machine; None for another user than root, who cannot follow each hostPath."""
    return Node() if os.geteuid() == 0 else None


def _closed(decided: Plan, seen: Plan) -> str:
    """What becomes read-only of a container's volumes."""
    if not seen.read_only:
        return ""
    closes = decided.policy.closes and not decided.audit_only()
    return f"; {'' if closes else 'would be '}made read-only: {', '.join(seen.read_only)}"


def as_json(
    decided: Plan,
    container: Container,
    config: str,
    audited: AuditedRules | None,
    outcome: str,
    seen: Plan,
    hides: Sequence[str] = (),
) -> dict[str, Any]:
    """The decision as data."""
    described = _described(decided)
    described["denials"] += [reason.describe() for reason in _more(decided, seen)]
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
                    {"condition": field, "wanted": wanted(match, field), "seen": actual(match, field), "met": met}
                    for field, met in match.met.items()
                ],
                "unknown": [field for field, met in match.met.items() if met is None],
            }
            for match in decided.matches
        ],
        "allocations": [
            {"resource": a.resource, "deviceIDs": a.device_ids, "env": a.env, "cdiDevices": a.cdi_devices()}
            for a in container.facts.allocations
        ],
        "claims": [{"name": c.name, "cdiDevices": c.cdi} for c in container.facts.claims],
        "inexactClaims": container.facts.inexact_claims or None,
        **described,
        "madeReadOnly": seen.read_only,
        "reaches": seen.node_paths,
        "tried": _described(audited) if audited is not None else None,
        "loses": [*hides, *_lost(decided, container, audited)],
        "outcome": outcome,
    }


def _more(decided: Plan, seen: Plan) -> list[Reason]:
    """The reasons to refuse a container that the paths in its config.json do not show."""
    known = [str(reason) for reason in decided.denials]
    return [reason for reason in seen.denials if str(reason) not in known]


def _described(decided: Plan | AuditedRules) -> dict[str, Any]:
    return {
        kind: [entry.describe() for entry in entries]
        for kind, entries in (("edits", decided.edits), ("denials", decided.denials), ("errors", decided.errors))
    }


def _lost(decided: Plan, container: Container, audited: AuditedRules | None) -> list[str]:
    """What the container loses and may need, also by rules in Audit mode."""
    whole = (audited and audited.plan) or decided
    if decided.refusal():
        return []
    return losses(whole, container.start.env) + _read_only_stores(whole)


def _read_only_stores(decided: Plan) -> list[str]:
    """What each container loses that has a trust store over the image's CA files."""
    paths = [e.name for e in decided.mounts if e.name != ASIDE_PATH and "ro" in e.options() and store_of(e.source())]
    if not paths:
        return []
    what = f"cannot write to {', '.join(paths)}: writable in the image, read-only now"
    return [f"{what}; update-ca-certificates and a package manager that installs CAs fail there (docs/trust.md)"]


IN_SENTRY = (
    ". gVisor's kernel makes the mounts: reassert verifies config.json and, at create, the links on the way; what is "
    "mounted stands in /proc/mounts of the container"
)
"""What a config.json does not show about reserved mounts under runsc (docs/internals/runtime.md#gvisor)."""

_CORRECTED = "corrected by reassert at create: this config.json is already what the policy wants"


def _outcome(decided: Plan, container: Container) -> str:
    if not decided.edits and not decided.refusal() and is_corrected(container.start):
        return _CORRECTED
    if decided.refusal():
        return REFUSED + decided.refusal()
    if decided.excluded:
        return f"left alone: excluded by {decided.excluded}"
    if decided.audit_only() and not decided.is_empty():
        return "started unchanged: mode is Audit"
    return "started corrected" if decided.edits else "started unchanged"


def _outcome_of_running(decided: Plan, container: Container) -> str:
    if decided.excluded:
        return f"left alone: excluded by {decided.excluded}"
    if decided.is_empty():
        corrected = is_corrected(container.start)
        return _CORRECTED if corrected else "created as the policy wants it: nothing to correct"
    would = "refused" if decided.refusal() else "corrected"
    if decided.audit_only():
        return "runs as it was created: mode is Audit"
    return f"its config.json is not what the policy wants: a new container would be {would}. See `reassert audit`"


def as_table(
    decided: Plan,
    container: Container,
    config: str,
    audited: AuditedRules | None,
    outcome: str,
    seen: Plan,
    hides: Sequence[str] = (),
    *,
    about: Sequence[tuple[str, str]] = (),
    width: int = 0,
) -> str:
    """The decision as text, the outcome first.

    `about`: more lines about the container, label and text. `width`: columns of the terminal, 0 for any number.
    """

    def _said(label: str, text: str) -> str:
        return _line(label, text, width)

    head = [("result", outcome), *about, *_identity(container.identity, config)]
    parts = [_said(label, text) for label, text in head]
    parts.append(_said("policy", f"{decided.policy.path} ({decided.policy.mode})"))
    if decided.policy.warning:
        parts.append(_said("WARNING", decided.policy.warning))
    if decided.matches:
        rows = [
            [match.rule.name, "tried" if match.is_audited else "yes" if match.applies else "no", _why(match)]
            for match in decided.matches
        ]
        parts += ["", table(rows, ["RULE", "APPLIES", "WHY"], width)]
    for claim in container.facts.claims:
        parts += ["", _said("claimed", f"{claim}: {' '.join(claim.cdi)}")]
    if container.facts.inexact_claims:
        parts.append(_said("", f"perhaps not all of them: {container.facts.inexact_claims}"))
    for allocation in container.facts.allocations:
        what = " ".join([f"{name}={value}" for name, value in allocation.env.items()] + allocation.cdi_devices())
        parts += ["", _said("allocated", f"{allocation}: {what}")]
    if decided.edits:
        parts += ["", _edits(decided.edits, width)]
    parts += [text for loss in [*hides, *_lost(decided, container, audited)] for text in ("", _said("loses", loss))]
    parts += [_said("reaches", path) for path in seen.node_paths]
    for label, reasons in (("denied", [*decided.denials, *_more(decided, seen)]), ("error", decided.errors)):
        parts += [text for each in map(str, reasons) if each not in outcome for text in ("", _said(label, each))]
    if audited:
        parts += ["", "the rules in Audit mode would do, if they were enforced:"]
        if audited.edits:
            parts.append(_edits(audited.edits, width))
        parts += [_said("refuse", str(reason)) for reason in [*audited.denials, *audited.errors]]
    return "\n".join(parts)


def _line(label: str, text: str, width: int) -> str:
    """One line of the table. Newlines and control characters of a pod's text are escaped."""
    return line(text, width, 11, f"{label:10} ")


def _identity(identity: Identity, config: str) -> list[tuple[str, str]]:
    if identity.kubernetes is False:
        kind = f"of no pod ({identity.engine})" if identity.engine else "of no pod"
    elif identity.kubernetes is None:
        kind = "unknown: annotations claim a pod, and nothing proves which engine wrote them"
    else:
        kind = f"{identity} ({identity.engine}, {' or '.join(identity.types)})"
    known = " ".join(f"{key}={value}" for key, value in identity.as_dict().items())
    lines = [("config", config), ("container", kind)]
    return [*lines, ("", known)] if known else lines


def _why(match: Match) -> str:
    if not match.met:
        return "no conditions: every container"
    counts = match.applies or match.is_audited or not match.rule.skip_unknown
    words = []
    for field, met in match.met.items():
        if met is None:
            words.append(f"{field} is unknown here, {'counts as met' if counts else 'counts as not met'}")
        else:
            words.append(f"{field} {actual(match, field)} {'is' if met else 'is not'} {wanted(match, field)}")
    return "; ".join(words)


def _edits(edits: Iterable[Edit], width: int) -> str:
    rows = []
    for edit in edits:
        before, after = words(edit)
        rows.append([edit.rule, edit.kind, edit.name, before, f"{after} from {edit.origin}" if edit.origin else after])
    return table(rows, ["RULE", "WHAT", "NAME", "BEFORE", "AFTER"], width)


def _diff(decided: Plan, spec: Spec, config: str) -> str:
    """Unified diff of config.json and of what the runtime wrapper makes of it, both indented."""
    before = json.dumps(json.loads(spec.render()), indent=2).splitlines(keepends=True)
    if not decided.refusal() and not decided.audit_only():
        decided.apply(spec)
        spec.annotations = stamp(spec.annotations, decided.env, fingerprint=decided.policy.fingerprint)
    elif decided.audit_only():
        spec.annotations = stamp(spec.annotations, Reserved({}, []), fingerprint="")
    after = json.dumps(json.loads(spec.render()), indent=2).splitlines(keepends=True)
    name = printable(config)  # the lines themselves are JSON in ASCII
    lines = difflib.unified_diff(before, after, name, name + " (corrected)", n=2)
    return "".join(map(without_credentials, lines))
