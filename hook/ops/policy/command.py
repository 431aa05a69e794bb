"""The commands `reassert policy`. Imports are late: a container start may wait for hook.compile.command."""

from __future__ import annotations

import argparse
import os
import sys

from hook.compile.command import add_compile
from hook.core.policy import store
from hook.core.policy.model import AUDIT, ENFORCE
from hook.resident.parser import add_policy_options


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of `reassert policy` to the parser."""
    policy = parser.add_subparsers(title="commands", metavar="COMMAND")
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
        choices=("text", "wide", "json", "github"),
        default="text",
        help="github: annotations of a workflow (default: %(default)s)",
    )
    check.set_defaults(run=_check)
    show = policy.add_parser("show", help="print the policy in force, and why a newer policy file is held back")
    add_policy_options(show)
    show.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    show.set_defaults(run=_show)
    for mode, words in MODES.items():
        setting = policy.add_parser(mode.lower(), help=words)
        add_policy_options(setting)
        setting.set_defaults(run=_set_mode, mode=mode)
    preset = policy.add_parser("preset", help="print a first policy for one purpose, in Audit mode")
    preset.add_argument("name", metavar="NAME", choices=("gpu", "ca", "sandbox", "loader"))
    preset.set_defaults(run=_preset)
    testing = policy.add_parser(
        "test", help="run the cases beside a policy (reassert-test.yaml in the directory, or in one below)"
    )
    testing.add_argument(
        "places", nargs="*", metavar="DIR", default=["."], help="directory, or a file of cases (default: .)"
    )
    testing.add_argument("--policy", metavar="FILE", help="policy to test in place of the one that the cases name")
    testing.add_argument("-o", "--output", choices=("table", "wide", "junit", "json"), default="table")
    testing.set_defaults(run=_test)
    comparing = policy.add_parser(
        "diff", help="print what a change of a policy means; exit status 1 if it changes anything"
    )
    comparing.add_argument("old", metavar="OLD", help="policy file")
    comparing.add_argument("new", metavar="NEW", help="policy file")
    comparing.add_argument("-o", "--output", choices=("table", "wide", "json"), default="table")
    comparing.set_defaults(run=_diff)
    exporting = policy.add_parser(
        "export", help="print a policy file for the API server, which then tells who applies a pod"
    )
    exporting.add_argument("file", nargs="?", metavar="FILE", default=store.SOURCE, help="default: %(default)s")
    exporting.add_argument(
        "--admission",
        action="store_true",
        required=True,
        help="a ValidatingAdmissionPolicy and its binding, which warns of what a node overrides or refuses",
    )
    exporting.add_argument(
        "--deny", action="store_true", help="the API server refuses such a pod in place of a warning"
    )
    exporting.set_defaults(run=_export)
    schema = policy.add_parser("schema", help="print the JSON Schema of a policy file, for editors")
    schema.set_defaults(run=_schema)
    add_compile(policy)


MODES = {
    AUDIT: "set mode: Audit in the policy file: from the next start on, no container is changed or refused",
    ENFORCE: "set mode: Enforce in the policy file: containers are corrected, or refused, from the next start on",
}
"""What a command does, by the mode that it sets."""


def _set_mode(options: argparse.Namespace) -> int:
    from hook.ops.policy.mode import set_mode

    return set_mode(options.policy, options.store, options.mode)


def _preset(options: argparse.Namespace) -> int:
    from hook.node.change.program import preset_text

    sys.stdout.write(preset_text(options.name).decode())
    return 0


def _check(options: argparse.Namespace) -> int:
    from hook.ops.policy.check_command import check

    return check(options.files, options.node, options.strict, options.output)


def _test(options: argparse.Namespace) -> int:
    from hook.ops.policy.cases import test

    return test(options.places, options.policy, options.output)


def _diff(options: argparse.Namespace) -> int:
    from hook.ops.policy.diff import diff

    return diff(options.old, options.new, options.output)


def _export(options: argparse.Namespace) -> int:
    from hook.ops.policy.admission import export

    return export(options.file, options.deny)


def _schema(options: argparse.Namespace) -> int:
    from importlib import resources

    sys.stdout.write(resources.files("hook.compile").joinpath("schema.json").read_text("utf-8"))
    return 0


def _show(options: argparse.Namespace) -> int:
    from hook.ops.policy.show import show

    return show(os.path.abspath(options.policy), options.store, options.output)
