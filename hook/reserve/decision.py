"""The decision as an annotation of config.json. Part of the start path: builtins only.

`exec` reads the reserved env that `create` decided. The createRuntime hook reads the event that it has to complete.
Reassert keeps no other state for a container: the decision is deleted with its bundle. `create` always replaces or
removes the annotation, so a pod that sets it gains nothing. Only `exec` and that hook may trust the annotation.
"""

from hook.base.errors import Undecided
from hook.base.jsontext import Malformed, encode, parse
from hook.reserve.env import Reserved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ANNOTATION = "reassert/decision"


class Decision:
    """What `create` decided for a container: the policy's fingerprint, the reserved env, paths of reserved mounts."""

    __slots__ = ("env", "mounts", "policy")

    def __init__(self, policy: object, env: Reserved, mounts: "list[object]") -> None:
        self.policy = policy
        self.env = env
        self.mounts = mounts


def stamp(
    annotations: "dict[str, str]",
    reserved: Reserved,
    fingerprint: str,
    draft: "dict[str, object] | None" = None,
    mounts: "Sequence[str]" = (),
) -> "dict[str, str]":
    """The annotations with this decision as the only one; with none if nothing is reserved and there is no `draft`.

    `draft`: the event that the createRuntime hook completes. `mounts`: the paths of the reserved mounts, for that hook.
    """
    if not reserved and not draft and ANNOTATION not in annotations:
        return annotations
    stamped = {key: value for key, value in annotations.items() if key != ANNOTATION}
    if reserved or draft:
        decision = {"version": 1, "policy": fingerprint, "env": reserved.values, "absent": reserved.absent}
        if mounts:
            decision["mounts"] = list(mounts)
        stamped[ANNOTATION] = encode({**decision, "event": draft} if draft else decision)
    return stamped


def read(annotations: "dict[str, str]") -> "Decision | None":
    """The decision in the annotation, None without the annotation. Raises Undecided if it cannot be read."""
    value = _parsed(annotations)
    if value is None:
        return None
    try:
        env = Reserved(dict(value["env"]), list(value["absent"]))  # type: ignore[call-overload]  # or it raises
        return Decision(value.get("policy"), env, list(value.get("mounts", [])))  # type: ignore[call-overload]
    except (KeyError, TypeError, ValueError) as error:
        raise Undecided(f"annotation {ANNOTATION} cannot be read: {error}") from None


def read_draft(annotations: "dict[str, str]") -> "dict[str, object] | None":
    """The event to complete, None if the annotation holds none. Raises Undecided if it cannot be read."""
    draft = (_parsed(annotations) or {}).get("event")
    return draft if isinstance(draft, dict) else None


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
