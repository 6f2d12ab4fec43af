#!/usr/bin/env bash
# Brings CRIU, which keeps a sandbox's processes in a checkpoint, where none is installed that works
# on this kernel. The distribution's own package is taken if it is new enough; otherwise that of a
# later release of the same distribution, into a folder of its own and with its own libraries, so
# that nothing else on this machine changes. Says nothing when there is nothing to do.
#
# Without CRIU everything else works: checkpoints then hold the disk only.
set -euo pipefail

# The daemon looks there first.
place=${1:-/usr/local/lib/fluxvm/criu}
# Later releases, the nearest first.
later=(trixie forky sid)

# From 6.16 on the kernel refuses socket options that older versions insist on reading.
needed=4.1
kernel=$(uname -r)
if [ "$(printf '%s\n' 6.16 "${kernel%%-*}" | sort -V | head -n 1)" = 6.16 ]; then
  needed=4.2
fi

at_least() { [ "$(printf '%s\n' "$needed" "$1" | sort -V | head -n 1)" = "$needed" ]; }

good() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n 's/^Version: //p') && [ -n "$version" ] && at_least "$version"
}

sorry() {
  echo "CRIU $needed or newer cannot be had here: $1."
  echo "Checkpoints will hold the disk and no processes; everything else works."
  exit 0
}

for found in "$place/criu" /usr/local/sbin/criu /usr/sbin/criu /usr/bin/criu; do
  if [ -x "$found" ] && good "$found"; then exit 0; fi
done
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null \
  || sorry "this is no Debian; install it by your system's own means"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The machine's own sources of packages with another release's name, and a database of its own.
sources_of() {
  local suite=$1 codename
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  [ -n "$codename" ] || return 1
  mkdir -p "$work/etc/apt.conf.d" "$work/etc/preferences.d" "$work/etc/sources.list.d" \
    "$work/etc/trusted.gpg.d" "$work/state/lists/partial" "$work/cache/archives/partial"
  touch "$work/status"
  cat /etc/apt/apt.conf.d/* >"$work/etc/apt.conf.d/00own" 2>/dev/null || true
  cp -r /etc/apt/trusted.gpg.d/. "$work/etc/trusted.gpg.d/" 2>/dev/null || true
  awk -v codename="$codename" -v suite="$suite" '
    BEGIN { RS = ""; ORS = "\n\n" }
    $0 ~ "(^|\n)Suites:[ \t]*" codename "([ \t\n]|$)" {
      gsub(/(^|\n)Suites:[^\n]*/, "\nSuites: " suite); print
    }' /etc/apt/sources.list.d/*.sources >"$work/etc/sources.list.d/later.sources" 2>/dev/null || true
  sed -n "s/^\(deb .*[ /]\)$codename \(main.*\)/\1$suite \2/p" /etc/apt/sources.list \
    >"$work/etc/sources.list.d/later.list" 2>/dev/null || true
  [ -s "$work/etc/sources.list.d/later.sources" ] || [ -s "$work/etc/sources.list.d/later.list" ]
}

apt() {
  local tool=$1
  shift
  "$tool" -o Dir::Etc="$work/etc" -o Dir::State="$work/state" -o Dir::State::status="$work/status" \
    -o Dir::Cache="$work/cache" -o Acquire::Languages=none -o APT::Install-Recommends=false \
    -o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
}

candidate() { sed -n 's/^  Candidate: \([0-9.]*\).*/\1/p'; }

fetch() {
  local suite version
  for suite in "${later[@]}"; do
    rm -rf "${work:?}"/*
    sources_of "$suite" || return 1
    apt apt-get update >"$work/log" 2>&1 || continue
    version=$(apt apt-cache policy criu | candidate)
    if [ -n "$version" ] && at_least "$version"; then
      apt apt-get install -y --download-only criu >>"$work/log" 2>&1 || continue
      return 0
    fi
  done
  return 1
}

echo "Fetching CRIU, which keeps a sandbox's processes in a checkpoint."
fetch || sorry "no release of this distribution that can be reached has it"
fresh=$place.new-$$
rm -rf "$fresh"
mkdir -p "$fresh/root"
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$fresh/root"
done
cat >"$fresh/criu" <<'WRAPPER'
#!/bin/sh
# CRIU with the libraries that it was built with.
root=$(dirname "$(readlink -f "$0")")/root
for loader in "$root"/usr/lib64/ld-linux-*.so.* "$root"/usr/lib/ld-linux-*.so.* "$root"/lib*/ld-linux-*.so.*; do
  if [ -e "$loader" ]; then
    libraries=$(echo "$root"/usr/lib/*-linux-gnu | tr ' ' ':')
    exec "$loader" --library-path "$libraries" "$root/usr/sbin/criu" "$@"
  fi
done
echo "the loader of CRIU is missing in $root" >&2
exit 127
WRAPPER
chmod 755 "$fresh/criu"
good "$fresh/criu" || { rm -rf "$fresh"; sorry "what was fetched does not run"; }
rm -rf "$place"
mv "$fresh" "$place"
echo "CRIU is in $place."
