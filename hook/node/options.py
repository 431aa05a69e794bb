"""Options that several commands of `reassert node` have."""

from __future__ import annotations

import argparse

from hook.node.engines import registry
from hook.node.engines.base import ADAPTERS, RUNTIME


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Adds --engine."""
    parser.add_argument(
        "--engine",
        choices=registry.NAMES,
        help="default: the engine of kubelet, else the only one that is installed or runs",
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Adds the options of install and plan."""
    add_engine(parser)
    parser.add_argument(
        "--adapter",
        metavar="ADAPTER[,ADAPTER]",
        help=f"one or more of {', '.join(ADAPTERS)} (default: the adapters that are wired already, else {RUNTIME})",
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
        help="have the agent serve Prometheus metrics at 127.0.0.1:PORT, [::1]:PORT or unix:/PATH; '' for no more "
        "(default: as before)",
    )
    parser.add_argument(
        "--textfile",
        metavar="DIR",
        help="have the agent write the metrics for node_exporter's textfile collector; '' for no more (default: as "
        "before)",
    )
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        help="the directory below which program, command and dispatchers are placed (default: /opt for the program and "
        "/usr/local for the others)",
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--runtime-class", metavar="NAME", help="wire only this handler; it is created if it does not exist"
    )
    scope.add_argument("--default", action="store_true", help="wire every handler (the default)")
