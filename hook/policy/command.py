"""`reassert policy`: check, show, compile."""

from __future__ import annotations

import argparse
import gc
import os
import sys

from hook.base.system import Untrusted, trusted
from hook.base.text import printable
from hook.policy import store
from hook.policy.compiler import Compiled, compile_bytes, read_source, refresh
from hook.policy.source import Problem


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of `reassert policy` to the parser."""
    policy = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = policy.add_parser("check", help="list all errors and warnings of a policy file, with line and column")
    check.add_argument(
        "file", nargs="?", metavar="FILE", help=f"default: {store.SOURCE}, whose owner and mode are checked too"
    )
    check.add_argument(
        "--node",
        action="store_true",
        help="also check that every hostPath and valueFrom.file exists on this node and that only root can change it",
    )
    check.set_defaults(run=_check)
    show = policy.add_parser("show", help="print the policy in force, and why a newer policy file is held back")
    add_policy_options(show)
    show.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    show.set_defaults(run=_show)
    compiling = policy.add_parser(
        "compile", help="compile the policy file now; otherwise the next container start does it"
    )
    add_policy_options(compiling)
    compiling.set_defaults(run=_compile)


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Adds --policy and --store to the parser."""
    parser.add_argument("--policy", metavar="FILE", default=store.SOURCE, help=f"policy file (default: {store.SOURCE})")
    parser.add_argument(
        "--store", metavar="DIR", default=store.STORE, help=f"compiled policies (default: {store.STORE})"
    )


def _check(options: argparse.Namespace) -> int:
    """Returns 1 if there is an error.

    A wrong owner or mode is an error for the node's policy file, a warning for another file. With --node, a missing
    file that the policy needs is an error.
    """
    path = options.file or store.SOURCE
    content, _ = read_source(path)
    compiled = compile_bytes(path, content)
    problems = [*compiled.warnings, *(_node_problems(compiled) if options.node else [])]
    for problem in problems:
        print(problem.at(path), file=sys.stderr)
    try:
        trusted(os.path.abspath(path))
    except Untrusted as error:
        if not options.file:
            raise
        print(printable(f"{path}: warning: on a node this file would be refused: {error}"), file=sys.stderr)
    if any(problem.severity == "error" for problem in problems):
        return 1
    valid = "valid on this node" if options.node else "valid"
    print(printable(f"{path}: {valid}, {len(compiled.lines)} rules, sha256 {compiled.source.sha256}"))
    return 0


def _node_problems(compiled: Compiled) -> list[Problem]:
    """Problems of this node's files that the policy names, with their positions in the policy file."""
    from hook.node.sources import look_at

    source = compiled.source
    found = look_at(compiled.policy())
    return [source.problem(source.origin(f.place), f.message, severity=f.severity) for f in found]


def _show(options: argparse.Namespace) -> int:
    from hook.policy.show import show

    return show(os.path.abspath(options.policy), options.store, options.output)


def _compile(options: argparse.Namespace) -> int:
    """The start path reads the store's new text from standard output."""
    gc.disable()  # this process ends soon: collecting would take as long again
    sys.stdout.write(refresh(os.path.abspath(options.policy), options.store))
    return 0
