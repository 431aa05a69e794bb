#!/bin/sh
# Make dist/reassert_VERSION_ARCHITECTURE.deb from the output of packaging/build.sh in dist/. Needs dpkg-deb, objdump and
# python3, no root, and build/venv, which packaging/build.sh makes. The build is reproducible: file times are the last
# commit's, or SOURCE_DATE_EPOCH.
#
#   packaging/build.sh && packaging/deb/build.sh
#   VERSION=0.3.0-2 packaging/deb/build.sh         DEBFULLNAME, DEBEMAIL: the maintainer, as for dch(1)
#   DIST=elsewhere packaging/deb/build.sh          another directory for the output of packaging/build.sh and the .deb
set -eu
cd "$(dirname "$0")/../.."
: "${DIST:=dist}"
umask 022
export LC_ALL=C

fail() {
  echo "packaging/deb/build.sh: $*" >&2
  exit 1
}

for tool in dpkg-deb objdump python3; do
  command -v $tool > /dev/null || fail "$tool is missing; apt-get install dpkg binutils python3"
done
[ -x "$DIST/reassert/reassert" ] || fail "$DIST/reassert/reassert is missing; run packaging/build.sh first"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2> /dev/null || :)}"
[ -n "$SOURCE_DATE_EPOCH" ] || fail "this is no git checkout; set SOURCE_DATE_EPOCH to the time of the release, in seconds"
export SOURCE_DATE_EPOCH

# A pre-release sorts before the release: 1.0rc1 is Debian's 1.0~rc1.
: "${VERSION:=$("$DIST/reassert/reassert" --version | sed -E 's/^reassert //; s/\.?(a|b|rc|dev)([0-9])/~\1\2/g')-1}"
maintainer="${DEBFULLNAME:-reassert maintainers} <${DEBEMAIL:-maintainers@reassert.invalid}>"
architecture=$(dpkg --print-architecture)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
doc=$root/usr/share/doc/reassert
program=$root/usr/lib/reassert

# Containers start while dpkg replaces files one by one, and a start reads many files, its executable twice. So every
# version has its own directory, which dpkg fills first. What engines call are links by way of `current`, which no package
# has: preinst points it to a copy of the version that runs, postinst to the new one (`next`), once that has read the
# node's policy. One rename switches.
install -d "$program"
build/venv/bin/python -B packaging/layout.py "$DIST/reassert" "$program" /usr/lib/reassert
content=$(dirname "$(readlink "$program/reassert")")
mv "$program/start" "$program/$content/start"
for name in start front reassert; do
  [ ! -e "$program/$content/$name" ] || ln -sfn "current/$name" "$program/$name"
done
ln -s "$content" "$program/next"
mkdir -p "$root/usr/bin"
ln -s ../lib/reassert/reassert "$root/usr/bin/reassert"

install -D -m 644 config/policy.yaml "$root/usr/share/reassert/policy.yaml"
install -d "$root/usr/lib/systemd/system" "$doc"
install -d "$root/etc/reassert/trust.d"
for unit in packaging/systemd/*; do
  sed 's|=/usr/local/bin/reassert|=/usr/bin/reassert|' "$unit" > "$root/usr/lib/systemd/system/${unit##*/}"
done
for unit in path service timer; do # the template for stores with a name of their own
  cp "$root/usr/lib/systemd/system/reassert-trust.$unit" "$root/usr/lib/systemd/system/reassert-trust@.$unit"
done
cp packaging/deb/copyright "$doc"
python3 packaging/deb/docs.py "$doc"
gzip -9n < CHANGELOG.md > "$doc/changelog.gz"
gzip -9n > "$doc/changelog.Debian.gz" << END
reassert ($VERSION) unstable; urgency=medium

  * reassert ${VERSION%-*}: see changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
install -d "$root/usr/share/lintian/overrides"
packaging/extras.sh install "$DIST/reassert/reassert" /usr "$root"
cp packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/reassert"
find "$root" -type d -exec chmod 755 {} +
find "$root" -type f ! -path "$program/$content/reassert" ! -path "$program/$content/front" -exec chmod 644 {} +

# Check the dependencies: every library that the package does not contain must be glibc's.
elf=$(find "$program" -type f \( -name reassert -o -name '*.so' -o -name '*.so.*' \))
# shellcheck disable=SC2086  # a list
foreign=$(objdump -p $elf | sed -n 's/^ *R\(UN\)\{0,1\}PATH *//p' | sort -u)
[ -z "$foreign" ] || fail "libraries would be searched in $foreign; see packaging/runpath.py"
# shellcheck disable=SC2086  # a list
needed=$(objdump -p $elf | sed -n 's/^ *NEEDED *//p' | sort -u)
for library in $needed; do
  case $library in
  ld-linux*.so.* | libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libutil.so.1) ;;
  *) [ -e "$program/$content/lib/$library" ] || fail "$library is neither in the tree nor glibc's; the package must depend on it" ;;
  esac
done
# shellcheck disable=SC2086  # a list
glibc=$(objdump -T $elf | sed -n 's/.*[ (]GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
[ -n "$glibc" ] || fail "no symbol of glibc in $program; objdump did not understand it"

install -d "$root/DEBIAN"
install -m 755 packaging/deb/preinst packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm "$root/DEBIAN"
size=$(find "$root" -path "$root/DEBIAN" -prune -o -printf '%y %s\n' |
  awk '{ kib += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print kib }')
sed "s|@VERSION@|$VERSION|; s|@ARCHITECTURE@|$architecture|; s|@MAINTAINER@|$maintainer|; s|@SIZE@|$size|
  s|@DEPENDS@|libc6 (>= $glibc)|" packaging/deb/control > "$root/DEBIAN/control"
(cd "$root" && find usr -type f | sort | xargs -d '\n' md5sum) > "$root/DEBIAN/md5sums"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

deb=reassert_${VERSION}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$work/$deb" > /dev/null
mv "$work/$deb" "$DIST/$deb"
echo "$DIST/$deb"
