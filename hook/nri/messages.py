"""The classes of NRI's and ttrpc's messages, made from nri.proto when the plugin starts: `messages.get("KeyValue")`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hook.core.base.protobuf import load

_CLASSES = load(Path(__file__).with_name("nri.proto"))


def get(name: str) -> Any:
    """The class of the message with this name."""
    return _CLASSES[name]
