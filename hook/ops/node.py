"""`install`, `verify` and `uninstall`, and their earlier names below `node`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from types import FrameType

from hook import __version__
from hook.compile import stored
from hook.core.base.errors import ReassertError, Usage
from hook.core.base.finding import ERROR, Finding
from hook.core.base.system import discard_output
from hook.core.policy import store
from hook.node import kept, services, wired
from hook.node.accepted import HANDLER, NOTE
from hook.node.change import journal, tree
from hook.node.change.leftovers import leftovers, purge
from hook.node.change.program import (
    change_of_version,
    front_in_use,
    path_in_use,
    policy,
    refuse_another,
    version_of,
)
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import Rewiring, Target, rollback
from hook.node.change.shown import shown
from hook.node.choice import ONE_ENGINE, add_choice, add_engine, requested_change
from hook.node.engines import registry
from hook.node.engines.base import Choice
from hook.node.errors import NodeError
from hook.node.kept import Kept, Verified
from hook.node.loaded import preexisting
from hook.node.sources import of_policy, taken_away
from hook.ops.health import checks
from hook.ops.health.command import add_status
from hook.ops.health.node import look
from hook.resident import oplog
from hook.resident.parser import add_log_options
from hook.resident.terminal import OUTPUTS, columns, counted, line


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of `reassert node`, which were there before each had a name of its own."""
    node = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_status(node.add_parser("status", help="the same as `reassert status`"))
    add_install(node.add_parser("install", help="the same as `reassert install`"))
    add_verify(node.add_parser("verify", help="the same as `reassert verify`"))
    add_uninstall(node.add_parser("uninstall", help="the same as `reassert uninstall`"))


def add_install(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert install`."""
    add_choice(parser)
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--no-probe", dest="probe", action="store_false", help="start no test containers")
    add_log_options(parser)
    parser.set_defaults(run=_install)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert verify`."""
    parser.add_argument(
        "--except",
        dest="accepted",
        action="append",
        default=[],
        metavar="PART",
        help="accept that a part was not tried: handler/NAME, exec/NAME, read/NAME, warm/NAME, rule/NAME or way/NAME, "
        "or that not every process can read a file: file/PATH; * and ? are wildcards; may be repeated",
    )
    parser.add_argument(
        "--again", action="store_true", help="verify each wired engine, with the --except of its last verify"
    )
    add_engine(parser, f"{ONE_ENGINE}; with --again each that is wired")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table")
    add_log_options(parser)
    parser.set_defaults(run=_verify)


def add_uninstall(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert uninstall`."""
    add_engine(parser, "default: every engine that is wired; of several, it asks, or needs --yes")
    parser.add_argument("--yes", action="store_true", help="do not ask, also where several engines are wired")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument(
        "--purge", action="store_true", help="remove the policy, the compiled policies and the event log as well"
    )
    add_log_options(parser)
    parser.set_defaults(run=_uninstall)


# -- the commands


def _install(options: argparse.Namespace) -> int:
    _root(options)
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
                stored.clear()
            raise
        finally:
            _tidy()
    target = rewiring.target
    if changed:
        wired.begin(Record.read())
        was = before if rewiring.old.adapters else ""
        what = "install" if was in ("", __version__) else "upgrade"
        wired.log_change(what, rewiring.engine.name, target.adapters, was)
    old = preexisting(rewiring.engine, rewiring.before(), target.adapters, target.runtime_class)
    for remark in [*target.wiring.remarks, *old]:
        _say(f"Note: {remark}")
    adapters = ", ".join(target.adapters)
    if told := change_of_version(before, choice.program):
        _say(told)
    _say(
        f"{rewiring.engine.title} is wired ({adapters})."
        if changed
        else f"{rewiring.engine.title} is wired already ({adapters}); no file was changed, no engine restarted."
    )
    for finding in checks.guarded(checks.handlers, look(Record.read(), rewiring.engine.name)):
        if finding.severity == ERROR:
            _say(f"WARNING: {finding}")
    return 0


def _warn(choice: Choice, rewiring: Rewiring) -> None:
    """Prints, before anything is changed, what of the policy this node cannot do."""
    found = [*of_policy(choice.policy, [rewiring.engine.name])]
    found += [each for _, each in taken_away(choice.policy, rewiring.before().annotations())]
    for each in sorted(found, key=lambda one: one.severity != ERROR):
        _say(f"{'WARNING' if each.severity == ERROR else 'Note'}: {each}")


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
    _root(options)
    registry.clear_probes()  # a start of a test container reports the same problems
    record = Record.read()
    if not options.again:
        return _verify_one(registry.chosen(options.engine, record.engines()), options.accepted, options.output, record)
    last = kept.read().verified
    results = []
    for name in record.engines() if options.engine is None else [options.engine]:
        before = last[name].accepted if name in last else ["rule/*"]  # a rule for some namespaces has no test container
        try:
            results.append(_verify_one(name, [*options.accepted, *before], options.output, record))
        except ReassertError as error:  # this engine does not answer; the next one may
            _say(f"{name}: {error}")
            _keep_verified(name, Verified(int(time.time()), 1, before, findings=[_unanswered(name, error)]))
            results.append(1)
    return 1 if 1 in results else max(results, default=0)


def _verify_one(name: str, excepted: list[str], output: str, record: Record) -> int:
    from hook.node.probe.verify import verify

    engine = registry.engine(name)
    part = record.parts.get(engine.name, OwnerRecord())
    now = engine.read()
    accepted = [*excepted, *part.notes.get(NOTE, [])]
    handlers = now.handlers(part.notes)
    if part.runtime_class is not None:
        others = [each.name for each in handlers if each.name != part.runtime_class]
        accepted += [HANDLER + other for other in others]
        left_out = f"the install left it out (--runtime-class {part.runtime_class})"
        handlers = [replace(each, runtime="", note=left_out) if each.name in others else each for each in handlers]
    for handler in [each for each in handlers if not each.is_installed]:
        _say(f"Note: handler {handler.name} is not tried: its runtime {handler.runtime} is not installed")
    handlers = [each for each in handlers if each.is_installed]
    beside = _beside(engine.name, record)
    with closing(engine.starter(now)) as starter:
        agent = bool(part.adapters) and not services.why_cold(services.is_wanted(part.notes), front_in_use())
        in_force = policy(seeded=not part.adapters)
        report = verify(engine, handlers, in_force, starter, output, accepted, beside, agent)
    found = Verified(
        *(int(time.time()), report.status(), excepted, in_force.fingerprint, True),
        *([*report.untried()], report.findings()),
    )
    _keep_verified(engine.name, found)
    oplog.info("verify.ended", notice=True, engine=engine.name, status=found.status, accepted=excepted or None)
    return found.status


def _unanswered(name: str, error: ReassertError) -> Finding:
    return Finding(ERROR, "verify", f"nothing could be verified: {error}", engine=name)


def _keep_verified(name: str, found: Verified) -> None:
    """Keeps a result for `status` and the metrics. A directory that cannot be written is no error."""

    def change(now: Kept) -> None:
        found.accepted = list(dict.fromkeys(found.accepted))
        now.verified[name] = found

    with suppress(OSError):
        kept.change(change)


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
            found.append(f"{title} {wired}: reassert verify --engine {other}")
    return found


def _uninstall(options: argparse.Namespace) -> int:
    _root(options)
    record = Record.read()
    refuse_another(record, installs=False)
    stays = sorted({*record.engines()} - {*_with_files(record, options.engine)})
    if options.purge and stays:
        raise NodeError(f"--purge: reassert is still wired into {', '.join(stays)}; uninstall it there too")
    if options.dry_run:
        return _plan_uninstall(options)
    if not options.yes:
        _ask(_with_files(record, options.engine))
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
                stored.clear()
            _say("Nothing is wired." if options.purge else "Nothing is wired; nothing was changed.")
        _tidy()
        if not Record.read().engines():
            _purge(options.purge)
    return 0


def _ask(names: list[str]) -> None:
    """Asks on a terminal before several engines are unwired. Raises Usage without one, NodeError for another answer."""
    if len(names) < 2:
        return
    listed = ", ".join(names)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Usage(f"wired are {listed}: name one with --engine, or give --yes for all")
    if input(f"Take reassert out of {listed}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise NodeError("nothing was changed")


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
    if purged := [leftover.path for leftover in left if leftover.purged]:
        _say(f"To remove {'them' if len(purged) > 1 else 'it'} too: rm {shlex.join(purged)}")


def _say_uninstall_notes(rewiring: Rewiring) -> None:
    for note in rewiring.engine.uninstall_notes(rewiring.before, rewiring.old.notes):
        _say(f"Note: {note}")


def _with_files(record: Record, name: str | None) -> list[str]:
    return [owner for owner in record.engines_with_files() if name in (None, owner)]


def _unwiring(name: str, record: Record) -> Rewiring:
    engine = registry.engine_or_removed(name)
    return Rewiring(engine, record, Target(), cache(engine.read))


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


def _root(options: argparse.Namespace) -> None:
    if os.geteuid() != 0:
        raise NodeError(f"this needs root: sudo {options.typed}")


def _say(text: str) -> None:
    """Prints a line. A closed pipe, a lost ssh connection or a full disk there does not stop the change."""
    (oplog.warning if text.startswith("WARNING: ") else oplog.info)("node.step", text=text)
    try:
        print(line(text, columns(), 2), flush=True)
    except OSError:
        discard_output()
