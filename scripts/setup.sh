#!/usr/bin/env bash
# Installs what fluxvm needs and this machine lacks. Says for each package why. As root, or with a
# sudo that asks for no password, it installs; otherwise it prints the one command to type.
# Says nothing when nothing is missing.
set -euo pipefail

rust_minor_min=90

# package|why
needed=(
  "gcc|links the programs"
  "libc6-dev|the C library, also in its static form for the daemon in the sandbox"
  "git|the demo's agent commits its work, inside the sandbox"
  "python3|plays the demo, and runs inside the sandbox"
  "python3-pip|fetches the source of the program that the demo repairs"
  "python3-setuptools|pip asks it what that source is"
  "python3-pytest|runs that program's own tests inside the sandbox"
  "python3-tz|those tests import it"
  "python3-simplejson|those tests import it"
)

check_cargo() {
  if ! command -v cargo >/dev/null; then
    echo "cargo is not on PATH."
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
      echo "It is installed: export PATH=\"\$HOME/.cargo/bin:\$PATH\""
    else
      echo "Install Rust 1.$rust_minor_min or newer from https://rustup.rs, then open a new shell."
    fi
    return 1
  fi
  local version minor
  version=$(cargo --version | awk '{ print $2 }')
  minor=$(cut -d. -f2 <<<"$version")
  if [ "$(cut -d. -f1 <<<"$version")" = 1 ] && [ "$minor" -lt "$rust_minor_min" ]; then
    echo "cargo $version is too old: 1.$rust_minor_min or newer is needed. Try: rustup update stable"
    return 1
  fi
}

# The sandbox sees Debian's own Python, never another one that stands first on PATH: what counts is
# the package, not the command.
installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_missing() {
  local missing=() entry package
  for entry in "${needed[@]}"; do
    package=${entry%%|*}
    if ! installed "$package"; then
      [ ${#missing[@]} -gt 0 ] || echo "Missing on this machine:"
      printf '  %-20s %s\n' "$package" "${entry#*|}"
      missing+=("$package")
    fi
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local command=(apt-get install -y --no-install-recommends "${missing[@]}") as=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "Type this, then try again:"
      echo "  sudo ${command[*]}"
      return 1
    fi
    as=(sudo -n)
  fi
  echo "Installing:" "${as[@]}" "${command[@]}"
  local log
  log=$(mktemp)
  # A machine that never fetched the package lists cannot install from them.
  if ! { "${as[@]}" env DEBIAN_FRONTEND=noninteractive "${command[@]}" \
      || { "${as[@]}" apt-get update \
           && "${as[@]}" env DEBIAN_FRONTEND=noninteractive "${command[@]}"; }; } >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "The packages could not be installed; apt-get's words are above." >&2
    return 1
  fi
  rm -f "$log"
  echo "Installed ${#missing[@]} packages."
}

# Without Debian's package database we can only look for the programs themselves.
check_programs() {
  local ok=0
  for program in cc git /usr/bin/python3; do
    command -v "$program" >/dev/null || { echo "Missing: $program"; ok=1; }
  done
  /usr/bin/python3 -c 'import pip, pytest, pytz, setuptools, simplejson' 2>/dev/null \
    || { echo "Missing: one of pip, pytest, pytz, setuptools, simplejson for /usr/bin/python3"; ok=1; }
  [ $ok = 0 ] || echo "This is no Debian: please install these by your system's own means."
  return $ok
}

# An ordinary user's sandboxes stand on user namespaces, which an administrator can turn off.
check_user_namespaces() {
  if [ "$(id -u)" -eq 0 ] || unshare --user --map-root-user true 2>/dev/null; then
    return 0
  fi
  echo "User namespaces are turned off for ordinary users, and sandboxes need them. As root:"
  echo "  sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000"
  echo "  (on kernels with AppArmor's limit also: kernel.apparmor_restrict_unprivileged_userns=0)"
  return 1
}

# Only root's daemon keeps processes: for others there is nothing to bring.
bring_criu() {
  local here
  here=$(dirname "$(readlink -f "$0")")
  if [ "$(id -u)" -eq 0 ]; then
    "$here/criu.sh"
  elif sudo -n true 2>/dev/null; then
    sudo -n "$here/criu.sh"
  fi
}

status=0
check_cargo || status=1
if command -v dpkg-query >/dev/null; then
  install_missing || status=1
else
  check_programs || status=1
fi
check_user_namespaces || status=1
bring_criu || status=1
exit $status
