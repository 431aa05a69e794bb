#!/usr/bin/env python3
"""Runs hostile-pod, from its directory or from a zip file of it."""

import sys

from hostile_pod import main

sys.exit(main())
