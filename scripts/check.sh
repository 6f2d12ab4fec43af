#!/usr/bin/env bash
# Everything that is judged without running the product: formatting, lints, documentation,
# dependencies. Each part prints one line; the first that fails ends it.
set -euo pipefail
read -ra flags <<<"${CARGO_FLAGS:-}"

part() {
  local name=$1 start=$SECONDS
  shift
  "$@"
  printf 'check: %-14s ok  %4d s\n' "$name" $((SECONDS - start))
}

# The crates that are no part of the workspace too.
formatting() {
  cargo fmt --all --check
  cargo fmt --check --manifest-path guest/fuzz/Cargo.toml
  cargo fmt --check --manifest-path guest/published/Cargo.toml
}

part formatting formatting
part lints cargo clippy "${flags[@]}" --workspace --all-targets --keep-going -q -- -D warnings
RUSTDOCFLAGS="-D warnings" part documentation cargo doc "${flags[@]}" --workspace --no-deps -q

# The list of advisories comes from the network; where it cannot be had, that is said and not hidden.
advisories() {
  local said
  if said=$(cargo deny check advisories 2>&1); then
    return 0
  fi
  if grep -q "failed to fetch advisory database" <<<"$said"; then
    echo "check: advisories     SKIPPED: the list of advisories could not be fetched"
    return 0
  fi
  echo "$said" >&2
  return 1
}

if command -v cargo-deny >/dev/null; then
  part dependencies cargo deny --log-level error check bans licenses sources
  part advisories advisories
else
  echo "check: dependencies   SKIPPED: cargo-deny is not installed, so licences, sources and"
  echo "                      advisories were NOT checked (cargo install --locked cargo-deny)"
fi
