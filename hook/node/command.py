"""`reassert node`: plan, install, uninstall, verify, and `status` (hook.node.status)."""

from __future__ import annotations

import argparse
import os
import signal
from contextlib import closing
from functools import cache
from types import FrameType

from hook import __version__
from hook.core.base.errors import ReassertError
from hook.core.base.system import discard_output
from hook.core.base.text import printable
from hook.core.policy import compiler, store
from hook.node import services, status, systemd, wired
from hook.node.change import journal, tree
from hook.node.change.leftovers import leftovers, purge
from hook.node.change.program import (
    change_of_version,
    front_in_use,
    locate,
    own_tree,
    path_in_use,
    policy,
    refuse_another,
    version_of,
)
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import Rewiring, Target, rollback
from hook.node.choice import add_choice, add_engine, requested_change
from hook.node.engines import registry
from hook.node.engines.base import BYPASSES, Choice
from hook.node.errors import NodeError
from hook.node.sources import problems_and_hints
from hook.node.status import as_json, as_table, shown
from hook.node.terminal import counted

_SERVICES = ("containerd.service", "crio.service", "docker.service")
"""The units of engines, about which `status` asks once."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of `reassert node` to the parser."""
    node = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    showing = node.add_parser(
        "status",
        help="show what is in force; exit status 0: protected, 1: something is wrong, 3: not wired, 4: the policy "
        "enforces nothing, or newer settings are available",
    )
    add_engine(showing)
    showing.add_argument("-o", "--output", choices=("table", "json"), default="table")
    showing.add_argument("--record", action="store_true", help="print nothing, and record which handlers are wired")
    showing.set_defaults(run=_status)

    plan = node.add_parser("plan", help="show what install would change on this node, and change nothing")
    add_choice(plan)
    plan.set_defaults(run=_install, dry_run=True, probe=False)

    install = node.add_parser("install", help="wire reassert into the engine; if a step fails, every change is undone")
    add_choice(install)
    install.add_argument("--dry-run", action="store_true", help="the same as plan")
    install.add_argument("--no-probe", dest="probe", action="store_false", help="start no test containers")
    install.set_defaults(run=_install)

    layout = node.add_parser(
        "layout",
        help="for package maintainers: copy the program into a layout that an upgrade can replace while it runs",
    )
    layout.add_argument("directory", metavar="DIRECTORY")
    layout.add_argument(
        "place", metavar="PLACE", help="the path of DIRECTORY on the node, once the package is installed"
    )
    layout.set_defaults(run=_layout)

    verifying = node.add_parser(
        "verify",
        help="start a normal and a hostile test container under each handler and show what they got; exit status 0: "
        "every handler is protected, 1: one is not, or a part was not tried, 3: nothing to verify (mode Audit, or no "
        "rule covers a test container)",
    )
    verifying.add_argument(
        "--except",
        dest="accepted",
        action="append",
        default=[],
        metavar="PART",
        help="accept that a part was not tried: handler/NAME, exec/NAME, warm/NAME, rule/NAME or way/NAME, as verify "
        "names it; * and ? are wildcards; may be repeated",
    )
    verifying.add_argument(
        "--again", action="store_true", help="verify each wired engine, with the --except of its last verify"
    )
    add_engine(verifying)
    verifying.add_argument("-o", "--output", choices=("table", "json"), default="table")
    verifying.set_defaults(run=_verify)

    uninstall = node.add_parser(
        "uninstall", help="remove reassert from the engine and restore every file that install changed"
    )
    add_engine(uninstall)
    uninstall.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    uninstall.add_argument(
        "--purge", action="store_true", help="remove the policy, the compiled policies and the event log as well"
    )
    uninstall.set_defaults(run=_uninstall)


# -- the commands


def _install(options: argparse.Namespace) -> int:
    _root()
    locate(options.prefix or "")
    refuse_another(Record.read(), installs=True)
    if options.dry_run:
        choice, rewiring = requested_change(options, copy=False)
        _warn(choice, rewiring)
        _say_changes(rewiring)
        print(shown(rewiring.differences()) or "Nothing to change.")
        return 0
    compiled = os.path.lexists(store.STORE)
    with journal.locked():
        _recover()
        _clear_probes()
        _interruptible()
        try:
            before = version_of(path_in_use())
            choice, rewiring = requested_change(options)
            _warn(choice, rewiring)
            prove = None
            if options.probe and rewiring.engine.running() and (rewiring.differences() or rewiring.restarts()):
                from hook.node.probe.proof import Proof

                proof = Proof(rewiring.engine, choice.policy, rewiring.target.wiring)
                if not rewiring.old.adapters:  # a start through reassert says nothing about the node without it
                    proof.before(rewiring.before())
                prove = proof.after
            changed = rewiring.make(_say, prove)
        except BaseException:
            if not compiled:  # a test container compiled the policy
                compiler.clear()
            raise
        finally:
            _tidy()
    target = rewiring.target
    if changed:
        wired.forget()
        was = before if rewiring.old.adapters else ""
        what = "install" if was in ("", __version__) else "upgrade"
        wired.log_change(what, rewiring.engine.name, target.adapters, was)
    old = status.preexisting(rewiring.engine, rewiring.before(), target.adapters, target.runtime_class)
    for remark in [*target.wiring.remarks, *old]:
        _say(f"Note: {remark}")
    adapters = ", ".join(target.adapters)
    if told := change_of_version(before, choice.program):
        _say(told)
    _say(
        f"{rewiring.engine.title} is wired ({adapters})."
        if changed
        else f"{rewiring.engine.title} is wired already ({adapters}); nothing to change, nothing was restarted."
    )
    return 0


def _layout(options: argparse.Namespace) -> int:
    tree.lay_out(own_tree(), options.directory, options.place)
    return 0


def _warn(choice: Choice, rewiring: Rewiring) -> None:
    """Prints, before anything is changed, what of the policy this node cannot do."""
    problems, hints = problems_and_hints(choice.policy, [rewiring.engine.name])
    for problem in problems:
        _say(f"WARNING: {problem}")
    for hint in hints:
        _say(f"Note: {hint}")


def _say_changes(rewiring: Rewiring) -> None:
    """Prints what a change would do, in one line; nothing if it would do nothing."""
    engine, changes, restarts = rewiring.engine, rewiring.differences(), rewiring.restarts()
    if changes or restarts:
        removed = sum(state is None for _, state in changes)
        said = f"{counted(len(changes) - removed, 'file')} would be written, {removed} removed"
        verbs = (
            f"it would be {engine.verb}ed; {engine.restart_note}" if restarts else f"it would not be {engine.verb}ed"
        )
        print(f"{engine.title}: {said}; {verbs}.")


def _verify(options: argparse.Namespace) -> int:
    from hook.node.probe import report

    _root()
    locate()
    registry.clear_probes()  # a start of a test container reports the same problems
    record = Record.read()
    if not options.again:
        return _verify_one(registry.chosen(options.engine, record.engines()), options.accepted, options.output, record)
    last = report.last_results()
    results = []
    for name in record.engines() if options.engine is None else [options.engine]:
        before = last[name].accepted if name in last else ["rule/*"]  # a rule for some namespaces has no test container
        try:
            results.append(_verify_one(name, [*options.accepted, *before], options.output, record, again=True))
        except ReassertError as error:  # this engine does not answer; the next one may
            _say(f"{name}: {error}")
            report.record_result(name, 1, before)
            results.append(1)
    return 1 if 1 in results else max(results, default=0)


def _verify_one(name: str, excepted: list[str], output: str, record: Record, again: bool = False) -> int:
    from hook.node.probe import report
    from hook.node.probe.verify import verify

    engine = registry.engine(name)
    part = record.parts.get(engine.name, OwnerRecord())
    now = engine.read()
    handlers = [h for h in engine.handlers(now, part.notes) if not again or part.runtime_class in (None, h.name)]
    known = [f"handler/{handler.name}" for handler in handlers if handler.note == BYPASSES]
    beside = _beside(engine.name, record)
    with closing(engine.starter(now)) as starter:
        agent = bool(part.adapters) and not services.why_cold(services.is_wanted(part.notes), front_in_use())
        in_force = policy(seeded=not part.adapters)
        found = verify(engine, handlers, in_force, starter, output, [*excepted, *known], beside, agent)
    report.record_result(engine.name, found, excepted)
    return found


def _beside(name: str, record: Record) -> list[str]:
    """Returns a line for each other engine that runs on this node, since `verify` tests one engine only."""
    found = []
    for other in registry.installed():
        if other == name:
            continue
        try:
            title, runs = (engine := registry.engine(other)).title, engine.running()
        except ReassertError:  # it is installed, and its configuration is broken
            title, runs = other, True
        if runs:
            adapters = record.parts.get(other, OwnerRecord()).adapters
            wired = f"is wired ({', '.join(adapters)}) and was not tried" if adapters else "is not wired"
            found.append(f"{title} {wired}: reassert node verify --engine {other}")
    return found


def _uninstall(options: argparse.Namespace) -> int:
    _root()
    locate()
    record = Record.read()
    refuse_another(record, installs=False)
    stays = sorted({*record.engines()} - {*_with_files(record, options.engine)})
    if options.purge and stays:
        raise NodeError(f"--purge: reassert is still wired into {', '.join(stays)}; uninstall it there too")
    if options.dry_run:
        return _plan_uninstall(options)
    with journal.locked():
        recovered = _recover()
        _clear_probes()
        names = _with_files(Record.read(), options.engine)
        for name in names:
            _interruptible()
            rewiring = _unwiring(name, Record.read())
            _say_uninstall_notes(rewiring)
            if rewiring.make(_say):
                wired.log_change("uninstall", name, [], __version__)
            _say(f"{rewiring.engine.title} is as it was before reassert.")
        if not names:
            if recovered:
                compiler.clear()
            _say("Nothing is wired." if options.purge else "Nothing is wired; nothing was changed.")
        _tidy()
        if not Record.read().engines():
            _purge(options.purge)
    return 0


def _plan_uninstall(options: argparse.Namespace) -> int:
    record = Record.read()
    rewirings = [_unwiring(name, record) for name in _with_files(record, options.engine)]
    changes = [change for rewiring in rewirings for change in rewiring.differences()]
    for rewiring in rewirings:
        _say_changes(rewiring)
        _say_uninstall_notes(rewiring)
    print(shown(changes) or "Nothing is wired; nothing to change.")
    removed = {path for path, state in changes if state is None}
    for leftover in leftovers(record) if options.purge else []:
        if leftover.purged and leftover.path not in removed:
            print(f"{leftover.path}: removed ({leftover.what})")
    return 0


def _purge(wanted: bool) -> None:
    """Lists the files that the uninstall of the last engine leaves; removes them first if `wanted`."""
    if wanted:
        for leftover in leftovers(Record.read()):
            if leftover.purged:
                _say(f"removing {leftover.path}")
        wired.log("node.purge", "warning", "the policy, the compiled policies and the event log are removed")
        purge()
    left = leftovers(Record.read())
    if left:
        _say("Left on this node:")
    for leftover in left:
        _say(f"  {leftover.path}: {leftover.what}")
    if any(leftover.purged for leftover in left):
        _say("`reassert node uninstall --purge` removes the policy, the compiled policies and the event log.")


def _say_uninstall_notes(rewiring: Rewiring) -> None:
    for note in rewiring.engine.uninstall_notes(rewiring.before, rewiring.old.notes):
        _say(f"Note: {note}")


def _with_files(record: Record, name: str | None) -> list[str]:
    return [owner for owner in record.engines_with_files() if name in (None, owner)]


def _unwiring(name: str, record: Record) -> Rewiring:
    engine = registry.engine_or_removed(name)
    return Rewiring(engine, record, Target(), cache(engine.read))


def _status(options: argparse.Namespace) -> int:
    _root()
    locate()
    if options.record:
        wired.record(Record.read())
        options.record_drift()
        return 0
    with systemd.remembering([*services.UNITS, *services.TIMERS, services.PLUGIN, *_SERVICES]):
        found = status.node_status(Record.read(), options.engine, options.old_files)
        show = as_json if options.output == "json" else as_table
        print(show(found))
    return found.exit_status


# -- what the commands share


def _recover() -> bool:
    """Rolls back an interrupted change; returns whether there was one. Raises NodeError."""
    left = journal.pending()
    if left is None:
        return False
    _say(f"an earlier {left.operation} of {left.engine} was interrupted; restoring every file first")
    found = registry.engine_or_removed(left.engine)
    restart = left.running or found.running()  # an engine that was interrupted while it started may not run now
    rollback(left, found, restart, journal.DIRECTORY, _say)
    return True


def _clear_probes() -> None:
    for problem in registry.clear_probes():
        _say(f"Note: {problem}")


def _tidy() -> None:
    if journal.pending() is None:  # a rollback needs the staging directory
        tree.tidy()


def _interruptible() -> None:
    """Makes SIGTERM and SIGHUP act as Ctrl-C: the change is rolled back. Steps that must finish ignore all three."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _root() -> None:
    if os.geteuid() != 0:
        raise NodeError("this needs root: sudo reassert node …")


def _say(text: str) -> None:
    """Prints a line. A closed pipe, a lost ssh connection or a full disk there does not stop the change."""
    try:
        print(printable(text), flush=True)
    except OSError:
        discard_output()
