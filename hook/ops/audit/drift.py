"""What a container really has wrong, for the NRI plugin: it knows only what its runtime recorded of a container.

The runtime wrapper corrects config.json after that record was made. The plugin runs this for containers whose record
differs from the policy. It is the same judge as that of `reassert audit`, with the plugin's knowledge of the container.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hook.core.base.errors import ReassertError
from hook.core.linux.mountns import own_directories
from hook.core.plan import Plan
from hook.core.reserve.env import SetEnv
from hook.ops.audit.inventory import Running, running
from hook.ops.audit.judge import STALE, Actual, Difference, Judge
from hook.ops.audit.process import Process

SECONDS = 5.0
"""How long one container may take. A container can make a look at it wait for ever; then its record counts."""


def really_wrong(container_id: str, decide: Callable[[Actual], Plan]) -> set[tuple[str, str]] | None:
    """Kind and name of each difference of a running container; None if this process cannot look at it.

    That is so in a pod without the node's /proc and /run. `decide`: the plan for what the container really has.
    """
    found: list[list[Difference]] = []

    def work() -> None:
        try:
            containers = [c for c in running([container_id]) if c.config]
            if len(containers) == 1:
                found.append(_wrong(containers[0], decide))
        except (ReassertError, OSError, ValueError):
            pass

    try:
        thread = threading.Thread(target=work, name="look", daemon=True)
        thread.start()
    except RuntimeError:  # no more threads
        return None
    thread.join(SECONDS)
    if not found:
        return None
    return {("mount" if different.kind == STALE else different.kind, different.name) for different in found[0]}


def _wrong(container: Running, decide: Callable[[Actual], Plan]) -> list[Difference]:
    """By its process and its mounts; where this process may not look at these, by its config.json.

    The service's unit allows no look (packaging/systemd). config.json has what the wrapper corrected.
    """
    spec = container.spec()
    with Process(container.pid, container.started) as process:
        if not any(container.id in path for path in process.cgroups()):
            raise ReassertError("this process sees another /proc than the runtime")
        try:
            own_directories()
            decided = decide(Actual(spec, process.environ()))
            return Judge(lambda container, created: "").differences(container, spec, decided, process)
        except OSError:
            decided = decide(Actual(spec, list(spec.env)))
            edits = [edit for edit in decided.edits if not (isinstance(edit, SetEnv) and edit.takes_effect())]
            return [Difference(edit.rule, edit.kind, edit.name, "", "") for edit in edits]
