"""`reassert trust check`: what a container of each distribution would trust, by the node's files and a policy."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from hook.core.base.errors import ReassertError, describe
from hook.core.base.text import printable
from hook.core.policy import trust_layout as layout
from hook.core.policy.compiler import compile_bytes, read_source
from hook.core.policy.entries import VALUE
from hook.core.policy.model import Policy
from hook.core.policy.trust import table as trust_table
from hook.node.terminal import counted, table
from hook.ops.trust.certificate import Certificate, Place, certificates
from hook.ops.trust.generation import Store, digests, read_tree
from hook.ops.trust.images import IMAGES, Image, Mounts, source_of
from hook.ops.trust.source import COUNT_LIMIT

SOON = timedelta(days=30)
"""An added CA that expires within this time is a warning."""

FEW = 10
"""A file with fewer certificates, none of them a system root, cannot be meant to replace the roots."""

_LOOKS, _BETWEEN = 3, 0.2
"""A build may be replacing the live files: they are looked at several times, with seconds between."""

_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_ANY = Image("any image", ())
_NPM = ("NPM_CONFIG_CAFILE", "npm_config_cafile")
"""They replace the roots too. The others are those for which `trust` in a rule names the bundle."""


def check(directory: str, policy_path: str | None) -> int:
    """Print the report. Returns 1 if a container would not trust what the store says. Raises TrustError, OSError."""
    store = Store(directory)
    manifest = store.manifest()
    if manifest is None:
        print(printable(f"{directory}: no trust store; make one with reassert trust build"))
        return 1
    system = {one["sha256"] for one in manifest["certificates"] if not one["added"]}
    added = {one["sha256"] for one in manifest["certificates"] if one["added"]}
    title = f"{directory}: generation {manifest['generation']} of {manifest['built']}"
    print(printable(f"{title}: {len(system)} system roots and {len(added)} added"))
    problems = _live_problems(store, manifest)
    warnings = _ending(manifest)
    if policy_path is None:
        mounts: Mounts = assumed_mounts(str(store.live))
    else:
        policy = compile_bytes(policy_path, read_source(policy_path)[0]).policy()
        reserved = [mount for rule in policy.candidates(None) for mount in rule.mounts if mount.source]
        mounts = [(mount.destination, mount.source) for mount in reserved]
        warnings += lone_cas(policy, mounts, system)
    rows = []
    for image in IMAGES:
        for program, path in image.reads:
            trusts, is_problem = _trusts(source_of(path, image, mounts), system, added)
            rows.append([image.name, program, path, trusts])
            if is_problem:
                problems.append(f"{image.name}: {path}: {trusts}")
    print(table(rows, ["IMAGE", "PROGRAMS", "READ", "AND TRUST"]))
    for line in (*(f"warning: {text}" for text in warnings), *(f"error: {text}" for text in problems)):
        print(printable(line))
    return 1 if problems or warnings else 0


def assumed_mounts(live: str) -> Mounts:
    """The mounts of a rule that trusts the store."""
    layouts = trust_table()[0].values()
    return [(path, f"{live}/{part}") for each in layouts for path, part in each.directories.items()]


def _live_problems(store: Store, manifest: dict[str, Any]) -> list[str]:
    """Files of live that are not those of the newest generation. Its manifest says what they were when it was built."""
    for _ in range(_LOOKS):
        whole, live = manifest["files"], digests(read_tree(store.live))
        live.pop(layout.MANIFEST, None)
        different = sorted(path for path in whole.keys() | live.keys() if whole.get(path) != live.get(path))
        if not different:
            return []
        time.sleep(_BETWEEN)
        manifest = store.manifest() or manifest
    return [
        f"{store.live}: {different[0]}, of {counted(len(different), 'file')}, is not that of the newest generation; "
        f"run reassert trust build"
    ]


def _ending(manifest: dict[str, Any]) -> list[str]:
    now = datetime.now(UTC)
    return [
        f"the added CA {one['subject']} {'expired' if now > ends else 'expires'} on {ends:%Y-%m-%d}"
        for one in manifest["certificates"]
        if one["added"] and (ends := datetime.fromisoformat(one["notAfter"])) < now + SOON
    ]


def lone_cas(policy: Policy, mounts: Mounts, system: set[str]) -> list[str]:
    """Variables that replace a program's roots by a file without the system's roots."""
    found = []
    replaces = {
        *_NPM,
        *(n for one in trust_table()[1].values() for n, v in one.env.items() if v.endswith(layout.BUNDLE)),
    }
    for rule in policy.candidates(None):
        for env in rule.env:
            if env.name not in replaces or env.source != VALUE or not (env.text or "").startswith("/"):
                continue
            source = source_of(str(env.text), _ANY, mounts)
            if source is None or f"/{layout.LIVE}/{layout.ALONE}/" in source:  # `publicRoots: false` means it
                continue
            try:
                there = fingerprints(source)
            except (ReassertError, OSError) as error:
                found.append(f"rule {rule.name}: {env.name}={env.text}: {describe(error)}")
                continue
            held = counted(len(there), "certificate")
            if len(there) < FEW and not there & system:
                found.append(
                    f"rule {rule.name}: {env.name}={env.text} is {source}, which holds {held} and no "
                    f"system roots. This variable replaces the roots of a program: it would accept no public server. "
                    f"Use a file with the system's roots, such as {layout.BUNDLE} of the trust store"
                )
    return found


def _trusts(source: str | None, system: set[str], added: set[str]) -> tuple[str, bool]:
    """What a program that reads this path of the node trusts, and whether that is a problem."""
    if source is None:
        return "the image's own", False
    try:
        there = fingerprints(source)
    except (ReassertError, OSError) as error:
        return describe(error), True
    if added and not there & added:
        return f"{counted(len(there), 'certificate')} of {source}, none of the added CAs", True
    others = len(there - system - added)
    known = f"{len(there & system)} system roots, {len(there & added)} added"
    return known + (f", {others} others" if others else ""), False


def fingerprints(source: str) -> set[str]:
    """The sha256 of every certificate in a file, or in a hashed directory. Raises ReassertError, OSError."""
    path = Path(source)
    files = [file for file in path.iterdir() if _HASHED.fullmatch(file.name)] if path.is_dir() else [path]
    return {certificate.sha256 for file in files for certificate in _read(file)}


def _read(path: Path) -> list[Certificate]:
    data = path.read_bytes()
    if os.path.basename(path) in ("cacerts", "java-cacerts"):
        try:
            stored = pkcs12.load_pkcs12(data, layout.JAVA_PASSWORD.encode()).additional_certs
        except ValueError:
            raise ReassertError(f"{path}: no PKCS12 with the password {layout.JAVA_PASSWORD}") from None
        return [
            Certificate(one.certificate.public_bytes(serialization.Encoding.DER), Place(str(path))) for one in stored
        ]
    return certificates(data, str(path), added=False, limit=COUNT_LIMIT)
