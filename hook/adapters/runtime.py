"""The OCI runtime wrapper: what an engine calls instead of runc or crun. Part of the start path: builtins only.

`create`, `run` and `restore` get a corrected config.json; `exec` gets the env that was decided at create time. Then
the real runtime takes over this process, with the engine's arguments, descriptors, cwd and environment.
"""

import _signal  # type: ignore[import-not-found]  # a builtin that typeshed does not know
import posix
import time

from hook import decision
from hook.adapters.case import Case, Settings
from hook.adapters.cmdline import Invocation
from hook.base.errors import Refused, Unacceptable, Usage, describe
from hook.base.jsontext import encode
from hook.base.system import append_line, read_file, replace_file, say, timestamp
from hook.container.spec import LIMIT, Spec
from hook.reserved import Reserved

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
        settings = Settings(arguments, ("real",))
        if not settings.real:
            raise Usage("--real is missing")
        if settings.rest is None:
            raise Usage("'--' is missing before the real runtime's arguments")
    except Usage as error:
        say(f"{error}; see reassert runtime --help")
        return 2
    invocation = Invocation(settings.rest)
    case = Case(ADAPTER, settings, invocation.container_id)
    status = 1
    try:
        passed_on = settings.rest
        if invocation.starts_nothing():
            pass
        elif invocation.verb == "exec":
            from hook.adapters.exec import REFUSED, correct_exec  # no create pays for it

            status = REFUSED
            try:
                passed_on = correct_exec(invocation, settings.real, environment)
            except Unacceptable as error:
                case.refuse("", str(error))
        else:
            _create(case, invocation)
        return _become(settings.real, passed_on, environment)
    except Refused as error:
        _tell_engine(invocation, str(error))
        return status


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


def _create(case: Case, invocation: Invocation) -> None:
    """Correct config.json. Raises Refused."""
    config = _config_path(invocation)
    try:
        try:
            spec = Spec(read_file(config, LIMIT), config)
        except FileNotFoundError:
            return  # the real runtime says best what is missing
        decided = case.decide(spec)
        case.finish(decided)
        if decided.audit_only():
            reserved = Reserved({}, [])
        else:
            reserved = decided.reserved
            for edit in decided.edits:
                edit.apply(spec)
        spec.annotations = decision.stamp(spec.annotations, reserved, decided.policy.fingerprint)
        if spec.changed():
            replace_file(config, spec.render())
    except Refused:
        raise
    except Exception as error:  # whatever it is, the policy says what a container gets then
        case.fail(error, config)


def _config_path(invocation: Invocation) -> str:
    """config.json as the runtime would find it: in --bundle, else in the cwd; crun also takes --config."""
    given = invocation.value("config")
    bundle = invocation.value("bundle") or posix.getcwd()
    return given or bundle.rstrip("/") + "/config.json"


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
