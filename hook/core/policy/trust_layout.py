"""The names in a trust store. What a rule mounts and what `trust build` writes both come from here.

The paths in `live` never change, nor do the inodes of its directories: a container has them mounted.
"""

from __future__ import annotations

STORES = "/var/lib/reassert/trust"
"""The directory of all trust stores of the node."""

DEFAULT = "company"
"""The name of the trust store unless the command line has one."""

SOURCES = "/etc/reassert/trust.d"
"""The directory of the default store's CAs. A store of another name has its own subdirectory."""

ASIDE_PATH = "/.reassert-trust"
"""Where `mount: Aside` mounts CERTS. No image has it, and no volume can be above it but over the container's root.

/run and /var are volumes or a tmpfs in many containers. A runtime makes the directory, also for a container whose root
file system is read-only: it makes mount points before."""

GENERATIONS = "generations"
"""Subdirectory of a store: one directory of real files for each generation, `000001` and up, never changed."""

LIVE = "live"
"""Subdirectory of a store: the files of the newest generation, for mounts."""

# In a generation and in live.
MANIFEST = "manifest.json"
"""What is in the generation, for `trust check` and for the next build."""

BUNDLE = "ca-certificates.crt"
"""All certificates in PEM: system roots and added CAs."""

ADDED = "added.pem"
"""Only the added CAs, in PEM, for a variable that adds to the roots (NODE_EXTRA_CA_CERTS)."""

ALONE = "alone"
"""Subdirectory that has the other names again, with the added CAs alone: `publicRoots: false` of a rule."""

JAVA = "java/cacerts"
"""All certificates as Java's trust store: PKCS12 with the password `changeit`."""

JAVA_PASSWORD = "changeit"  # noqa: S105  # public: Java's own default for a store without secrets

CERTS = "certs"
"""Directory to mount at /etc/ssl/certs and /etc/pki/tls/certs."""

EXTRACTED = "extracted"
"""Directory to mount at /etc/pki/ca-trust/extracted."""

# In CERTS: BUNDLE, ADDED, JAVA and these.
CERTS_BUNDLE = "ca-bundle.crt"
"""The same as BUNDLE, by the name of RHEL."""

CERTS_TRUST = "ca-bundle.trust.crt"
"""The same, where images of RHEL have it in OpenSSL's own form."""

# In EXTRACTED: JAVA and these.
EXTRACTED_TLS = "pem/tls-ca-bundle.pem"
EXTRACTED_BUNDLES = (
    *(EXTRACTED_TLS, "pem/email-ca-bundle.pem", "pem/objsign-ca-bundle.pem", "openssl/ca-bundle.trust.crt"),
)
"""The same as BUNDLE."""

EXTRACTED_HASHED = "pem/directory-hash"
"""Hashed directory, to which /etc/ssl/certs is a link in newer images of the RHEL family. Also has BUNDLE,
CERTS_BUNDLE and a file for each certificate."""


def store(name: str = DEFAULT) -> str:
    """The directory of a trust store."""
    return f"{STORES}/{name}"


def sources(name: str) -> str | None:
    """The directory of the CAs of a store with a name of its own; None for the default store."""
    return None if name == DEFAULT else f"{SOURCES}/{name}"


def live(name: str = DEFAULT) -> str:
    """The directory of a store whose parts containers mount."""
    return f"{STORES}/{name}/{LIVE}"


def store_of(source: str) -> str:
    """The directory of the trust store that a hostPath is a part of, "" if it is of none."""
    store, _, part = source.partition(f"/{LIVE}/")
    return store if part.removeprefix(f"{ALONE}/") in (ADDED, BUNDLE, CERTS, EXTRACTED, JAVA) else ""


def build_command(source: str) -> str:
    """The command that makes a hostPath, "" if the path is not a part of a trust store."""
    store = store_of(source)
    above, _, name = store.rpartition("/")
    if above != STORES:
        return f"reassert trust build --out {store}" if store else ""
    return "reassert trust build" + ("" if name == DEFAULT else f" {name}")
