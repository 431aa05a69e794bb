"""All that a container start loads only where it needs it, loaded at once.

For processes that answer many requests, from threads and under a deadline. Nothing is left to load that could fail
then, as after an update that removed this version's files. unit/test_import_budget.py says what is missing here.
"""

import fcntl
import json.decoder
import zlib

from hook.core import audited_rules as trial
from hook.core import failure, probes
from hook.core import truncate as excerpt
from hook.core.base import files, glob, journal, jsonerror, logfile, text
from hook.core.container import allocation, cdi, claims, engines, injections, nodes, nvidia, process
from hook.core.container import runtime_records as state
from hook.core.facts import allocated, sharing, valuefile
from hook.core.facts import exclusive as exclusivefacts
from hook.core.facts import network_filesystems as remote
from hook.core.policy import missing, recompile, selector
from hook.core.policy import missing_store as remedy
from hook.core.reserve import allocated as reserved
from hook.core.reserve import annotations, devices, exclusive, places
from hook.entry import (
    decision,
    update,
)
from hook.entry import exec as execs
from hook.entry import (
    report_refusal as refusal,
)
from hook.entry import (
    short_options as spelling,
)
from hook.entry import (
    start_counts as unchanged,
)

LOADED = (
    *(fcntl, json.decoder, text.measure("")),  # the module of sha256, which has no name of its own in all versions
    *(allocated, allocation, annotations, cdi, devices, engines, excerpt, execs, failure, files, jsonerror, logfile),
    *(decision, selector, glob, missing, process, valuefile, recompile, refusal, reserved, state, text),
    *(claims, exclusive, exclusivefacts, injections, journal, nodes, nvidia, places, remedy, sharing, spelling, trial),
    *(probes, remote, unchanged, update),
    zlib,
)
