"""podman's hook stage precreate: it runs before the runtime, so it can correct env. Start path: builtins only."""

from hook.adapters.caller import Caller
from hook.adapters.handover import correct
from hook.adapters.options import Options
from hook.base.errors import Refused
from hook.base.system import read_fd, write_all
from hook.container.identity import Identity, identify
from hook.container.spec import LIMIT, Spec
from hook.decide import Case, Done
from hook.plan import Plan

ADAPTER = "precreate"
STDIN = "the config.json on stdin"


def precreate(options: Options, kinds: "frozenset[str]", caller: Caller) -> None:
    """Read config.json from stdin and write the corrected one to stdout (oci-hooks(5)). Raises Refused."""
    data = b""
    written = False

    def read() -> "tuple[Identity, Spec]":
        nonlocal data
        data = read_fd(0, LIMIT, STDIN)
        spec = Spec(data, STDIN)
        return identify(spec), spec

    def act(decided: Plan, spec: Spec) -> Done:
        nonlocal written
        done = correct(case, options, decided, spec, "/")
        if done.denials:
            return done
        text = spec.render()
        written = True
        case.where = "stdout"
        write_all(1, text)
        return done

    case = Case(ADAPTER, "", lambda: caller.policy(options), caller.checkpoint, caller.start)
    case.where = STDIN
    verdict = case.settle(read, act, kinds)
    if verdict.event:
        caller.log_event(options.events, verdict.event)
    if verdict.refusal:
        raise Refused(verdict.refusal)
    if not written:
        write_all(1, data)
