"""The real runtime's own record of a container, for its bundle. Part of the start path: builtins only.

Of the real runtime only a path is known: a link, a script or a program in front of runc or crun may have any name. So
every place is looked at where one of them would keep the container, and the container's id tells.

| runtime | without --root | file | bundle |
|---|---|---|---|
| runc, NVIDIA's in front of it | /run/runc; rootless $XDG_RUNTIME_DIR/runc | state.json | label `bundle=` |
| crun | $XDG_RUNTIME_DIR/crun if that is set, else /run/crun | status | `bundle` |
| youki | /run/youki; rootless $XDG_RUNTIME_DIR/youki | state.json | `bundle` |
"""

from hook.base.errors import Undecided
from hook.base.jsontext import Malformed, decode, parse
from hook.base.system import read_file
from hook.container.spec import LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

RUNCS, CRUNS = "/state.json", "/status"
_NAMES = ("runc", "crun", "youki")


def recorded(base: str) -> str:
    """The bundle that is recorded in a container's directory, whatever runtime keeps it; "" where there is none."""
    return runcs(base) or cruns(base)


def bundle_of(
    container_id: str,
    root: "str | None",
    real: str,
    environment: "dict[bytes, bytes]",
    recorded: "Callable[[str], str]" = recorded,
) -> str:
    """The container's bundle. `root`: of --root; `environment`: what the real runtime gets.

    Raises Undecided where no runtime has such a container, or two have it in different bundles, OSError.
    """
    looked: list[str] = []
    found: dict[str, str] = {}
    for directory in _roots(root, real, environment):
        base = f"{directory.rstrip('/')}/{container_id}"
        looked.append(base)
        bundle = recorded(base)
        if bundle:
            found.setdefault(bundle, base)
    if not found:
        raise Undecided(f"the real runtime's record of the container is not in {', '.join(looked)}")
    if len(found) > 1:
        raise Undecided(f"there are different containers of that name in {' and '.join(found.values())}")
    return next(iter(found))


def _roots(root: "str | None", real: str, environment: "dict[bytes, bytes]") -> "list[str]":
    """The directories in which the real runtime may keep its containers' records."""
    if root:
        return [root]
    above = ["/run"]
    runtime_directory = environment.get(b"XDG_RUNTIME_DIR", b"")
    if runtime_directory:
        above.insert(0, str(runtime_directory, "utf-8", "surrogateescape"))
    names = dict.fromkeys((*_NAMES, real.rpartition("/")[2]))
    return [f"{directory.rstrip('/')}/{name}" for directory in above for name in names]


def runcs(base: str) -> str:
    """Of runc's state.json, or youki's; "" where there is none."""
    state = _read_json(base + RUNCS)
    if not isinstance(state, dict):
        return ""
    config = state.get("config")
    labels = config.get("labels") if isinstance(config, dict) else None
    # runc appends its own label after those it makes of the annotations (libcontainer/specconv): the last counts.
    for label in reversed(labels if isinstance(labels, list) else []):
        if isinstance(label, str) and label.startswith("bundle="):
            return label[len("bundle=") :]
    return _bundle(state)


def cruns(base: str) -> str:
    """Of crun's status; "" where there is none."""
    status = _read_json(base + CRUNS)
    return _bundle(status) if isinstance(status, dict) else ""


def _bundle(record: "dict[str, object]") -> str:
    bundle = record.get("bundle")
    return bundle if isinstance(bundle, str) else ""


def _read_json(path: str) -> object:
    try:
        return parse(decode(read_file(path, LIMIT)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None
