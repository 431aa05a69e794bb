#!/bin/sh
# Build CPython from Debian's source package, in the root file system of a release (packaging/release.sh):
#
#   python.sh SUITE PACKAGE PREFIX          with CC, the compiler
#
# PREFIX/version is then the version of Debian's package, PREFIX/abi the number that wheels are named after.
# With -fno-semantic-interposition calls inside libpython are direct (https://docs.python.org/3/using/configure.html).
# Profile-guided and link-time optimisation made no start faster (docs/project/performance.md).
set -eu
suite=$1 package=$2 prefix=$3

mirror=$(sed -n 's/^deb \([^ ]*\) .*/\1/p' /etc/apt/sources.list | head -n 1)
echo "deb-src $mirror $suite main" > /etc/apt/sources.list.d/source.list
apt-get -q update
rm -rf /build/python
mkdir -p /build/python
cd /build/python
apt-get -q source --download-only "$package"
dpkg-source --no-check -x "$package"_*.dsc source
dpkg-parsechangelog -l source/debian/changelog -S Version > version
SOURCE_DATE_EPOCH=$(dpkg-parsechangelog -l source/debian/changelog -S Timestamp) # libpython has the date of its build
export SOURCE_DATE_EPOCH
cd source
# A security patch of Debian's lets pyexpat include CPython's internal headers.
sed -i "s/Extension('pyexpat', sources=\['pyexpat.c'\])/Extension('pyexpat', sources=['pyexpat.c'], extra_compile_args=['-DPy_BUILD_CORE_MODULE'])/" setup.py
# Bytecode of the whole standard library, in three kinds: PyInstaller makes its own.
sed -i 's|\$(DESTDIR)\$(LIBDEST)/compileall\.py|-c pass|' Makefile.pre.in
./configure --quiet --prefix="$prefix" --enable-shared --without-ensurepip --without-static-libpython \
  --without-doc-strings --disable-test-modules --with-dbmliborder= CC="${CC:-gcc}" \
  CFLAGS=-fno-semantic-interposition LDFLAGS="-fno-semantic-interposition -Wl,-rpath,$prefix/lib"
make -s -j "$(nproc)"
rm -rf "$prefix"
make -s install
cd ..
mv version "$prefix/version"
"$prefix/bin/python3" -c 'import sys; print("%d.%d" % sys.version_info[:2])' > "$prefix/abi"
rm -rf source
