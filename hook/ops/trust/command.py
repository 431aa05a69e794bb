"""`reassert trust`: build and check the company's trust store."""

from __future__ import annotations

import argparse
import os
import sys

from hook.core.base.errors import Usage
from hook.core.policy import trust_layout as layout
from hook.resident import oplog
from hook.resident.parser import add_log_options
from hook.resident.terminal import WIDE, columns, line


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of `reassert trust` to the parser. Their modules, and `cryptography`, are imported when run."""
    parser.epilog = (
        "update-ca-certificates, update-ca-trust and packages with CA files fail in containers that have the store "
        "over their image's files. `mount: Aside` of a rule is for these (docs/trust.md)."
    )
    trust = parser.add_subparsers(title="commands", metavar="COMMAND")
    build = trust.add_parser(
        "build", help="make a trust store of the system's roots and your CAs, in every format that programs read"
    )
    build.add_argument(
        "--add",
        metavar="PATH",
        nargs="+",
        action="extend",
        help=f"CA certificates in PEM, DER or PKCS#7: files, or directories of them (default: {layout.SOURCES}, "
        f"of a store with another name {layout.SOURCES}/NAME)",
    )
    _add_store(build)
    roots = build.add_mutually_exclusive_group()
    roots.add_argument(
        "--system", metavar="PATH", help="the system's roots: a file or directory (default: this node's own)"
    )
    roots.add_argument("--no-system", action="store_true", help="only your CAs, no system roots")
    build.add_argument(
        "--allow-removal", action="store_true", help="build even if certificates of the last generation would be lost"
    )
    add_log_options(build)
    build.set_defaults(run=_build)
    check = trust.add_parser(
        "check", help="print what a container of each distribution would trust; exit status 1 if something is wrong"
    )
    _add_store(check)
    check.add_argument(
        "--policy", metavar="FILE", help="check the env and mounts of this policy (default: every directory is mounted)"
    )
    check.add_argument("-o", "--output", choices=("table", WIDE), default="table")
    check.set_defaults(run=_check)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        type=lambda text: text or layout.DEFAULT,  # systemd's %i is empty in a unit that is not an instance
        default=layout.DEFAULT,
        help=f"name of the trust store in {layout.STORES} (default: %(default)s)",
    )
    parser.add_argument("--out", metavar="DIR", help="directory of the trust store, instead of NAME")


def _directory(options: argparse.Namespace) -> str:
    name: str = options.name
    if name.startswith(".") or "/" in name:
        raise Usage(f"NAME {name}: a name, not a path; a path is for --out")
    return os.path.abspath(options.out or layout.store(name))


def _build(options: argparse.Namespace) -> int:
    from hook.ops.trust.build import Sources, build

    directory = _directory(options)
    cas = layout.sources(options.name)
    sources = Sources(options.add, options.system, options.no_system, options.allow_removal, cas)
    built = build(directory, sources)
    for warning in built.warnings:
        if oplog.is_active():
            oplog.warning("trust.warning", store=directory, warning=warning.removeprefix("warning: "))
        else:
            print(warning, file=sys.stderr)
    added, total = len(built.added), len(built.certificates)
    known = {"certificates": total, "added": added, "new": built.is_new, "repaired": built.repaired}
    oplog.info("trust.built", store=directory, generation=built.number, **known)
    state = "new" if built.is_new else "unchanged; its live files were repaired" if built.repaired else "unchanged"
    said = f"{directory}: generation {built.number} ({state}): {total} certificates, "
    print(line(f"{said}{total - added} system roots and {added} added", columns(), 2))
    return 0


def _check(options: argparse.Namespace) -> int:
    from hook.ops.trust.check import check

    return check(_directory(options), options.policy, columns(options.output))
