"""Read what hook.entry.write_spec stamped, for `exec` and the createRuntime hook. Start path: builtins only."""

from hook.core.base.errors import Undecided
from hook.core.base.jsontext import Malformed, parse
from hook.core.reserve import Reason
from hook.core.reserve.env import Reserved
from hook.entry.write_spec import ANNOTATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.decide import Case
    from hook.core.plan import Plan


class Decision:
    """What `create` decided for a container: the policy's fingerprint, the reserved env, paths of reserved mounts.

    `draft`: the event to complete, None if the annotation holds none. `devices`: whether devices were decided, so that
    an `update` must not change their rules; also for a container that an earlier version created, which did not say.
    """

    def __init__(
        self, policy: object, env: Reserved, mounts: "list[object]", draft: "dict[str, object] | None", devices: bool
    ) -> None:
        self.policy = policy
        self.env = env
        self.mounts = mounts
        self.draft = draft
        self.devices = devices


def read(annotations: "dict[str, str]") -> "Decision | None":
    """The decision in the annotation, None without the annotation. Raises Undecided if it cannot be read."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        value = parse(text)
        if not isinstance(value, dict) or value.get("version") != 1:
            raise Malformed("unknown version")
        event = value.get("event")
        draft = event if isinstance(event, dict) else None
        env = Reserved(dict(value["env"]), list(value["absent"]))
        has_devices = value.get("devices") is not False
        return Decision(value.get("policy"), env, list(value.get("mounts", [])), draft, has_devices)
    except (KeyError, TypeError, ValueError) as error:  # Malformed is a ValueError
        raise Undecided(f"annotation {ANNOTATION} cannot be read: {error}") from None


def not_restored(decided: "Plan", case: "Case") -> "list[Reason]":
    """Why a checkpoint must not be restored: one reason for each rule that applies.

    A restored container has the env and mounts of its checkpoint, whatever config.json says.
    """
    message = "a restored container has the env and mounts of its checkpoint, which reassert cannot correct"
    if case.trial:
        case.trial.would_refuse([Reason(match.rule.name, "", message) for match in decided.matches if match.tried])
    return [Reason(match.rule.name, "", message) for match in decided.matches if match.applies]
