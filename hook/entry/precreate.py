"""podman's hook stage precreate: it runs before the runtime, so it can correct env. Start path: builtins only."""

import posix

from hook.core.base.errors import Undecided
from hook.core.base.system import read_fd, write_all
from hook.core.container.identity import Identity, identify
from hook.core.container.spec import LIMIT, Spec
from hook.core.decide import Case, Done
from hook.core.plan import Plan
from hook.entry.caller import Caller, Options
from hook.entry.write_spec import correct

ADAPTER = "precreate"
STDIN = "the config.json on stdin"


def precreate(options: Options, kinds: "frozenset[str]", caller: Caller, bundle: str) -> None:
    """Read config.json from stdin and write the corrected one to stdout (oci-hooks(5)). Raises Refused.

    `bundle`: the directory in which podman started this. It is the bundle, but for podman 4.3, which stays in its own.
    """
    data = b""
    written = False

    def read() -> "tuple[Identity, Spec]":
        nonlocal data
        data = read_fd(0, LIMIT, STDIN)
        spec = Spec(data, STDIN)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Done:
        nonlocal written
        if decided.is_seen_in_the_container():
            _check_root(spec, bundle)
        done = correct(case, caller, options, decided, spec, bundle)
        if done.denials:
            return done
        text = spec.render()
        written = True
        case.where = "stdout"
        write_all(1, text)
        return done

    case = Case(ADAPTER, "", lambda: caller.policy(options), caller.checkpoint, caller.start)
    case.where = STDIN
    caller.report(options, case.settle(read, act, kinds))
    if not written:
        write_all(1, data)


def _check_root(spec: Spec, bundle: str) -> None:
    """Refuse a root file system that the runtime would look for elsewhere than we do. Raises Undecided."""
    path = spec.root.get("path")
    if not isinstance(path, str) or path.startswith("/"):
        return
    try:
        posix.stat(f"{bundle}/{path}/.")
    except OSError:
        raise Undecided(f"root.path {path} is relative to the bundle, and {bundle} has no such directory") from None
