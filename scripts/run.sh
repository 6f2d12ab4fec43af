#!/usr/bin/env bash
# Starts the daemon for daily use in the foreground, with the default state folder. Once it answers,
# the daemon itself says what to type next.
set -euo pipefail
bin=${1:?"usage: run.sh BIN_DIR [fluxvmd options]"}
shift

if ! command -v fluxctl >/dev/null; then
  echo "fluxctl is not on PATH yet. In the other terminal, first:  export PATH=\"$bin:\$PATH\""
  echo
fi
exec "$bin/fluxvmd" "$@"
