"""The compiled policy. Part of the start path: builtins only.

The compiler writes a header line and one line of JSON per rule. A container start parses only the rules that its
namespace can match, so a thousand rules cost little more than one.
"""

from hook.base.glob import glob_match
from hook.base.jsontext import parse
from hook.reserve.env import ALLOCATED, Env
from hook.reserve.mounts import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KUBELET_ROOT = "/var/lib/kubelet"

ENFORCE, AUDIT = "Enforce", "Audit"
FAIL, IGNORE = "Fail", "Ignore"


class Rule:
    """A rule of the policy: its conditions and what it reserves.

    `conditions`: the fields of `match`; a rule without any matches every container. `skip_unknown`: `ifUnknown: Skip`.
    `deny`: `onConflict: Deny`. `plain`: by field of the policy file, the lists that need no compiled form.
    `allocations`: the parts of a device plugin's answer that are reserved.
    """

    __slots__ = ("allocations", "conditions", "deny", "env", "mounts", "name", "plain", "skip_unknown")

    def __init__(
        self,
        name: str,
        conditions: "dict[str, list[Any]]",
        skip_unknown: bool,
        env: "list[Env]",
        mounts: "list[Mount]",
        deny: bool,
        plain: "dict[str, list[Any]]",
        allocations: "list[str]",
    ) -> None:
        self.name = name
        self.conditions = conditions
        self.skip_unknown = skip_unknown
        self.env = env
        self.mounts = mounts
        self.deny = deny
        self.plain = plain
        self.allocations = allocations

    def uses_allocations(self) -> bool:
        """Whether the rule needs kubelet's device checkpoint."""
        plain = self.plain
        return bool(self.allocations or plain.get("annotations") or plain.get("exclusive")) or any(
            env.source == ALLOCATED for env in self.env
        )

    def uses_claims(self) -> bool:
        """Whether the rule needs the pod's resource claims."""
        return (
            bool(self.plain.get("exclusive"))
            or "env" in self.allocations
            or any(env.source == ALLOCATED for env in self.env)
        )


def rule_from_line(line: "list[Any]") -> Rule:
    """The rule that `hook.policy.compiler.rule_to_line` wrote."""
    name, conditions, skip_unknown, env, mounts, deny, plain, allocations = line
    reserved = [Env(*e) for e in env], [Mount(*m) for m in mounts]
    return Rule(name, conditions, skip_unknown, *reserved, deny, plain, allocations)


class Policy:
    """The policy in force.

    `path`: the policy file. `fingerprint`: the sha256 of the file that was compiled. `warning`: why a newer version of
    the file is not in force, or "". `missing`: why there is no policy (the file never was valid), or "".
    """

    __slots__ = (
        "_header",
        "_index",
        "_lines",
        "_patterns",
        "_rules",
        "excluded_namespaces",
        "excluded_types",
        "failure_policy",
        "fingerprint",
        "kubelet_root",
        "missing",
        "mode",
        "path",
        "warning",
    )

    def __init__(self, path: str, header: "dict[str, Any]", lines: "list[str]", warning: str = "") -> None:
        self.path = path
        self._header = header
        self._lines = lines
        self._rules: dict[int, Rule] = {}
        self.warning = warning
        self.missing = ""
        self.fingerprint: str = header["sha256"]
        self.mode: str = header["mode"]
        self.failure_policy: str = header["failurePolicy"]
        self.excluded_namespaces: list[str] = header["excludedNamespaces"]
        self.excluded_types: list[str] = header["excludedTypes"]
        self.kubelet_root: str = header["kubeletRoot"]
        self._index: dict[str, list[int]] = header["index"]
        self._patterns: dict[str, list[int]] = header["patterns"]

    def held(self, problem: str) -> "Policy":
        """The same policy, with a warning that it stays in force because the policy file has a problem."""
        return Policy(self.path, self._header, self._lines, f"the last good policy stays in force: {problem}")

    def candidates(self, namespace: "str | None") -> "list[Rule]":
        """The rules that a container of this namespace can match, in the policy's order. None: an unknown namespace."""
        if namespace is None:
            numbers = list(range(len(self._lines)))
        else:
            matching = set(self._index.get(namespace, []))
            for pattern, rules in self._patterns.items():
                if glob_match(pattern, namespace):
                    matching.update(rules)
            numbers = sorted(matching)
        return [self._rule(number) for number in numbers]

    def _rule(self, number: int) -> Rule:
        """A rule by its number. It is parsed once, for the NRI plugin, which uses a policy for many containers."""
        rule = self._rules.get(number)
        if rule is None:
            rule = self._rules[number] = rule_from_line(parse(self._lines[number]))
        return rule


class NoPolicy(Policy):
    """In force until the policy file is valid for the first time: only containers of kube-system start (`plan`)."""

    __slots__ = ()

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
    "rules": 0,
    "index": {},
    "patterns": {},
}
"""Header of NoPolicy: containers of kube-system start, all others are refused."""
