#!/bin/sh
# Run a command as the root of a user namespace, which an ordinary user may make: tests/rootless.sh COMMAND …
#
# The command sees this machine's files at their paths, with two differences: the files of the user who called are
# root's, and /, /run and /var are its own, empty but for what has to be there, and gone when it ends.
# Exit status 125: this machine does not let an ordinary user make such a namespace.
set -eu
PATH=$PATH:/usr/sbin:/sbin

if [ "${1:-}" != --inside ]; then
  # Some kernels let everybody make a user namespace, and then allow nothing in it: so it is a mount that is tried.
  unshare --user --map-root-user --mount mount -t tmpfs tmpfs /tmp 2>/dev/null || exit 125
  exec unshare --user --map-root-user --mount --propagation private sh "$0" --inside "$@"
fi
shift

checkout=$(cd "$(dirname "$0")/.." && pwd -P)
at=$(pwd -P)
root=$(mktemp -d)
trap 'umount --lazy "$root"; rmdir "$root"' EXIT
trap : INT TERM # for the command; then its status is ours
mount -t tmpfs -o mode=0755 tmpfs "$root"
for path in /*; do
  if [ -L "$path" ]; then
    ln -s "$(readlink "$path")" "$root$path"
  elif [ -d "$path" ] && [ "$path" != /run ] && [ "$path" != /var ]; then
    mkdir "$root$path"
    mount --rbind "$path" "$root$path" 2>/dev/null || true # not everybody may look into each of them
  fi
done
mkdir -p "$root/run" "$root/var/lib" "$root/var/log" "$root/var/tmp"
if [ ! -d "$root$checkout" ]; then
  mkdir -p "$root$checkout"
  mount --rbind "$checkout" "$root$checkout"
fi
export TMPDIR=/var/tmp
status=0
unshare --mount --root "$root" --wd "$at" "$@" || status=$?
exit "$status"
