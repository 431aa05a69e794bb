"""The OCI runtime wrapper: what an engine calls instead of runc or crun. Part of the start path: builtins only.

`create`, `run` and `restore` get a corrected config.json; `exec` gets the env that was decided at create time. Then
the real runtime takes over this process, with the engine's arguments, descriptors, cwd and environment.
"""

import _signal  # type: ignore[import-not-found]  # a builtin that typeshed does not know
import posix
import time

from hook import events
from hook.adapters.cmdline import Invocation
from hook.adapters.handover import correct
from hook.adapters.options import Options
from hook.base.errors import Refused, Unacceptable, Undecided, Usage, describe
from hook.base.jsontext import encode
from hook.base.system import append_line, read_file, replace_file, say, timestamp
from hook.base.text import message
from hook.container.identity import Identity, identify
from hook.container.spec import LIMIT, Spec
from hook.decide import Case, Done, Verdict
from hook.plan import Plan
from hook.policy import store

ADAPTER = "runtime"
EXEC_REFUSED = 255
"""Exit status of an exec that did not happen: runc's. Engines take others for the process's own."""

USAGE = """usage: reassert runtime --real PATH [--policy FILE] [--store DIR] [--events FILE] -- ARGUMENTS…

Correct the container that ARGUMENTS, those of runc or crun, would start, then execute the real runtime with them.

  --real PATH     absolute path of the real OCI runtime
  --policy FILE   absolute path of the node policy (default: /etc/reassert/policy.yaml)
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
        if not invocation.starts_nothing():
            handle = _HANDLERS.get(invocation.verb)
            if handle is None:
                raise Refused(f"{invocation.verb} starts a process, and reassert has no way to correct it")
            passed_on = handle(options, invocation, environment)
        return _become(options.real, passed_on, environment)
    except Refused as error:
        _tell_engine(invocation, str(error))
        return EXEC_REFUSED if invocation.verb == "exec" else 1


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


def _create(options: Options, invocation: Invocation, _: "dict[bytes, bytes]") -> "list[str]":
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
            if done.verified and decided.env.differences(Spec(read_file(config, LIMIT), config).env):
                raise Undecided(f"{config} was written and does not hold what was written")
        return done

    case = Case(ADAPTER, invocation.container_id, lambda: store.load(options.policy, options.store))
    case.where = config
    _tell(options, case.settle(read, act))
    return invocation.arguments


def _tell(options: Options, verdict: Verdict) -> None:
    """Write the event. Raises Refused."""
    if verdict.event:
        events.write(options.events, verdict.event)
    if verdict.refusal:
        raise Refused(verdict.refusal)


def _config_path(invocation: Invocation) -> str:
    """config.json as the runtime would find it: in --bundle, else in the cwd; crun also takes --config."""
    given = invocation.value("config")
    bundle = invocation.value("bundle") or posix.getcwd()
    return given or bundle.rstrip("/") + "/config.json"


def _exec(options: Options, invocation: Invocation, environment: "dict[bytes, bytes]") -> "list[str]":
    """The arguments with which to exec; in Audit mode those that came if they cannot be corrected. Raises Refused."""
    from hook.adapters.exec import correct_exec  # no create pays for it

    try:
        return correct_exec(invocation, options.real, environment)
    except Unacceptable as error:
        case = Case(ADAPTER, invocation.container_id, lambda: store.load(options.policy, options.store))
        _tell(options, case.failed(error))
        return invocation.arguments


_HANDLERS = {"create": _create, "run": _create, "restore": _create, "exec": _exec}
"""How each of EDITING_VERBS is corrected. A verb that is missing here is refused."""


def _tell_engine(invocation: Invocation, refusal: str) -> None:
    """One line on stderr, and in the runtime's --log in its --log-format, where engines look for the reason.

    Engines decode it and print it to whoever asked for the container, so it is made printable here.
    """
    told = message(refusal.replace("\n", " "))
    line = "reassert: " + told
    say(told)
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
