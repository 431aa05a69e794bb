"""What is in force on a node that never had a valid policy file. Part of the start path: builtins only."""

from hook.core.policy.model import ENFORCE, FAIL, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KUBELET_ROOT = "/var/lib/kubelet"


class NoPolicy(Policy):
    """In force until the policy file is valid for the first time: only containers of kube-system start (`plan`)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, NO_RULES, [])
        self.missing = reason


NO_RULES: "dict[str, Any]" = {
    "sha256": "",
    "mode": ENFORCE,
    "failurePolicy": FAIL,
    "excludedNamespaces": ["kube-system"],
    "excludedTypes": [],
    "kubeletRoot": KUBELET_ROOT,
    "eventLog": [],
    "allowedAnnotations": [],
    "rules": 0,
    "trust": {},
    "index": {},
    "patterns": {},
}
"""Header of NoPolicy: containers of kube-system start, all others are refused."""
