#!/bin/sh
# Freeze reassert into dist/reassert/ with PyInstaller (onedir). Needs a python3 >= 3.11 with venv and its shared
# library, and objdump. front also needs musl-gcc and gcc; without them it is not built. On Debian: `apt-get install
# python3-venv libpython3.11 binutils musl-tools gcc` (with your python's version).
#
#   packaging/build.sh            PYTHON=/usr/bin/python3 packaging/build.sh
set -eu
cd "$(dirname "$0")/.."
: "${PYTHON:=python3}"

fail() {
  echo "packaging/build.sh: $*" >&2
  exit 1
}

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

PYINSTALLER_CONFIG_DIR="$PWD/build/cache" build/venv/bin/python -m PyInstaller --noconfirm --log-level WARN \
  --workpath build/pyinstaller --distpath build/dist packaging/reassert.spec > build/pyinstaller.log 2>&1 ||
  { cat build/pyinstaller.log >&2; fail "PyInstaller failed, see above"; }
rm -rf dist/reassert
mkdir -p dist
mv build/dist/reassert dist/reassert
if command -v musl-gcc >/dev/null && command -v gcc >/dev/null && [ -e "/usr/lib/$(uname -m)-linux-musl/rcrt1.o" ]; then
  packaging/front/build.sh dist/reassert/front
else
  echo "packaging/build.sh: musl-gcc is missing (Debian: musl-tools and gcc), so front is not built and \`reassert dispatcher --socket\` will not work" >&2
fi
dist/reassert/reassert --version
