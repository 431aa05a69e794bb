#!/bin/sh
# Make an .rpm with the files of a .deb of packaging/deb/build.sh:
#
#   packaging/release/rpm.sh DEB OUTPUT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
deb=$(realpath "$1")
output=$(realpath "$2")
: "${SOURCE_DATE_EPOCH:?}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

dpkg-deb --extract "$deb" "$work/files"
rm -rf "$work/files/usr/share/lintian" "$work/files/usr/share/doc/reassert/changelog.Debian.gz"
install -D -m 644 "$work/files/usr/share/reassert/policy.yaml" "$work/files/etc/reassert/policy.yaml"
mv "$work/files/usr/share/doc/reassert/copyright" "$work/files/usr/share/doc/reassert/LICENSES"
version=$(dpkg-deb --field "$deb" Version)
glibc=$(dpkg-deb --field "$deb" Depends | sed 's/.*(>= \(.*\)).*/\1/')
# A directory that other packages have too is not listed.
(cd "$work/files" && find . \( -type f -o -type l \) ! -path './etc/*' -printf '"/%P"\n' | sort
  cd "$work/files" && find usr/lib/reassert usr/share/doc/reassert -type d -printf '%%dir "/%p"\n' | sort) > "$work/list"
# rpm gives its scripts the number of versions that will be installed, dpkg gives its own a word.
script() { # NAME FIRST-COMMANDS
  { printf '%s\n' "$2"; sed 1d "$here/../deb/$1"; } > "$work/scripts/$1"
}
mkdir "$work/scripts"
script preinst '[ "$1" -gt 1 ] && set -- upgrade || set -- install'
script postinst '[ "$1" -gt 1 ] && set -- configure earlier || set -- configure ""'
script prerm '[ "$1" -eq 0 ] && set -- remove || exit 0'
script postrm '[ "$1" -eq 0 ] && set -- remove || set -- upgrade'
rpmbuild --quiet -bb --target "$(uname -m)" \
  --define "_topdir $work/rpm" --define "_rpmdir $work/rpm" --define "payload $work/files" --define "payload_list $work/list" --define "scripts $work/scripts" \
  --define "upstream ${version%-*}" --define "revision ${version##*-}" --define "glibc $glibc" \
  --define "_buildhost reassert.invalid" --define "use_source_date_epoch_as_buildtime 1" \
  --define "clamp_mtime_to_source_date_epoch 1" --define "_binary_payload ${RPM_PAYLOAD:-w9.gzdio}" \
  --define "date $(date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')" \
  "$here/reassert.spec.in"
find "$work/rpm" -name '*.rpm' -exec mv {} "$output" \;
