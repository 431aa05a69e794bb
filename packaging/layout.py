#!/usr/bin/env python3
"""Copy the frozen program into a package's directory, in the layout that an upgrade can replace while it runs.

    build/venv/bin/python packaging/layout.py dist/reassert DIRECTORY PLACE

PLACE: the path of DIRECTORY on a node that has the package.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hook.node.change.tree import lay_out

source, directory, place = sys.argv[1:]
lay_out(str(Path(source).resolve()), directory, place)
