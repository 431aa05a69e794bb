"""The OCI hook. Part of the start path: builtins only, except hook.core.linux, which is loaded when needed.

A hook runs after the runtime has read config.json, so it cannot change env (runtime-spec, lifecycle step 2). It
verifies env and refuses a container whose env is wrong. It can restore mounts: it enters the container's mount
namespace before pivot_root. podman's own stage `precreate` runs before the runtime and corrects both env and mounts.
"""

import posix

from hook.core.base.compare import clean
from hook.core.base.errors import Refused, Undecided, Usage, named
from hook.core.base.jsontext import Malformed, bounded, decode, parse
from hook.core.base.system import read_fd, read_file, write_all
from hook.core.container.identity import Identity, identify
from hook.core.container.spec import ENTRIES, JOINED, LIMIT, Spec
from hook.core.decide import CONFIG, CONTAINER, NOWHERE, Case, Done
from hook.core.plan import ALL, Plan
from hook.core.reserve import Edit, PlaceMount, Reason, SetEnv, devices, mounts
from hook.entry import write_spec
from hook.entry.caller import Caller, Options
from hook.entry.write_spec import FLAG as HANDED_ON

ADAPTER = "hook"
PRESTART, CREATE_RUNTIME, CREATE_CONTAINER, POSTSTOP = "prestart", "createRuntime", "createContainer", "poststop"
PRECREATE = "precreate"
STAGES = (PRESTART, CREATE_RUNTIME, CREATE_CONTAINER, POSTSTOP, PRECREATE)

_ANOTHER_ROOT = (
    "a createContainer hook runs inside the container's user namespace, where reassert cannot tell which of the node's "
    "files belong to root; configure the hook for the stage createRuntime instead"
)

_AFTER_A_CHANGE = "the policy was changed while the container was created: create it again"

STATE = "the OCI state on stdin"
_CONFIG_ON_STDIN = "the config.json on stdin"


class HookCaller(Caller):
    """The runtime whose hook is answered."""

    def state(self) -> bytes:
        """Returns the OCI state that the runtime gives a hook on stdin. Raises TooLarge, OSError."""
        return read_fd(0, LIMIT, STATE)

    def parents_arguments(self) -> "list[str]":
        """Returns the arguments of the caller's parent process, without its name. Raises TooLarge, OSError."""
        command = read_file(f"/proc/{posix.getppid()}/cmdline", LIMIT).decode("utf-8", "surrogateescape")
        return command.split("\0")[1:-1]

    def runtimes_arguments(self) -> "list[str]":
        """Returns the runtime's arguments, none if it is in another pid namespace."""
        try:
            return self.parents_arguments()
        except OSError:
            return []


def main(arguments: "list[str]") -> int:
    """Run the adapter; returns its exit status. Raises Usage."""
    options = options_of(arguments)
    return run(options, HookCaller({}, options.cold))


def options_of(arguments: "list[str]") -> Options:
    """The command line of a hook; its stage is the only operand. Raises Usage."""
    options = Options(arguments, ("bundle", "config"), ("inject-env", "mount-ca", HANDED_ON))
    if len(options.operands) != 1 or options.operands[0] not in STAGES:
        raise Usage(f"give one stage of {', '.join(STAGES)}")
    return options


def run(options: Options, caller: HookCaller) -> int:
    """Do the work of one stage, in `/`; returns the exit status."""
    stage = options.operands[0]
    bundle = _working_directory() if stage == PRECREATE else "/"
    posix.chdir("/")
    kinds = ALL
    if options.flags == {"inject-env"}:
        kinds = ALL - {mounts.KIND}
    elif options.flags == {"mount-ca"}:
        kinds = frozenset({mounts.KIND})
    try:
        if stage == PRECREATE:
            _precreate(options, kinds, caller, bundle)
        elif stage != POSTSTOP:
            _at_stage(options, stage, kinds, caller)
    except Refused as error:
        caller.say(str(error).replace("\n", " "), is_hook=True)
        return 1
    return 0


def _working_directory() -> str:
    """Where the hook was started; "/" if that directory is gone."""
    try:
        return posix.getcwd()
    except OSError:
        return "/"


class State:
    """The OCI state that a hook gets on stdin (runtime-spec, State)."""

    def __init__(self, data: bytes) -> None:
        """Raises Undecided."""
        try:
            state = parse(decode(bounded(data, ENTRIES, STATE)))
        except Malformed as error:
            raise Undecided(f"{STATE}: {error}") from None
        fields = state if isinstance(state, dict) else {}
        bundle, pid = fields.get("bundle"), fields.get("pid", 0)
        if not isinstance(bundle, str) or not bundle.startswith("/") or not isinstance(pid, int):
            raise Undecided(f"{STATE} has no absolute bundle and pid; this must be run as an OCI hook")
        self.container_id = str(fields.get("id", ""))
        self.bundle = bundle
        self.pid = pid


def _at_stage(options: Options, stage: str, kinds: "frozenset[str]", caller: HookCaller) -> None:
    """Verify env, verify the mounts in the container and restore missing ones. Raises Refused."""
    states: list[State] = []

    def read() -> "tuple[Identity, Spec]":
        state = State(caller.state())
        states.append(state)
        case.container_id = state.container_id
        if stage == CREATE_CONTAINER and posix.lstat("/").st_uid != 0:
            raise Undecided(_ANOTHER_ROOT)
        if options.bundle:
            state.bundle = options.bundle
        elif state.bundle == "/":
            state.bundle = _bundle_of_crun(state, caller)
        case.error_path = options.config or state.bundle.rstrip("/") + "/config.json"
        spec = Spec(caller.config(case.error_path), case.error_path)
        case.in_sentry = stage != CREATE_CONTAINER and _is_sentry(state.pid)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Done:
        if HANDED_ON not in options.flags and restores(caller.runtimes_arguments()):
            from hook.entry.exec import not_restored  # few containers are restored

            return Done(NOWHERE, not_restored(decided, case, spec), [])
        created = write_spec.read(spec.annotations) if HANDED_ON in options.flags else None
        late = _late(decided, spec, created if created and created.policy != decided.policy.fingerprint else None)
        if case.in_sentry and not late:
            late = _late_in_sentry(decided, spec, states[0].bundle, case, caller)
        draft = created.draft if created else None
        if decided.audit_only():
            if draft:  # create made the edits; the mode was changed since
                return Done(CONFIG, late, [], draft=draft)
            return Done(NOWHERE, late, [edit for edit in decided.edits if _can_mount(edit)])
        if case.audited_rules and HANDED_ON not in options.flags:
            wrong = [e for e in case.audited_rules.edits if not _can_mount(e) and not _takes_effect(e)]
            case.audited_rules.would_refuse([too_late(edit) for edit in wrong])
        if late or case.in_sentry or not decided.is_seen_in_the_container():
            return Done(CONFIG, late, [], draft=draft)
        return _look(decided, _pid(stage, states[0]), states[0].bundle, spec, draft, caller)

    case = Case(ADAPTER, "", lambda: caller.policy(options), caller.checkpoint, caller.start)
    case.still_waits = caller.still_waits
    case.before_mounting = _mounts_for_itself if stage == CREATE_CONTAINER else caller.before_mounting
    case.asks = options.store, caller.ask
    case.error_path = "stdin"
    caller.report(options, case.run(read, act, kinds))


def _mounts_for_itself() -> None:
    raise Undecided("a createContainer hook cannot mount on the node; configure the hook for the stage createRuntime")


def restores(arguments: "list[str]") -> bool:
    """Whether a runtime that has these arguments restores a checkpoint, as far as runc calls hooks for that."""
    if "restore" not in arguments:
        return False
    from hook.entry.cmdline import Invocation

    return Invocation(arguments).verb == "restore"


def makes_no_cgroup(arguments: "list[str]") -> bool:
    """Whether a runtime that has these arguments makes no cgroup: crun for `podman run --cgroups=disabled`."""
    if not any("disabled" in argument for argument in arguments):
        return False
    from hook.entry.cmdline import Invocation

    return Invocation(arguments).global_value("cgroup-manager") == "disabled"


def _bundle_of_crun(state: State, caller: HookCaller) -> str:
    """The bundle on the command line of the runtime, which is the hook's parent process.

    The state of crun (1.8.1, 1.21, 1.28) has the bundle "/" if a container has a user namespace and a device. crun's
    working directory is "/" by then, so it does not tell the bundle either.
    """
    from hook.entry.cmdline import Invocation  # only such a start needs it

    invocation = Invocation(caller.parents_arguments())
    bundle = invocation.value("bundle") or ""
    return bundle if bundle.startswith("/") and invocation.container_id == state.container_id else state.bundle


def _late(decided: Plan, spec: Spec, created: "write_spec.Decision | None") -> "list[Reason]":
    """Why the container must not start: edits that the policy in force wants and a hook cannot make.

    `created`: what create decided, by a policy that was changed since. The container must be as `create` decided. In
    all else the policy in force now applies: only env names that create decided about keep their value, as in every
    container that is older than the change.
    """
    late = late_edits(decided)
    if created is None:
        return [too_late(edit) for edit in late]
    wrong = [edit for edit in created.env.differences(spec.env) if not _takes_effect(edit)]
    late = [edit for edit in late if not (isinstance(edit, SetEnv) and created.env.owner(edit.name))]
    reasons = [too_late(edit, _AFTER_A_CHANGE) for edit in wrong + late]
    for path in created.mounts:
        if path not in [edit.name for edit in decided.mounts]:
            message = f"mount {named(str(path))} was reserved at create, and the policy in force has no such mount"
            reasons.append(Reason("", mounts.KIND, f"{message}; {_AFTER_A_CHANGE}"))
    return reasons


def late_edits(decided: Plan) -> "list[Edit]":
    """The edits that a hook cannot make."""
    return [edit for edit in decided.edits if not _can_mount(edit) and not _takes_effect(edit)]


def _is_sentry(pid: int) -> bool:
    """Whether the runtime is gVisor's. At this time no container controls the command line of a process yet."""
    try:
        return pid > 0 and read_file(f"/proc/{pid}/cmdline", LIMIT).startswith(b"runsc-sandbox\0")
    except OSError:  # it has ended, or is in another pid namespace
        return False


def _late_in_sentry(decided: Plan, spec: Spec, bundle: str, case: Case, caller: HookCaller) -> "list[Reason]":
    """Why the container must not start in gVisor's sentry, where a hook can neither mount nor look. Raises OSError.

    `in_sentry_astray` judges an unrelated mount behind a reserved one, as NRI sorts them.
    """
    from hook.core.linux.early import in_sentry_astray

    def is_there(edit: PlaceMount) -> bool:
        at = [mount for mount in spec.mounts if edit.displaces(clean(str(mount["destination"])))]
        return at == ([edit.mount] if edit.mount else [])

    late = [too_late(edit) for edit in decided.edits if isinstance(edit, PlaceMount) and not is_there(edit)]
    allocations = case.container.facts.allocations
    return late or in_sentry_astray(write_spec.rootfs(spec, bundle), decided, allocations, spec, caller.still_waits)


def too_late(edit: Edit, then: str = "the runtime wrapper (reassert runtime) or the NRI plugin can") -> Reason:
    """The reason to refuse the container for an edit that a hook cannot make: any edit but that of a mount."""
    what = "env" if edit.kind == "env" else f"{edit.kind}s"
    wrong = f"{edit.kind} {named(edit.name)} is not what the policy wants"
    if edit.kind == devices.KIND and edit.before_and_after()[1] is None:
        wrong = edit.conflict()  # its name alone does not say why it must not be there
    return Reason(edit.rule, edit.kind, f"{wrong}, and a hook cannot set {what}; {then}")


def _takes_effect(edit: Edit) -> bool:
    """Whether the edit only removes duplicates."""
    return isinstance(edit, SetEnv) and edit.takes_effect()


def _can_mount(edit: Edit) -> bool:
    """Whether a hook can make the edit: it can add a reserved mount, but it cannot remove a mount."""
    return isinstance(edit, PlaceMount) and edit.mount is not None


def _pid(stage: str, state: State) -> int:
    """A process in the container's mount namespace, 0 if the hook itself runs in it. Raises Undecided."""
    if stage == CREATE_CONTAINER:
        return 0
    if state.pid <= 0:
        raise Undecided(f"{STATE} has no pid of a container's process")
    return state.pid


def _look(
    decided: Plan, pid: int, bundle: str, spec: Spec, draft: "dict[str, object] | None", caller: HookCaller
) -> Done:
    """Verify devices, verify and restore mounts, in the mount namespace of `pid`; 0: this process's own.

    Raises Undecided, OSError.
    """
    from hook.core.linux.look import look, look_at_node_paths, look_at_processes  # ctypes: few starts need it

    rootfs = write_spec.rootfs(spec, bundle)
    done = Done(CONTAINER, [], [], draft=draft)
    if decided.closed is not None:
        from hook.core.linux.lookdevices import look_at_cgroups, look_at_devices

        if decided.closed.nodes and makes_no_cgroup(caller.runtimes_arguments()):
            rule, path = next(iter(decided.closed.nodes.values()))
            message = f"the container has no cgroup (--cgroup-manager=disabled), and could open {named(path)}"
            done.denials = [Reason(rule.name, devices.KIND, message)]
            return done
        done.denials = look_at_devices(pid, rootfs, decided.closed) or look_at_cgroups(
            pid, rootfs, decided.closed, spec
        )
    if decided.alone and not done.denials:
        done.denials = look_at_processes(pid, rootfs, decided.alone)
    if decided.node_paths_of_reassert and not done.denials:
        from hook.core.linux.mountns import OldKernel

        try:
            done.denials, paths = look_at_node_paths(pid, rootfs, decided, spec, caller.still_waits)
        except OldKernel:
            if decided.mounts:
                raise
            return Done(CONFIG, [], [], draft=draft)  # by the paths in config.json alone
        done.node_paths = () if done.denials else paths
    if done.denials or not decided.mounts:
        return done
    done.edits, done.denials = look(pid, rootfs, decided.mounts, spec, caller.before_mounting, caller.still_waits)
    if not done.denials and (spec.is_admin() or JOINED in spec.shared_processes):
        from hook.core.linux.idmap import protect  # few containers have CAP_SYS_ADMIN

        done.remountable = protect(pid, rootfs, decided.mounts, spec, caller.before_mounting, caller.still_waits)
    return done


def _precreate(options: Options, kinds: "frozenset[str]", caller: Caller, bundle: str) -> None:
    """Read config.json from stdin and write the corrected one to stdout (oci-hooks(5)). Raises Refused.

    `bundle`: the directory in which podman started this. It is the bundle, except with podman 4.3, which stays in its
    own directory.
    """
    data = b""
    written = False

    def read() -> "tuple[Identity, Spec]":
        nonlocal data
        data = read_fd(0, LIMIT, _CONFIG_ON_STDIN)
        spec = Spec(data, _CONFIG_ON_STDIN)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Done:
        nonlocal written
        if decided.is_seen_in_the_container():
            _check_root(spec, bundle)
        done = write_spec.correct(case, caller, options, decided, spec, bundle)
        if done.denials:
            return done
        text = spec.render()
        written = True
        case.error_path = "stdout"
        write_all(1, text)
        return done

    case = Case(PRECREATE, "", lambda: caller.policy(options), caller.checkpoint, caller.start)
    case.error_path = _CONFIG_ON_STDIN
    caller.report(options, case.run(read, act, kinds))
    if not written:
        write_all(1, data)


def _check_root(spec: Spec, bundle: str) -> None:
    """Refuse a root file system for which the runtime would look in another place than this hook. Raises Undecided."""
    path = spec.root.get("path")
    if not isinstance(path, str) or path.startswith("/"):
        return
    try:
        posix.stat(f"{bundle}/{path}/.")
    except OSError:
        raise Undecided(f"root.path {path} is relative to the bundle, and {bundle} has no such directory") from None
