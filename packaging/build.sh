#!/bin/sh
# Freeze reassert into dist/reassert/ with PyInstaller (onedir). Needs a python3 >= 3.11 with venv and its shared
# library, and objdump. front also needs musl-gcc and gcc; without them it is not built. On Debian: `apt-get install
# python3-venv libpython3.11 binutils musl-tools gcc` (with your python's version).
#
#   packaging/build.sh            PYTHON=/usr/bin/python3 packaging/build.sh
#   packaging/build.sh --core     into dist/core/reassert/, without hook/ops, hook/node and hook/inside: runtime, hook,
#                                 agent, nri, dispatcher and `policy compile` alone
set -eu
cd "$(dirname "$0")/.."
: "${PYTHON:=python3}"
into=dist work=build

fail() {
  echo "packaging/build.sh: $*" >&2
  exit 1
}

case "$*" in
  "") ;;
  --core) into=dist/core work=build/core; export REASSERT_CORE=1 ;;
  *) fail "it takes --core or nothing" ;;
esac
command -v "$PYTHON" >/dev/null || fail "$PYTHON is missing; install python3 or set PYTHON"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$PYTHON" -V) is too old; Python 3.11 or later is needed (set PYTHON)"
"$PYTHON" -c 'import ensurepip' 2>/dev/null || fail "$PYTHON has no venv; apt-get install python3-venv"
command -v objdump >/dev/null || fail "objdump is missing; apt-get install binutils"

# The virtual environment is made again for another python or other requirements.
stamp=$("$PYTHON" -VV | cat - packaging/requirements*.txt | cksum | tr ' ' -)
if [ "$(cat build/venv/stamp 2>/dev/null)" != "$stamp" ]; then
  rm -rf build/venv
  "$PYTHON" -m venv build/venv
  build/venv/bin/pip install --quiet --disable-pip-version-check --require-hashes \
    -r packaging/requirements.txt -r packaging/requirements-build.txt
  echo "$stamp" > build/venv/stamp
fi

mkdir -p "$work"
PYINSTALLER_CONFIG_DIR="$PWD/build/cache" build/venv/bin/python -m PyInstaller --noconfirm --log-level WARN \
  --workpath "$work/pyinstaller" --distpath "$work/dist" packaging/reassert.spec > "$work/pyinstaller.log" 2>&1 ||
  { cat "$work/pyinstaller.log" >&2; fail "PyInstaller failed, see above"; }
rm -rf "$into/reassert"
mkdir -p "$into"
mv "$work/dist/reassert" "$into/reassert"
if command -v musl-gcc >/dev/null && command -v gcc >/dev/null && [ -e "/usr/lib/$(uname -m)-linux-musl/rcrt1.o" ]; then
  packaging/front/build.sh "$into/reassert/front"
else
  echo "packaging/build.sh: musl-gcc is missing (Debian: musl-tools and gcc), so front is not built and \`reassert dispatcher --socket\` will not work" >&2
fi
"$into/reassert/reassert" --version
