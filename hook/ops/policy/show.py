"""`reassert policy show`: the policy in force, its source, and a newer version of the file that is held back."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from hook.compile.stored import header_of
from hook.core.base.errors import ReassertError
from hook.core.base.text import printable, printable_lines
from hook.core.policy import store
from hook.core.policy.entries import EXCLUSIVE, Mount
from hook.core.policy.model import AUDIT, ENFORCE, MIXED, Policy, Rule
from hook.core.reserve.allocated import VOLUMES_ABOVE
from hook.core.reserve.node_paths import REFUSE, REPORT


class NotPermitted(ReassertError):
    """Raised if this user may not read the policy file or the store."""


def show(source: str, store_directory: str, output: str) -> int:
    """Print the policy in force. Returns 1 if the policy file is not in force. Raises NotPermitted."""
    _check_permissions(source, store_directory)
    policy = store.load(source, store_directory)
    known = header_of(source, store_directory)
    status = [
        ("source", "source", source),
        ("sha256", "fingerprint", policy.fingerprint),
        ("compiledAt", "compiled", known.get("compiledAt")),
        ("heldBack", "HELD BACK", policy.warning),
        ("heldSince", "held since", known.get("heldSince") if policy.warning or policy.missing else None),
        ("missing", "NO POLICY", policy.missing),
    ]
    document = effective(policy, known.get("trust"))
    if output == "json":
        found = {key: value or None for key, _, value in status}
        print(json.dumps({"status": found, "policy": None if policy.missing else document}, indent=2))
    else:
        for _, label, value in status:
            if value:
                print(printable(f"# {label}: {value}"))
        if policy.missing:
            print("# containers of kube-system start; all others are refused until the policy file is valid")
        else:
            sys.stdout.write(as_yaml(document))
    return 1 if policy.warning or policy.missing else 0


def as_yaml(document: dict[str, Any]) -> str:
    """The document as YAML, with characters that a terminal could interpret escaped as YAML escapes them."""
    for readable in (True, False):
        yaml = YAML()
        yaml.default_flow_style = False
        yaml.width = 4096
        yaml.allow_unicode = readable
        text = io.StringIO()
        yaml.dump(document, text)
        if printable_lines(text.getvalue()) == text.getvalue():
            break
    return text.getvalue()


def _check_permissions(*paths: str) -> None:
    """Raises NotPermitted if this user cannot read a path that a container start, as root, can."""
    for path in paths:
        try:
            with os.scandir(path) if os.path.isdir(path) else open(path, "rb"):
                pass
        except PermissionError:
            raise NotPermitted(
                f"this user may not read {path}, so the policy in force is unknown; run as root: "
                "sudo reassert policy show"
            ) from None
        except OSError:  # a missing file is reported with the policy in force
            pass


def effective(policy: Policy, trust: dict[str, Any] | None = None) -> dict[str, Any]:
    """The policy in force as a policy file, with all defaults. `trust`: the `trust` of rules, by name.

    A rule with `trust` also lists the env and mounts that it stands for, each with a comment. The file has the same
    meaning.
    """
    exclude = {"namespaces": policy.excluded_namespaces, "containerTypes": policy.excluded_types}
    return {
        "apiVersion": "reassert/v1",
        "kind": "NodePolicy",
        "spec": {
            "mode": ENFORCE if policy.mode == MIXED else policy.mode,  # each rule has its own
            "failurePolicy": policy.failure_policy,
            "onMissingFiles": policy.on_missing_files,
            "exclude": {key: value for key, value in exclude.items() if value},
            "kubelet": {"root": policy.kubelet_root},
            **({"eventLog": _event_log(policy.event_log)} if policy.event_log else {}),
            **({"allowedAnnotations": policy.allowed_annotations} if policy.allowed_annotations else {}),
            "nodePaths": _node_paths(policy),
            "rules": [_rule(rule, policy.mode, (trust or {}).get(rule.name)) for rule in policy.candidates(None)],
        },
    }


def _node_paths(policy: Policy) -> dict[str, Any]:
    """As the file has it, with the defaults; not one that is on trial with the rules, as it would not be if given."""
    defaults = {field: value for field, value in policy.node_paths.items() if value in (REFUSE, REPORT)}
    return {**defaults, **policy.given}


def _event_log(settings: list[Any]) -> dict[str, Any]:
    limit, kept, journal = settings
    return {"maxSizeMiB": limit >> 20, "keep": kept, "journal": journal}


def _rule(rule: Rule, mode: str, trust: dict[str, Any] | None) -> dict[str, Any]:
    of_it = AUDIT if rule.is_audited else ENFORCE if mode == MIXED else mode
    shown: dict[str, Any] = {"name": rule.name, "mode": of_it}
    match: dict[str, Any] = {field: wanted for field, wanted in rule.conditions.items() if field != "podSelector"}
    if "podSelector" in rule.conditions:
        wanted: Any = rule.conditions["podSelector"]
        expressions = [
            {"key": key, "operator": operator, **({"values": values} if values else {})}
            for key, operator, values in wanted
        ]
        match["podSelector"] = {"matchExpressions": expressions}
    if match:
        shown["match"] = {**match, "ifUnknown": "Skip" if rule.skip_unknown else "Enforce"}
    if trust:
        shown["trust"] = trust
    if rule.env:
        shown["env"] = [{"name": env.name, **env.as_written()} for env in rule.env]
    if rule.mounts:
        shown["mounts"] = [_mount(mount) for mount in rule.mounts]
    if trust:
        _say_origin(shown, trust)
    shown.update({field: entries for field, entries in rule.raw.items() if field != EXCLUSIVE})
    parts: dict[str, Any] = {p: "Allow" if p == VOLUMES_ABOVE else True for p in rule.allocations}
    parts.update({EXCLUSIVE: rule.raw[EXCLUSIVE]} if EXCLUSIVE in rule.raw else {})
    if parts:
        shown["deviceAllocations"] = parts
    shown["onConflict"] = "Deny" if rule.deny else "Override"
    return shown


def _say_origin(shown: dict[str, Any], trust: dict[str, Any]) -> None:
    """Give each entry of a rule that comes from its `trust` a comment: the stacks or distributions that it is for."""
    from hook.compile.trust import entries

    for (field, key), made in zip((("env", "name"), ("mounts", "mountPath")), entries(trust), strict=True):
        for index, entry in enumerate(shown.get(field, ())):
            wanted, ids = made.get(entry[key], ({}, ""))
            if wanted.items() <= entry.items() and ids:
                shown[field][index] = said = CommentedMap(entry)
                said.yaml_add_eol_comment(f"from trust: {ids}", key)


def _mount(mount: Mount) -> dict[str, Any]:
    below = {"allowBelow": mount.allow_below} if mount.allow_below else {}
    if not mount.source and not mount.volume:
        return {"mountPath": mount.destination, "absent": True, **below}
    empty_dir = mount.volume if len(mount.volume) > 1 else ()
    size = empty_dir[2] if empty_dir else 0
    limit = {"sizeLimit": str(size)} if size > 0 else {}
    volume = {"emptyDir": {"medium": "" if size < 0 else "Memory", **limit}}
    return {
        **(volume if empty_dir else {"hostPath": mount.source or mount.volume[0]}),
        "mountPath": mount.destination,
        "readOnly": "ro" in mount.options,
        "options": [option for option in mount.options if option not in ("ro", "rw")],
        **below,
        **({} if empty_dir else {"onMissingSource": "Skip" if mount.skip_missing else "Fail"}),
        "volumesAbove": "Allow" if mount.volumes_above else "Refuse",
    }
