"""A compiled policy, as a container start reads it. Part of the start path: builtins only.

The compiler writes a header line and then one line of JSON per rule, so that a start parses only the rules that
its namespace could match: a thousand rules cost a container little more than one.
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
    """What is reserved, and for whom. `conditions` holds the match block's fields as compiled; empty: everyone.

    `plain`: by field of the policy file, the lists that need no compiled form. `allocations`: which parts of a device
    plugin's answer are reserved.
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
        plain: "dict[str, list[dict[str, Any]]]",
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
        """Whether kubelet's device checkpoint has to be read for it."""
        return bool(self.allocations or self.plain.get("annotations")) or any(
            env.source == ALLOCATED for env in self.env
        )


def rule_to_line(rule: Rule) -> "list[object]":
    """A rule in the compiled form; `rule_from_line` reads it back."""
    return [
        rule.name,
        rule.conditions,
        rule.skip_unknown,
        [env.as_line() for env in rule.env],
        [mount.as_line() for mount in rule.mounts],
        rule.deny,
        rule.plain,
        rule.allocations,
    ]


def rule_from_line(line: "list[Any]") -> Rule:
    """The rule that `rule_to_line` wrote."""
    name, conditions, skip_unknown, env, mounts, deny, plain, allocations = line
    reserved = [Env(*e) for e in env], [Mount(*m) for m in mounts]
    return Rule(name, conditions, skip_unknown, *reserved, deny, plain, allocations)


class Policy:
    """The node's policy in force.

    `path`: its source. `fingerprint`: sha256 of the source, hex. `warning`: why an edit of the source is held back,
    or "". `missing`: why there is no policy at all (there never was a good one), or "".
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
        """The same, held in force because of what is wrong with its source."""
        return Policy(self.path, self._header, self._lines, f"the last good policy stays in force: {problem}")

    def candidates(self, namespace: "str | None") -> "list[Rule]":
        """The rules, in the policy's order, that a container of this namespace could match; None: any of them."""
        if namespace is None:
            numbers = list(range(len(self._lines)))
        else:
            found = set(self._index.get(namespace, []))
            for pattern, fitting in self._patterns.items():
                if glob_match(pattern, namespace):
                    found.update(fitting)
            numbers = sorted(found)
        return [self._rule(number) for number in numbers]

    def _rule(self, number: int) -> Rule:
        """A rule, parsed once: a resident process asks again and again."""
        rule = self._rules.get(number)
        if rule is None:
            rule = self._rules[number] = rule_from_line(parse(self._lines[number]))
        return rule


class NoPolicy(Policy):
    """There never was a good policy: only what the node needs to be mended may start (`plan`)."""

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
"""Header of the policy that is in force while there is none: kube-system starts, the rest is refused."""
