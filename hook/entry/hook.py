"""The OCI hook.

A hook runs after the runtime has read config.json, so it cannot change env (runtime-spec, lifecycle step 2). It
verifies env and refuses a container whose env is wrong. It can restore mounts: it enters the container's mount
namespace before pivot_root.
"""

from __future__ import annotations

import posix

from hook.core.base import mountinfo
from hook.core.base.errors import Refused, Undecided, Usage, describe, named
from hook.core.base.jsontext import Malformed, bounded, decode, parse
from hook.core.base.system import read_fd, read_file
from hook.core.container.identity import Identity, identify
from hook.core.container.spec import CONFIG_ENTRIES, CONFIG_LIMIT, Spec
from hook.core.decide import Case
from hook.core.linux import foresee, gvisor, idmap, look, look_node_paths, lookdevices, mountns
from hook.core.plan import ALL, Plan
from hook.core.reserve import devices, mounts, node_paths
from hook.core.reserve.edits import Edit, Reason
from hook.core.reserve.exclusive import Closed
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import SetEnv
from hook.core.verdict import CONFIG, CONTAINER, NOWHERE, Verdict
from hook.entry import cmdline, mount_points, process, write_spec
from hook.entry.caller import Caller, Options
from hook.entry.write_spec import HOOK_FLAG as HANDED_ON

ADAPTER = "hook"
PRESTART, CREATE_RUNTIME, CREATE_CONTAINER, POSTSTOP = "prestart", "createRuntime", "createContainer", "poststop"
STAGES = (PRESTART, CREATE_RUNTIME, CREATE_CONTAINER, POSTSTOP)

_ANOTHER_ROOT = (
    "a createContainer hook runs inside the container's user namespace, where reassert cannot tell which of the node's "
    "files belong to root; configure the hook for the stage createRuntime instead"
)

_NOT_ON_THE_NODE = "a createContainer hook cannot mount on the node; configure the hook for the stage createRuntime"

_WITHOUT = "the runtime wrapper (reassert runtime) or the NRI plugin can"
_BEHIND = "it was added after reassert's own edits, by the runtime that the wrapper calls"
_AFTER_A_CHANGE = "the policy was changed while the container was created: create it again"

STATE = "the OCI state on stdin"


class HookCaller(Caller):
    """The runtime whose hook is answered."""

    name = ADAPTER
    file = "stdin"

    def __init__(self, options: Options, environment: dict[bytes, bytes]) -> None:
        super().__init__(options, environment)
        self.stage = options.operands[0] if options.operands else ""
        if options.flags == {"inject-env"}:
            self.kinds = ALL - {mounts.KIND}
        elif options.flags == {"mount-ca"}:
            self.kinds = frozenset({mounts.KIND})

    def state(self) -> bytes:
        """Returns the OCI state that the runtime gives a hook on stdin. Raises TooLarge, OSError."""
        return read_fd(0, CONFIG_LIMIT, STATE)

    def recognize(self, pid: int) -> None:
        """Notes whether the runtime is gVisor's, by the container's first process. Raises TooLarge."""
        self.is_gvisor = self.stage != CREATE_CONTAINER and _is_sentry(pid)

    def parents_arguments(self) -> list[str]:
        """Returns the arguments of the caller's parent process, without its name. Raises TooLarge, OSError."""
        command = read_file(f"/proc/{posix.getppid()}/cmdline", CONFIG_LIMIT).decode("utf-8", "surrogateescape")
        return command.split("\0")[1:-1]

    def runtimes_arguments(self) -> list[str]:
        """Returns the runtime's arguments, none if it is in another pid namespace."""
        try:
            return self.parents_arguments()
        except OSError:
            return []

    def before_mounting(self) -> None:
        """See Adapter. Raises Undecided."""
        if self.stage == CREATE_CONTAINER:
            raise Undecided(_NOT_ON_THE_NODE)

    def before_placing(self) -> None:
        """Does nothing. Is called before a mount is placed in the container; the agent's subclass stops there."""


def main(arguments: list[str]) -> int:
    """Run the adapter; returns its exit status. Raises Usage."""
    return run(HookCaller(options_of(arguments), {}))


def options_of(arguments: list[str]) -> Options:
    """The command line of a hook; its stage is the only operand. Raises Usage."""
    options = Options(arguments, ("bundle", "config"), ("inject-env", "mount-ca", HANDED_ON))
    if options.operands == ["precreate"]:  # podman's: the hook of reassert 0.3
        raise Usage("the stage precreate is removed: run `reassert install --engine podman`, which wires the wrapper")
    if len(options.operands) != 1 or options.operands[0] not in STAGES:
        raise Usage(f"give one stage of {', '.join(STAGES)}")
    return options


def run(caller: HookCaller) -> int:
    """Do the work of one stage, in `/`; returns the exit status."""
    posix.chdir("/")
    try:
        if caller.stage != POSTSTOP:
            call = _Call(caller)
            caller.report(call.case, call.case.run(call.read, call.act))
        elif HANDED_ON in caller.options.flags:
            _clean(caller)
    except Refused as error:
        caller.say(str(error).replace("\n", " "), is_hook=True)
        return 1
    return 0


def _clean(caller: HookCaller) -> None:
    """After a RUN step of buildah: removes the mount points that were made for it (hook.entry.mount_points)."""
    try:
        spec = caller.spec(caller.options.config)
        decision = write_spec.read(spec.annotations)
        if decision and decision.made:
            caller.before_placing()
            mount_points.remove(write_spec.rootfs(spec, caller.options.bundle), decision.made)
    except FileNotFoundError:  # the engine has removed the bundle
        return
    except (Undecided, OSError) as error:  # the container has ended; its image has an empty directory more
        caller.say(f"mount points stay: {describe(error)}", is_hook=True)


class State:
    """The OCI state that a hook gets on stdin (runtime-spec, State)."""

    def __init__(self, data: bytes) -> None:
        """Raises Undecided."""
        try:
            state = parse(decode(bounded(data, CONFIG_ENTRIES, STATE)))
        except Malformed as error:
            raise Undecided(f"{STATE}: {error}") from None
        fields = state if isinstance(state, dict) else {}
        bundle, pid = fields.get("bundle"), fields.get("pid", 0)
        if not isinstance(bundle, str) or not bundle.startswith("/") or not isinstance(pid, int):
            raise Undecided(f"{STATE} has no absolute bundle and pid; this must be run as an OCI hook")
        self.container_id = str(fields.get("id", ""))
        self.bundle = bundle
        self.pid = pid


class _Call:
    """A hook of one container: it verifies env, verifies the mounts in the container and restores missing ones."""

    state: State
    """The OCI state, once it is read."""

    def __init__(self, caller: HookCaller) -> None:
        self.caller = caller
        self.case = Case(caller, "")
        self.is_handed_on = HANDED_ON in caller.options.flags
        """Whether reassert itself wrote the decision's annotation, and this hook completes the event."""

    def read(self) -> tuple[Identity, Spec]:
        """What the runtime hands over. Raises Undecided, OSError."""
        caller = self.caller
        state = self.state = State(caller.state())
        self.case.is_about(state.container_id)
        if caller.stage == CREATE_CONTAINER and posix.lstat("/").st_uid != 0:
            raise Undecided(_ANOTHER_ROOT)
        if caller.options.bundle:
            state.bundle = caller.options.bundle
        elif state.bundle == "/":
            state.bundle = _bundle_of_crun(state, caller)
        spec = caller.spec(caller.options.config or state.bundle.rstrip("/") + "/config.json")
        caller.recognize(state.pid)
        return identify(spec), spec

    def act(self, decided: Plan, spec: Spec) -> Verdict:
        """Verify what the plan wants, and restore mounts. Raises Undecided, OSError."""
        case, caller = self.case, self.caller
        if not self.is_handed_on and restores(caller.runtimes_arguments()):
            return Verdict(NOWHERE, process.not_restored(decided, case, spec), [])
        created = write_spec.read(spec.annotations) if self.is_handed_on else None
        changed = created if created and created.policy != decided.policy.fingerprint else None
        late = _late(decided, spec, changed, _BEHIND if created else _WITHOUT)
        if caller.is_gvisor and not late:
            late = [too_late(edit) for edit in gvisor.missing(decided, spec)]
            rootfs, allocations = write_spec.rootfs(spec, self.state.bundle), case.container.facts.allocations
            late = late or gvisor.astray(
                rootfs, decided, allocations=allocations, spec=spec, still_waits=caller.still_waits
            )
        draft = created.draft if created else None
        if decided.audit_only():
            if draft and draft.get("applied") is not False:  # create made the edits; the mode was changed since
                return Verdict(CONFIG, late, [], draft=draft)
            return self._foresee(decided, late, spec, draft)
        if draft and draft.get("applied") is False:  # create was in Audit mode, or only tried something
            draft = write_spec.without_unmade(draft)
        if case.audited_rules and not self.is_handed_on:
            wrong = [e for e in case.audited_rules.edits if not _can_mount(e) and not _takes_effect(e)]
            case.audited_rules.would_refuse([too_late(edit) for edit in wrong])
        if late or caller.is_gvisor or not decided.is_seen_in_the_container():
            return Verdict(CONFIG, late, [], draft=draft).with_logs(decided)
        return self._look(decided, spec, draft)

    def _pid(self) -> int:
        """A process in the container's mount namespace, 0 if the hook itself runs in it. Raises Undecided."""
        if self.caller.stage == CREATE_CONTAINER:
            return 0
        if self.state.pid <= 0:
            raise Undecided(f"{STATE} has no pid of a container's process")
        return self.state.pid

    def _foresee(self, decided: Plan, late: list[Reason], spec: Spec, draft: dict[str, object] | None) -> Verdict:
        """In Audit mode: what Enforce mode would refuse or close, as far as an uncorrected container shows it.

        `late`: what a hook cannot correct; an adapter that left a `draft` would have. Nothing is changed. Where the
        look is not possible, config.json alone counts: no container waits or is refused for it. Raises Undecided,
        OSError.
        """
        made = [] if draft else [edit for edit in decided.edits if _can_mount(edit)]
        done = Verdict(NOWHERE, [] if draft else late, made, draft=draft)
        if done.denials or self.caller.is_gvisor or not decided.is_seen_in_the_container():
            return done.with_logs(decided)
        if decided.exclusive is not None:
            done.denials = self._without_cgroup(decided.exclusive)
            if done.denials:
                return done.with_logs(decided)
        root = write_spec.rootfs(spec, self.state.bundle)
        return foresee.foresee(
            done, pid=self._pid(), rootfs=root, decided=decided, spec=spec, still_waits=self.caller.still_waits
        )

    def _without_cgroup(self, closed: Closed) -> list[Reason]:
        """Why the container must not start: no rule holds for its devices."""
        if not closed.nodes or not makes_no_cgroup(self.caller.runtimes_arguments()):
            return []
        rule, path = next(iter(closed.nodes.values()))
        message = f"the container has no cgroup (--cgroup-manager=disabled), and could open {named(path)}"
        return [Reason(rule.name, devices.KIND, message)]

    def _look(self, decided: Plan, spec: Spec, draft: dict[str, object] | None) -> Verdict:
        """Verify devices, verify and restore mounts, in the container's mount namespace. Raises Undecided, OSError."""
        caller, pid = self.caller, self._pid()
        rootfs = write_spec.rootfs(spec, self.state.bundle)
        done = Verdict(CONTAINER, [], [], draft=draft)
        if decided.exclusive is not None:
            done.denials = (
                self._without_cgroup(decided.exclusive)
                or lookdevices.look_at_devices(pid, rootfs, decided.exclusive)
                or lookdevices.look_at_cgroups(pid, rootfs, decided.exclusive, spec)
            )
        if decided.refuses_sharing and not done.denials:
            done.denials = look.look_at_processes(pid, rootfs, decided.refuses_sharing)
        table = None
        if decided.node_paths_of_reassert and not done.denials:
            table = mountinfo.mount_table(pid, caller.still_waits)
            try:
                seen = look_node_paths.look_at_node_paths(
                    pid,
                    rootfs,
                    decided,
                    spec,
                    before_mounting=caller.before_placing,
                    still_waits=caller.still_waits,
                    table=table,
                    known=caller.known,
                )
            except mountns.OldKernel:
                if decided.mounts:
                    raise
                return Verdict(CONFIG, [], [], draft=draft).with_logs(decided)  # by the paths in config.json alone
            done.denials = seen.denials
            if not seen.denials:
                done.node_paths, done.read_only = seen.node_paths, seen.read_only
                self.case.would_refuse(seen.audited)
            if seen.read_only:  # there are mounts that the table lacks
                table = None
        if done.denials or not decided.mounts:
            return done
        done.edits, done.denials = look.look(
            pid,
            rootfs,
            decided.mounts,
            spec,
            before_mounting=caller.before_placing,
            still_waits=caller.still_waits,
            table=table,
        )
        if not done.denials and spec.can_be_remounted():
            done.remountable = idmap.protect(
                pid,
                rootfs,
                reserved=decided.mounts,
                spec=spec,
                before_mounting=caller.before_placing,
                still_waits=caller.still_waits,
            )
        return done


def restores(arguments: list[str]) -> bool:
    """Whether a runtime that has these arguments restores a checkpoint, as far as runc calls hooks for that."""
    if "restore" not in arguments:
        return False
    return cmdline.Invocation(arguments).verb == "restore"


def makes_no_cgroup(arguments: list[str]) -> bool:
    """Whether a runtime that has these arguments makes no cgroup: crun for `podman run --cgroups=disabled`."""
    if not any("disabled" in argument for argument in arguments):
        return False
    return cmdline.Invocation(arguments).global_value("cgroup-manager") == "disabled"


def _bundle_of_crun(state: State, caller: HookCaller) -> str:
    """The bundle on the command line of the runtime, which is the hook's parent process.

    The state of crun (1.8.1, 1.21, 1.28) has the bundle "/" if a container has a user namespace and a device. crun's
    working directory is "/" by then, so it does not tell the bundle either.
    """
    invocation = cmdline.Invocation(caller.parents_arguments())
    bundle = invocation.value("bundle") or ""
    return bundle if bundle.startswith("/") and invocation.container_id == state.container_id else state.bundle


def _late(decided: Plan, spec: Spec, created: write_spec.Decision | None, then: str) -> list[Reason]:
    """Why the container must not start: edits that the policy in force wants and a hook cannot make.

    `created`: what create decided, by a policy that was changed since. The container must be as `create` decided. In
    all else the policy in force now applies: only env names that create decided about keep their value, as in every
    container that is older than the change. `then`: what helps, if the policy is still the same.
    """
    late = late_edits(decided)
    if created is None:
        return [*[too_late(edit, then) for edit in late], *node_paths.stays_below(decided, spec.mounts)]
    env = created.env.within(spec.env)
    wrong = [edit for edit in env.differences(spec.env) if not _takes_effect(edit)]
    late = [edit for edit in late if not (isinstance(edit, SetEnv) and created.env.owner(edit.name))]
    reasons = [too_late(edit, _AFTER_A_CHANGE) for edit in wrong + late]
    for path in created.mounts:
        if path not in [edit.name for edit in decided.mounts]:
            message = f"mount {named(str(path))} was reserved at create, and the policy in force has no such mount"
            reasons.append(Reason("", mounts.KIND, f"{message}; {_AFTER_A_CHANGE}"))
    return reasons


def late_edits(decided: Plan) -> list[Edit]:
    """The edits that a hook cannot make."""
    return [edit for edit in decided.edits if not _can_mount(edit) and not _takes_effect(edit)]


def _is_sentry(pid: int) -> bool:
    """Whether the runtime is gVisor's. At this time no container controls the command line of a process yet."""
    try:
        return pid > 0 and read_file(f"/proc/{pid}/cmdline", CONFIG_LIMIT).startswith(b"runsc-sandbox\0")
    except OSError:  # it has ended, or is in another pid namespace
        return False


def too_late(edit: Edit, then: str = _WITHOUT) -> Reason:
    """The reason to refuse the container for an edit that a hook cannot make: any edit but that of a mount."""
    kinds = "env" if edit.kind == "env" else f"{edit.kind}s"
    wrong = f"{edit.kind} {named(edit.name)} is not what the policy wants"
    if edit.kind == devices.KIND and edit.before_and_after()[1] is None:
        wrong = edit.conflict()  # its name alone does not say why it must not be there
    return Reason(edit.rule, edit.kind, f"{wrong}, and a hook cannot set {kinds}; {then}")


def _takes_effect(edit: Edit) -> bool:
    """Whether the edit only removes duplicates."""
    return isinstance(edit, SetEnv) and edit.takes_effect()


def _can_mount(edit: Edit) -> bool:
    """Whether a hook can make the edit: it can add a reserved mount, but it cannot remove a mount."""
    return isinstance(edit, PlaceMount) and edit.mount is not None
