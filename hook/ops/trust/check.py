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

from hook.compile.compiler import compile_bytes
from hook.compile.in_force import read_source
from hook.compile.trust import IMAGES_CERTS
from hook.compile.trust import table as trust_table
from hook.core.base.errors import ReassertError, describe
from hook.core.base.finding import ERROR, WARNING, exit_status
from hook.core.policy import trust_layout as layout
from hook.core.policy.model import Policy
from hook.ops.trust.certificate import Certificate, Place, certificates
from hook.ops.trust.generation import Store, digests, read_tree
from hook.ops.trust.images import IMAGES, Image, Mounts, source_of
from hook.ops.trust.readers import refusals
from hook.ops.trust.source import COUNT_LIMIT
from hook.resident.terminal import counted, line, table

SOON = timedelta(days=30)
"""An added CA that expires within this time is a warning."""

FEW = 10
"""A file with fewer certificates, none of them a system root, cannot be meant to replace the roots."""

_LOOKS, _BETWEEN = 3, 0.2
"""A build may be replacing the live files: they are looked at several times, with seconds between."""

_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_FEW_NAMES = 3
IMAGES_OWN = "the image's own"
_ANY = Image("any image", ())
_NPM = ("NPM_CONFIG_CAFILE", "npm_config_cafile")
"""They replace the roots too. The others are those for which `trust` in a rule names the bundle."""


def check(directory: str, policy_path: str | None, width: int = 0) -> int:
    """Print the report. Returns the exit status: 1 if a container would not trust what the store says.

    `width`: columns of the terminal, 0 for any number. Raises TrustError, OSError.
    """
    store = Store(directory)
    manifest = store.manifest()
    if manifest is None:
        print(line(f"{directory}: no trust store; make one with reassert trust build", width, 2))
        return 1
    system = {one["sha256"] for one in manifest["certificates"] if not one["added"]}
    added = {one["sha256"] for one in manifest["certificates"] if one["added"]}
    title = f"{directory}: generation {manifest['generation']} of {manifest['built']}"
    head = f"{title}: {len(system)} system roots and {len(added)} added"
    problems = _live_problems(store, manifest)
    warnings = _ending(manifest)
    if policy_path is None:
        mounts: Mounts = assumed_mounts(str(store.live))
    else:
        policy = compile_bytes(policy_path, read_source(policy_path)[0]).policy()
        reserved = [mount for rule in policy.candidates(None) for mount in rule.mounts if mount.source]
        mounts = [(mount.destination, mount.source) for mount in reserved]
        warnings += lone_cas(policy, mounts, system)
    unread = _unread(store)
    rows = []
    for image in [*IMAGES, *_asides(mounts)]:
        for program, path in image.reads:
            trusts, is_problem = _trusts(source_of(path, image, mounts), system, added)
            refused = [
                f"{reader} cannot read {named}"
                for reader, named in unread.items()
                if re.search(rf"\b{reader}\b", program)
            ]
            trusts = "; ".join([trusts, *([] if trusts == IMAGES_OWN else refused)])
            rows.append([image.name, program, path, trusts])
            if is_problem:
                problems.append(f"{image.name}: {path}: {trusts}")
    for text in (head, *(f"error: {text}" for text in problems), *(f"warning: {text}" for text in warnings)):
        print(line(text, width, 2))
    print(table(rows, ["IMAGE", "PROGRAMS", "READ", "AND TRUST"], width))
    return exit_status([*(ERROR for _ in problems), *(WARNING for _ in warnings)])


def _unread(store: Store) -> dict[str, str]:
    """By reader, the subjects of the store's certificates that it refuses, if there are any."""
    try:
        there = _read(store.live / layout.BUNDLE)
    except (ReassertError, OSError):  # `_live_problems` says it
        return {}
    found: dict[str, list[str]] = {}
    for certificate in there:
        for reader in refusals(certificate):
            found.setdefault(reader, []).append(certificate.subject)
    return {
        reader: ", ".join(names[:_FEW_NAMES]) + ", …" * (len(names) > _FEW_NAMES) for reader, names in found.items()
    }


def _asides(mounts: Mounts) -> list[Image]:
    """What programs read by their variables where the policy mounts the store aside, in any image."""
    if layout.ASIDE_PATH not in dict(mounts):
        return []
    paths = (layout.BUNDLE, layout.ADDED, layout.JAVA)
    names: dict[str, list[str]] = {path: [] for path in paths}
    for stack in trust_table()[1].values():
        for path in paths:
            if any(value.partition(" ")[0].endswith(f"{IMAGES_CERTS}/{path}") for value in stack.env.values()):
                names[path].append(stack.id)
    reads = [(", ".join(ids), f"{layout.ASIDE_PATH}/{path}") for path, ids in names.items()]
    return [Image("any, by variables", reads)]


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
            path = env.constant or ""
            if env.name not in replaces or not path.startswith("/"):
                continue
            source = source_of(path, _ANY, mounts)
            if source is None or f"/{layout.LIVE}/{layout.ALONE}/" in source:  # `publicRoots: false` means it
                continue
            try:
                there = fingerprints(source)
            except (ReassertError, OSError) as error:
                found.append(f"rule {rule.name}: {env.name}={path}: {describe(error)}")
                continue
            held = counted(len(there), "certificate")
            if len(there) < FEW and not there & system:
                found.append(
                    f"rule {rule.name}: {env.name}={path} is {source}, which holds {held} and no "
                    f"system roots. This variable replaces the roots of a program: it would accept no public server. "
                    f"Use a file with the system's roots, such as {layout.BUNDLE} of the trust store"
                )
    return found


def _trusts(source: str | None, system: set[str], added: set[str]) -> tuple[str, bool]:
    """What a program that reads this path of the node trusts, and whether that is a problem."""
    if source is None:
        return IMAGES_OWN, False
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
