"""Loads at once all modules that a container start loads only when it needs them.

For processes that answer many requests, from threads and under a deadline. Nothing is left to load that could fail
then, as after an update that removed this version's files. unit/test_import_budget.py says what is missing here.
"""
# ruff: noqa: F401  # loaded, not used

import binascii
import fcntl
import json.decoder
import zlib

from hook.core import audited
from hook.core.base import journal, logfile, text, urls
from hook.core.container import allocation, cdi, claims, dockershim, injections, nodes, runtime_records
from hook.core.facts import allocated, cri, files, network_filesystems, sharing
from hook.core.facts import exclusive as exclusive_facts
from hook.core.policy import trust_layout
from hook.core.reserve import allocated as reserved
from hook.core.reserve import annotations, devices, exclusive, nodepaths, processes, volumes
from hook.entry import cmdline, write_spec
from hook.entry import exec as execs

text.measure("")  # loads the module of sha256, whose name differs between versions
