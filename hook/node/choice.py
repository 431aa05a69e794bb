"""The options of `reassert install`, and the change that they ask for."""

from __future__ import annotations

import argparse

from hook.core.base.errors import Usage
from hook.node import services
from hook.node.accepted import NOTE
from hook.node.change.program import (
    CALLED,
    PRESETS,
    command_is_left_out,
    front_in_use,
    path_in_use,
    policy,
    program,
    seed,
)
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import Rewiring, planned
from hook.node.change.tree import COMMAND
from hook.node.engines import registry
from hook.node.engines.base import ADAPTERS, HOOK, NRI, RUNTIME, AnyEngine, Choice
from hook.node.engines.facts import NAMES
from hook.node.errors import NodeError
from hook.resident.oplog import LOG_FORMATS, LOG_LEVELS

ONE_ENGINE = "default: the engine of kubelet, else the only one that is installed, runs or is wired"
"""What --help says of --engine where a command is about one engine (registry.chosen)."""


def add_engine(parser: argparse.ArgumentParser, default: str = ONE_ENGINE) -> None:
    """Adds --engine. `default`: what its help says of a command line without it."""
    parser.add_argument("--engine", choices=NAMES, help=default)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Adds the options of install."""
    add_engine(parser)
    parser.add_argument(
        "--adapter",
        metavar="ADAPTER[,ADAPTER]",
        help=f"one or more of {', '.join(ADAPTERS)} (default: the adapters that are wired already, else {RUNTIME})",
    )
    parser.add_argument(
        "--preset",
        choices=[name for name in PRESETS if name],
        default="",
        help="the policy of a node that has none, in Audit mode (default: config/policy.yaml)",
    )
    parser.add_argument(
        "--no-unit",
        dest="unit",
        action="store_false",
        help="with nri: install no reassert-nri.service, for example because a DaemonSet runs the plugin",
    )
    parser.add_argument(
        "--agent",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="answer container starts by a resident agent, or not (default: as before, else yes where systemd runs)",
    )
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="have the agent serve Prometheus metrics at 127.0.0.1:PORT, [::1]:PORT or unix:/PATH; '' ends it "
        "(default: as before)",
    )
    parser.add_argument(
        "--textfile",
        metavar="DIR",
        help="have the agent write the metrics for node_exporter's textfile collector; '' ends it (default: as before)",
    )
    for what, known in (("format", LOG_FORMATS), ("level", LOG_LEVELS)):
        parser.add_argument(
            f"--service-log-{what}",
            choices=("", *known),
            metavar=what.upper(),
            help=f"the --log-{what} of the agent, the NRI plugin and the timers; '' ends it (default: as before)",
        )
    parser.add_argument(
        "--except",
        dest="accepted",
        action="append",
        metavar="PART",
        help="accept for good that a handler is not wired (handler/NAME), another part that verify does not try, or a "
        "file that it cannot read (file/PATH); may be repeated; '' takes the earlier ones back (default: as before)",
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--runtime-class", metavar="NAME", help="wire only this handler; it is created if it does not exist"
    )
    scope.add_argument("--default", action="store_true", help="wire every handler (the default)")


def requested_change(options: argparse.Namespace, copy: bool = True) -> tuple[Choice, Rewiring]:
    """Returns the change that the options of `install` ask for; changes nothing. `copy`: the `prepare` of `program`."""
    record = Record.read()
    engine = registry.engine(registry.chosen(options.engine, record.engines()))
    old = record.parts.get(engine.name, OwnerRecord())
    adapters = adapters_of(options.adapter, engine, old)
    scope = options.runtime_class
    if scope is None and not options.default:
        scope = old.runtime_class
    # Without --adapter, the plugin's service stays as it is, like the adapters.
    unit = options.unit and (options.adapter is not None or services.plugin_is_ours(old.notes))
    if not options.unit and NRI not in adapters:
        raise Usage("--no-unit only applies to the NRI plugin; add --adapter nri")
    put = program(copy)
    agent = options.agent if options.agent is not None else services.is_wanted(old.notes)
    cold = services.why_cold(agent, front_in_use())
    given = {"metrics": options.metrics, "textfile": options.textfile}
    metrics = services.metrics_of(given, old.notes, [part.notes for part in record.parts.values()])
    wanted = {"log-format": options.service_log_format, "log-level": options.service_log_level}
    log = services.options_of(services.LOG, wanted, old.notes, [part.notes for part in record.parts.values()])
    front = "" if cold else front_in_use()
    choice = Choice(adapters, scope, path_in_use(), policy(preset=options.preset), unit, agent, front, metrics, log)
    rewiring = planned(engine, record, choice, engine.read(), [*put, *seed(options.preset)])
    wiring = rewiring.target.wiring
    wiring.notes[CALLED] = choice.program
    if left_out := accepted_after(options.accepted, old):
        wiring.notes[NOTE] = left_out
    if command_is_left_out():
        wiring.remarks.append(f"{COMMAND} cannot be written: the command is {choice.program}")
    if cold and RUNTIME in adapters:
        wiring.remarks.append(f"every container start is cold: {cold}")
    if choice.policy.warning:
        wiring.remarks.append(choice.policy.warning)
    return choice, rewiring


def accepted_after(given: list[str] | None, old: OwnerRecord) -> list[str]:
    """Returns the parts that are accepted after this install. `given`: its `--except`, "" to take back all before."""
    found: list[str] = [*old.notes.get(NOTE, [])]
    for part in given or []:
        found = [*found, part] if part else []
    return list(dict.fromkeys(found))


def adapters_of(text: str | None, engine: AnyEngine, old: OwnerRecord) -> tuple[str, ...]:
    """Returns the adapters in the order of ADAPTERS. NRI includes the verifying hook: without it, NRI fails open."""
    kept = [name for name in old.adapters if name in engine.adapters]  # 0.3 had a hook for podman
    names = text.split(",") if text is not None else kept or [engine.adapters[0]]
    for name in names:
        if name not in ADAPTERS:
            raise Usage(f"--adapter takes one or more of {', '.join(ADAPTERS)}, separated by commas, not {name!r}")
        if name not in engine.adapters:
            raise NodeError(f"{engine.title} has no adapter {name}; it has {', '.join(engine.adapters)}")
    if NRI in names:
        names = [*names, HOOK]
    return tuple(name for name in ADAPTERS if name in names)
