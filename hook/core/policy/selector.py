"""Kubernetes label selectors: only NRI knows a pod's labels. Part of the start path: builtins only."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
"""Operators of a Kubernetes label selector (apimachinery, meta/v1 LabelSelectorOperator)."""


def selects(requirements: "list[Any]", labels: "dict[str, str]") -> bool:
    """Whether all requirements [key, operator, values] are met, by apimachinery's labels.Requirement.Matches."""
    for key, operator, values in requirements:
        if operator == IN:
            met = key in labels and labels[key] in values
        elif operator == NOT_IN:
            met = key not in labels or labels[key] not in values
        else:
            met = (key in labels) == (operator == EXISTS)
        if not met:
            return False
    return True
