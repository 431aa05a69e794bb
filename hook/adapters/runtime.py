"""The OCI runtime wrapper, which an engine calls instead of runc or crun. Part of the start path: builtins only.

For `create`, `run` and `restore` it corrects config.json; `exec` gets the env that was decided when the container was
created. Then it executes the real runtime (execve), with the engine's arguments, descriptors, cwd and environment.
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
"""Exit status of a refused exec, as of a failed exec of runc. An engine takes any other status for the process's."""

USAGE = """usage: reassert runtime --real PATH [--policy FILE] [--store DIR] [--events FILE] [--hook FILE] -- ARGUMENTS…

Correct config.json of the container that ARGUMENTS (of runc or crun) start, then execute the real runtime.

  --real PATH     the real OCI runtime, absolute
  --policy FILE   policy file, absolute (default: /etc/reassert/policy.yaml)
  --store DIR     compiled policies (default: /var/lib/reassert)
  --events FILE   event log (default: /var/log/reassert/events.jsonl)
  --hook FILE     what containers' hook entries call instead of this program (see reassert dispatcher --hook)
"""


def main(arguments: "list[str]", environment: "dict[bytes, bytes]") -> int:
    """Run the adapter. Returns an exit status only if the real runtime is not executed."""
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
    caller = Caller(environment, options.cold)
    try:
        return _execute(options.real, passed_on(options, invocation, caller), environment)
    except Refused as error:
        return refuse(invocation, str(error), caller)


def passed_on(options: Options, invocation: Invocation, caller: Caller) -> "list[str]":
    """Correct what the real runtime would start. Returns the arguments for the real runtime. Raises Refused."""
    if invocation.starts_nothing():
        return invocation.arguments
    handle = _HANDLERS.get(invocation.verb)
    if handle is None:
        raise Refused(f"{invocation.verb} starts a process, and reassert cannot correct it")
    return handle(options, invocation, caller)


def refuse(invocation: Invocation, refusal: str, caller: Caller) -> int:
    """Report the refusal to the engine. Returns the exit status for the engine."""
    _report_to_engine(invocation, refusal, caller)
    return EXEC_REFUSED if invocation.verb == "exec" else 1


def _execute(real: str, arguments: "list[str]", environment: "dict[bytes, bytes]") -> int:
    """Execute the real runtime in this process. Raises Refused.

    SIGPIPE and SIGXFSZ, which Python ignores, get their default action again: an ignored signal would stay ignored in
    the container. Engines in Go start their children with the default actions too.
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
        return invocation.arguments  # the real runtime reports the missing file

    def read() -> "tuple[Identity, Spec]":
        spec = Spec(caller.config(config), config)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Done:
        done = correct(case, options, decided, spec, invocation.value("bundle") or posix.getcwd())
        if done.denials:
            return done
        if spec.changed():
            caller.replace(config, spec.render())
            if done.verified and decided.env.differences(Spec(caller.config(config), config).env):
                raise Undecided(f"{config} does not contain the env that was written to it")
        return done

    case = Case(ADAPTER, invocation.container_id, lambda: caller.policy(options), caller.checkpoint, caller.start)
    case.where = config
    _report(options, case.settle(read, act), caller)
    return invocation.arguments


def _report(options: Options, verdict: Verdict, caller: Caller) -> None:
    """Write the event. Raises Refused if the verdict is a refusal."""
    if verdict.event:
        caller.log_event(options.events, verdict.event)
    if verdict.refusal:
        raise Refused(verdict.refusal)


def config_path(invocation: Invocation) -> str:
    """The path of config.json that the runtime uses: in --bundle or the cwd, or --config of crun."""
    given = invocation.value("config")
    bundle = invocation.value("bundle") or posix.getcwd()
    return given or bundle.rstrip("/") + "/config.json"


def _exec(options: Options, invocation: Invocation, caller: Caller) -> "list[str]":
    """Correct the exec. In Audit mode, one that cannot be corrected is executed unchanged. Raises Refused."""
    from hook.adapters.exec import correct_exec  # not loaded by a create

    try:
        return correct_exec(invocation, options.real, caller)
    except Unacceptable as error:
        case = Case(ADAPTER, invocation.container_id, lambda: caller.policy(options), start=caller.start)
        _report(options, case.failed(error), caller)
        return invocation.arguments


_HANDLERS = {"create": _create, "run": _create, "restore": _create, "exec": _exec}
"""The function for each of EDITING_VERBS. A verb without a function is refused."""


def _report_to_engine(invocation: Invocation, refusal: str, caller: Caller) -> None:
    """Write the refusal to stderr and to the runtime's --log, in its --log-format: engines read the reason there.

    Engines decode the line and print it to the user, so control characters are escaped.
    """
    text = message(refusal.replace("\n", " "))
    caller.say(text)
    line = "reassert: " + text
    log = invocation.global_value("log") or ""
    path = log.removeprefix("file:")
    if not path or path.startswith(("journald:", "syslog:")):
        return
    now = timestamp(time.time_ns())
    if invocation.global_value("log-format") == "json":
        entry = encode({"level": "error", "msg": line, "time": now})
    else:
        entry = f"time={encode(now)} level=error msg={encode(line)}"
    try:
        caller.append(path, entry.encode("utf-8", "backslashreplace"))
    except OSError as error:
        caller.say(f"cannot write {path}: {describe(error)}")
