"""Annotations that a rule lists: only a device plugin may set them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hook.core.base.compare import glob_match, literal_start
from hook.core.base.errors import named
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.policy.model import Rule
from hook.core.reserve.edits import SHOWN, Edit
from hook.core.reserve.plan import Plan

KIND = "annotation"
FIELD = "annotations"
"""The field of a rule: a list of `{name: PATTERN, absent: true, of: Both}`."""

BOTH, CONTAINER, POD = "Both", "Container", "Pod"
"""Whether an entry is about annotations of the container, the pod or both. Only the NRI plugin sees the pod's."""


class DropAnnotation(Edit):
    """Removes an annotation."""

    kind = KIND

    def __init__(self, rule: str, name: str, before: str, why: str = "") -> None:
        super().__init__(rule, name)
        self.before = before
        """The value of the annotation."""
        self.why = why
        """Why an annotation that no rule names must be absent; "" for others."""

    def conflict(self) -> str:
        """What the container asked for that this edit overrides."""
        return f"annotation {named(self.name)}{self.why} must be absent and was set"

    def before_and_after(self) -> tuple[object, object]:
        """The value, and None: the annotation is removed."""
        return self.before, None


def concerns(rules: list[Rule], container: Container) -> bool:
    """Whether a rule names annotations."""
    return True in [FIELD in rule.raw for rule in rules]


def want(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Remove each annotation with a reserved key, unless a device plugin set this key to this value.

    An annotation of the pod cannot be removed: it refuses the container, also with `onConflict: Override`, since other
    NRI plugins act on it.
    """
    patterns = [(rule, str(e["name"]), str(e.get("of", BOTH))) for rule in rules for e in rule.raw.get(FIELD, [])]
    if not patterns:
        return
    for rule, key in _matching([p for p in patterns if p[2] != CONTAINER], container.start.pod_annotations or {}, {}):
        if len(plan.denials) > SHOWN:
            break
        message = f"annotation {named(key)} of the pod must be absent and was set, and cannot be removed"
        plan.deny(rule.name, KIND, message)
    if container.facts.allocation_problem:
        return
    allocated = {key: value for a in container.facts.allocations for key, value in a.annotations.items()}
    for rule, key in _matching([p for p in patterns if p[2] != POD], container.start.annotations, allocated):
        edit = DropAnnotation(rule.name, key, container.start.annotations[key])
        if not plan.count(KIND, rule.name):
            return
        plan.edits.append(edit)
        if rule.deny:
            plan.deny(rule.name, KIND, edit.conflict())


def _matching(
    patterns: list[tuple[Rule, str, str]], annotations: Mapping[str, str], allowed: dict[str, str]
) -> Iterator[tuple[Rule, str]]:
    """Each key that a pattern matches, with the first such pattern's rule; not the annotations that are allowed."""
    starts = tuple(literal_start(pattern) for _, pattern, _ in patterns)
    for key, value in annotations.items():
        if not key.startswith(starts) or allowed.get(key) == value:
            continue
        for rule, pattern, _ in patterns:
            if glob_match(pattern, key):
                yield rule, key
                break


def apply(plan: Plan, target: Start) -> None:
    """Remove each annotation that the plan drops, also those of hook.core.reserve.unsafe_annotations."""
    gone = {edit.name for edit in plan.edits if edit.kind == KIND}
    if gone:
        target.annotations = {key: value for key, value in target.annotations.items() if key not in gone}
