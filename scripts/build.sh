#!/usr/bin/env bash
# Builds the programs of the host and the guest daemon into TARGET/release.
# The guest daemon is one static binary: the sandbox may hold any distribution, or none.
set -euo pipefail
target=${1:?"usage: build.sh TARGET_DIR"}
read -ra flags <<<"${CARGO_FLAGS:-}"
export CARGO_TARGET_DIR=$target

triple=$(rustc -vV | sed -n 's/^host: //p')
cargo build "${flags[@]}" --release -p fluxvmd -p fluxctl -p fluxvm-vmm
cargo rustc "${flags[@]}" -p microvms-agentd --profile guest --target "$triple" -- \
  -C target-feature=+crt-static

built=$target/$triple/guest/microvms-agentd
placed=$target/release/guest/microvms-agentd
# Sandboxes that live may be running the old one: it is replaced by name, never written over.
if ! cmp -s "$built" "$placed"; then
  mkdir -p "${placed%/*}"
  cp "$built" "$placed.new"
  mv "$placed.new" "$placed"
fi
