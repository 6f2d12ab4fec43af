#!/usr/bin/env bash
# Starts the daemon for daily use in the foreground, with the default state folder.
set -euo pipefail
bin=${1:?"usage: run.sh BIN_DIR [fluxvmd options]"}
shift

echo "fluxvmd starts here; Ctrl-C ends it (sandboxes end with \`fluxctl agent rm\`, not with it)."
echo "In another terminal:"
echo
echo "  export PATH=\"$bin:\$PATH\""
echo "  fluxctl agent run                        # a session; it prints the id"
echo "  fluxctl agent exec ID -- 'uname -a; id'  # ID, or the first few characters of it"
echo
exec "$bin/fluxvmd" "$@"
