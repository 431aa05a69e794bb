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
from hook.base.errors import Refused, Undecided, Usage, describe
from hook.base.jsontext import Malformed, decode, encode, parse
from hook.base.system import append_line, read_file, replace_file, say, timestamp
from hook.base.text import message
from hook.container.spec import LIMIT, ProcessFile, Spec
from hook.edits import name_of
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
    try:
        passed_on = settings.rest
        if invocation.verb in ("create", "run", "restore"):
            _create(case, invocation)
        elif invocation.verb == "exec":
            passed_on = _exec(case, invocation)
        return _become(settings.real, passed_on, environment)
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


def _exec(case: Case, invocation: Invocation) -> "list[str]":
    """The arguments with which to exec: the process file is corrected, `--env` of reserved names replaced.

    A container that was created without reassert has no decision and passes unchanged. Raises Refused.
    """
    try:
        reserved = _decided_at_create(invocation, case.settings.real)
        if reserved is None:
            return invocation.arguments
        process = invocation.value("process")
        if process is not None:
            target = ProcessFile(read_file(process, LIMIT), process)
            for edit in reserved.edits(target.env):
                edit.apply(target)
            if target.changed():
                replace_file(process, target.render())
        return _without_reserved(invocation, reserved)
    except Exception as error:  # the promise made at create holds, or there is no exec
        raise Refused(f"exec in {invocation.container_id}: {describe(error)}") from None


def _without_reserved(invocation: Invocation, reserved: Reserved) -> "list[str]":
    """`-e NAME=…` on the command line comes after the container's own env and would win: the reserved value instead."""
    arguments = list(invocation.arguments)
    for option in reversed(invocation.options):
        name = name_of(option.value)
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
