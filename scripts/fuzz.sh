#!/usr/bin/env bash
# Fuzzes what takes bytes from outside, a bounded number of seconds for each target, and says what
# it ran. The targets are those of cargo-fuzz (guest/fuzz); they are built here with the compiler
# that is at hand, whose coverage instrumentation needs no nightly. Only the sanitizers would, and
# what they look for is unsafe code, of which these parts have none.
# What is found lies in guest/fuzz/artifacts; `fuzz.sh SECONDS TARGET FILE` runs it again.
set -euo pipefail
seconds=${1:-20}
only=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
fuzz=$root/guest/fuzz
target=${CARGO_TARGET_DIR:-$root/target}/fuzz

if ! command -v c++ >/dev/null; then
  echo "fuzz: SKIPPED: there is no C++ compiler, which the fuzzer's engine is built with;"
  echo "      archives, launches, starts and tunnel frames were NOT fuzzed"
  exit 0
fi

export RUSTFLAGS="--cfg fuzzing -C passes=sancov-module -C codegen-units=1 \
  -C llvm-args=-sanitizer-coverage-level=4 \
  -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
  -C llvm-args=-sanitizer-coverage-pc-table \
  -C llvm-args=-sanitizer-coverage-trace-compares"
triple=$(rustc -vV | sed -n 's/^host: //p')
# For a named machine, so that build scripts and macros are not instrumented.
cargo build --manifest-path "$fuzz/Cargo.toml" --release --target "$triple" --target-dir "$target" -q

for name in archive launch start tunnel_frames; do
  if [ -n "$only" ] && [ "$only" != "$name" ]; then continue; fi
  mkdir -p "$fuzz/corpus/$name" "$fuzz/artifacts/$name"
  log=$fuzz/artifacts/$name/log
  inputs=("$fuzz/corpus/$name" "$fuzz/seeds/$name" -max_total_time="$seconds")
  if [ -n "${3:-}" ]; then inputs=("$3"); fi
  if "$target/$triple/release/$name" "${inputs[@]}" -max_len=16384 -timeout=10 -rss_limit_mb=1024 \
    -artifact_prefix="$fuzz/artifacts/$name/" -print_final_stats=1 >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz: $name: ok, ${runs:-1} inputs in $seconds s"
  else
    tail -40 "$log" >&2
    echo "fuzz: $name: FAILED, see $fuzz/artifacts/$name" >&2
    exit 1
  fi
done
