"""For the type checker alone."""

from typing import Protocol


class Target(Protocol):
    """What a container would start with; `hook.plan.Container` describes each field."""

    env: list[str]
    mounts: list[dict[str, object]]
    annotations: dict[str, str]
    devices: list[dict[str, object]]
    device_rules: list[dict[str, object]]
