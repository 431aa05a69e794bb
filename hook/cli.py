"""The command line, but for the commands of the start path (hook/start.py)."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hook import __version__
from hook.core import events
from hook.core.base.errors import ReassertError, Usage, describe
from hook.core.base.system import discard_output
from hook.core.policy import store
from hook.entry import COMMANDS
from hook.resident import oplog
from hook.resident.parser import Parser, add_log_options, add_policy_options
from hook.resident.terminal import columns, line

if TYPE_CHECKING:
    from hook.resident.metrics import NoMetrics

AGENT_SOCKET = "/run/reassert/agent/agent.sock"
"""The agent's socket unless the command line names another."""

NRI_SOCKET = "/var/run/nri/nri.sock"
"""The NRI socket of containerd and CRI-O unless the command line names another."""

_DESCRIPTION = "Enforce the env and mounts that a node reserves, before a container starts."
_PROGRAM_HELP = "absolute path by which engines call reassert (default: the path of this program)"
_SECTIONS: dict[str, tuple[str, ...]] = {
    "this node": ("install", "status", "verify", "uninstall"),
    "a policy": ("policy", "explain", "trust"),
    "what happens on it": ("audit", "report", "events"),
}
"""The commands as --help groups them."""

_PLUMBING: dict[str, tuple[str, ...]] = {
    "called by engines and systemd": ("runtime", "hook", "nri", "agent", "policy compile"),
    "files": ("dispatcher", "cdi", "completion", "man"),
}
"""The commands that `reassert help --all` adds: no person types them."""

_ALIASES = ("node", "doctor")
"""Commands that no help shows: `status` is `status`, `doctor` is `status --all`."""

_OF_ENGINES = {
    "runtime": "OCI runtime wrapper",
    "hook": "OCI hook",
    "nri": "NRI plugin; also the command if a runtime starts reassert from its NRI plugin directory",
    "policy compile": "compile the policy file now; otherwise the next container start does it",
}

_EXAMPLES = """examples:
  reassert policy check draft.yaml               each error, with its line
  reassert explain pod.yaml --policy draft.yaml  what a draft makes of a pod
  sudo reassert audit --policy draft.yaml        what it would change here
  sudo reassert install --dry-run                what an install would write
  reassert help verify                           the same as `verify --help`
  reassert help break-glass                      nothing starts: what now
  reassert help --all                            also what engines call
"""


class _Commands(Parser):
    """The parser of all commands."""

    def format_help(self, sections: Mapping[str, Collection[str]] = _SECTIONS) -> str:
        """Returns the help with the commands in groups, and examples."""
        from textwrap import wrap

        (commands,) = [each for each in self._actions if isinstance(each, argparse._SubParsersAction)]
        helps = {each.dest: str(each.help) for each in commands._choices_actions} | _OF_ENGINES
        lines = [self.format_usage(), str(self.description), ""]
        for title, names in (_SECTIONS | _PLUMBING if IS_CORE else sections).items():
            known = [name for name in names if name in helps]
            lines += [f"{title}:"] if known else []
            for name in known:
                lines += wrap(helps[name], 79, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14)
            lines += [""] if known else []
        return "\n".join([*lines, "options: -h, --help; --version", "", "" if IS_CORE else _EXAMPLES])


def _meant(arguments: list[str]) -> list[str]:
    """The arguments with `help` and `version` replaced by what they stand for."""
    match arguments:
        case ["help", *words]:
            if words and words[0] in COMMANDS:
                from hook.start import start

                start([*words, "--help"])
            return [*words, "--help"]
        case ["version"]:
            return ["--version"]
    return arguments


def main(arguments: list[str]) -> int:
    """Run one command. Returns its exit status: 0 success, 1 an error or a problem found, 2 wrong usage."""
    _open_closed()
    try:
        try:
            return _main(arguments)
        finally:  # also of what argparse prints before it exits
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        _say_error(f"reassert: {describe(error)}")
    return 1


def _open_closed() -> None:
    """Open /dev/null for each standard stream that the caller closed (`>&-`).

    Python has None for it, and the next file that is opened gets its number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _main(arguments: list[str]) -> int:
    if not arguments and os.environ.get("NRI_PLUGIN_SOCKET"):
        arguments = ["nri"]  # a runtime starts the programs of its NRI plugin directory without arguments
    typed = shlex.join(["reassert", *arguments])
    if arguments == ["help", "--all"]:
        print(command_line(()).format_help(_SECTIONS | _PLUMBING), end="")
        return 0
    if arguments == ["help", "break-glass"] and not IS_CORE:
        from hook.ops.break_glass import page

        print(page(), end="")
        return 0
    arguments = _meant(arguments)
    os.environ["LANGUAGE"] = "C"  # else argparse looks for translations of each word, in several directories
    parser = command_line(arguments[:1])
    try:
        options = parser.parse_args(arguments)
        if not hasattr(options, "run"):  # a group without one of its commands, or no command
            parser.of(arguments).print_help()
            return 2
        options.typed = typed
        gc.freeze()  # what was imported is never garbage, so no search begins with it
        gc.enable()
        status = _run(options, arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("reassert: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        discard_output()
        return 1
    except Usage as error:
        _say_error(f"reassert: {error}")
        return 2
    except (ReassertError, OSError) as error:
        _tell(error, parser.of(arguments).prog.removeprefix("reassert "))
        try:
            sys.stdout.flush()
        except OSError:  # a full disk: without this, Python reports the error again at exit
            discard_output()
        return 1
    finally:
        oplog.close()


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs a command, with its operation log if it has one. A service says itself when it starts and stops."""
    if hasattr(options, "log_format"):
        oplog.configure(options.log_format, options.log_level, options.resident)
    if not oplog.is_active() or options.resident:
        return int(options.run(options))
    oplog.info("command.started", version=__version__, arguments=shlex.join(arguments))
    status = int(options.run(options))
    oplog.info("command.ended", status=status)
    return status


def _tell(error: ReassertError | OSError, command: str) -> None:
    """Says why a command failed: each problem of a policy file; else in the operation log, if there is one."""
    problems = getattr(error, "problems", ())  # of a PolicyInvalid, imported with its command
    for problem in problems:
        _say_error(problem.at(getattr(error, "path", "")))
    if problems:
        return
    outcome = getattr(error, "outcome", None) or None  # of a NodeError, imported with its command
    if oplog.is_active():
        oplog.error("command.failed", command=command, exc_info=error, outcome=outcome)
        return
    _say_error(f"reassert: {describe(error)}")
    if outcome:
        _say_error(outcome)


def _say_error(text: str) -> None:
    print(line(text, columns("", sys.stderr), 2), file=sys.stderr)


GROUPS: dict[str, tuple[str, str]] = {
    "policy": ("check, show, test and compare policies", "hook.ops.policy.command:add_commands"),
    "trust": (
        "build the company's trust store from the system's roots and your CAs, and check it",
        "hook.ops.trust.command:add_commands",
    ),
    "explain": (
        "print the decision about a container, with the reasons; changes nothing",
        "hook.ops.explain:add_commands",
    ),
    "install": (
        "wire reassert into this node's container engine; if a step fails, every change is undone",
        "hook.ops.node:add_install",
    ),
    "status": (
        "show what is in force on this node, and which command fixes what is wrong",
        "hook.ops.health.command:add_status",
    ),
    "verify": (
        "start a normal and a hostile test container under each handler and show what they got",
        "hook.ops.node:add_verify",
    ),
    "uninstall": (
        "remove reassert from the engines and restore every file that install changed",
        "hook.ops.node:add_uninstall",
    ),
    "node": ("the same commands under their earlier names", "hook.ops.node:add_commands"),
    "audit": (
        "compare every running container with the policy in force",
        "hook.ops.audit.command:add_commands",
    ),
    "report": (
        "summarise the event log by workload: what the policy changes or refuses, and what to ask for",
        "hook.ops.events.report:add_commands",
    ),
    "events": ("print the event log with its rotated files, and follow it", "hook.ops.events.command:add_commands"),
    "doctor": (
        "the same as `reassert status --all`",
        "hook.ops.health.command:add_doctor",
    ),
    "completion": ("print the completion script of a shell", "hook.ops.shell:add_completion"),
    "man": ("print the manual page of a command", "hook.ops.shell:add_man"),
}
"""Commands, and the function of a module that adds each to the parser, as `module:function`. Only the module of the
given command is
imported: a container start may wait for another command. packaging/reassert.spec freezes all of them."""

IS_CORE = find_spec("hook.ops") is None
"""Whether this is the build without hook.ops and hook.node (`packaging/build.sh --core`)."""

if IS_CORE:
    GROUPS = {"policy": ("compile the policy", "hook.compile.command:add_only_compile")}


def _exits(command: str) -> str | None:
    from hook.ops.exits import told

    return told(command) or None


def command_line(words: Collection[str]) -> _Commands:
    """The parser of all commands. A group's own commands are in it if `words` has its name."""
    parser = _Commands("reassert", usage="reassert COMMAND [options]", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"reassert {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog="reassert", parser_class=Parser)

    cdi = commands.add_parser("cdi", help="CDI specs").add_subparsers(title="commands", metavar="COMMAND")
    if not IS_CORE:
        generate = cdi.add_parser(
            "generate", help="print a CDI spec of the policy in force, for containers that request it"
        )
        generate.add_argument("--reassert", metavar="PATH", help=_PROGRAM_HELP)
        add_policy_options(generate)
        generate.set_defaults(run=_cdi_generate)
    convert = cdi.add_parser("convert", help="print a CDI spec in YAML as JSON; used by container starts")
    convert.add_argument("file", metavar="FILE")
    convert.set_defaults(run=_cdi_convert)

    _add_dispatcher_options(
        commands.add_parser(
            "dispatcher", help="print the script that an engine runs as its OCI runtime (`reassert-runc`)"
        )
    )

    for word, (text, where) in GROUPS.items():
        group = commands.add_parser(word, help=text, is_listed=word not in _ALIASES)
        if word in words:
            module, _, function = where.partition(":")
            getattr(import_module(module), function)(group)
            group.epilog = None if IS_CORE else _exits(word)

    agent = commands.add_parser(
        "agent", help="run as a service that answers container starts in place of new processes"
    )
    agent.add_argument(
        "--socket", metavar="PATH", default=AGENT_SOCKET, help="socket to listen on (default: %(default)s)"
    )
    add_policy_options(agent)
    agent.add_argument("--events", metavar="FILE", default=events.EVENTS, help=f"event log (default: {events.EVENTS})")
    agent.add_argument("--nri", action="store_true", help="run the NRI plugin in the same process")
    agent.add_argument(
        "--nri-socket", metavar="PATH", default=NRI_SOCKET, help="with --nri: NRI socket (default: %(default)s)"
    )
    _add_resident_options(agent)
    agent.set_defaults(run=_agent)

    plugin = commands.add_parser("nri", help="run as an NRI plugin of containerd or CRI-O")
    _nri_options(plugin)
    plugin.set_defaults(run=_nri)
    return parser


def _cdi_generate(options: argparse.Namespace) -> int:
    from hook.node.artifacts.specs import cdi_spec

    policy = store.load(os.path.abspath(options.policy), options.store)
    spec = cdi_spec(policy, _program(options))
    print(json.dumps(spec, indent=2, ensure_ascii=False))
    return 0


def _cdi_convert(options: argparse.Namespace) -> int:
    from ruamel.yaml.error import YAMLError

    from hook.compile.go_yaml import first_document

    try:
        print(json.dumps(first_document(Path(options.file).read_text("utf-8"))))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ReassertError(f"{options.file}: {error}") from None
    return 0


def _program(options: argparse.Namespace) -> str:
    """The path by which engines call reassert: --reassert, else this program's stable path. Raises Usage."""
    from hook.entry.dispatcher import stable_path

    here = os.path.realpath(sys.executable if hasattr(sys, "_MEIPASS") else sys.argv[0])
    return _absolute(options.reassert or stable_path(here))


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise Usage(f"{shlex.quote(path)} is not an absolute path")
    return path


def _dispatcher(options: argparse.Namespace) -> int:
    from hook.entry.dispatcher import dispatcher

    program = _program(options)
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
        sys.stdout.write(dispatcher(options.real, program, extra=extra))
        return 0
    from hook.entry.dispatcher import FRONT, warm_dispatcher, warm_hook

    front = options.front or f"{os.path.dirname(program)}/{FRONT}"
    where = {name: getattr(options, name) for name in ("socket", "policy", "store", "events")}
    if options.hook:
        text = warm_hook(program, front, where=where, extra=extra)
    else:
        text = warm_dispatcher(
            options.real, program, front=front, where={**where, "hook": options.hook_file or ""}, extra=extra
        )
    sys.stdout.write(text)
    return 0


def _agent(options: argparse.Namespace) -> int:
    from hook.agent.service import Plugin
    from hook.agent.service import main as serve

    def start_plugin(metrics: NoMetrics) -> Plugin:
        from hook.nri.service import beside  # protobuf: 8 MB, only with --nri

        service = beside(options, metrics)
        return Plugin(service.connected, service.healthy, service.connect_for_ever)

    return serve(options, lambda: _metrics(options, options.nri, True), start_plugin if options.nri else None)


def _metrics(options: argparse.Namespace, has_plugin: bool, all_adapters: bool) -> NoMetrics:
    from hook.resident.metrics import NoMetrics

    if not options.metrics and not options.textfile:
        return NoMetrics()
    from hook.ops.metrics.service import start  # prometheus_client: 3 MB, only where it is asked for

    return start(options, has_plugin, all_adapters)


def _add_dispatcher_options(wrapper: argparse.ArgumentParser) -> None:
    what = wrapper.add_mutually_exclusive_group(required=True)
    what.add_argument("--real", metavar="PATH", help="absolute path of the real OCI runtime")
    what.add_argument(
        "--hook", action="store_true", help="print the file that hook entries execute, with --socket only"
    )
    wrapper.add_argument("--reassert", metavar="PATH", help=_PROGRAM_HELP)
    wrapper.add_argument(
        "--events", metavar="FILE", default=events.EVENTS, help=f"event log (default: {events.EVENTS})"
    )
    wrapper.add_argument("--socket", metavar="PATH", help="ask the agent at this socket first (see reassert agent)")
    wrapper.add_argument("--front", metavar="PATH", help="the program that asks the agent (default: beside reassert)")
    wrapper.add_argument("--hook-file", metavar="PATH", help="output of --hook that containers' hook entries execute")
    add_policy_options(wrapper)
    wrapper.set_defaults(run=_dispatcher)


def _nri_options(parser: argparse.ArgumentParser) -> None:
    """The options of `reassert nri`. They are here because hook.nri imports protobuf."""
    parser.add_argument("--socket", metavar="PATH", default=NRI_SOCKET, help="NRI socket (default: %(default)s)")
    add_policy_options(parser)
    parser.add_argument("--events", metavar="FILE", default=events.EVENTS, help=f"event log (default: {events.EVENTS})")
    _add_resident_options(parser)


def _add_resident_options(parser: argparse.ArgumentParser) -> None:
    add_log_options(parser, resident=True)
    parser.add_argument(
        "--plugin-index", metavar="NN", default="", help="order among NRI plugins, two digits (default: 10)"
    )
    what = "runtime handler of the engine that calls gVisor's runsc, empty for the default one (several times)"
    parser.add_argument("--gvisor", metavar="HANDLER", action="append", default=[], help=what)
    if IS_CORE:
        parser.set_defaults(metrics=None, textfile=None)
        return
    parser.add_argument(
        "--metrics", metavar="ADDRESS", help="serve Prometheus metrics at 127.0.0.1:PORT, [::1]:PORT or unix:/PATH"
    )
    parser.add_argument(
        "--textfile",
        metavar="DIR",
        help="write the metrics to DIR/reassert.prom, for node_exporter's textfile collector",
    )


def _nri(options: argparse.Namespace) -> int:
    from hook.nri.service import main as serve

    return serve(options, lambda: _metrics(options, True, False))
