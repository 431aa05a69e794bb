"""NRI's default validator (NRI 0.10: containerd 2.2, CRI-O 1.34), which can require our plugin.

Then the engine itself refuses every container while the plugin is away.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hook.core.policy.model import AUDIT, FAIL
from hook.node.engines import toml
from hook.node.engines.base import NRI, Choice
from hook.node.engines.toml import Key

PLUGIN = "reassert"
"""The name by which the plugin registers (hook.nri.service)."""

NOTE = "validator"
"""In an engine's notes: the values of `enable` and `required` before the install."""


class Validator(NamedTuple):
    """Where an engine's configuration has the validator, and how it spells its settings."""

    table: Key
    enable: str
    required: str
    tolerate: str

    def settings(self, values: dict[str, Any], choice: Choice, notes: dict[str, Any]) -> dict[Key, Any]:
        """Settings that make the plugin required; none where the engine has no validator.

        Nor in Audit mode and with `failurePolicy: Ignore`, which let containers start without a decision; nor where
        others run the plugin: a pod that brings it could not start while the plugin is away.
        """
        table = toml.get(values, self.table)
        policy = choice.policy
        wanted = NRI in choice.adapters and choice.unit and policy.mode != AUDIT and policy.failure_policy == FAIL
        if table is None or not wanted:
            return {}
        theirs = self.before(values, notes)["required"]
        return {(*self.table, self.enable): True, (*self.table, self.required): [*theirs, PLUGIN]}

    def before(self, values: dict[str, Any], notes: dict[str, Any]) -> dict[str, Any]:
        """What the engine had without reassert, to be kept in its notes."""
        if notes.get(NOTE):
            was: dict[str, Any] = notes[NOTE]
            return was
        table = toml.get(values, self.table) or {}
        required = [name for name in table.get(self.required) or [] if name != PLUGIN]
        return {"enable": bool(table.get(self.enable)), "required": required}

    def restore(self, values: dict[str, Any], notes: dict[str, Any]) -> None:
        """Restore in `values` what the engine had."""
        if notes.get(NOTE):
            toml.put(values, (*self.table, self.enable), notes[NOTE]["enable"])
            toml.put(values, (*self.table, self.required), notes[NOTE]["required"])

    def warnings(self, values: dict[str, Any]) -> list[str]:
        """An annotation by which a pod's author can do without the required plugin."""
        table = toml.get(values, self.table) or {}
        annotation = table.get(self.tolerate)
        if not annotation or PLUGIN not in (table.get(self.required) or []):
            return []
        return [
            f"{'.'.join((*self.table, self.tolerate))} = {annotation!r}: a pod with this annotation starts while the "
            "NRI plugin is away; remove the setting"
        ]
