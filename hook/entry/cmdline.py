"""Parse the command lines of runc, crun, youki and runsc.

runc has Go's flag syntax: one dash or two, `--name value` or `--name=value`, no clusters. crun has getopt's: `-b DIR`,
`-bDIR`, `-db DIR`, and unambiguous prefixes of long names. runc also accepts options after the container's id
(urfave/cli reorders them), except for exec. The parser accepts both.
youki's parser is clap, runsc's is Go's flag package. Sources: runc's main.go, create.go, run.go, restore.go, exec.go,
update.go; crun's src/*.c, tables of options; youki's crates/liboci-cli; runsc's config/flags.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from hook.core.base.errors import named

GLOBAL_VALUES = ("log", "log-format", "root", "criu", "cgroup-manager", "log-level", "rootless")
GLOBAL_FLAGS = ("debug", "systemd-cgroup", "help", "version", "no-pivot")
"""Options before the verb, with a value and without. _MORE_GLOBAL_VALUES has those of runsc and youki alone."""

BOTH_WAYS = "rootless"
"""An option with a value in runc and crun, and without one in runsc."""

_CREATE = (
    "console-socket pidfd-socket pid-file preserve-fds user-log pass-fd exec-fd",
    "no-pivot no-new-keyring no-subreaper detach keep",
)
_RESTORE = (
    f"{_CREATE[0]} image-path work-path parent-path manage-cgroups-mode empty-ns status-fd lsm-profile "
    "lsm-mount-context network-lock",
    f"{_CREATE[1]} tcp-established ext-unix-sk shell-job file-locks auto-dedup lazy-pages tcp-close direct background",
)
_EXEC = (
    "console-socket pidfd-socket cwd user additional-gids pid-file process-label apparmor cap preserve-fds cgroup "
    "internal-pid-file pass-fd exec-fd",
    "tty detach no-new-privs ignore-paused",
)
_UPDATE = (
    "blkio-weight cpu-burst cpu-idle cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-share cpuset-cpus "
    "cpuset-mems kernel-memory kernel-memory-tcp l3-cache-schema mem-bw-schema memory memory-reservation memory-swap "
    "pids-limit",
    "help",
)
"""By verb, the options that change nothing, with a value and without."""

_FLAGS = frozenset(f"{_RESTORE[1]} {_EXEC[1]} {_UPDATE[1]}".split())
"""The options of a verb without a value."""

_BUNDLE = {
    "bundle": "which config.json is read",
    "config": "which config.json is read",
    "fs-restore-image-path": "the root file system",
}


def _nothing(names: tuple[str, str]) -> dict[str, str]:
    return dict.fromkeys(" ".join(names).split(), "")


OPTIONS: dict[str, dict[str, str]] = {
    "create": {**_nothing(_CREATE), **_BUNDLE},
    "run": {**_nothing(_CREATE), **_BUNDLE},
    "restore": {**_nothing(_RESTORE), **_BUNDLE},
    "exec": {**_nothing(_EXEC), "process": "env", "env": "env"},
    "update": {**_nothing(_UPDATE), "resources": "device rules"},
}
"""By verb, every option that a supported runtime has, and what it can change of what a policy reserves; "": nothing.

An option of EDITING_OPTIONS is decided. All others that change something are refused, and so is one that is not in
this table. Those that change nothing name a file or socket for the engine, descriptors, a user, capabilities or a label
of the process, a cgroup below that of the container, limits of CPU, memory, I/O and pids, or how criu restores.
"""

EDITING_OPTIONS = ("bundle", "config", "fs-restore-image-path", "process", "env", "resources")
"""Options that the wrapper decides about: it follows the first two (hook.entry.runtime.config_path), refuses the third
where a rule applies (hook.entry.process.not_restored), and corrects what the others name (hook.entry.process)."""

_HELP = ("h", "help", "?", "usage")
_GLOBAL_HELP = (*_HELP, "v", "V", "version")
"""Options with which a runtime prints something and exits. In another spelling, config.json is edited for nothing."""

EDITING_VERBS = ("create", "run", "restore", "exec", "update")
"""Verbs that the wrapper decides about."""

_START = "env, mounts, devices, device rules"

_CHANGE_NOTHING = (
    # runc and crun
    "checkpoint delete events features kill list pause ps resume spec start state help h "
    # youki
    "checkpointt completion info "
    # runsc
    "nvproxy cpu-features debug export-metrics flags fscheckpoint metric-metadata metric-server port-forward read "
    "read-control statefile symbolize tar trace usage wait"
)

VERBS = {
    # runc 1.1 to 1.5 (main.go), crun 1.8 to 1.29 (src/crun.c), youki (crates/liboci-cli), runsc (cli/maincli)
    **dict.fromkeys(_CHANGE_NOTHING.split(), ""),
    "create": _START,
    "run": _START,
    "restore": _START,  # from a checkpoint; crun calls no hook
    "exec": "env",
    "update": "device rules",  # crun and youki; runc skips them (update.go, SkipDevices)
    "init": _START,  # runc's own: it executes itself, not what the engine calls
    "mounts": "mounts",  # crun 1.28; 1.21 has none
    # runsc
    "bwrap": _START,
    "do": _START,
    "sandboxexec": _START,
    "boot": _START,  # this and the next two are runsc's own
    "gofer": "mounts",
    "umount": "mounts",
    "write-control": "device rules",
    "install": "the engine's configuration",
    "uninstall": "the engine's configuration",
    "mitigate": "the node",
}
"""Every verb of these runtimes, and what it can change of what a policy reserves; "": nothing.

The real runtime gets a verb that changes nothing. EDITING_VERBS are decided. All others are refused, and so is a word
that is not in this table. front and the dispatcher are made from it (hook.node.artifacts)."""


class Option:
    """An option of a command line."""

    def __init__(self, name: str, value: str, *, begin: int, end: int, known: bool) -> None:
        self.name = name
        self.value = value
        self.begin = begin
        """The index of its first argument."""
        self.end = end
        """The index after its last argument."""
        self.known = known
        """Whether it is certain that the next argument is not its value."""


class Invocation:
    """A parsed command line."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.globals, index = _options(arguments, 0, GLOBAL_VALUES, GLOBAL_FLAGS)
        """The options before the verb."""
        self.verb = arguments[index] if index < len(arguments) else ""
        """The verb, or ""."""
        self.options: list[Option] = []
        """The options of the verb, in order."""
        self.operands = index + 1
        """The index of the first argument that is not an option of the verb."""
        self._listed: dict[str, str] = {}
        if self.verb in EDITING_VERBS:
            self._listed = OPTIONS[self.verb]
            values = tuple([name for name in self._listed if name not in _FLAGS])
            flags = tuple([name for name in self._listed if name in _FLAGS])
            self.options, self.operands = _options(arguments, index + 1, values, flags)
            index = self.operands
            while self.verb != "exec" and index < len(arguments) and arguments[index - 1] != "--":
                more, index = _options(arguments, index + 1, values, flags)
                self.options += more
        self.container_id = arguments[self.operands] if self.operands < len(arguments) else ""
        """The container's id, or ""."""

    def doubt(self) -> str:
        """Why it is not certain what the command does, or ""."""
        for option in self.globals:
            if not option.known:
                name = _without_value(self.arguments[option.begin])
                rest = self.arguments[option.begin + 1 :]
                if self.verb in rest:
                    rest.remove(self.verb)
                verb = next((word for word in rest if word in EDITING_VERBS), "")
                if verb or self.verb not in VERBS:
                    return (
                        f"{_without_value(verb or self.verb)} may be the verb or a value of the unknown option {name}"
                    )
        if self.verb and self.verb not in VERBS:
            return f"{_without_value(self.verb)} is not a known verb of an OCI runtime"
        for option in self.options if self.verb != "exec" else ():
            given = self.arguments[option.begin : option.end]
            if given[0][:2] != "--" and given[0][2:3] == "=":  # Go's flags leave the = out, getopt(3) does not
                return f"runtimes read the value of {named(given[0][:3])} differently: write it without ="
            # runc moves an option to the front without the `-` or `--` after it. There it takes another word as its
            # value.
            ends = option.end == len(self.arguments) and given[1:] in ([], ["-"])
            lacks = (ends or given[1:] == ["--"]) and given[0].lstrip("-") in (option.name, option.name[0])
            if lacks and option.name in self._listed and option.name not in _FLAGS:
                return f"the option {named(given[0])} has no value"
        for option in self.options:
            after = self.arguments[option.end : option.end + 1]
            if not option.known and after and (self.verb in ("exec", "update") or after[0].startswith("-")):
                name = _without_value(self.arguments[option.begin])
                return f"{_without_value(after[0])} may be a value of the unknown option {name}"
        wrong = next(filter(None, map(self._changes, self.options)), "")
        if wrong:
            return wrong
        # runc takes an option that its verb does not have for the id, if `--` follows and nothing else.
        lacks_id = self.options and not self.container_id and self.arguments[-1] == "--"
        return "no container id before --" if lacks_id else ""

    def _changes(self, option: Option) -> str:
        """What an option of the verb changes that reassert does not correct, or ""."""
        if not self._is_listed(option):
            name = named(self.arguments[option.begin].partition("=")[0])
            return f"no supported runtime has the option {name} of {self.verb}, so what it changes is unknown"
        change = "" if option.name in EDITING_OPTIONS else self._listed.get(option.name, "")
        text = f"the option {option.name} of {self.verb} can change {change}"
        return change and f"{text}, and reassert cannot correct what it does"

    def _is_listed(self, option: Option) -> bool:
        """Whether a runtime has this option of the verb. runc 1.5 takes global options there (urfave/cli 3)."""
        if option.name in self._listed or option.name in GLOBAL_VALUES + GLOBAL_FLAGS + _HELP:
            return True
        return all(letter in _SHORT_FLAGS for letter in option.name)  # a cluster

    def starts_nothing(self) -> bool:
        """Whether the command changes nothing: by its verb, a help or version option, or a missing container id.

        Only without `doubt`.
        """
        if not VERBS.get(self.verb):
            return True
        if self.verb not in EDITING_VERBS or False in [option.known for option in self.globals + self.options]:
            return False
        if not self.container_id:
            return True
        asked = [o for o in self.globals if o.name in _GLOBAL_HELP] + [o for o in self.options if o.name in _HELP]
        # With a value, as in `-h -h=false`, the last one counts for Go's flags.
        return bool(asked) and all("=" not in self.arguments[option.begin] for option in asked)

    def last(self, name: str, before: Sequence[Option] = ()) -> Option | None:
        """The last option of this name, of `before` and those of the verb."""
        for option in reversed([*before, *self.options]):
            if option.name == name:
                return option
        return None

    def value(self, name: str, before: Sequence[Option] = ()) -> str | None:
        """The value of the last option of this name, of `before` and those of the verb."""
        option = self.last(name, before)
        return option.value if option else None

    def global_value(self, name: str) -> str | None:
        """The value of a global option; the last one counts. runc 1.5 takes them behind the verb too (urfave/cli 3)."""
        return self.value(name, self.globals)


def _without_value(argument: str) -> str:
    """An argument as a message quotes it: of `NAME=VALUE`, as after `exec --env`, the value may be a secret."""
    name, equals, _ = argument.partition("=")
    return named(name) + ("=…" if equals else "")


def _options(
    arguments: list[str], index: int, values: tuple[str, ...], flags: tuple[str, ...]
) -> tuple[list[Option], int]:
    """The options from `index` on, and the index of the first argument after them. Unknown options take no value."""
    options: list[Option] = []
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--":
            return options, index + 1
        if argument == "-" or not argument.startswith("-"):
            break
        name, equals, value = argument.lstrip("-").partition("=")
        known, takes = True, name in values
        if not takes and name not in flags:
            name, equals, value, takes, known = spelled_out(argument, values, flags)
        begin, index = index, index + 1
        if takes and not equals and index < len(arguments):
            value, index = arguments[index], index + 1
            known = name != BOTH_WAYS or value in ("auto", "true", "false")
        options.append(Option(name, value, begin=begin, end=index, known=known))
    return options, index


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
    "allow-rootfs-tar-annotation allow-suid alsologtostderr app-huge-pages buffer-pooling cgroupfs cpu-num-from-quota "
    "debug-to-user-log directfs enable-core-tags fsgofer-host-uds fuse gso gvisor-marker-file ignore-cgroups iouring "
    "kvm-use-cpu-nums lisafs log-packets mount-cgroup-v2 net-disconnect-ok net-raw nvproxy "
    "nvproxy-allow-unsupported-driver nvproxy-docker oci-seccomp overlay pause-external-networking profile rdmaproxy "
    "reproduce-nat reproduce-nftables rx-checksum-offload software-gso strace strace-event systemd-log "
    "systrap-disable-fast-path systrap-disable-syscall-patching tpuproxy tx-checksum-offload vfs2"
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
"""Names of options by letter. Of two options, the one that the verb has counts."""


def spelled_out(argument: str, values: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, str, str, bool, bool]:
    """The meaning of an option that is not written with its long name, or is not one of these.

    Returns its long name, or the name as it is given if it is unknown; "=" if a value is attached; that value; whether
    it takes one; and whether it is certain that it does not take the next argument.
    """
    name, equals, value = argument.lstrip("-").partition("=")
    two_dashes = argument.startswith("--")
    long = _long_name(name, values, flags, two_dashes)
    is_global = values == GLOBAL_VALUES
    takes = name in GLOBAL_VALUES or (is_global and name in _MORE_GLOBAL_VALUES.split())
    is_flag = name in GLOBAL_FLAGS + _HELP or (is_global and name in _MORE_GLOBAL_FLAGS.split())
    if not long and not two_dashes and not (is_global and (takes or is_flag)):
        long, attached, rest = _cluster(argument[1:], values)
        if long:
            return long, attached, rest, True, True
    if long:
        return long, equals, value, long in values, True
    is_cluster = not two_dashes and all(letter in _SHORT_FLAGS for letter in name)
    return name, equals, value, takes, takes or is_flag or is_cluster or bool(equals)


def _long_name(name: str, values: tuple[str, ...], flags: tuple[str, ...], two_dashes: bool) -> str:
    """The long name of an option that is given by its letter or an unambiguous prefix (getopt), or ""."""
    if len(name) == 1:
        long = _long_value(name, values) or _SHORT_FLAGS.get(name)
        return long if long in values or long in flags else ""
    candidates = [known for known in values + flags if known.startswith(name)] if two_dashes else []
    return candidates[0] if len(candidates) == 1 else ""


def _long_value(letter: str, values: tuple[str, ...]) -> str:
    return next((long for long in _SHORT_VALUES.get(letter, ()) if long in values), "")


def _cluster(letters: str, values: tuple[str, ...]) -> tuple[str, str, str]:
    """Getopt's `-db DIR` and `-bDIR`: (name, "=" if the value is attached, that value).

    crun's `-t` takes what is attached to it as the name of a terminal, youki's takes nothing. So the argument after
    `-te` is the container's id for crun and a value for youki: such an option counts as unknown.
    """
    for position, letter in enumerate(letters):
        long = _long_value(letter, values)
        rest = letters[position + 1 :]
        if long and (rest or "t" not in letters):
            return long, "=" if rest else "", rest
        if letter not in _SHORT_FLAGS:
            break
    return "", "", ""
