"""The decision as an annotation of config.json, so that an `exec` gets what `create` decided. Builtins only.

There is no state beside the bundle: what a container was promised lives and dies with it. `create` always replaces
or removes the annotation, so a pod that brings one along gains nothing.
"""

from hook.base.errors import Undecided
from hook.base.jsontext import Malformed, encode, parse
from hook.reserved import Reserved

ANNOTATION = "reassert/decision"


def stamp(annotations: "dict[str, str]", reserved: Reserved, fingerprint: str) -> "dict[str, str]":
    """The annotations with this decision in them and no other; without one where nothing is reserved."""
    if not reserved and ANNOTATION not in annotations:
        return annotations
    stamped = {key: value for key, value in annotations.items() if key != ANNOTATION}
    if reserved:
        stamped[ANNOTATION] = encode(
            {"version": 1, "policy": fingerprint, "env": reserved.values, "absent": reserved.absent}
        )
    return stamped


def read(annotations: "dict[str, str]") -> "Reserved | None":
    """The decision that was stamped, None where there is none. Raises Undecided if it is not one of ours."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        value = parse(text)
        if not isinstance(value, dict) or value["version"] != 1:
            raise Malformed("unknown version")
        return Reserved(dict(value["env"]), list(value["absent"]))
    except (Malformed, KeyError, TypeError, ValueError) as error:
        raise Undecided(f"annotation {ANNOTATION} cannot be read: {error}") from None
