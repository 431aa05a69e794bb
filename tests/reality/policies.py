"""Random node policies, by seed."""

from __future__ import annotations

from random import Random
from typing import Any

ENV: list[dict[str, Any]] = [
    {"name": "REQUESTS_CA_BUNDLE", "value": "/etc/ssl/certs/ca-certificates.crt"},
    {"name": "SSL_CERT_FILE", "value": "/etc/ssl/ca.crt"},
    {"name": "PYTHONHTTPSVERIFY", "absent": True},
    {"name": "NVIDIA_REQUIRE_*", "absent": True},
    {"name": "NODE_GPU", "valueFrom": {"file": "{NODE}/gpu"}},
    {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"deviceAllocation": {"default": "void"}}},
    {"name": "EMPTY", "value": ""},
    {"name": "WITH", "value": "a=b c\té"},
    {"name": "HOME", "value": "/node/home"},
    {"name": "PATH", "value": "/usr/bin:/bin"},
    {"name": "GPUS", "oneOf": ["none", "void"], "else": "void"},
    {"name": "LEVEL", "oneOf": ["low", ""], "pattern": "h*h", "else": "Deny"},
    {"name": "DEBUG", "oneOf": ["0"]},
    {"name": "WORK", "pattern": "/home/*", "default": "/home/app"},
]
BROKEN_ENV: list[dict[str, Any]] = [
    {"name": "NODE_GPU", "valueFrom": {"file": "{NODE}/nowhere"}},
    {"name": "NODE_GPU", "valueFrom": {"file": "{NODE}/others"}},
]
MOUNTS: list[tuple[str, str]] = [
    ("ca", "/etc/ssl"),
    ("ca", "/etc/ssl"),
    ("ca/certs", "/etc/ssl/certs"),
    ("bundle.pem", "/etc/ssl/certs/ca-certificates.crt"),
    ("bundle.pem", "/etc/ssl/certs/ca-certificates.crt"),
    ("bundle.pem", "/etc/pki/tls/cert.pem"),
    ("ca", "/opt/node/ca"),
    ("linked", "/usr/share/ca"),
    ("linked.pem", "/usr/share/ca.pem"),
    ("ca", "/company"),
]

MANY = "/etc/pki/many"
EXCLUSIVE = (
    ["{NODE}/dev/gpu*"],
    ["{NODE}/dev/gpu0", "/dev/nvidia?"],
    ["/dev/nvidia?"],
    ["{NODE}/dev/*", "/dev/nvidia?"],
)


def policy(random: Random) -> dict[str, Any]:
    """A valid policy. Mostly small, in Enforce mode, for every container: what there is to break."""
    spec: dict[str, Any] = {"kubelet": {"root": "{NODE}/kubelet"}}
    if random.random() < 0.08:
        spec["mode"] = "Audit"
    if random.random() < 0.15:
        spec["failurePolicy"] = "Ignore"
    if random.random() < 0.5:
        spec["exclude"] = {"namespaces": ["kube-system"], "containerTypes": ["sandbox"]}
    spec["rules"] = [] if random.random() < 0.06 else _rules(random)
    return {"apiVersion": "reassert/v1", "kind": "NodePolicy", "metadata": {"name": "random"}, "spec": spec}


def _rules(random: Random) -> list[dict[str, Any]]:
    names: set[str] = set()
    paths: set[str] = set()
    rules: list[dict[str, Any]] = []
    for number in range(random.choice((1, 1, 2))):
        rule: dict[str, Any] = {"name": f"rule-{number}"}
        if random.random() < 0.25:
            rule["match"] = random.choice(
                (
                    {"namespaces": ["team-*"]},
                    {"namespaces": ["team-a", "kube-system"]},
                    {"namespaces": ["other"]},
                    {"images": ["registry.example/*"]},
                    {"namespaces": ["team-*"], "ifUnknown": "Skip"},
                    {"images": ["registry.example/*"], "ifUnknown": "Skip"},
                )
            )
        env = [one for one in random.sample(ENV, random.choice((0, 1, 1, 2, 3))) if one["name"] not in names]
        if random.random() < 0.03:
            env = [random.choice(BROKEN_ENV)] if "NODE_GPU" not in names else env
        names |= {one["name"] for one in env}
        mounts = [_mount(random, paths) for _ in range(random.choice((0, 1, 1, 1, 2)))]
        rule["env"] = env
        rule["mounts"] = [one for one in mounts if one]
        if random.random() < 0.06 and not any(path.startswith(MANY) for path in paths):
            rule["mounts"] += [
                {"hostPath": "{NODE}/bundle.pem", "mountPath": f"{MANY}/{name}.pem"} for name in range(25)
            ]
            paths.add(MANY + "/all")
        if random.random() < 0.12:
            rule["onConflict"] = "Deny"
        if random.random() < 0.15 and not any("deviceAllocations" in other for other in rules):
            rule["deviceAllocations"] = {"exclusive": random.choice(EXCLUSIVE)}
        if rule["env"] or rule["mounts"] or "deviceAllocations" in rule:
            rules.append(rule)
    return rules


def _mount(random: Random, paths: set[str]) -> dict[str, Any] | None:
    source, path = random.choice(MOUNTS)
    if path in paths:
        return None
    paths.add(path)
    if random.random() < 0.04:
        return {"mountPath": path, "absent": True}
    mount: dict[str, Any] = {"hostPath": "{NODE}/" + source, "mountPath": path}
    if random.random() < 0.04:
        mount["hostPath"] = "{NODE}/missing"
        mount["onMissingSource"] = random.choice(("Fail", "Skip"))
    if random.random() < 0.2:
        mount["readOnly"] = False
    if random.random() < 0.15:
        mount["options"] = random.choice(
            (["bind"], ["rbind", "rprivate", "nosuid", "nodev"], ["bind", "private", "noexec"])
        )
    if random.random() < 0.3:
        mount["volumesAbove"] = random.choice(("Allow", "Allow", "Refuse"))
    if not source.endswith(".pem") and random.random() < 0.45:
        mount["allowBelow"] = (
            [path + random.choice(("/certs", "/certs/extra", "/private"))]
            if source != "ca/certs"
            else [path + "/extra"]
        )
    return mount
