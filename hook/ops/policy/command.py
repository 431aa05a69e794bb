"""The commands `reassert policy`. Imports are late: a container start may wait for hook.entry.compile."""

from __future__ import annotations

import argparse
import os
import sys

from hook.core.policy import store
from hook.entry.compile import add_compile
from hook.entry.parser import add_policy_options


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of `reassert policy` to the parser."""
    policy = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = policy.add_parser("check", help="list all errors and warnings of a policy file, with line and column")
    check.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help=f"-: standard input; default: {store.SOURCE}, whose owner and mode are checked too",
    )
    check.add_argument(
        "--node",
        action="store_true",
        help="also check that every hostPath and valueFrom.file exists on this node, that only root can change it and "
        "that containers can read it",
    )
    check.add_argument("--strict", action="store_true", help="exit status 1 for warnings too")
    check.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "github", "sarif"),
        default="text",
        help="github: annotations of a workflow; sarif: SARIF 2.1.0 (default: %(default)s)",
    )
    check.set_defaults(run=_check)
    show = policy.add_parser("show", help="print the policy in force, and why a newer policy file is held back")
    add_policy_options(show)
    show.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    show.set_defaults(run=_show)
    testing = policy.add_parser(
        "test", help="run the cases beside a policy (reassert-test.yaml in the directory, or in one below)"
    )
    testing.add_argument(
        "places", nargs="*", metavar="DIR", default=["."], help="directory, or a file of cases (default: .)"
    )
    testing.add_argument("--policy", metavar="FILE", help="policy to test in place of the one that the cases name")
    testing.add_argument("-o", "--output", choices=("table", "junit", "json"), default="table")
    testing.set_defaults(run=_test)
    comparing = policy.add_parser(
        "diff", help="print what a change of a policy means; exit status 1 if it changes anything"
    )
    comparing.add_argument("old", metavar="OLD", help="policy file")
    comparing.add_argument("new", metavar="NEW", help="policy file")
    comparing.add_argument(
        "--running",
        action="store_true",
        help="also list the running containers of this node about which the two decide differently; needs root",
    )
    comparing.add_argument("-o", "--output", choices=("table", "json"), default="table")
    comparing.set_defaults(run=_diff)
    schema = policy.add_parser("schema", help="print the JSON Schema of a policy file, for editors")
    schema.set_defaults(run=_schema)
    add_compile(policy)


def _check(options: argparse.Namespace) -> int:
    from hook.ops.policy.check_command import check

    return check(options.files, options.node, options.strict, options.output)


def _test(options: argparse.Namespace) -> int:
    from hook.ops.policy.cases import test

    return test(options.places, options.policy, options.output)


def _diff(options: argparse.Namespace) -> int:
    from hook.ops.audit.inventory import running
    from hook.ops.policy.diff import diff

    return diff(options.old, options.new, options.output, running if options.running else None)


def _schema(options: argparse.Namespace) -> int:
    from importlib import resources

    sys.stdout.write(resources.files("hook.core.policy").joinpath("schema.json").read_text("utf-8"))
    return 0


def _show(options: argparse.Namespace) -> int:
    from hook.ops.policy.show import show

    return show(os.path.abspath(options.policy), options.store, options.output)
