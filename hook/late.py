"""All that a container start loads only where it needs it, loaded at once.

For processes that answer many requests, from threads and under a deadline. Nothing is left to load that could fail
then, as after an update that removed this version's files. unit/test_import_budget.py says what is missing here.
"""

import fcntl
import json.decoder
import zlib

from hook import allocated, excerpt, exclusivefacts, failure, probes, remote, sharing, trial, valuefile
from hook.adapters import decision, refusal, spelling, state, unchanged, update
from hook.adapters import exec as execs
from hook.base import files, glob, journal, jsonerror, logfile, text
from hook.container import allocation, cdi, claims, engines, injections, nodes, nvidia, process
from hook.policy import missing, recompile, selector
from hook.reserve import allocated as reserved
from hook.reserve import annotations, devices, exclusive, places
from hook.trust import remedy

LOADED = (
    *(fcntl, json.decoder, text.measure("")),  # the module of sha256, which has no name of its own in all versions
    *(allocated, allocation, annotations, cdi, devices, engines, excerpt, execs, failure, files, jsonerror, logfile),
    *(decision, selector, glob, missing, process, valuefile, recompile, refusal, reserved, state, text),
    *(claims, exclusive, exclusivefacts, injections, journal, nodes, nvidia, places, remedy, sharing, spelling, trial),
    *(probes, remote, unchanged, update),
    zlib,
)
