"""What becomes of a container about which reassert could not decide or act. Part of the start path: builtins only."""

from hook.core.base.errors import TooLarge, Unacceptable, describe
from hook.core.base.files import is_shortage
from hook.core.decide import Case, Verdict
from hook.core.events import DENIED, ERROR, WOULD_DENY, container_event
from hook.core.policy.model import AUDIT, IGNORE

CAUSED_BY_THE_CONTAINER = (Unacceptable, TooLarge, MemoryError, RecursionError, UnicodeError)
"""Errors of a decision that a container's own text can cause. Files of the node raise Undecided or OSError."""


def verdict(case: Case, error: Exception) -> Verdict:
    """`failurePolicy` says whether the container starts, but for two kinds of errors. Enforce mode refuses these.

    A pod, an image or a CLI user can cause the one kind (CAUSED_BY_THE_CONTAINER). Other containers can cause the
    other, a shortage (`is_shortage`). In the agent this function raises `error` for one:
    the agent then answers "start cold", and that process has descriptors of its own.
    """
    short = is_shortage(error)
    if short and case.start.get("start") == "warm":
        raise error
    text = describe(error)
    if isinstance(error, OSError) and case.where not in text:
        text = f"{case.where}: {text}"
    if case.policy is None:  # it failed before the policy was loaded
        case.policy = case.load()
    audit = case.policy.mode == AUDIT
    if isinstance(error, CAUSED_BY_THE_CONTAINER) and not short:
        event = denial_event(container_event(case), text, audit)
        return Verdict("" if audit else case.refused(text), event)
    ignored = case.policy.failure_policy == IGNORE and not short
    starts = audit or ignored
    event = error_event(container_event(case), text, starts, audit and not ignored)
    return Verdict("" if starts else case.refused(text), event)


def error_event(
    event: "dict[str, object]", message: str, starts: bool, would_deny: bool = False
) -> "dict[str, object]":
    """The event about an error of reassert itself. `would_deny`: Enforce mode would refuse the container."""
    return _without_plan(event, WOULD_DENY if would_deny else ERROR, "errors", message, starts)


def denial_event(event: "dict[str, object]", message: str, starts: bool) -> "dict[str, object]":
    """The event about a container that is refused under any policy. `starts`: the mode is Audit, so it starts."""
    return _without_plan(event, WOULD_DENY if starts else DENIED, "denials", message, starts)


def _without_plan(event: "dict[str, object]", name: str, key: str, message: str, starts: bool) -> "dict[str, object]":
    event.update(event=name, level="warning" if starts else "error", applied=False)
    event[key] = [{"rule": "", "message": message}]
    return event
