"""Which certificates a trust store takes, which it leaves out, and what an operator should know about each.

| certificate | what becomes of it |
|---|---|
| expired | left out: OpenSSL 1.0 fails on a chain that has one, even where another root would do |
| not a CA | left out: no program accepts another certificate that it signed |
| RSA key below 1024 bits | left out: it can be broken |
| the same certificate again | left out; named if both are of the operator's sources |
| not yet valid | kept: programs ignore it until then, and nothing would build the store again on that day |
| other weak key, or signed with MD5 or SHA-1 by another CA | kept: programs decide, by their own settings |
| not self-signed, without its issuer | kept: OpenSSL-based programs need the issuer too |
| refused by Java or Go (hook.ops.trust.readers) | kept, but for Java's store, of which one such entry would cost all |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from hook.core.base.text import printable
from hook.ops.trust.certificate import Certificate
from hook.ops.trust.readers import GO, JAVA, refusals

LEFT_OUT, WARNING = "left out", "warning"
_BROKEN_RSA = 1024
_LEAST = {"RSA": 2048, "DSA": 2048, "EC": 224}
_WEAK_HASHES = ("md5", "sha1")


@dataclass(frozen=True)
class Remark:
    """What an operator should know about one certificate. `severity`: LEFT_OUT or WARNING."""

    severity: str
    certificate: Certificate
    reason: str

    def __str__(self) -> str:
        """One line for a terminal."""
        return printable(f"{self.certificate.place}: {self.severity}: {self.certificate.subject}: {self.reason}")


@dataclass(frozen=True)
class Judged:
    """The certificates of a store, those of the system first, and what was found."""

    kept: list[Certificate]
    findings: list[Remark]
    outdated: int
    """Number of certificates that are expired or not yet valid."""

    total: int
    """Number of different certificates that were read."""

    @property
    def added(self) -> list[Certificate]:
        """The operator's."""
        return [certificate for certificate in self.kept if certificate.added]


def judge(added: Iterable[Certificate], system: Iterable[Certificate], now: datetime) -> Judged:
    """Decides about each certificate. One that is in both is the operator's."""
    kept: dict[str, Certificate] = {}
    findings: list[Remark] = []
    seen: dict[str, Certificate] = {}
    outdated = 0
    for certificate in (*added, *system):
        if (before := seen.setdefault(certificate.sha256, certificate)) is not certificate:
            if certificate.added:
                findings.append(Remark(LEFT_OUT, certificate, f"the same certificate as {before.place}"))
            continue
        outdated += not certificate.begins <= now <= certificate.ends
        if reason := _unusable(certificate, now):
            findings.append(Remark(LEFT_OUT, certificate, reason))
        else:
            kept[certificate.sha256] = certificate
            findings += [Remark(WARNING, certificate, reason) for reason in _doubtful(certificate, now)]
    findings += _without_issuer(kept.values())
    order = sorted(kept.values(), key=lambda one: (one.added, one.subject.lower(), one.sha256))
    return Judged(order, findings, outdated, len(seen))


def _unusable(certificate: Certificate, now: datetime) -> str:
    if certificate.ends < now:
        return f"expired on {certificate.ends:%Y-%m-%d}"
    if reason := certificate.not_a_ca():
        kind = "a self-signed server certificate" if certificate.self_issued else "a server's or user's certificate"
        return f"not a CA: {reason}. It looks like {kind}; add the certificate of the CA that signs"
    kind, bits = certificate.key()
    if kind == "RSA" and bits < _BROKEN_RSA:
        return f"its RSA key has only {bits} bits and can be broken"
    return ""


def _doubtful(certificate: Certificate, now: datetime) -> Iterator[str]:
    if certificate.begins > now:
        yield f"not valid before {certificate.begins:%Y-%m-%d %H:%M} UTC; kept, programs refuse it until then"
    kind, bits = certificate.key()
    if bits and bits < _LEAST.get(kind, 0):
        yield f"weak: {kind} key of {bits} bits; OpenSSL refuses it at Debian's and RHEL's security level"
    for reader, reason in refusals(certificate).items():
        yield _WITHOUT[reader].format(reason)
    if not certificate.self_issued and certificate.signature() in _WEAK_HASHES:
        yield f"weak: signed with {certificate.signature().upper()} by {certificate.issuer}"


_WITHOUT = {
    JAVA: "Java cannot read it: {}. It is left out of java/cacerts, which could not be loaded with it",
    GO: "Go cannot read it: {}. Programs in Go do not trust it",
}


def _without_issuer(kept: Iterable[Certificate]) -> list[Remark]:
    subjects = {certificate.parsed.subject for certificate in kept}
    return [
        Remark(
            WARNING,
            certificate,
            f"not a root, and its issuer {certificate.issuer} is not in the store; curl, Python and other programs "
            f"with OpenSSL need the root too",
        )
        for certificate in kept
        if certificate.added and certificate.parsed.issuer not in subjects
    ]
