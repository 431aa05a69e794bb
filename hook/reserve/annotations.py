"""Reserved annotations: keys that only a device plugin may set. Part of the start path: builtins only."""

from hook.base.compare import glob_match, literal_start
from hook.base.errors import named
from hook.reserve.outcome import Edit, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.plan import Container
    from hook.policy.model import Rule
    from hook.reserve.target import Target

KIND = "annotation"
FIELD = "annotations"
"""The field of a rule: a list of `{name: PATTERN, absent: true}`."""


class DropAnnotation(Edit):
    """Removes an annotation that only a device plugin may set. `before`: its value."""

    kind = KIND

    def __init__(self, rule: str, name: str, before: str) -> None:
        super().__init__(rule, name)
        self.before = before

    def conflict(self) -> str:
        """What the container asked for that this edit overrides."""
        return f"annotation {named(self.name)} must be absent and was set"

    def before_and_after(self) -> "tuple[object, object]":
        """The value, and None: the annotation is removed."""
        return self.before, None

    def words(self) -> "tuple[str, str]":
        """The quoted value, and "absent"."""
        return repr(self.before), "absent"


def want(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Remove each annotation with a reserved key, unless a device plugin set this key to this value."""
    patterns = [(rule, str(entry["name"])) for rule in rules for entry in rule.plain.get(FIELD, [])]
    if not patterns or container.facts.allocation_problem:
        return
    allocated = {key: value for a in container.facts.allocations for key, value in a.annotations.items()}
    starts = tuple(literal_start(pattern) for _, pattern in patterns)
    for key, value in container.annotations.items():
        if not key.startswith(starts) or allocated.get(key) == value:
            continue
        for rule, pattern in patterns:
            if glob_match(pattern, key):
                edit = DropAnnotation(rule.name, key, value)
                if not outcome.count(KIND, rule.name):
                    return
                outcome.edits.append(edit)
                if rule.deny:
                    outcome.deny(rule.name, KIND, edit.conflict())
                break


def apply(outcome: Outcome, target: "Target") -> None:
    """Remove these annotations from `target`."""
    gone = {edit.name for edit in outcome.edits if edit.kind == KIND}
    if gone:
        target.annotations = {key: value for key, value in target.annotations.items() if key not in gone}
