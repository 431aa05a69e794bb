#!/bin/sh
# Build front, the static program that asks the resident agent (docs/internals/agent.md), with Debian's musl-tools:
#
#   packaging/front/build.sh OUTPUT
#
# The program is static and position-independent. The options are spelled out, since musl-gcc has no -static-pie. On arm64
# the linker's max-page-size stays 64 KiB: kernels with pages of that size do not load segments that are closer. It makes
# the file bigger, not the memory.
set -eu
here=$(dirname "$0")
command -v musl-gcc >/dev/null || { echo "$0: no musl-gcc; apt-get install musl-tools" >&2; exit 1; }
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$here/../../hook/__init__.py")
libraries=/usr/lib/$(uname -m)-linux-musl # Debian's path; musl-gcc --print-file-name would print glibc's
case $(uname -m) in x86_64) control=-fcf-protection ;; aarch64) control=-mbranch-protection=standard ;; *) control= ;; esac
# shellcheck disable=SC2086  # $control may be empty
musl-gcc -std=c11 -Os -Wall -Wextra -Wshadow -Wconversion -Werror -DVERSION="\"$version\"" \
  -fPIE -fstack-protector-strong -fstack-clash-protection $control \
  -static -nostartfiles -s -Wl,-pie,--no-dynamic-linker,-z,text,-z,relro,-z,now,-z,noexecstack \
  -o "$1" "$libraries/rcrt1.o" "$libraries/crti.o" "$here/front.c" "$libraries/crtn.o"
