#!/bin/sh
# A node's runc or crun on a machine whose root may not lower oom_score_adj (no CAP_SYS_RESOURCE): what engines ask for
# it in a config.json is left out, or no sandbox would start. boot.sh puts it in the real one's place.
before=
for argument; do
  case $before in
  --bundle | -b) sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' "$argument/config.json" ;;
  esac
  before=$argument
done
exec "/run/programs/${0##*/}" "$@"
