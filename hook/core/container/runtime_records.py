"""Find a container's bundle in the real runtime's state directory.

The path of the real runtime does not show which runtime it is: it may be a link, a script or another program in front
of runc or crun. So all state directories of these runtimes are searched for the container's id:

| runtime | without --root | file | bundle |
|---|---|---|---|
| runc, NVIDIA's in front of it | /run/runc; rootless $XDG_RUNTIME_DIR/runc | state.json | label `bundle=` |
| crun | $XDG_RUNTIME_DIR/crun if that is set, else /run/crun | status | `bundle` |
| youki | /run/youki; rootless $XDG_RUNTIME_DIR/youki | state.json | `bundle` |
| runsc | /run/runsc; rootless $XDG_RUNTIME_DIR/runsc | ../ID_sandbox:SANDBOX.state | `bundleDir` |
"""

from __future__ import annotations

import posix
from collections.abc import Callable
from typing import Any

from hook.core.base.errors import Undecided, named
from hook.core.base.jsontext import Malformed, bounded, decode, parse
from hook.core.base.system import read_file
from hook.core.container.spec import CONFIG_ENTRIES, CONFIG_LIMIT

STATE_JSON, STATUS = "/state.json", "/status"
_NAMES = ("runc", "crun", "youki", "runsc")


def bundle_in(base: str) -> str:
    """The bundle in a container's state directory, of any runtime; "" if there is none."""
    return bundle_from(base, STATE_JSON) or bundle_from(base, STATUS) or from_sandbox(base)


def record_in(base: str) -> tuple[dict[str, Any], str]:
    """A container's record in its state directory, of any runtime, and its bundle; empty if there is none.

    Raises Undecided, OSError.
    """
    for name in (STATE_JSON, STATUS):
        record = _read_json(base + name)
        if isinstance(record, dict):
            return record, _bundle_of(record, name, base)
    state = _sandbox_state(base)
    return (state, _bundle_member(state, "bundleDir")) if isinstance(state, dict) else ({}, "")


def bundle_of(
    container_id: str,
    *,
    root: str | None,
    real: str,
    environment: dict[bytes, bytes],
    recorded: Callable[[str], str] = bundle_in,
) -> str:
    """The container's bundle. `root`: the value of --root. `environment`: of the real runtime.

    `recorded`: reads the bundle in a state directory.

    Raises Undecided if no state directory has the container, or if several have it with different bundles, OSError.
    """
    searched: list[str] = []
    bundles: dict[str, str] = {}
    for directory in _roots(root, real, environment):
        base = f"{directory.rstrip('/')}/{container_id}"
        searched.append(base)
        bundle = recorded(base)
        if bundle:
            bundles.setdefault(bundle, base)
    if not bundles:
        raise Undecided(
            f"the real runtime's state of the container is not in {', '.join([named(base, 512) for base in searched])}"
        )
    if len(bundles) > 1:
        raise Undecided(f"there are different containers with this id in {' and '.join(bundles.values())}")
    return next(iter(bundles))


def _roots(root: str | None, real: str, environment: dict[bytes, bytes]) -> list[str]:
    """The state directories that the real runtime may use."""
    if root:
        return [root]
    above = ["/run"]
    runtime_directory = environment.get(b"XDG_RUNTIME_DIR", b"")
    if runtime_directory:
        above.insert(0, str(runtime_directory, "utf-8", "surrogateescape"))
    names = dict.fromkeys((*_NAMES, real.rpartition("/")[2]))
    return [f"{directory.rstrip('/')}/{name}" for directory in above for name in names]


def bundle_from(base: str, name: str) -> str:
    """The bundle in STATE_JSON of runc or youki, or the directory of crun's own config.json; "" if there is none.

    crun copies the file that it creates a container from to `base`, beside STATUS, and its `exec` reads that copy: the
    file may lie elsewhere (`--config`), and the bundle may have another config.json.
    """
    record = _read_json(base + name)
    if not isinstance(record, dict):
        return ""
    return base if name == STATUS and _has_config(base) else _bundle_of(record, name, base)


def _bundle_of(record: dict[str, Any], name: str, base: str) -> str:
    """The bundle in a record.

    crun (1.8.1, 1.21, 1.28) has "/" there for a container with a user namespace and a device, and config.json may be
    outside the bundle (`--config`). crun's own copy of config.json is next to the status.
    """
    bundle = _bundle_member(record)
    if name == STATUS:
        return base if bundle == "/" or (bundle and not _has_config(bundle) and _has_config(base)) else bundle
    config = record.get("config")
    labels = config.get("labels") if isinstance(config, dict) else None
    bundles = [str(label) for label in labels if str(label).startswith("bundle=")] if isinstance(labels, list) else []
    if len(set(bundles)) > 1:
        # runc appends its own after those that it makes of annotations, and its `exec` takes the first (SearchLabels).
        raise Undecided(
            "an annotation names another bundle than the container's, which runc would take; create it again"
        )
    return bundles[0][len("bundle=") :] if bundles else bundle


def from_sandbox(base: str) -> str:
    """The bundle in the state file of runsc; "" if there is none. Its name has the container's and the sandbox's id."""
    state = _sandbox_state(base)
    bundle = _bundle_member(state, "bundleDir") if isinstance(state, dict) else ""
    if bundle and not bundle.startswith("/"):  # --bundle as it was written, possibly relative to an unknown directory
        raise Undecided(f"runsc recorded the relative bundle {named(bundle)}; create the container again")
    return bundle


def _sandbox_state(base: str) -> object:
    root, _, container_id = base.rpartition("/")
    try:
        names = [name for name in posix.listdir(root) if name.startswith(container_id + "_sandbox:")]
    except (FileNotFoundError, NotADirectoryError):
        return None
    states = [name for name in names if name.endswith(".state")]
    if len(states) > 1:
        raise Undecided(f"several sandboxes in {named(root, 512)} have a container with this id")
    return _read_json(f"{root}/{states[0]}") if states else None


def _has_config(directory: str) -> bool:
    try:
        posix.stat(directory.rstrip("/") + "/config.json")
    except OSError:
        return False
    return True


def _bundle_member(record: dict[str, object], name: str = "bundle") -> str:
    bundle = record.get(name)
    return bundle if isinstance(bundle, str) else ""


def _read_json(path: str) -> object:
    try:
        return parse(decode(bounded(read_file(path, CONFIG_LIMIT, waits=True), CONFIG_ENTRIES, path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None
