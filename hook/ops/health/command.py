"""`reassert status`, and `reassert doctor`, which is `status --all`."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from dataclasses import replace

from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.text import printable
from hook.core.policy import store
from hook.node import services, systemd
from hook.node.agent import tail
from hook.node.change.record import Record
from hook.node.choice import add_engine
from hook.node.engines import registry
from hook.node.errors import NodeError
from hook.ops.health import status
from hook.ops.health.node import Node, look
from hook.resident.parser import add_log_options
from hook.resident.terminal import OUTPUTS, columns

_CHARTS = ("condition", "enforcement")
"""Values of --output that the chart uses (packaging/kubernetes/image)."""


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert doctor` to the parser."""
    add_status(parser)
    parser.set_defaults(all=True)


def add_status(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `status` to a parser."""
    add_engine(parser, "default: every engine of this node")
    parser.add_argument("-o", "--output", choices=(*OUTPUTS, *_CHARTS), metavar="{table,wide,json}", default="table")
    parser.add_argument(
        "--all", action="store_true", help="also what is well, notes, permissions, containers, clock, disk, last errors"
    )
    parser.add_argument(
        "--bundle",
        metavar="FILE.tar.gz",
        help="with --all: also write a new file for a bug report; it holds no env value that the policy file does not "
        "have",
    )
    parser.add_argument("--record", action="store_true", help="print nothing, and record which handlers are wired")
    for name in ("state", "message", "wanted"):  # for --output enforcement
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the state of the node. Returns the exit status of what is worst (hook.core.base.finding)."""
    if os.geteuid() != 0:
        raise NodeError(f"this needs root: sudo {options.typed}")
    if options.record:
        from hook.ops.audit import drift
        from hook.ops.health import record

        drift.record()
        record.record(Record.read())
        return 0
    with systemd.remembering([*services.UNITS, *services.TIMERS, services.PLUGIN, *registry.units()]):
        node = look(Record.read(), options.engine)
        if options.all or options.bundle:
            return _look_at_all(node, options.bundle, options.output)
        found = status.status_of(node)
        print(_view(found, options))
    return found.exit_status


def _view(found: status.Status, options: argparse.Namespace) -> str:
    match options.output:
        case "json":
            return status.as_json(found)
        case "condition":
            return status.as_condition(found)
        case "enforcement":
            from hook.ops.health.enforcement import as_enforcement

            return as_enforcement(found, options.state, options.message, options.wanted)
    return status.as_table(found, columns(options.output))


def _look_at_all(node: Node, bundle_path: str | None, output: str) -> int:
    """Looks at all containers first, adds what only `--all` looks at, and prints it. Returns the exit status."""
    from hook.inside.containers import running
    from hook.inside.traces import marks
    from hook.node.engines.facts import TRACES
    from hook.ops.audit import drift
    from hook.ops.audit.audit import Audit, audit, read_round
    from hook.ops.health import bundle, more

    known = read_round(store.SOURCE, store.STORE)
    audited: Audit | None = None
    with suppress(ReassertError, OSError):  # `checks` says so
        there = marks(TRACES)
        audited = audit(known, running(TRACES))
        node.audited = drift.keep(audited, there)
    found = status.status_of(node)
    seen = more.Seen(found, known, audited, tail(events.EVENTS, more.TAIL))
    found.findings += more.checks(seen)
    print(status.as_json(found) if output == "json" else status.as_page(found, columns(output)))
    if bundle_path:
        harmless = [each for each in found.findings if each.part != more.ERRORS]  # these have messages of events
        page = replace(found, findings=harmless)
        count = bundle.write(bundle_path, status.as_page(page) + "\n", status.as_json(page), seen)
        print(printable(f"{bundle_path}: {count} files; look through it before you pass it on"), file=sys.stderr)
    return found.exit_status
