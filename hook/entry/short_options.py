"""Options that engines hardly write: letters, clusters, prefixes, and those of `restore`. Start path: builtins only.

hook.entry.cmdline has the syntax and its sources.
"""

from hook.entry.cmdline import CREATE_FLAGS, CREATE_VALUES, GLOBAL_FLAGS, GLOBAL_VALUES

_RESTORE_VALUES = (
    "image-path work-path parent-path manage-cgroups-mode empty-ns status-fd lsm-profile lsm-mount-context network-lock"
)
_RESTORE_FLAGS = "tcp-established ext-unix-sk shell-job file-locks auto-dedup lazy-pages tcp-close"
VALUES = (*CREATE_VALUES, *_RESTORE_VALUES.split())
FLAGS = (*CREATE_FLAGS, *_RESTORE_FLAGS.split())
"""Names of the options of `restore`, with a value and without."""

_HELP = ("?", "usage")

_MORE_GLOBAL_VALUES = (
    "character-device-policy control-rpc-stop-timeout coverage-fd coverage-report dcache debug-command debug-log "
    "debug-log-fd debug-log-format EXPERIMENTAL-xdp fdlimit file-access file-access-mounts final-metrics-log "
    "gofer-network-namespace host-fifo host-settings host-uds log-fd metric-server network "
    "network-processors-per-channel num-network-channels nvproxy-allowed-driver-capabilities nvproxy-driver-version "
    "overlay2 override-procs panic-log panic-log-fd panic-signal pcap-log platform platform_device_path "
    "pod-init-config profile-block profile-cpu profile-gc-interval profile-heap profile-mutex profiling-metrics "
    "profiling-metrics-log profiling-metrics-rate-us qdisc qdisc-tbf-burst qdisc-tbf-rate ref-leak-mode "
    "restore-spec-validation shared-root sidecar-release-enforcement-policy strace-log-size strace-syscalls "
    "TESTONLY-autosave-image-path TESTONLY-test-name-env trace traceback user-log watchdog-action"
)
_MORE_GLOBAL_FLAGS = (
    "allow-connected-on-save allow-flag-override allow-live-tcp-migration allow-packet-socket-write "
    "allow-rootfs-tar-annotation allow-suid alsologtostderr app-huge-pages cpu-num-from-quota debug-to-user-log "
    "directfs enable-core-tags gso gvisor-gro gvisor-marker-file ignore-cgroups iouring kvm-use-cpu-nums log-packets "
    "net-raw nvproxy nvproxy-allow-unsupported-driver nvproxy-docker oci-seccomp overlay profile rdmaproxy "
    "reproduce-nat rx-checksum-offload software-gso strace strace-event systemd-log systrap-disable-fast-path "
    "systrap-disable-syscall-patching tpuproxy tx-checksum-offload"
)
"""Global options of runsc (config/flags.go, cli/cli.go) and youki (systemd-log) alone, with a value and without."""

_SHORT_FLAGS = {"t": "tty", "d": "detach", "h": "help", "v": "version", "V": "version", "s": "systemd-cgroup"}
_SHORT_VALUES = {
    "b": ("bundle",),
    "c": ("cap", "console-socket"),
    "e": ("env",),
    "f": ("config",),
    "g": ("additional-gids",),
    "l": ("log",),
    "p": ("process", "pid-file"),
    "r": ("resources", "root"),
    "u": ("user",),
}
"""Names of options by letter. Of two, the one counts that the verb has."""


def spelled_out(
    argument: str, values: "tuple[str, ...]", flags: "tuple[str, ...]"
) -> "tuple[str, str, str, bool, bool]":
    """What an option means that is not written with its long name, or not one of these.

    Returns its long name, or the name as it is given if it is unknown; "=" if a value is attached; that value; whether
    it takes one; and whether it is certain that it does not take the next argument.
    """
    name, equals, value = argument.lstrip("-").partition("=")
    two_dashes = argument.startswith("--")
    long = _long_name(name, values, flags, two_dashes)
    if not long and not two_dashes:
        long, attached, rest = _cluster(argument[1:], values)
        if long:
            return long, attached, rest, True, True
    if long:
        return long, equals, value, long in values, True
    is_global = values == GLOBAL_VALUES
    takes = name in GLOBAL_VALUES or (is_global and name in _MORE_GLOBAL_VALUES.split())
    is_flag = name in GLOBAL_FLAGS + _HELP or (is_global and name in _MORE_GLOBAL_FLAGS.split())
    is_cluster = not two_dashes and all(letter in _SHORT_FLAGS for letter in name)
    return name, equals, value, takes, takes or is_flag or is_cluster or bool(equals)


def _long_name(name: str, values: "tuple[str, ...]", flags: "tuple[str, ...]", two_dashes: bool) -> str:
    """The long name of an option that is given by its letter or an unambiguous prefix (getopt), or ""."""
    if len(name) == 1:
        long = _long_value(name, values) or _SHORT_FLAGS.get(name, "")
        return long if long in values or long in flags else ""
    candidates = [known for known in values + flags if known.startswith(name)] if two_dashes else []
    return candidates[0] if len(candidates) == 1 else ""


def _long_value(letter: str, values: "tuple[str, ...]") -> str:
    return next((long for long in _SHORT_VALUES.get(letter, ()) if long in values), "")


def _cluster(letters: str, values: "tuple[str, ...]") -> "tuple[str, str, str]":
    """Getopt's `-tb DIR` and `-bDIR`: (name, "=" if the value is attached, that value)."""
    for position, letter in enumerate(letters):
        long = _long_value(letter, values)
        if long:
            rest = letters[position + 1 :]
            return long, "=" if rest else "", rest
        if letter not in _SHORT_FLAGS:
            break
    return "", "", ""
