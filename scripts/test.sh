#!/usr/bin/env bash
# Runs every test, with nextest where it is installed, and prints what took longest, also when
# something failed.
set -euo pipefail
read -ra flags <<<"${CARGO_FLAGS:-}"
slowest_shown=10
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

# The published client that drives the guest daemon has a lock file and dependencies of its own. The
# test that runs it would build it too; here its time is not the test's.
published=${CARGO_TARGET_DIR:-target}/published
cargo build -q --locked --manifest-path guest/published/Cargo.toml --target-dir "$published" \
  || echo "test: the published Rust client of the guest protocol was not built" >&2

if command -v cargo-nextest >/dev/null; then
  cargo nextest run "${flags[@]}" --workspace --no-fail-fast 2>&1 | tee "$log" || status=$?
  cargo test "${flags[@]}" --workspace --doc -q || status=$?
  slowest() {
    sed -nE 's/^ +(PASS|FAIL|SLOW) \[ *([0-9.]+)s\] (\([^)]*\) )?(.*)$/\2 s  \4/p' "$log"
  }
else
  # Without nextest a test program is the smallest thing that a time is printed for.
  cargo test "${flags[@]}" --workspace --no-fail-fast 2>&1 | tee "$log" || status=$?
  slowest() {
    awk '/^ +Running /  { name = $2 " " $3 }
         /^ +Doc-tests / { name = "doc-tests " $2 }
         /^test result:/ { time = $NF; sub(/s$/, "", time); print time " s  " name }' "$log"
  }
fi
echo
echo "What took longest:"
# Reads all of it: a reader that stops early would end the writer with a signal.
slowest | sort -rn | sed -n "1,${slowest_shown}s|^|  |p"
exit "$status"
