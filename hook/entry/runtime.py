"""The OCI runtime wrapper, which an engine calls instead of runc or crun.

For `create` and `run` it corrects config.json. `exec` gets the env, and `update` the device rules, that were decided
when the container was created. `restore` is refused where the policy reserves anything for the container, and so is
each verb that hook.entry.cmdline does not know. Then it executes the real runtime (execve), with the engine's
arguments, descriptors, cwd and environment.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # a builtin that typeshed does not know
import posix
import time

from hook.core.base.errors import NotWritten, Refused, Unacceptable, Usage, describe
from hook.core.base.jsontext import encode
from hook.core.base.system import append_line, timestamp
from hook.core.base.text import WHERE_TO_LOOK, message
from hook.core.container.identity import Identity, identify
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.plan import Plan
from hook.core.verdict import Verdict
from hook.entry import SENTRY, mount_points, process, write_spec
from hook.entry.caller import Caller, Options
from hook.entry.cmdline import VERBS, Invocation
from hook.entry.write_spec import correct


def main(arguments: list[str], environment: dict[bytes, bytes]) -> int:
    """Run the adapter. Returns an exit status only if the real runtime is not executed. Raises Usage."""
    options = Options(arguments, ("real", "hook"))
    if not options.real:
        raise Usage("--real is missing")
    if options.rest is None:
        raise Usage("'--' is missing before the real runtime's arguments")
    invocation = Invocation(options.rest)
    caller = Caller(options, environment)
    try:
        arguments = passed_on(invocation, caller)
        if caller.made:
            _default_signals()
            rootfs, made = caller.made
            stays = invocation.verb != "run"  # the container, which a poststop hook then cleans up after
            return mount_points.execute(options.real, arguments, environment, rootfs=rootfs, made=made, stays=stays)
        return _execute(options.real, arguments, environment)
    except Refused as error:
        return refuse(invocation, str(error), caller)


def passed_on(invocation: Invocation, caller: Caller) -> list[str]:
    """Correct what the real runtime would start. Returns the arguments for the real runtime. Raises Refused."""
    doubt = invocation.doubt()
    if not doubt:
        # gVisor's `start` makes the gofer of a pod's second container.
        if invocation.starts_nothing() and (invocation.verb, caller.options.hook) != ("start", SENTRY):
            return invocation.arguments
        if invocation.verb in ("create", "run", "restore"):
            return _create(invocation, caller)
        if invocation.verb in ("exec", "update", "start"):
            return process.handle(invocation, caller)
        doubt = f"{invocation.verb} can change {VERBS[invocation.verb]}, and reassert cannot correct what it does"
    name = invocation.container_id
    name = "" if "=" in name else name  # no id of an engine: perhaps an env entry, whose value may be a secret
    case = Case(caller, name)
    caller.report(case, case.failed(Unacceptable(doubt)))
    return invocation.arguments  # in Audit mode


def _execute(real: str, arguments: list[str], environment: dict[bytes, bytes]) -> int:
    """Execute the real runtime in this process. Raises Refused."""
    _default_signals()
    try:
        posix.execve(real, [real, *arguments], environment)
    except OSError as error:
        raise Refused(f"cannot run the real runtime {real}: {describe(error)}{WHERE_TO_LOOK}") from None


def _default_signals() -> None:
    """SIGPIPE and SIGXFSZ, which Python ignores, get their default action again.

    An ignored signal would stay ignored in the container. Engines in Go start their children with the default actions
    too.
    """
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)


def _create(invocation: Invocation, caller: Caller) -> list[str]:
    """Correct config.json; the arguments stay as they are. Raises Refused.

    `restore` is refused if any rule applies: env and mounts are the checkpoint's, whatever config.json says, and crun
    calls no hook.
    """
    config = config_path(invocation)
    caller.remove_temporary(config)
    try:
        posix.stat(config)
    except (FileNotFoundError, NotADirectoryError):
        return invocation.arguments  # the real runtime reports the missing file
    except OSError:
        pass  # `read` raises it again

    def read() -> tuple[Identity, Spec]:
        spec = caller.spec(config)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Verdict:
        if invocation.verb == "restore" or invocation.value("fs-restore-image-path"):
            refusals = process.not_restored(decided, case, spec)
            if refusals:
                return Verdict(denials=refusals, edits=[])
        bundle = absolute(invocation.value("bundle") or "")
        done = correct(case, caller, decided, spec, bundle=bundle, config=absolute(config))
        if done.denials:
            return done
        if caller.is_gvisor:
            process.confine(spec, caller)
        elif builds(invocation) and decided.mounts and not decided.audit_only():
            rootfs = write_spec.rootfs(spec, bundle)
            made = mount_points.missing(rootfs, [edit.name for edit in decided.mounts if edit.mount])
            if made:
                caller.before_waiting()
                caller.made = rootfs, made
            if made and invocation.verb != "run":
                write_spec.remove_afterwards(spec, caller.options, made, bundle=bundle, config=absolute(config))
        if spec.changed():
            data = spec.render()
            try:
                caller.replace(config, data)
            except OSError as error:
                raise NotWritten(f"{config} cannot be corrected: {error.strerror}") from error
            written = caller.config(config)
            if written != data or (done.verified and decided.env.differences(spec.env_in(written))):
                raise NotWritten(f"{config} does not contain what was written to it")
        return done

    case = Case(caller, invocation.container_id)
    caller.report(case, case.run(read, act))
    return invocation.arguments


def builds(invocation: Invocation) -> bool:
    """Whether an image may be made of what a container leaves: BuildKit's RUN step, or buildah's.

    Engines call `run` for nothing else. buildah chooses the id.
    """
    if invocation.verb == "run":
        return invocation.last("detach") is None
    return invocation.container_id.startswith("buildah-")


def config_path(invocation: Invocation) -> str:
    """The path of config.json that the runtime uses: in --bundle or the cwd, or --config of crun.

    crun looks for exactly `--config config.json` in the bundle, for any other path from its cwd (crun's create.c).
    """
    given = invocation.value("config")
    bundle = invocation.value("bundle") or posix.getcwd()
    return given if given and given != "config.json" else bundle.rstrip("/") + "/config.json"


def absolute(path: str) -> str:
    """The path from `/`, without a slash at its end. A relative path counts from the cwd."""
    return (path if path.startswith("/") else f"{posix.getcwd().rstrip('/')}/{path}").rstrip("/") or "/"


EXEC_REFUSED = 255
"""Exit status of a refused exec, as of a failed exec of runc. Any other would look like that of the process."""


def refuse(invocation: Invocation, refusal: str, caller: Caller) -> int:
    """Write the refusal to stderr and to the runtime's --log, in its --log-format: engines read the reason there.

    Engines decode the line and print it to the user, so control characters are escaped. Returns the exit status for the
    engine.
    """
    status = EXEC_REFUSED if invocation.verb == "exec" else 1
    text = message(refusal.replace("\n", " "))
    caller.say(text)
    line = "reassert: " + text
    log = invocation.global_value("log") or ""
    path = log.removeprefix("file:")
    if not path or path.startswith(("journald:", "syslog:")):
        return status
    now = timestamp(time.time_ns())
    if invocation.global_value("log-format") == "json":
        entry = encode({"level": "error", "msg": line, "time": now})
    else:
        entry = f"time={encode(now)} level=error msg={encode(line)}"
    try:
        caller.still_waits()
        append_line(path, entry.encode("utf-8", "backslashreplace"), 0o644)
    except OSError as error:
        caller.say(f"cannot write {path}: {describe(error)}")
    return status
