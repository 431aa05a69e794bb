#!/bin/sh
# What a test calls as reassert: the program in a Debian 11 that is mounted in `root` beside this file, with the processes
# and the files of the test around it. tests/lab/release.sh copies it to a directory that a node of the tests has too. A hook
# in the container's own namespaces cannot be started like this.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec unshare --mount --propagation private sh -ec '
  cd "$1/root"
  shift
  mount -t proc proc proc
  for directory in dev sys run var/lib/reassert-tests; do
    mount --rbind "/$directory" "$directory"
  done
  pivot_root . mnt
  umount -l /mnt
  exec /release/reassert "$@"' reassert "${0%/*}" "$@"
