"""Reserved annotations: keys that only a device plugin may set. Part of the start path: builtins only."""

from hook.base.compare import glob_match, literal_start
from hook.base.errors import named
from hook.reserve import SHOWN, Edit, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.plan import Container
    from hook.policy.model import Rule
    from hook.reserve.target import Editable

KIND = "annotation"
FIELD = "annotations"
"""The field of a rule: a list of `{name: PATTERN, absent: true, of: Both}`."""

BOTH, CONTAINER, POD = "Both", "Container", "Pod"
"""Whose annotations an entry is about. Only the NRI plugin sees the pod's."""


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


def want(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Remove each annotation with a reserved key, unless a device plugin set this key to this value.

    An annotation of the pod cannot be removed: it refuses the container, also with `onConflict: Override`, since other
    NRI plugins act on it.
    """
    patterns = [(rule, str(e["name"]), str(e.get("of", BOTH))) for rule in rules for e in rule.plain.get(FIELD, [])]
    if not patterns:
        return
    for rule, key in _matching([p for p in patterns if p[2] != CONTAINER], container.pod_annotations, {}):
        if len(outcome.denials) > SHOWN:
            break
        message = f"annotation {named(key)} of the pod must be absent and was set, and cannot be removed"
        outcome.deny(rule.name, KIND, message)
    if container.facts.allocation_problem:
        return
    allocated = {key: value for a in container.facts.allocations for key, value in a.annotations.items()}
    for rule, key in _matching([p for p in patterns if p[2] != POD], container.annotations, allocated):
        edit = DropAnnotation(rule.name, key, container.annotations[key])
        if not outcome.count(KIND, rule.name):
            return
        outcome.edits.append(edit)
        if rule.deny:
            outcome.deny(rule.name, KIND, edit.conflict())


def _matching(
    patterns: "list[tuple[Rule, str, str]]", annotations: "dict[str, str]", allowed: "dict[str, str]"
) -> "Iterator[tuple[Rule, str]]":
    """Each key that a pattern matches, with the first such pattern's rule; not the annotations that are allowed."""
    starts = tuple(literal_start(pattern) for _, pattern, _ in patterns)
    for key, value in annotations.items():
        if not key.startswith(starts) or allowed.get(key) == value:
            continue
        for rule, pattern, _ in patterns:
            if glob_match(pattern, key):
                yield rule, key
                break


def apply(outcome: Outcome, target: "Editable") -> None:
    """Remove these annotations from `target`."""
    gone = {edit.name for edit in outcome.edits if edit.kind == KIND}
    if gone:
        target.annotations = {key: value for key, value in target.annotations.items() if key not in gone}
