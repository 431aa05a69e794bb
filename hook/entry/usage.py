"""What the adapters that an engine calls print about their command line, and how they end."""

from __future__ import annotations

import posix

from hook.core.base.errors import Usage, describe
from hook.core.base.system import say

RUNTIME_USAGE = """\
usage: reassert runtime --real PATH [--policy FILE] [--store DIR]
                        [--events FILE] [--hook FILE] -- ARGUMENTS…

Correct what ARGUMENTS (of runc, crun, youki or runsc) start or change, then
execute the real runtime. A verb or option that reassert does not know is
refused, and so is the restore of a checkpoint where the policy reserves
anything.

  --real PATH     the real OCI runtime, absolute
  --policy FILE   policy file, absolute (default: /etc/reassert/policy.yaml)
  --store DIR     compiled policies (default: /var/lib/reassert)
  --events FILE   event log (default: /var/log/reassert/events.jsonl)
  --hook FILE     what containers' hook entries call instead of this program
                  (see reassert dispatcher --hook)
"""

HOOK_USAGE = """\
usage: reassert hook [--inject-env] [--mount-ca] [--policy FILE] [--store DIR]
                     [--events FILE] STAGE

Run as an OCI hook, with the OCI state on stdin. STAGE is one of:
  prestart, createRuntime, createContainer
                  verify env, restore the reserved mounts
  poststop        after a RUN step of buildah, remove the mount points
                  that were made for it; else do nothing

  --inject-env    only verify env, devices and annotations, and refuse a
                  container that differs from the policy in them (a hook cannot
                  set env; the runtime wrapper and the NRI plugin can)
  --mount-ca      only restore the reserved mounts
  --policy FILE   absolute path of the node policy
                  (default: /etc/reassert/policy.yaml)
  --store DIR     compiled policies (default: /var/lib/reassert)
  --events FILE   event log (default: /var/log/reassert/events.jsonl)
"""


def ended(error: BaseException, arguments: list[str]) -> int:
    """Tell the caller why a command ended: an engine gets one line, never a traceback. Returns the exit status.

    `arguments`: the command and its own. The parser of options refuses `-h` and `--help` like any unknown option.
    """
    command, *own = arguments
    if not isinstance(error, Usage):
        say(describe(error), command == "hook")
        return 1
    if {"-h", "--help"}.isdisjoint(own[: own.index("--")] if "--" in own else own):
        say(f"{error}; see reassert {command} --help", command == "hook")
        return 2
    posix.write(1, (RUNTIME_USAGE if command == "runtime" else HOOK_USAGE).encode())
    return 0
