#!/bin/sh
# Manual pages, completion of shells and the policy's JSON Schema, which the program itself prints.
#
#   packaging/extras.sh install PROGRAM PREFIX [DESTDIR]     PREFIX: /usr (a package) or /usr/local (install.sh)
#   packaging/extras.sh remove PREFIX [DESTDIR]              these files, and directories that are then empty
#
# The schema is always /usr/share/reassert/policy.schema.json: policy files name it for editors.
set -eu
verb=${1-}
case $verb in
install) program=$2 && shift 2 ;;
remove) shift ;;
*)
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
root=${2-}
share=$root$1/share
man=$share/man/man8
bash=$share/bash-completion/completions/reassert
fish=$share/fish/vendor_completions.d/reassert.fish
zsh=$share/zsh/site-functions/_reassert
[ "$1" != /usr ] || zsh=$share/zsh/vendor-completions/_reassert
schema=$root/usr/share/reassert/policy.schema.json
made=$root/usr/share/reassert/directories # those that were not there before

if [ "$verb" = remove ]; then
  rm -f "$man"/reassert.8.gz "$man"/reassert-*.8.gz "$bash" "$fish" "$zsh" "$schema"
  [ -e "$made" ] || exit 0
  directories=$(sort -r "$made")
  rm -f "$made"
  for directory in $directories; do
    rmdir --ignore-fail-on-non-empty "$directory" 2> /dev/null || :
  done
  exit 0
fi

# A directory with all above it; those that it makes are written down.
make() {
  [ ! -d "$1" ] || return 0
  make "$(dirname "$1")"
  mkdir "$1"
  new="$new$1
"
}

umask 022
new=
for directory in "$man" "${bash%/*}" "${fish%/*}" "${zsh%/*}" "${schema%/*}"; do
  make "$directory"
done
[ "$1" = /usr ] || printf %s "$new" >> "$made"
"$program" man --directory "$man"
cp "$(dirname "$0")/deb/reassert.8" "$man/reassert.8"
chmod 644 "$man"/reassert.8
rm -f "$man"/reassert.8.gz "$man"/reassert-*.8.gz
gzip -9n "$man"/reassert.8 "$man"/reassert-*.8
"$program" completion bash > "$bash"
"$program" completion fish > "$fish"
"$program" completion zsh > "$zsh"
"$program" policy schema > "$schema"
