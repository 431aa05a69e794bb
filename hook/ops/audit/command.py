"""`reassert audit`."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter

from hook.core.base.errors import ReassertError, Usage
from hook.core.policy.store import SOURCE, STORE, load
from hook.inside.containers import chosen, running
from hook.inside.traces import marks
from hook.node.engines.facts import TRACES
from hook.node.kept import DRIFTED, EXEMPT, UNKNOWN
from hook.ops.audit.audit import (
    AT_ITS_START,
    Audit,
    ContainerReport,
    Round,
    audit,
    draft,
    preflight,
    read_round,
)
from hook.ops.audit.drift import keep, tell
from hook.resident.parser import add_log_options
from hook.resident.terminal import OUTPUTS, columns, counted, hashed, line, table

_SHOWN = 3
"""How many differences of a container the table shows if no container was named: with `trust`, one can have 30."""

_VOLUMES = "its volumes reach reassert's own files, or an engine's"
_AS_IT_IS = "its config.json, its files and its mounts, as they are now"
"""Why something becomes of a container at its next start."""

_SANDBOX = "container type sandbox is excluded"


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert audit` to the parser."""
    parser.add_argument("container", nargs="*", metavar="CONTAINER", help="only these: an id, its beginning, or a name")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table")
    parser.add_argument(
        "--preflight",
        action="store_true",
        help="before an upgrade, with the program of the new version: what it would do to each container that runs, at "
        "its next start; exit status 1 if it would refuse one. The node is left as it is",
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        default=SOURCE,
        help="a draft: which containers it would refuse or start otherwise than the policy in force, at their next "
        "start; exit status 1 if there is one. Nothing is stored",
    )
    parser.add_argument("--store", metavar="DIR", default=STORE, help=argparse.SUPPRESS)
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Audit once. Returns the exit status."""
    since = marks(TRACES)
    there = running(TRACES)
    try:
        there = [chosen(word, there) for word in dict.fromkeys(options.container)] or there
    except ReassertError as error:
        raise Usage(str(error)) from None
    found = audit(_round(os.path.abspath(options.policy), options), there)
    if not found.round.is_preflight and found.round.in_force is None:
        tell(found)
        if not options.container and (found.round.policy.path, options.store) == (SOURCE, STORE):
            keep(found, since)
    if options.output == "json":
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print(as_table(found, None if options.container else _SHOWN, columns(options.output)))
    return found.exit_status()


def _round(policy: str, options: argparse.Namespace) -> Round:
    """The policy to audit by, which is a draft where it is not the node's. Raises ReassertError."""
    if options.preflight:
        return preflight(policy)
    if policy != SOURCE and options.store == STORE:
        return draft(policy, load(SOURCE, STORE))
    return read_round(policy, options.store)


def as_table(found: Audit, limit: int | None = None, width: int = 0) -> str:
    """The numbers; then one line for each difference and for each container that is exempt or could not be seen.

    `limit`: of the differences of one container; all if it is None. `width`: columns of the terminal, 0 for any number.
    """
    sandboxes = [each for each in found.findings if each.because == _SANDBOX and not each.is_changed()]
    named = [each for each in found.findings if len(sandboxes) < 2 or each not in sandboxes]
    rows = [row for finding in named for row in _some(_rows(finding, width), finding, limit)]
    if len(sandboxes) > 1:  # one for each pod
        rows.append([EXEMPT, f"{len(sandboxes)} sandboxes of pods", "-", "-", _SANDBOX, sandboxes[0].line])
    counts = found.counts()
    numbers = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    policy = found.round.policy
    remarks = [f"{len(found.findings)} containers: {numbers or 'none'}. Policy {policy.path} ({policy.mode})"]
    if found.round.is_preflight:
        remarks = [f"{counted(len(found.findings), 'container')}: at the next start {found.refused()} would be refused"]
        remarks[0] += f", {counts[DRIFTED]} would differ from what runs. Policy {policy.path} ({policy.mode})"
    if found.round.in_force is not None:
        remarks = [f"{counted(len(found.findings), 'container')}: at the next start {found.changed()} would start"]
        remarks[0] += f" otherwise than under the policy in force, {found.refused()} would be refused"
        remarks[0] += f"; {counts[UNKNOWN]} could not be looked at" if counts[UNKNOWN] else ""
        remarks[0] += f". Policy {policy.path} ({policy.mode})"
    in_force = found.round.in_force or policy
    if in_force.warning or in_force.missing:
        remarks.insert(0, f"! {in_force.warning or 'no policy: ' + in_force.missing}")
    seen = Counter(trust for finding in found.findings for trust in finding.trusts)
    remarks += [f"{trust}: seen by {counted(count, 'container')}" for trust, count in seen.items()]
    lines = ["", table(rows, ["STATE", "CONTAINER", "ID", "ENGINE", "WHAT", "WHY"], width)] if rows else []
    return "\n".join([*(line(remark, width, 2) for remark in remarks), *lines])


def _rows(finding: ContainerReport, width: int) -> list[list[str]]:
    title = hashed(finding.id, width) if finding.title == finding.id else finding.title
    about = [finding.state, title, finding.id[:12], finding.engine or "-"]
    otherwise = [
        *((f"{name} is decided otherwise than in force", AT_ITS_START) for name in _unsaid(finding)),
        *((f"{name} is in force, and not in this policy", AT_ITS_START) for name in finding.unreserved),
    ]
    if finding.state in (EXEMPT, UNKNOWN):
        return [[*about, what, why] for what, why in [(finding.because, finding.line), *otherwise]]
    said = [(f"rule {d.rule}: {d.message}" if d.rule else d.message, d.why) for d in finding.differences]
    said += [(f"a volume reaches {path}", "the policy's nodePaths only report it") for path in finding.reaches]
    said += [
        (f"at its next start {what}", _VOLUMES if "nodePaths." in what or "read-only: " in what else _AS_IT_IS)
        for what in finding.next_start
    ]
    return [[*about, what, why] for what, why in said + otherwise]


def _unsaid(finding: ContainerReport) -> list[str]:
    """The changes of a draft that no difference and no refusal of the container says already."""
    said = {f"{each.kind} {each.name}" for each in finding.differences}
    return [name for name in finding.changes if name not in said and not (name == "refusal" and finding.is_refused())]


def _some(rows: list[list[str]], finding: ContainerReport, limit: int | None) -> list[list[str]]:
    if limit is None or len(rows) <= limit + 1:
        return rows
    more = f"and {len(rows) - limit} more: reassert audit {finding.id[:12]}"
    return [*rows[:limit], [*rows[0][:4], more, ""]]
