"""The OCI hook. Part of the start path: builtins only, but for the mount calls, which are loaded when needed.

A hook runs after the runtime has read config.json, so it cannot change env (runtime-spec, lifecycle step 2): it
verifies env and refuses the container. Mounts it can put back, inside the container's mount namespace before
pivot_root. `precreate`, podman's own stage, runs before the runtime and corrects both.
"""

import posix

from hook.adapters.case import Case, Settings
from hook.base.errors import Refused, Undecided, Usage
from hook.base.jsontext import Malformed, decode, parse
from hook.base.system import read_fd, read_file, say, write_all
from hook.container.spec import LIMIT, Spec
from hook.edits import Edit, PlaceMount, SetEnv
from hook.plan import Plan
from hook.wants import Denial

PRESTART, CREATE_RUNTIME, CREATE_CONTAINER, POSTSTOP = "prestart", "createRuntime", "createContainer", "poststop"
PRECREATE = "precreate"
STAGES = (PRESTART, CREATE_RUNTIME, CREATE_CONTAINER, POSTSTOP, PRECREATE)

_ALL_BUT_MOUNTS = {"env", "device", "annotation"}
"""What a hook comes too late for, and --inject-env verifies."""

USAGE = """usage: reassert hook [--inject-env] [--mount-ca] [--policy FILE] [--store DIR] [--events FILE] STAGE

Run as an OCI hook. STAGE is one of:
  prestart, createRuntime, createContainer   OCI state on stdin; verify env, put the reserved mounts back
  poststop                                   OCI state on stdin; nothing is left to do, succeeds
  precreate                                  podman's: config.json on stdin, the corrected one on stdout

  --inject-env    only verify that env is what the policy wants, and refuse the container where it is not
                  (a hook cannot set env; the runtime wrapper and the NRI plugin can)
  --mount-ca      only put the reserved mounts back
  --policy FILE   node policy, absolute (default: /etc/reassert/policy.yaml)
  --store DIR     compiled policies (default: /var/lib/reassert)
  --events FILE   event log (default: /var/log/reassert/events.jsonl)
"""

_ANOTHER_ROOT = (
    "a createContainer hook runs inside the container's user namespace, where nobody can tell which of the node's "
    "files are root's; hook in at the stage createRuntime instead"
)


def main(arguments: "list[str]") -> int:
    """Run the adapter; returns its exit status."""
    if "-h" in arguments or "--help" in arguments:
        posix.write(1, USAGE.encode())
        return 0
    try:
        settings = Settings(arguments, flags=("inject-env", "mount-ca"))
        if len(settings.operands) != 1 or settings.operands[0] not in STAGES:
            raise Usage(f"give one stage of {', '.join(STAGES)}")
    except Usage as error:
        say(f"{error}; see reassert hook --help")
        return 2
    posix.chdir("/")
    stage = settings.operands[0]
    kinds = (
        _ALL_BUT_MOUNTS
        if settings.flags == {"inject-env"}
        else {"mount"}
        if settings.flags == {"mount-ca"}
        else _ALL_BUT_MOUNTS | {"mount"}
    )
    try:
        if stage == PRECREATE:
            _precreate(settings, kinds)
        else:
            _at_stage(settings, stage, kinds)
    except Refused as error:
        say(str(error).replace("\n", " "))
        return 1
    return 0


def _precreate(settings: Settings, kinds: "set[str]") -> None:
    """config.json from stdin to stdout. Raises Refused."""
    case = Case("precreate", settings, "")
    data = b""
    try:
        data = read_fd(0, LIMIT, "the config.json on stdin")
        spec = Spec(data, "the config.json on stdin")
        decided = case.decide(spec)
        decided.narrow(tuple(kinds))
        case.finish(decided)
        if not decided.audit_only():
            for edit in decided.edits:
                edit.apply(spec)
            data = spec.render()
    except Refused:
        raise
    except Exception as error:  # whatever it is, the policy says what a container gets then
        case.fail(error, "stdin")
    write_all(1, data)


class State:
    """The OCI state that a hook gets on stdin (runtime-spec, State)."""

    __slots__ = ("bundle", "container_id", "pid")

    def __init__(self, data: bytes) -> None:
        """Raises Undecided."""
        try:
            state = parse(decode(data))
        except Malformed as error:
            raise Undecided(f"the OCI state on stdin: {error}") from None
        fields = state if isinstance(state, dict) else {}
        bundle, pid = fields.get("bundle"), fields.get("pid", 0)
        if not isinstance(bundle, str) or not bundle.startswith("/") or not isinstance(pid, int):
            raise Undecided("the OCI state on stdin has no absolute bundle and pid; this is to be run as an OCI hook")
        self.container_id = str(fields.get("id", ""))
        self.bundle = bundle
        self.pid = pid


def _at_stage(settings: Settings, stage: str, kinds: "set[str]") -> None:
    """Verify env, put mounts back. Raises Refused."""
    case = Case("hook", settings, "")
    where = "stdin"
    try:
        state = State(read_fd(0, LIMIT, "the OCI state on stdin"))
        case.container_id = state.container_id
        if stage == POSTSTOP:
            return
        if stage == CREATE_CONTAINER and posix.lstat("/").st_uid != 0:
            raise Undecided(_ANOTHER_ROOT)
        where = state.bundle.rstrip("/") + "/config.json"
        spec = Spec(read_file(where, LIMIT), where)
        decided = case.decide(spec)
        decided.narrow(tuple(kinds))
        _env_is_for_others(decided)
        case.finish(decided)
        edits = [edit for edit in decided.edits if isinstance(edit, PlaceMount)]
        if edits and not decided.audit_only():
            _mount(case, stage, state, spec, edits)
    except Refused:
        raise
    except Exception as error:  # whatever it is, the policy says what a container gets then
        case.fail(error, where)


def _env_is_for_others(decided: Plan) -> None:
    """Every env edit that is left at this point is a reason to refuse: nobody can make it any more.

    Of a name that stands twice the process gets the last value only, in runc and in crun.
    """
    for edit in decided.edits:
        if not _is_mountable(edit) and not (isinstance(edit, SetEnv) and edit.before[-1:] == [edit.value]):
            what = "env" if edit.kind == "env" else f"{edit.kind}s"
            message = (
                f"{edit.kind} {edit.name} is not what the policy wants, and a hook cannot set {what}; "
                "the runtime wrapper (reassert runtime) or the NRI plugin can"
            )
            decided.denials.append(Denial(edit.rule, edit.kind, message))
    decided.edits = [edit for edit in decided.edits if _is_mountable(edit)]


def _is_mountable(edit: Edit) -> bool:
    """Whether a hook can still make the edit: it can mount, but it cannot take another's mount away."""
    return isinstance(edit, PlaceMount) and edit.mount is not None


def _mount(case: Case, stage: str, state: State, spec: Spec, edits: "list[PlaceMount]") -> None:
    """Put the mounts into the container's root, in its mount namespace. Raises Refused, Undecided, OSError."""
    from hook.linux.mountns import Misled, mount_in_container  # ctypes: only a start that mounts pays for it

    root = spec.member("root")
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str):
        raise Undecided("config.json has no root.path")
    rootfs = path if path.startswith("/") else f"{state.bundle.rstrip('/')}/{path}"
    if stage != CREATE_CONTAINER and state.pid <= 0:
        raise Undecided("the OCI state on stdin has no pid of a container's process")
    kept = [str(mount["destination"]) for mount in spec.mounts]
    try:
        mount_in_container(0 if stage == CREATE_CONTAINER else state.pid, rootfs, edits, kept)
    except Misled as error:
        case.refuse(error.rule, str(error))
