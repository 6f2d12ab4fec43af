#!/usr/bin/env bash
# Runs every test, with nextest where it is installed, and prints what took longest.
set -euo pipefail
read -ra flags <<<"${CARGO_FLAGS:-}"
slowest_shown=10
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if command -v cargo-nextest >/dev/null; then
  cargo nextest run "${flags[@]}" --workspace 2>&1 | tee "$log"
  cargo test "${flags[@]}" --workspace --doc -q
  slowest() {
    sed -nE 's/^ +(PASS|FAIL|SLOW) \[ *([0-9.]+)s\] (\([^)]*\) )?(.*)$/\2 s  \4/p' "$log"
  }
else
  # Without nextest a test binary is the smallest thing that cargo gives a time for.
  cargo test "${flags[@]}" --workspace --no-fail-fast 2>&1 | tee "$log"
  slowest() {
    awk '/^ +Running /  { name = $2 " " $3 }
         /^ +Doc-tests / { name = "doc-tests " $2 }
         /^test result:/ { time = $NF; sub(/s$/, "", time); print time " s  " name }' "$log"
  }
fi
echo
echo "What took longest:"
slowest | sort -rn | head -n "$slowest_shown" | sed 's/^/  /'
