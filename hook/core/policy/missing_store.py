"""The command that makes a missing part of a trust store. A start loads this only to refuse. Builtins only."""

from hook.core.policy.trust_layout import ADDED, BUNDLE, CERTS, DEFAULT, EXTRACTED, JAVA, LIVE, STORES


def build_command(source: str) -> str:
    """The command that makes a hostPath, "" if the path is not a part of a trust store."""
    store, _, part = source.partition(f"/{LIVE}/")
    if part not in (ADDED, BUNDLE, CERTS, EXTRACTED, JAVA):
        return ""
    above, _, name = store.rpartition("/")
    if above != STORES:
        return f"reassert trust build --out {store}"
    return "reassert trust build" + ("" if name == DEFAULT else f" --name {name}")
