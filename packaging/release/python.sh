#!/bin/sh
# Build CPython from Debian's source package, in the root file system of a release (packaging/release.sh):
#
#   python.sh SUITE PACKAGE PREFIX          with CC, the compiler, and PGO=no for a quick build
#
# PREFIX/version is then the version of Debian's package, PREFIX/abi the number that wheels are named after.
# Profile-guided and link-time optimisation make it faster than Debian's own build, and with
# -fno-semantic-interposition calls inside libpython are direct (https://docs.python.org/3/using/configure.html).
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
cd source
# A security patch of Debian's lets pyexpat include CPython's internal headers.
sed -i "s/Extension('pyexpat', sources=\['pyexpat.c'\])/Extension('pyexpat', sources=['pyexpat.c'], extra_compile_args=['-DPy_BUILD_CORE_MODULE'])/" setup.py
# A patch of Debian's runs the profile's tests a second time, and takes a failed one for a failed build.
sed -i '/^\ttask="\$(PROFILE_TASK)"; \\$/,/^\tesac$/d' Makefile.pre.in
# Bytecode of the whole standard library, in three kinds: PyInstaller makes its own.
sed -i 's|\$(DESTDIR)\$(LIBDEST)/compileall\.py|-c pass|' Makefile.pre.in
if [ "${PGO:-yes}" = yes ]; then set -- --enable-optimizations --with-lto; else set -- --disable-test-modules; fi
# The profile is that of the agent's own work, 4000 times, and of tests near to the rest of it. These are from Python's own
# list (Lib/test/libregrtest/pgo.py): not all of them pass with Debian's patches. Modules that need other libraries are left
# out: reassert uses none of them.
profile="/build/profile.py /build/reassert 4000 test_base64 test_binascii test_bytes test_codecs test_collections"
profile="$profile test_complex test_datetime test_fstring test_functools test_hashlib test_heapq test_int test_itertools"
profile="$profile test_json test_long test_math test_memoryview test_operator test_ordered_dict test_re test_set test_struct"
profile="$profile test_time test_unicode"
./configure --quiet --prefix="$prefix" --enable-shared --without-ensurepip --without-static-libpython \
  --without-doc-strings --with-dbmliborder= "$@" CC="${CC:-gcc}" \
  CFLAGS=-fno-semantic-interposition LDFLAGS="-fno-semantic-interposition -Wl,-rpath,$prefix/lib"
make -s -j "$(nproc)" PROFILE_TASK="$profile"
rm -rf "$prefix"
make -s install
rm -rf "$prefix/lib/python3."*/test
cd ..
mv version "$prefix/version"
"$prefix/bin/python3" -c 'import sys; print("%d.%d" % sys.version_info[:2])' > "$prefix/abi"
rm -rf source
