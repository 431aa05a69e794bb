#!/bin/bash
# Build the files of a release in build/release/VERSION: the archive, the .deb, the .rpm, the container image, the SBOM,
# trust-stacks.json, SHA256SUMS and its signature. They are built in a Debian 11 with a CPython of its own (packaging/release/root.sh), which
# is made the first time and kept; that takes up to half an hour. The source is the last commit.
#
#   sudo packaging/release.sh                          unsigned
#   sudo packaging/release.sh --key ~/.ssh/release     sign SHA256SUMS with a key of ssh-keygen
#   sudo packaging/release.sh --architecture arm64     on amd64, emulated by qemu-user-static
#   sudo packaging/release.sh --root DIR --output DIR  other places
#   packaging/release.sh --publish REGISTRY            build nothing: push the image and the chart of what was built, and
#                                                      write the index of all releases (packaging/release/publish.py)
#
# The same commit gives the same bytes in the same root, in any directory (docs/project/releases.md).
# On Debian: apt-get install debootstrap python3-pip git
set -eu
cd "$(dirname "$0")/.."

fail() {
  echo "packaging/release.sh: $*" >&2
  exit 1
}

key='' root='' output='' registry='' architecture=$(dpkg --print-architecture 2> /dev/null) || fail "dpkg is missing; build on Debian or Ubuntu"
while [ $# -gt 0 ]; do
  case $1 in --key | --root | --output | --architecture | --publish) [ -n "${2-}" ] || fail "$1 needs a value; see --help" ;; esac
  case $1 in
  --key) key=$(realpath "$2") ;;
  --root) root=$2 ;;
  --output) output=$2 ;;
  --architecture) architecture=$2 ;;
  --publish) registry=$2 ;;
  -h | --help) sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) fail "unknown argument $1; see --help" ;;
  esac
  shift 2
done
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' hook/__init__.py)
: "${root:=build/release/root-$architecture}" "${output:=build/release/$version}"
[ -z "$registry" ] || exec packaging/release/publish.py "$output" "$registry"
[ "$(id -u)" -eq 0 ] || fail "run it as root: debootstrap and chroot need it"
for tool in debootstrap git unshare python3; do
  command -v $tool > /dev/null || fail "$tool is missing; apt-get install debootstrap git util-linux python3-pip"
done
[ -z "$key" ] || command -v ssh-keygen > /dev/null || fail "ssh-keygen is missing; apt-get install openssh-client"
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "packaging/release.sh: changes that are not committed are left out" >&2

commit=$(git rev-parse HEAD) # others may come while it builds
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct "$commit")}"
packaging/release/root.sh "$root" "$architecture"
mkdir -p "$output"
output=$(realpath "$output")
root=$(realpath "$root")

echo "Downloading the Python packages …"
# The root has no TLS and needs none: pip of this machine checks the hashes and takes wheels for glibc 2.31 or older.
read -r python < "$root/opt/python/abi" # for example 3.11
case $architecture in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) fail "$architecture is not supported" ;; esac
wheels=$root/build/wheels
rm -rf "$wheels"
platforms=
for glibc in 2_17 2_24 2_27 2_28 2_31; do platforms="$platforms --platform manylinux_${glibc}_$machine"; done
# shellcheck disable=SC2086  # a list
python3 -m pip --quiet --disable-pip-version-check download --require-hashes --only-binary :all: --no-deps --dest "$wheels" \
  --implementation cp --python-version "$python" $platforms --platform "manylinux2014_$machine" \
  -r packaging/requirements.txt -r packaging/requirements-build.txt

packaging/release/base.sh "$root/build/base.tar" "$architecture"

echo "Freezing and packing …"
rm -rf "$root/build/src"
mkdir "$root/build/src"
git archive "$commit" | tar -x -C "$root/build/src"
unshare --mount --pid --fork --mount-proc="$root/proc" \
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" PYTHONHASHSEED=0 \
  PYTHON=/opt/python/bin/python3 PIP_NO_INDEX=1 PIP_FIND_LINKS=/build/wheels chroot "$root" sh -euc '
    cd /build/src
    packaging/build.sh
    packaging/release/pack.sh dist/release
    packaging/release/image.sh /build/base.tar dist/release
    "$PYTHON" -B packaging/release/trust_stacks.py > dist/release/trust-stacks.json'
cp "$root"/build/src/dist/release/* "$output"
tests/hostile-pod/build.sh "$output/hostile-pod.pyz"

cd "$output"
# shellcheck disable=SC2035  # the names are ours
sha256sum $(ls | grep -v '^SHA256SUMS') > SHA256SUMS
if [ -n "$key" ]; then
  rm -f SHA256SUMS.sig
  ssh-keygen -q -Y sign -f "$key" -n reassert-release SHA256SUMS
fi
ls -l "$output"
