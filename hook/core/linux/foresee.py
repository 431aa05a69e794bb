"""What a look into a container would find in Enforce mode: the look of Audit mode, which changes nothing.

The container has its mounts and devices as its author asked for them, so what Enforce mode corrects is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from hook.core.base.errors import ReassertError
from hook.core.base.mountinfo import mount_table
from hook.core.container.spec import Spec
from hook.core.linux import lookdevices
from hook.core.linux.look import View, look_at_processes
from hook.core.linux.look_node_paths import look_at_node_paths
from hook.core.linux.mountns import Namespace
from hook.core.reserve.edits import Reason
from hook.core.reserve.mounts import KIND
from hook.core.reserve.plan import Plan
from hook.core.verdict import Verdict


def foresee(
    done: Verdict,
    *,
    pid: int,
    rootfs: str,
    decided: Plan,
    spec: Spec,
    still_waits: Callable[[], None] = lambda: None,
) -> Verdict:
    """Add to `done` what Enforce mode would refuse or close. Arguments as for `hook.core.linux.look.look`.

    Raises nothing for what cannot be seen: config.json alone counts then.
    """
    try:
        if decided.exclusive is not None and "device" not in [edit.kind for edit in decided.edits]:
            done.denials = lookdevices.look_at_devices(pid, rootfs, decided.exclusive)
        if decided.refuses_sharing and not done.denials:
            done.denials = look_at_processes(pid, rootfs, decided.refuses_sharing)
        if decided.node_paths_of_reassert and not done.denials:
            seen = look_at_node_paths(pid, rootfs, decided, spec, still_waits=still_waits)
            known = [str(reason) for reason in decided.denials]
            done.denials = [reason for reason in seen.denials if str(reason) not in known]
            done.node_paths, done.read_only = seen.node_paths, seen.read_only
        if decided.mounts and not done.denials and not decided.denials:
            with Namespace(pid, rootfs) as namespace:
                view = View(
                    namespace,
                    namespace.container,
                    table=mount_table(pid, still_waits),
                    spec=spec,
                    sources={},
                    still_waits=still_waits,
                )
                problems = view.problems_on_the_way(decided.mounts)
            done.denials = [Reason(edit.rule, KIND, str(problem)) for edit, problem in problems]
    except (ReassertError, OSError):
        return done.with_logs(decided)
    return done
