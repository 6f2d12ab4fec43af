#!/usr/bin/env bash
# Builds the programs of the host and the guest daemon into TARGET/release.
# The guest daemon is one static binary: the sandbox may hold any distribution, or none.
# With --for-tests also TARGET/release/crash/fluxvmd, a daemon that a test can end at a named point.
set -euo pipefail
target=${1:?"usage: build.sh TARGET_DIR [--for-tests]"}
read -ra flags <<<"${CARGO_FLAGS:-}"
export CARGO_TARGET_DIR=$target

# Programs that run may be in use: each is replaced by name, never written over.
place() {
  if ! cmp -s "$1" "$2"; then
    mkdir -p "${2%/*}"
    cp "$1" "$2.new"
    mv "$2.new" "$2"
  fi
}

build_host() {
  cargo build "${flags[@]}" --release -p fluxvmd -p fluxctl -p fluxvm-vmm "$@"
}

# The crash daemon comes first, so that what lies in TARGET/release at the end is the plain one.
if [ "${2:-}" = --for-tests ]; then
  build_host --features fluxvm-commands/crash-points
  place "$target/release/fluxvmd" "$target/release/crash/fluxvmd"
fi
build_host

triple=$(rustc -vV | sed -n 's/^host: //p')
cargo rustc "${flags[@]}" -p microvms-agentd --bin microvms-agentd --profile guest \
  --target "$triple" -- \
  -C target-feature=+crt-static
place "$target/$triple/guest/microvms-agentd" "$target/release/guest/microvms-agentd"
