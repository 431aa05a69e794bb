"""The OCI runtime wrapper: what an engine calls instead of runc or crun. Part of the start path: builtins only.

`create`, `run` and `restore` get a corrected config.json; `exec` gets the env that was decided at create time. Then
the real runtime takes over this process, with the engine's arguments, descriptors, cwd and environment.
"""

import _signal  # type: ignore[import-not-found]  # a builtin that typeshed does not know
import posix
import time

from hook.adapters.caller import Caller
from hook.adapters.cmdline import Invocation
from hook.adapters.handover import correct
from hook.adapters.options import Options
from hook.base.errors import Refused, Unacceptable, Undecided, Usage, describe
from hook.base.jsontext import encode
from hook.base.system import say, timestamp
from hook.base.text import message
from hook.container.identity import Identity, identify
from hook.container.spec import Spec
from hook.decide import Case, Done, Verdict
from hook.plan import Plan

ADAPTER = "runtime"
EXEC_REFUSED = 255
"""Exit status of an exec that did not happen: runc's. Engines take others for the process's own."""

USAGE = """usage: reassert runtime --real PATH [--policy FILE] [--store DIR] [--events FILE] [--hook FILE] -- ARGUMENTS…

Correct the container that ARGUMENTS (of runc or crun) would start, then become the real runtime.

  --real PATH     the real OCI runtime, absolute
  --policy FILE   node policy, absolute (default: /etc/reassert/policy.yaml)
  --store DIR     compiled policies (default: /var/lib/reassert)
  --events FILE   event log (default: /var/log/reassert/events.jsonl)
  --hook FILE     what containers' hook entries call instead of this program (see reassert dispatcher --hook)
"""


def main(arguments: "list[str]", environment: "dict[bytes, bytes]") -> int:
    """Run the adapter; returns an exit status only if the real runtime was not started."""
    if arguments[:1] in (["-h"], ["--help"]):
        posix.write(1, USAGE.encode())
        return 0
    try:
        options = Options(arguments, ("real", "hook"))
        if not options.real:
            raise Usage("--real is missing")
        if options.rest is None:
            raise Usage("'--' is missing before the real runtime's arguments")
    except Usage as error:
        say(f"{error}; see reassert runtime --help")
        return 2
    invocation = Invocation(options.rest)
    caller = Caller(environment)
    try:
        return _become(options.real, passed_on(options, invocation, caller), environment)
    except Refused as error:
        return refuse(invocation, str(error), caller)


def passed_on(options: Options, invocation: Invocation, caller: Caller) -> "list[str]":
    """Correct what the real runtime would start; the arguments with which to go on to it. Raises Refused."""
    if invocation.starts_nothing():
        return invocation.arguments
    handle = _HANDLERS.get(invocation.verb)
    if handle is None:
        raise Refused(f"{invocation.verb} starts a process, and reassert has no way to correct it")
    return handle(options, invocation, caller)


def refuse(invocation: Invocation, refusal: str, caller: Caller) -> int:
    """Tell the engine; returns the exit status that it is to see."""
    _tell_engine(invocation, refusal, caller)
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


def _create(options: Options, invocation: Invocation, caller: Caller) -> "list[str]":
    """Correct config.json; the arguments stay as they are. Raises Refused."""
    config = config_path(invocation)
    try:
        posix.stat(config)
    except OSError:
        return invocation.arguments  # the real runtime says best what is missing

    def read() -> "tuple[Identity, Spec]":
        spec = Spec(caller.config(config), config)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Done:
        done = correct(case, options, decided, spec)
        if spec.changed():
            caller.replace(config, spec.render())
            if decided.env.differences(Spec(caller.config(config), config).env):
                raise Undecided(f"{config} was written and does not hold what was written")
        return done

    case = Case(ADAPTER, invocation.container_id, lambda: caller.policy(options), caller.checkpoint)
    case.where = config
    _tell(options, case.settle(read, act), caller)
    return invocation.arguments


def _tell(options: Options, verdict: Verdict, caller: Caller) -> None:
    """Write the event. Raises Refused."""
    if verdict.event:
        caller.log_event(options.events, verdict.event)
    if verdict.refusal:
        raise Refused(verdict.refusal)


def config_path(invocation: Invocation) -> str:
    """config.json as the runtime would find it: in --bundle, else in the cwd; crun also takes --config."""
    given = invocation.value("config")
    bundle = invocation.value("bundle") or posix.getcwd()
    return given or bundle.rstrip("/") + "/config.json"


def _exec(options: Options, invocation: Invocation, caller: Caller) -> "list[str]":
    """The arguments with which to exec; in Audit mode those that came if they cannot be corrected. Raises Refused."""
    from hook.adapters.exec import correct_exec  # no create pays for it

    try:
        return correct_exec(invocation, options.real, caller)
    except Unacceptable as error:
        case = Case(ADAPTER, invocation.container_id, lambda: caller.policy(options))
        _tell(options, case.failed(error), caller)
        return invocation.arguments


_HANDLERS = {"create": _create, "run": _create, "restore": _create, "exec": _exec}
"""How each of EDITING_VERBS is corrected. A verb that is missing here is refused."""


def _tell_engine(invocation: Invocation, refusal: str, caller: Caller) -> None:
    """One line on stderr, and in the runtime's --log in its --log-format, where engines look for the reason.

    Engines decode it and print it to whoever asked for the container, so it is made printable here.
    """
    told = message(refusal.replace("\n", " "))
    line = "reassert: " + told
    caller.say(told)
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
        caller.append(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        caller.say(f"cannot write {path}: {describe(error)}")
