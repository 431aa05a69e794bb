"""`reassert node`: status, plan, install, uninstall, verify."""

from __future__ import annotations

import argparse
import os
import signal
from types import FrameType

from hook.base.errors import ReassertError, Usage
from hook.base.system import print_to_nobody
from hook.base.text import printable
from hook.node import systemd
from hook.node.change import journal, tree
from hook.node.change.leftovers import leftovers, purge
from hook.node.change.program import lay_out, path_in_use, policy, program, seed
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import Rewiring, Target, base_of, rollback
from hook.node.engines import registry
from hook.node.engines.artifacts.nri_unit import PLUGIN_IS_OURS
from hook.node.engines.base import ADAPTERS, HOOK, NRI, RUNTIME, Choice, Engine, Handler
from hook.node.engines.removed import Removed
from hook.node.errors import NodeError
from hook.node.probe.proof import Proof
from hook.node.probe.report import Accepted
from hook.node.probe.verify import verify
from hook.node.show import as_json, as_table, shown
from hook.node.sources import problems_and_hints
from hook.policy import compiler, store
from hook.policy.model import AUDIT, Policy

OUT_OF_DATE, NOT_WIRED = 1, 3
"""Exit statuses of `status`; 3 as systemctl has it for what is not active."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Declare what comes after `reassert node`."""
    node = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    status = node.add_parser(
        "status", help="what is wired; exits 0 wired and current, 1 not as it should be, 3 not wired"
    )
    _engine(status)
    status.add_argument("-o", "--output", choices=("table", "json"), default="table")
    status.set_defaults(run=_status)

    plan = node.add_parser("plan", help="what install would change on this node; changes nothing")
    _choice(plan)
    plan.set_defaults(run=_install, dry_run=True, probe=False)

    install = node.add_parser("install", help="wire it in; on any failure everything is put back")
    _choice(install)
    install.add_argument("--dry-run", action="store_true", help="the same as plan")
    install.add_argument("--no-probe", dest="probe", action="store_false", help="start no containers to prove it")
    install.set_defaults(run=_install)

    layout = node.add_parser("layout", help="for makers of packages: the program's files as an upgrade needs them")
    layout.add_argument("directory", metavar="DIRECTORY")
    layout.add_argument("place", metavar="PLACE", help="where a node will have that directory")
    layout.set_defaults(run=_layout)

    verifying = node.add_parser(
        "verify",
        help="start an innocent and a hostile container under each handler and say what they got; exits 0 every "
        "handler is protected, 1 not, or a part could not be tried, 3 nothing to verify (mode Audit, or no rule that "
        "covers a probe)",
    )
    verifying.add_argument(
        "--except",
        dest="accepted",
        action="append",
        default=[],
        metavar="PART",
        help="accept that a part was not tried: handler/NAME, exec/NAME or rule/NAME, as verify names it; * and ? are "
        "wildcards; may be repeated",
    )
    _engine(verifying)
    verifying.add_argument("-o", "--output", choices=("table", "json"), default="table")
    verifying.set_defaults(run=_verify)

    uninstall = node.add_parser("uninstall", help="put everything back as it was before install")
    _engine(uninstall)
    uninstall.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")
    uninstall.add_argument(
        "--purge", action="store_true", help="remove the policy, the compiled policies and the event log as well"
    )
    uninstall.set_defaults(run=_uninstall)


def _engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", choices=registry.NAMES, help="default: kubelet's, or the only one that is there or runs"
    )


def _choice(parser: argparse.ArgumentParser) -> None:
    _engine(parser)
    parser.add_argument(
        "--adapter",
        metavar="ADAPTER[,ADAPTER]",
        help=f"of {', '.join(ADAPTERS)} (default: what is wired already, else the engine's first: {RUNTIME})",
    )
    parser.add_argument(
        "--no-unit", dest="unit", action="store_false", help="with nri: others run the plugin, a DaemonSet for one"
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--runtime-class", metavar="NAME", help="wire this handler only; a new one is made if it is missing"
    )
    scope.add_argument("--default", action="store_true", help="wire every handler (the default)")


# -- the commands


def _install(options: argparse.Namespace) -> int:
    _root()
    if options.dry_run:
        return _plan(options)
    compiled = os.path.lexists(store.STORE)
    with journal.locked():
        _recover()
        _clear_probes()
        _interruptible()
        try:
            rewiring, target, in_force = _prepared(options, probe=options.probe)
            _warn(in_force)
            changed = rewiring.make(_say)
        except BaseException:
            if not compiled:  # a container that was started to prove it did that
                compiler.clear()
            raise
        finally:
            _tidy()
    for remark in [*target.wiring.remarks, *_preexisting(rewiring.engine, target.adapters, target.runtime_class)]:
        _say(f"Note: {remark}")
    adapters = ", ".join(target.adapters)
    _say(
        f"{rewiring.engine.title} is wired ({adapters})."
        if changed
        else f"{rewiring.engine.title} is wired already ({adapters}); nothing to change, nothing was restarted."
    )
    return 0


def _layout(options: argparse.Namespace) -> int:
    lay_out(options.directory, options.place)
    return 0


def _plan(options: argparse.Namespace) -> int:
    rewiring, _, in_force = _prepared(options, probe=False, prepare=False)
    _warn(in_force)
    print(shown(rewiring.differences()) or "Nothing to change.")
    _restart(rewiring)
    return 0


def _warn(policy: Policy) -> None:
    """Say, before anything is changed, which files this node lacks, so that containers would be refused."""
    problems, hints = problems_and_hints(policy)
    for problem in problems:
        _say(f"WARNING: {problem}")
    for hint in hints:
        _say(f"Note: {hint}")


def _restart(rewiring: Rewiring) -> None:
    if rewiring.restarts():
        print(f"{rewiring.engine.title} would be {rewiring.engine.verb}ed; running containers stay.")


def _prepared(options: argparse.Namespace, probe: bool, prepare: bool = True) -> tuple[Rewiring, Target, Policy]:
    """The change to what the options ask for, nothing done yet, and the policy. `prepare`: as in `program`."""
    record = Record()
    engine = registry.engine(registry.chosen(options.engine))
    old = record.parts.get(engine.name, OwnerRecord())
    choice_of_adapters = _adapters(options.adapter, engine, old)
    scope = options.runtime_class
    if scope is None and not options.default:
        scope = old.runtime_class
    # As before, like the adapters, unless these are said anew.
    unit = options.unit and (options.adapter is not None or _unit(old))
    if not options.unit and NRI not in choice_of_adapters:
        raise Usage("--no-unit: that is about NRI's plugin; add --adapter nri")
    put = program(prepare)
    choice = Choice(choice_of_adapters, scope, put.path, policy(), unit)
    wiring = engine.wire(choice, base_of(record, engine), old.notes)
    if choice.policy.warning:
        wiring.remarks.append(choice.policy.warning)
    target = Target(wiring, list(choice_of_adapters), scope, [*put.changes, *seed()])
    rewiring = Rewiring(engine, record, target)
    if probe and engine.running() and rewiring.differences():
        rewiring.prove = Proof(engine, choice.policy, wiring, bool(old.adapters)).again
    return rewiring, target, choice.policy


def _unit(part: OwnerRecord) -> bool:
    """Whether the plugin, if it is wired, is a service of this node."""
    return bool(part.notes.get(PLUGIN_IS_OURS, True))


def _adapters(text: str | None, engine: Engine, old: OwnerRecord) -> tuple[str, ...]:
    """In the order of ADAPTERS. The NRI plugin brings the verifying hook with it: it fails open without."""
    names = text.split(",") if text is not None else old.adapters or [engine.adapters[0]]
    for name in names:
        if name not in ADAPTERS:
            raise Usage(f"--adapter {name!r}: {', '.join(ADAPTERS)} are known, with commas between them")
        if name not in engine.adapters:
            raise NodeError(f"{engine.title} cannot be wired by {name}; it can by {', '.join(engine.adapters)}")
    if NRI in names:
        names = [*names, HOOK]
    return tuple(name for name in ADAPTERS if name in names)


def _verify(options: argparse.Namespace) -> int:
    _root()
    registry.clear_probes()  # what cannot be done comes up again when a probe is started
    found = registry.engine(registry.chosen(options.engine))
    record = Record()
    part = record.parts.get(found.name, OwnerRecord())
    handlers = found.handlers(part.notes)
    accepted = Accepted(options.accepted, _beside(found.name, record))
    starter = found.starter()
    try:
        return verify(found, handlers, policy(seeded=not part.adapters), starter, options.output, accepted)
    finally:
        starter.close()


def _beside(name: str, record: Record) -> list[str]:
    """The other engines that run on this node: what `verify` says of one engine holds for none of them."""
    found = []
    for other in registry.installed():
        if other == name:
            continue
        try:
            title, runs = (engine := registry.engine(other)).title, engine.running()
        except ReassertError:  # it is there, and its configuration is broken
            title, runs = other, True
        if runs:
            adapters = record.parts.get(other, OwnerRecord()).adapters
            wired = f"is wired ({', '.join(adapters)}), and was not tried" if adapters else "is not wired"
            found.append(f"{title} {wired}: reassert node verify --engine {other}")
    return found


def _uninstall(options: argparse.Namespace) -> int:
    _root()
    wired_elsewhere = sorted({*Record().engines()} - {*_wired(Record(), options.engine)})
    if options.purge and wired_elsewhere:
        raise NodeError(f"--purge: reassert stays wired into {', '.join(wired_elsewhere)}; uninstall that too")
    if options.dry_run:
        return _plan_uninstall(options)
    with journal.locked():
        recovered = _recover()
        _clear_probes()
        names = _wired(Record(), options.engine)
        for name in names:
            _interruptible()
            record = Record()
            rewiring = _unwiring(name, record)
            _say_uninstall_notes(rewiring.engine, record)
            rewiring.make(_say)
            _say(f"{rewiring.engine.title} is as it was before reassert.")
        if not names:
            if recovered:
                compiler.clear()
            _say("Nothing is wired." if options.purge else "Nothing is wired; nothing was changed.")
        _tidy()
        if not Record().engines():
            _purge(options.purge)
    return 0


def _plan_uninstall(options: argparse.Namespace) -> int:
    record = Record()
    rewirings = [_unwiring(name, record) for name in _wired(record, options.engine)]
    changes = [change for rewiring in rewirings for change in rewiring.differences()]
    print(shown(changes) or "Nothing is wired; nothing to change.")
    for rewiring in rewirings:
        _restart(rewiring)
        _say_uninstall_notes(rewiring.engine, record)
    removed = {path for path, state in changes if state is None}
    for leftover in leftovers(Record()) if options.purge else []:
        if leftover.purged and leftover.path not in removed:
            print(f"{leftover.path}: removed ({leftover.what})")
    return 0


def _purge(wanted: bool) -> None:
    """Remove what the uninstall of the last engine left, if that is wanted, and name what stays."""
    if wanted:
        for leftover in leftovers(Record()):
            if leftover.purged:
                _say(f"removing {leftover.path}")
        purge()
    left = leftovers(Record())
    if left:
        _say("Left on this node:")
    for leftover in left:
        _say(f"  {leftover.path}: {leftover.what}")
    if any(leftover.purged for leftover in left):
        _say("`reassert node uninstall --purge` removes the policy, the compiled policies and the event log.")


def _say_uninstall_notes(engine: Engine, record: Record) -> None:
    for remark in engine.uninstall_notes(record.parts.get(engine.name, OwnerRecord()).notes):
        _say(f"Note: {remark}")


def _wired(record: Record, name: str | None) -> list[str]:
    return [owner for owner in record.engines_with_files() if name in (None, owner)]


def _unwiring(name: str, record: Record) -> Rewiring:
    return Rewiring(_engine_or_what_is_left(name), record, Target())


def _engine_or_what_is_left(name: str) -> Engine:
    """An engine that reassert was wired into, which may be gone meanwhile."""
    return registry.engine(name) if name in registry.installed() else Removed(name)


def _status(options: argparse.Namespace) -> int:
    _root()
    record = Record()
    interrupted = journal.pending()
    names = [options.engine] if options.engine else sorted({*registry.installed(), *record.engines()})
    rows: list[tuple[Engine, Handler]] = []
    problems: list[str] = []
    hints: list[str] = []
    status = NOT_WIRED
    for name in names:
        # Of one that is not wired, docker's own containerd say, nothing is out of date.
        wrong = problems if name in record.engines() else hints
        try:
            found = registry.engine(name)
            part = record.parts.get(name, OwnerRecord())
            rows += [(found, handler) for handler in found.handlers(part.notes)]
            wrong += [f"{name}: {warning}" for warning in found.warnings()]
            hints += [f"{name}: {hint}" for hint in found.hints()]
            if part.adapters:
                status = min(status, 0)
                problems += _out_of_date(found, record, part)
                hints += [f"{name}: {hint}" for hint in _preexisting(found, part.adapters, part.runtime_class)]
        except ReassertError as error:
            wrong.append(f"{name}: {error}")
            status = min(status, OUT_OF_DATE if name in record.engines() else NOT_WIRED)
    if status != NOT_WIRED:
        wrong_files, notes = _named_files()
        problems += wrong_files
        hints += notes
    if interrupted:
        problems.append(
            f"an interrupted {interrupted.operation} of {interrupted.engine}: run it again to finish or undo it"
        )
    if (problems and status == 0) or interrupted:
        status = OUT_OF_DATE
    show = as_json if options.output == "json" else as_table
    print(show(rows, record, problems, hints))
    return status


def _named_files() -> tuple[list[str], list[str]]:
    """Problems and hints about the files of this node that the policy names."""
    try:
        return problems_and_hints(policy(seeded=False))
    except ReassertError:  # that there is none is a problem of each engine's (`_out_of_date`)
        return [], []


def _out_of_date(engine: Engine, record: Record, part: OwnerRecord) -> list[str]:
    """What `node install` would change although nothing else is asked for."""
    choice = Choice(tuple(part.adapters), part.runtime_class, path_in_use(), policy(seeded=False), _unit(part))
    wiring = engine.wire(choice, base_of(record, engine), part.notes)
    target = Target(wiring, part.adapters, part.runtime_class)
    rewiring = Rewiring(engine, record, target)
    # Somebody's edit of a file is no matter of ours, and the copy of it without our lines can wait.
    paths = [path for path, _ in rewiring.differences() if not path.startswith(f"{journal.DIRECTORY}/")]
    restart = f", which {engine.verb}s {engine.title}" if rewiring.restarts() else ""
    found = [f"{engine.name}: {', '.join(paths)} out of date: run `reassert node install`{restart}"] if paths else []
    if not os.access(choice.program, os.X_OK):
        found.append(f"{engine.name}: {choice.program} is gone, so no container starts: run `reassert node install`")
    found += [f"{engine.name}: {choice.policy.warning}"] if choice.policy.warning else []
    found += [f"{engine.name}: {unit} does not run" for unit in part.units if not systemd.is_active(unit)]
    if not engine.running():
        found.append(f"{engine.name}: {engine.title} does not run")
    return found


def _preexisting(engine: Engine, adapters: list[str], runtime_class: str | None) -> list[str]:
    """What goes past the wrapper although it is wired. NRI sees that too."""
    if RUNTIME not in adapters or NRI in adapters or runtime_class is not None:
        return []
    try:
        in_force = policy()
        return engine.preexisting(in_force, HOOK in adapters and in_force.mode != AUDIT)
    except ReassertError as error:
        return [f"what was made before it was wired cannot be told: {error}"]


# -- what the commands share


def _recover() -> bool:
    """Put back what an interrupted run left half done; whether there was something. Raises NodeError."""
    left = journal.pending()
    if left is None:
        return False
    _say(f"an earlier {left.operation} of {left.engine} was interrupted; putting everything back first")
    found = _engine_or_what_is_left(left.engine)
    restart = left.running or found.running()  # one that was interrupted while it started may not run now
    rollback(left, found, restart, journal.DIRECTORY, _say)
    return True


def _clear_probes() -> None:
    for problem in registry.clear_probes():
        _say(f"Note: {problem}")


def _tidy() -> None:
    if journal.pending() is None:  # else going back needs what lies there
        tree.tidy()


def _interruptible() -> None:
    """SIGTERM and SIGHUP end a change as Ctrl-C does: everything is put back. What must end ignores them."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _root() -> None:
    if os.geteuid() != 0:
        raise NodeError("this needs root: sudo reassert node …")


def _say(text: str) -> None:
    """Whether anybody can read it must not decide about a change: `… | head`, a lost ssh, a full disk."""
    try:
        print(printable(text), flush=True)
    except OSError:
        print_to_nobody()
