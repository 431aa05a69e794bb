"""All that a container start loads only where it needs it, loaded at once.

For processes that answer many requests, from threads and under a deadline. Nothing is left to load that could fail
then, as after an update that removed this version's files. unit/test_import_budget.py says what is missing here.
"""

import fcntl
import json.decoder
import zlib

from hook.core import decide as failure
from hook.core import decide as trial
from hook.core import events as excerpt
from hook.core import events as probes
from hook.core.base import compare as glob
from hook.core.base import journal, logfile, text
from hook.core.base import jsontext as jsonerror
from hook.core.base import system as files
from hook.core.container import allocation, cdi, claims, injections, nodes, nvidia, process
from hook.core.container import identity as engines
from hook.core.container import runtime_records as state
from hook.core.facts import allocated, sharing, valuefile
from hook.core.facts import exclusive as exclusivefacts
from hook.core.facts import network_filesystems as remote
from hook.core.policy import model as selector
from hook.core.policy import store as missing
from hook.core.policy import store as recompile
from hook.core.policy import trust_layout as remedy
from hook.core.reserve import allocated as reserved
from hook.core.reserve import annotations, devices, exclusive
from hook.core.reserve import mounts as places
from hook.entry import cmdline as spelling
from hook.entry import exec as execs
from hook.entry import runtime as refusal
from hook.entry import (
    start_counts as unchanged,
)
from hook.entry import update
from hook.entry import write_spec as decision

LOADED = (
    *(fcntl, json.decoder, text.measure("")),  # the module of sha256, which has no name of its own in all versions
    *(allocated, allocation, annotations, cdi, devices, engines, excerpt, execs, failure, files, jsonerror, logfile),
    *(decision, selector, glob, missing, process, valuefile, recompile, refusal, reserved, state, text),
    *(claims, exclusive, exclusivefacts, injections, journal, nodes, nvidia, places, remedy, sharing, spelling, trial),
    *(probes, remote, unchanged, update),
    zlib,
)
