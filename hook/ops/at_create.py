"""What reassert decided about a container when it was created, for those who report it.

Only an annotation that reassert itself wrote counts (`Spec.wrote`): a pod may write one with the same name.
"""

from __future__ import annotations

from hook.core.base.errors import Undecided
from hook.core.container.spec import Spec
from hook.core.container.start import Start
from hook.entry.write_spec import ANNOTATION, Decision, read


def decision_of(start: Start) -> Decision | None:
    """The decision. None if there was none, or it cannot be read."""
    try:
        return read(start.annotations) if _is_ours(start) else None
    except Undecided:
        return None


def is_corrected(start: Start) -> bool:
    """Whether the container was corrected, also by an unreadable decision. In Audit mode it has only a draft."""
    if not _is_ours(start):
        return False
    decided = decision_of(start)
    return decided is None or not (decided.draft and decided.draft.get("applied") is False)


def _is_ours(start: Start) -> bool:
    return isinstance(start, Spec) and start.wrote(ANNOTATION)
