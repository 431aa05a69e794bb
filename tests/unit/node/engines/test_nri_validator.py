"""The engine's own refusal of containers while the NRI plugin is away."""

from __future__ import annotations

from typing import Any

import marks
import pytest

from hook.node.engines.base import HOOK, NRI, RUNTIME, Choice
from hook.node.engines.nri_validator import Validator
from unit.support import policy

pytestmark = marks.promise(
    "An engine with a validator requires the plugin, and starts no container without it", about="NRI"
)

VALIDATOR = Validator(("plugins", "nri", "default_validator"), "enable", "required_plugins", "tolerate")
ENABLE, REQUIRED = ((*VALIDATOR.table, key) for key in ("enable", "required_plugins"))
RULE = {"name": "gpu", "env": [{"name": "GPU", "value": "void"}]}


def values(**table: Any) -> dict[str, Any]:
    """A configuration with a validator."""
    return {"plugins": {"nri": {"default_validator": table}}}


def choice(*adapters: str, unit: bool = True, **spec: Any) -> Choice:
    """What an administrator asked for."""
    return Choice(adapters, None, "/opt/reassert/reassert", policy(RULE, **spec), unit)


def test_plugin_is_required_where_the_engine_has_the_validator() -> None:
    assert VALIDATOR.settings(values(), choice(NRI), {}) == {ENABLE: True, REQUIRED: ["reassert"]}
    there = values(enable=False, required_plugins=["other"])
    assert VALIDATOR.settings(there, choice(NRI, RUNTIME), {})[REQUIRED] == ["other", "reassert"]
    assert VALIDATOR.settings({"plugins": {"nri": {}}}, choice(NRI), {}) == {}


@pytest.mark.parametrize(
    "asked",
    [
        choice(RUNTIME),
        choice(HOOK),
        choice(NRI, unit=False),
        choice(NRI, mode="Audit"),
        choice(NRI, failurePolicy="Ignore"),
    ],
    ids=["runtime", "hook", "a pod brings the plugin", "Audit", "Ignore"],
)
def test_plugin_is_not_required_where_containers_must_start_without_it(asked: Choice) -> None:
    assert VALIDATOR.settings(values(), asked, {}) == {}


def test_second_install_and_removal_know_what_was_there() -> None:
    before = values(enable=True, required_plugins=["other"])
    notes = {"validator": VALIDATOR.before(before, {})}
    wired = values(enable=True, required_plugins=["other", "reassert"])
    assert VALIDATOR.before(wired, notes) == {"enable": True, "required": ["other"]}
    assert VALIDATOR.settings(wired, choice(NRI), notes)[REQUIRED] == ["other", "reassert"]
    VALIDATOR.restore(wired, notes)
    assert wired == before


def test_annotation_by_which_a_pod_does_without_the_plugin_is_reported() -> None:
    there = values(required_plugins=["reassert"], tolerate="tolerate.example")
    [warning] = VALIDATOR.warnings(there)
    assert "default_validator.tolerate = 'tolerate.example': a pod with this annotation starts" in warning
    assert VALIDATOR.warnings(values(required_plugins=["other"], tolerate="tolerate.example")) == []
    assert VALIDATOR.warnings(values(required_plugins=["reassert"], tolerate="")) == []
    assert VALIDATOR.warnings({}) == []
