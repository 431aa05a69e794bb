#!/bin/sh
# Print the Debian mirror that this machine's own apt is configured with. On another distribution nothing: debootstrap has
# a default.
set -eu
cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
  sed -n 's/^URIs: *\([^ ]*\/debian\)\/* *$/\1/p; s/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\/debian\)\/*  *.*/\2/p' | head -n 1
