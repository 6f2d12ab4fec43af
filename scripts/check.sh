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

part formatting cargo fmt --all --check
part lints cargo clippy "${flags[@]}" --workspace --all-targets -q -- -D warnings
RUSTDOCFLAGS="-D warnings" part documentation cargo doc "${flags[@]}" --workspace --no-deps -q
if command -v cargo-deny >/dev/null; then
  part dependencies cargo deny --log-level error check
else
  echo "check: dependencies   SKIPPED: cargo-deny is not installed, so licences, sources and"
  echo "                      advisories were NOT checked (cargo install --locked cargo-deny)"
fi
