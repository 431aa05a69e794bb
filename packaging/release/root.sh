#!/bin/sh
# Make the root file system in which a release is built: Debian 11, the oldest glibc (2.31) that reassert runs on, with a
# CPython of its own. It stays until this script or python.sh changes.
#
#   packaging/release/root.sh DIRECTORY [ARCHITECTURE]
#
# Another architecture than this machine's is emulated by qemu-user-static (binfmt): arm64 on amd64. The compiler alone is
# this machine's, since an emulated one takes hours: a cross compiler below /cross, which compiles with the headers and
# libraries of the root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
directory=$1
architecture=${2:-$(dpkg --print-architecture)}
: "${SUITE:=bullseye}" "${PYTHON_SUITE:=bookworm}" "${PYTHON_PACKAGE:=python3.11}"

stamp=$(echo "$SUITE $PYTHON_SUITE $PYTHON_PACKAGE $architecture" |
  cat - "$here/root.sh" "$here/python.sh" | cksum | tr ' ' -)
[ "$(cat "$directory/.complete" 2> /dev/null)" != "$stamp" ] || exit 0

echo "Setting up $directory: Debian and CPython (up to half an hour) …"
mkdir -p "$(dirname "$directory")"
log=$directory.log
mirror=$("$here/../../tests/mirror.sh")
own=$(dpkg --print-architecture)

# Its programs start in the root, since Debian has every architecture's libraries in directories of their own.
add_cross_compiler() {
  debootstrap --variant=minbase --include=gcc-aarch64-linux-gnu "$SUITE" "$directory/cross" "$mirror"
  rm -r "$directory/cross/usr/aarch64-linux-gnu/lib" # the root has them
  mkdir "$directory/lib64"
  ln -s /cross/lib64/ld-linux-x86-64.so.2 "$directory/lib64"
  ln -s /cross/usr/lib/x86_64-linux-gnu "$directory/usr/lib"
}

cc=gcc
case "$own $architecture" in
"$own $own") ;;
"amd64 arm64") cc=/cross/usr/bin/aarch64-linux-gnu-gcc ;;
*) echo "packaging/release/root.sh: $architecture cannot be built on $own" >&2; exit 2 ;;
esac
{
  rm -rf "$directory"
  debootstrap --arch="$architecture" --variant=minbase \
    --include=gcc,libc6-dev,make,dpkg-dev,xz-utils,zlib1g-dev,libffi-dev,libexpat1-dev,binutils,musl-tools,python3,rpm,umoci \
    "$SUITE" "$directory" "$mirror"
  [ $cc = gcc ] || add_cross_compiler
  cp /etc/resolv.conf "$directory/etc/resolv.conf"
  mkdir -p "$directory/build"
  cp "$here/python.sh" "$directory/build"
  # A pid namespace of its own ends every process of the build with it.
  unshare --mount --pid --fork --mount-proc="$directory/proc" \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 CC=$cc \
    chroot "$directory" sh /build/python.sh "$PYTHON_SUITE" "$PYTHON_PACKAGE" /opt/python
} > "$log" 2>&1 || { tail -n 30 "$log" >&2; exit 1; }
echo "$stamp" > "$directory/.complete"
