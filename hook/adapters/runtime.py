"""The OCI runtime wrapper: what an engine calls instead of runc or crun. Part of the start path: builtins only.

`create`, `run` and `restore` get a corrected config.json; `exec` gets the env that was decided at create time. Then
the real runtime takes over this process, with the engine's arguments, descriptors, cwd and environment.
"""

import _signal  # type: ignore[import-not-found]  # a builtin that typeshed does not know
import posix
import time

from hook import events
from hook.adapters.cmdline import EDITING_VERBS, Invocation
from hook.adapters.handover import correct
from hook.adapters.options import Options
from hook.base.errors import Refused, Undecided, Usage, describe
from hook.base.jsontext import Malformed, decode, encode, parse
from hook.base.system import append_line, read_file, replace_file, say, timestamp
from hook.container.identity import Identity, identify
from hook.container.spec import LIMIT, ProcessFile, Spec
from hook.decide import Case, Done
from hook.plan import Plan
from hook.policy import store
from hook.reserve import decision
from hook.reserve.env import Reserved

ADAPTER = "runtime"

USAGE = """usage: reassert runtime --real PATH [--policy FILE] [--store DIR] [--events FILE] -- ARGUMENTS…

Correct the container that ARGUMENTS (of runc or crun) would start, then become the real runtime.

  --real PATH     the real OCI runtime, absolute
  --policy FILE   node policy, absolute (default: /etc/reassert/policy.yaml)
  --store DIR     compiled policies (default: /var/lib/reassert)
  --events FILE   event log (default: /var/log/reassert/events.jsonl)
"""


def main(arguments: "list[str]", environment: "dict[bytes, bytes]") -> int:
    """Run the adapter; returns an exit status only if the real runtime was not started."""
    if arguments[:1] in (["-h"], ["--help"]):
        posix.write(1, USAGE.encode())
        return 0
    try:
        options = Options(arguments, ("real",))
        if not options.real:
            raise Usage("--real is missing")
        if options.rest is None:
            raise Usage("'--' is missing before the real runtime's arguments")
    except Usage as error:
        say(f"{error}; see reassert runtime --help")
        return 2
    invocation = Invocation(options.rest)
    try:
        passed_on = options.rest
        if invocation.verb in EDITING_VERBS:
            handle = _HANDLERS.get(invocation.verb)
            if handle is None:
                raise Refused(f"{invocation.verb} starts a process, and reassert has no way to correct it")
            passed_on = handle(options, invocation)
        return _become(options.real, passed_on, environment)
    except Refused as error:
        _tell_engine(invocation, str(error))
        return 1


def _become(real: str, arguments: "list[str]", environment: "dict[bytes, bytes]") -> int:
    """Replace this process, with the signals that Python ignores from its start on back at their default.

    What is ignored would stay so in the container. Engines in Go give their children the default too.
    """
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    try:
        posix.execve(real, [real, *arguments], environment)
    except OSError as error:
        raise Refused(f"cannot run the real runtime {real}: {describe(error)}") from None


def _create(options: Options, invocation: Invocation) -> "list[str]":
    """Correct config.json; the arguments stay as they are. Raises Refused."""
    config = _config_path(invocation)
    try:
        posix.stat(config)
    except OSError:
        return invocation.arguments  # the real runtime says best what is missing

    def read() -> "tuple[Identity, Spec]":
        spec = Spec(read_file(config, LIMIT), config)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Done:
        done = correct(case, options, decided, spec)
        if spec.changed():
            replace_file(config, spec.render())
            if decided.env.differences(Spec(read_file(config, LIMIT), config).env):
                raise Undecided(f"{config} was written and does not hold what was written")
        return done

    case = Case(ADAPTER, invocation.container_id, lambda: store.load(options.policy, options.store))
    case.where = config
    verdict = case.settle(read, act)
    if verdict.event:
        events.write(options.events, verdict.event)
    if verdict.refusal:
        raise Refused(verdict.refusal)
    return invocation.arguments


def _config_path(invocation: Invocation) -> str:
    """config.json as the runtime would find it: in --bundle, else in the cwd; crun also takes --config."""
    given = invocation.value("config")
    bundle = invocation.value("bundle") or posix.getcwd()
    return given or bundle.rstrip("/") + "/config.json"


def _exec(options: Options, invocation: Invocation) -> "list[str]":
    """The arguments with which to exec: the process file is corrected, `--env` of reserved names replaced.

    A container that was created without reassert has no decision and passes unchanged. Raises Refused.
    """
    try:
        reserved = _decided_at_create(invocation, options.real)
        if reserved is None:
            return invocation.arguments
        process = invocation.value("process")
        if process is not None:
            target = ProcessFile(read_file(process, LIMIT), process)
            target.env = reserved.correct(target.env)
            if target.changed():
                replace_file(process, target.render())
        return _without_reserved(invocation, reserved)
    except Exception as error:  # the promise made at create holds, or there is no exec
        raise Refused(f"exec in {invocation.container_id}: {describe(error)}") from None


def _without_reserved(invocation: Invocation, reserved: Reserved) -> "list[str]":
    """`-e NAME=…` on the command line comes after the container's own env and would win: the reserved value instead."""
    arguments = list(invocation.arguments)
    for option in reversed(invocation.options):
        name = option.value.partition("=")[0]
        if option.name != "env" or not reserved.owner(name):
            continue
        value = reserved.values.get(name)
        if value is None:
            flags = arguments[option.begin].partition("e")[0]  # getopt's cluster: `-te NAME=…` leaves `-t`
            arguments[option.begin : option.end] = [flags] if flags.strip("-") else []
        else:  # in the spelling that was used: runc refuses -e beside --env
            last = arguments[option.end - 1]
            arguments[option.end - 1] = last[: len(last) - len(option.value)] + f"{name}={value}"
    return arguments


def _decided_at_create(invocation: Invocation, real: str) -> "Reserved | None":
    bundle = _bundle_of(invocation, real)
    if bundle is None:
        return None
    config = bundle.rstrip("/") + "/config.json"
    try:
        return decision.read(Spec(read_file(config, LIMIT), config).annotations)
    except FileNotFoundError:
        return None


def _bundle_of(invocation: Invocation, real: str) -> "str | None":
    """The container's bundle from the real runtime's own state: runc's state.json (label `bundle=`), crun's status."""
    root = invocation.global_value("root") or "/run/" + real.rpartition("/")[2]
    base = f"{root.rstrip('/')}/{invocation.container_id}"
    state = _read_json(base + "/state.json")
    if isinstance(state, dict):
        config = state.get("config")
        labels = config.get("labels") if isinstance(config, dict) else None
        # runc appends its own label after those it makes of the annotations (libcontainer/specconv): the last counts.
        for label in reversed(labels if isinstance(labels, list) else []):
            if isinstance(label, str) and label.startswith("bundle="):
                return label[len("bundle=") :]
    status = _read_json(base + "/status")
    bundle = status.get("bundle") if isinstance(status, dict) else None
    return bundle if isinstance(bundle, str) else None


def _read_json(path: str) -> object:
    try:
        return parse(decode(read_file(path, LIMIT)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None


_HANDLERS = {"create": _create, "run": _create, "restore": _create, "exec": _exec}
"""How each of EDITING_VERBS is corrected. A verb that is missing here is refused."""


def _tell_engine(invocation: Invocation, message: str) -> None:
    """One line on stderr, and in the runtime's --log in its --log-format, where engines look for the reason."""
    message = message.replace("\n", " ")
    line = "reassert: " + message
    say(message)
    log = invocation.global_value("log") or ""
    path = log.removeprefix("file:")
    if not path or path.startswith(("journald:", "syslog:")):
        return
    now = timestamp(time.time_ns())
    if invocation.global_value("log-format") == "json":
        text = encode({"level": "error", "msg": line, "time": now})
    else:
        text = f"time={encode(now)} level=error msg={encode(line)}"
    try:
        append_line(path, text.encode("utf-8", "backslashreplace"), 0o644)
    except OSError as error:
        say(f"cannot write {path}: {describe(error)}")
