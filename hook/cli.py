"""The command line for people: policy, explain, dispatcher. The start path's verbs never come here."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hook import __version__, events
from hook.base.errors import ReassertError, Usage, describe
from hook.base.system import Untrusted, print_to_nobody, trusted
from hook.base.text import printable
from hook.policy import store
from hook.policy.compiler import Compiled, compile_bytes, read_source, refresh
from hook.policy.source import PolicyInvalid, Problem

AGENT_SOCKET = "/run/reassert/agent/agent.sock"
"""Where the agent listens unless the command line says otherwise."""

_DESCRIPTION = "Put back, before a container exists, the env and CA mounts that a node reserves."
_NODE = "Wire reassert into this node's container engine, prove that it works there, and undo it."
_ADAPTERS = """adapters (called by engines, each with its own --help):
  runtime             wrapper of an OCI runtime
  hook                OCI hook, and podman's precreate stage
  nri                 NRI plugin; also when a runtime starts reassert from its plugin directory
"""


def main(arguments: list[str]) -> int:
    """Run one command. Returns its exit status: 0 good, 1 found something wrong, 2 wrong usage."""
    if not arguments and os.environ.get("NRI_PLUGIN_SOCKET"):
        arguments = ["nri"]  # a runtime starts what lies in its plugin directory without arguments
    parser = _parser(arguments)
    try:
        options = parser.parse_args(arguments)
        if not hasattr(options, "run"):
            parser.print_help()
            return 2
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("reassert: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        print_to_nobody()
        return 1
    except Usage as error:
        print(printable(f"reassert: {error}"), file=sys.stderr)
        return 2
    except PolicyInvalid as error:
        for problem in error.problems:
            print(problem.at(error.path), file=sys.stderr)
        return 1
    except (ReassertError, OSError) as error:
        print(printable(f"reassert: {describe(error)}"), file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # it is a full disk, and the interpreter would complain of it once more
            print_to_nobody()
        return 1


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "reassert",
        description=_DESCRIPTION,
        epilog=_ADAPTERS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"reassert {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    policy = commands.add_parser("policy", help="check or show the node policy").add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    check = policy.add_parser("check", help="say everything that is wrong with a policy file")
    check.add_argument("file", nargs="?", metavar="FILE", help=f"default: {store.SOURCE}, with its ownership")
    check.add_argument(
        "--node",
        action="store_true",
        help="look at this node too: does every hostPath and every valueFrom.file exist, and is it root's?",
    )
    check.set_defaults(run=_policy_check)
    show = policy.add_parser("show", help="the policy in force, its source, and an edit that is held back")
    _where(show)
    show.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    show.set_defaults(run=_policy_show)
    compiling = policy.add_parser("compile", help="compile the policy now; a start does it by itself after a change")
    _where(compiling)
    compiling.set_defaults(run=_policy_compile)

    cdi = commands.add_parser("cdi", help="CDI specs").add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    generate = cdi.add_parser("generate", help="print the policy in force as CDI devices, for containers that ask")
    generate.add_argument("--reassert", metavar="PATH", help="this program, absolute (default: where it runs from)")
    _where(generate)
    generate.set_defaults(run=_cdi_generate)
    convert = cdi.add_parser("convert", help="print a CDI spec in YAML as JSON; a start asks for it")
    convert.add_argument("file", metavar="FILE")
    convert.set_defaults(run=_cdi_convert)

    explain = commands.add_parser("explain", help="what would be done about a container, and why; changes nothing")
    which = explain.add_mutually_exclusive_group(required=True)
    which.add_argument("--bundle", metavar="DIR", help="OCI bundle")
    which.add_argument("--config", metavar="FILE", help="OCI config.json")
    explain.add_argument("--policy", metavar="FILE", help="a policy file instead of the node's policy in force")
    explain.add_argument("--store", metavar="DIR", default=store.STORE, help=argparse.SUPPRESS)
    explain.add_argument("-o", "--output", choices=("table", "json", "diff"), default="table")
    explain.set_defaults(run=_explain)

    _dispatcher_options(
        commands.add_parser("dispatcher", help="print the script `reassert-runc` that an engine is pointed at")
    )

    node = commands.add_parser(
        "node", help="wire reassert into this node's container engine, and out again", description=_NODE
    )
    if arguments[:1] == ["node"]:  # it loads a TOML editor and more, and a start may wait for another command
        from hook.node.command import add_commands

        add_commands(node)

    agent = commands.add_parser("agent", help="stay and answer container starts, so that none has to start reassert")
    agent.add_argument("--socket", metavar="PATH", default=AGENT_SOCKET, help="default: %(default)s")
    _where(agent)
    agent.add_argument("--events", metavar="FILE", default=events.EVENTS, help=f"default: {events.EVENTS}")
    agent.set_defaults(run=_agent)

    plugin = commands.add_parser("nri", help="stay and answer containerd or CRI-O as an NRI plugin")
    _nri_options(plugin)
    plugin.set_defaults(run=_nri)
    return parser


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="FILE", default=store.SOURCE, help=f"default: {store.SOURCE}")
    parser.add_argument("--store", metavar="DIR", default=store.STORE, help=f"default: {store.STORE}")


def _policy_check(options: argparse.Namespace) -> int:
    """Errors end with 1. Ownership is an error for the node's own file, a warning for a draft.

    With --node, so is a file that the policy needs and that this node does not have.
    """
    path = options.file or store.SOURCE
    content, _ = read_source(path)
    compiled = compile_bytes(path, content)
    found = [*compiled.warnings, *(_of_this_node(compiled) if options.node else [])]
    for problem in found:
        print(problem.at(path), file=sys.stderr)
    try:
        trusted(os.path.abspath(path))
    except Untrusted as error:
        if not options.file:
            raise
        print(printable(f"{path}: warning: on a node this file would be refused: {error}"), file=sys.stderr)
    if any(problem.severity == "error" for problem in found):
        return 1
    valid = "valid on this node" if options.node else "valid"
    print(printable(f"{path}: {valid}, {len(compiled.lines)} rules, sha256 {compiled.source.sha256}"))
    return 0


def _of_this_node(compiled: Compiled) -> list[Problem]:
    """What is wrong with the files of this node that a policy names, with the place of each in the policy file."""
    from hook.node.sources import look_at

    source = compiled.source
    return [source.problem(f.place, f.message, severity=f.severity) for f in look_at(compiled.policy())]


def _policy_show(options: argparse.Namespace) -> int:
    from hook.policy.show import show

    return show(os.path.abspath(options.policy), options.store, options.output)


def _policy_compile(options: argparse.Namespace) -> int:
    """For the start path: the store's new text on stdout."""
    sys.stdout.write(refresh(os.path.abspath(options.policy), options.store))
    return 0


def _cdi_generate(options: argparse.Namespace) -> int:
    from hook.emit.cdi import cdi_spec

    policy = store.load(os.path.abspath(options.policy), options.store)
    spec = cdi_spec(policy, _own(options))
    print(json.dumps(spec, indent=2, ensure_ascii=False))
    return 0


def _cdi_convert(options: argparse.Namespace) -> int:
    try:
        print(json.dumps(YAML(typ="safe", pure=True).load(Path(options.file)), default=str))
    except YAMLError as error:
        raise ReassertError(f"{options.file}: {error}") from None
    return 0


def _explain(options: argparse.Namespace) -> int:
    from hook.explain import explain

    config = options.config or str(Path(options.bundle) / "config.json")
    return explain(config, options.policy, options.store, options.output)


def _own(options: argparse.Namespace) -> str:
    """The program that is to be called: --reassert, else this one as it lasts over upgrades. Raises Usage."""
    from hook.emit.dispatcher import lasting

    here = os.path.realpath(sys.executable if hasattr(sys, "_MEIPASS") else sys.argv[0])
    return _absolute(options.reassert or lasting(here))


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise Usage(f"{shlex.quote(path)} is not an absolute path")
    return path


def _dispatcher(options: argparse.Namespace) -> int:
    from hook.emit.dispatcher import dispatcher

    own = _own(options)
    extra = [
        part
        for name, default in (("policy", store.SOURCE), ("store", store.STORE), ("events", events.EVENTS))
        for part in ([f"--{name}", getattr(options, name)] if getattr(options, name) != default else [])
    ]
    given = (options.real, options.socket, options.front, options.hook_file)
    for path in (*filter(None, given), *extra[1::2]):
        _absolute(path)
    if not options.socket:
        if options.hook or options.hook_file or options.front:
            raise Usage("--hook, --hook-file and --front need --socket")
        sys.stdout.write(dispatcher(options.real, own, extra))
        return 0
    from hook.emit.front import FRONT, warm_dispatcher, warm_hook

    front = options.front or f"{os.path.dirname(own)}/{FRONT}"
    where = {name: getattr(options, name) for name in ("socket", "policy", "store", "events")}
    if options.hook:
        text = warm_hook(own, front, where, extra)
    else:
        text = warm_dispatcher(options.real, own, front, {**where, "hook": options.hook_file or ""}, extra)
    sys.stdout.write(text)
    return 0


def _agent(options: argparse.Namespace) -> int:
    from hook.agent.service import main as serve

    return serve(options)


def _dispatcher_options(wrapper: argparse.ArgumentParser) -> None:
    what = wrapper.add_mutually_exclusive_group(required=True)
    what.add_argument("--real", metavar="PATH", help="the real OCI runtime, absolute")
    what.add_argument("--hook", action="store_true", help="print what hook entries call instead; needs --socket")
    wrapper.add_argument("--reassert", metavar="PATH", help="this program, absolute (default: where it runs from)")
    wrapper.add_argument("--events", metavar="FILE", default=events.EVENTS, help=f"default: {events.EVENTS}")
    wrapper.add_argument("--socket", metavar="PATH", help="ask the agent that listens there first (reassert agent)")
    wrapper.add_argument("--front", metavar="PATH", help="the program that asks it (default: beside reassert)")
    wrapper.add_argument("--hook-file", metavar="PATH", help="what containers' hook entries call: a file of --hook")
    _where(wrapper)
    wrapper.set_defaults(run=_dispatcher)


def _nri_options(parser: argparse.ArgumentParser) -> None:
    """Declared here, so that the other commands do not load protobuf."""
    parser.add_argument("--socket", metavar="PATH", default="/var/run/nri/nri.sock", help="default: %(default)s")
    parser.add_argument(
        "--plugin-index", metavar="NN", default="", help="order among plugins, two digits (default: 10)"
    )
    _where(parser)
    parser.add_argument("--events", metavar="FILE", default=events.EVENTS, help=f"default: {events.EVENTS}")
    parser.add_argument("--metrics", metavar="ADDRESS", help="127.0.0.1:PORT, [::1]:PORT or unix:/PATH")


def _nri(options: argparse.Namespace) -> int:
    from hook.adapters.nri.service import main as serve

    return serve(options)
