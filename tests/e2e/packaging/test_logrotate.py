"""The real logrotate with the package's configuration, while container starts write: not one line is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from e2e.packaging.chroot import ALONE
from e2e.support import TOP, need

WRITER = """
import pathlib, sys
from hook import events
count = 0
while not pathlib.Path("/var/log/stop").exists():
    for _ in range(20):
        events.write(events.EVENTS, {"writer": sys.argv[1], "count": count})
        count += 1
print(sys.argv[1], count)
"""

ROTATIONS = 12
"""Fewer than the configuration keeps."""

SCRIPT = """
set -e
mount -t tmpfs -o mode=0755 tmpfs /var/log
for writer in 1 2 3; do
  "$PYTHON" -c "$WRITER" "$writer" > "/var/log/written.$writer" &
done
for n in $(seq "$ROTATIONS"); do
  for writer in 1 2 3; do
    # It has left the file before: a rotation is a day later, not in the middle of a write(2) that the last one met.
    until grep -qs '"writer":"'"$writer"'"' /var/log/reassert/events.jsonl; do sleep 0.01; done
  done
  logrotate --force --state /var/log/state packaging/deb/logrotate
done
touch /var/log/stop
wait
cat /var/log/written.*
echo
for file in /var/log/reassert/*; do
  case $file in
  *.gz) zcat "$file" ;;
  *) cat "$file" ;;
  esac
done
ls /var/log/reassert | tr '\\n' ' ' >&2
"""


def test_no_line_is_lost() -> None:
    need(shutil.which("logrotate") is not None, "logrotate")
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHON": sys.executable,
        "WRITER": WRITER,
        "ROTATIONS": str(ROTATIONS),
    }
    done = subprocess.run(
        [*ALONE, "sh", "-c", SCRIPT], cwd=TOP, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    counts, _, lines = done.stdout.partition("\n\n")
    wanted = [(writer, n) for writer, count in map(str.split, counts.splitlines()) for n in range(int(count))]
    found = [(event["writer"], event["count"]) for event in map(json.loads, lines.splitlines())]
    assert sorted(found) == sorted(wanted)
    assert len(done.stderr.split()) == ROTATIONS + 1, done.stderr
