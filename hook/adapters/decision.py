"""Read what hook.adapters.handover stamped, for `exec` and the createRuntime hook. Start path: builtins only."""

from hook.adapters.handover import ANNOTATION
from hook.base.errors import Undecided
from hook.base.jsontext import Malformed, parse
from hook.reserve.env import Reserved


def read(annotations: "dict[str, str]") -> "Reserved | None":
    """The reserved env in the annotation, None without the annotation. Raises Undecided if it cannot be read."""
    value = _parsed(annotations)
    if value is None:
        return None
    try:
        return Reserved(dict(value["env"]), list(value["absent"]))  # type: ignore[call-overload]  # or it raises
    except (KeyError, TypeError, ValueError) as error:
        raise Undecided(f"annotation {ANNOTATION} cannot be read: {error}") from None


def read_draft(annotations: "dict[str, str]") -> "dict[str, object] | None":
    """The event to complete, None if the annotation holds none. Raises Undecided if it cannot be read."""
    draft = (_parsed(annotations) or {}).get("event")
    return draft if isinstance(draft, dict) else None


def was_decided_by_another(annotations: "dict[str, str]", fingerprint: str) -> bool:
    """Whether there is a decision, by a policy of another fingerprint. Raises Undecided if it is not one of ours."""
    value = _parsed(annotations)
    return value is not None and value.get("policy") != fingerprint


def _parsed(annotations: "dict[str, str]") -> "dict[str, object] | None":
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        value = parse(text)
        if not isinstance(value, dict) or value.get("version") != 1:
            raise Malformed("unknown version")
    except Malformed as error:
        raise Undecided(f"annotation {ANNOTATION} cannot be read: {error}") from None
    return value
