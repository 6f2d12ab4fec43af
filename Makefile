# The tasks of fluxvm. `make help` lists them. Nothing here needs root; `make setup` asks for it only
# when a Debian package is missing.

# The target folder as cargo itself would choose it.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
BIN    := $(TARGET)/release
export CARGO_TARGET_DIR := $(TARGET)

# CI passes --locked; a developer's build may update the lock file.
CARGO_FLAGS ?=

.DEFAULT_GOAL := help
# The demo builds after the set-up and plays after the build, with -j too.
.NOTPARALLEL:
.PHONY: help setup build demo run test fuzz crash-lab bench check clean need-cargo

help: ## List the tasks
	@echo "fluxvm: sessions for AI agents, and the ledger that remembers what they did"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "New here?  make demo   (about a minute after the build)"

setup: ## Install what is missing, by Debian package, saying what and why
	@scripts/setup.sh

build: need-cargo ## Build fluxvmd, fluxctl and the guest daemon (release)
	@CARGO_FLAGS="$(CARGO_FLAGS)" scripts/build.sh "$(TARGET)"

demo: setup build ## Play the main job: a real bug, fixed in a session; crash, replay, proof
	@/usr/bin/python3 -B demo/demo.py --bin "$(BIN)"

run: build ## Start the daemon for daily use, in the foreground
	@scripts/run.sh "$(BIN)" $(RUN_FLAGS)

test: need-cargo ## Run everything that proves the project
	@CARGO_FLAGS="$(CARGO_FLAGS)" scripts/build.sh "$(TARGET)" --for-tests
	@CARGO_FLAGS="$(CARGO_FLAGS)" FLUXVM_BIN_DIR="$(BIN)" scripts/test.sh
	@scripts/fuzz.sh $(FUZZ_TEST_SECONDS)

# Long enough to see that every door still opens; `make fuzz` is for finding things.
FUZZ_TEST_SECONDS ?= 5
FUZZ_SECONDS ?= 20
fuzz: need-cargo ## Feed the guest daemon any bytes, for FUZZ_SECONDS at each of its doors
	@scripts/fuzz.sh $(FUZZ_SECONDS)

CRASH_LAB_IMAGES ?= 4000
crash-lab: need-cargo ## Lose power, break disks and flip bits, thousands of times
	@CRASH_LAB_IMAGES=$(CRASH_LAB_IMAGES) cargo test $(CARGO_FLAGS) --release -p fluxvm-eventstore --test crash_lab_simulated \
	  --test crash_lab_real --test crash_kill --test flipped_bits -- --nocapture

bench: build ## Measure, on this machine, with p50, p95 and p99
	@FLUXVM_BIN_DIR="$(BIN)" cargo run $(CARGO_FLAGS) --release -q -p fluxvm-replay-tests --bin fluxvm-bench -- $(BENCH_FLAGS)
	@cargo run $(CARGO_FLAGS) --release -q -p fluxvm-vmm --example snapshot_bench -- \
		"$(BIN)/fluxvm-procbox" "$(BIN)/guest/microvms-agentd"

check: need-cargo ## Formatting, lints, documentation, dependencies
	@CARGO_FLAGS="$(CARGO_FLAGS)" scripts/check.sh

clean: need-cargo ## Remove what was built
	cargo clean

need-cargo:
	@command -v cargo >/dev/null || { \
	  echo "cargo is not on PATH. Install Rust 1.90 or newer from https://rustup.rs, then open a new"; \
	  echo "shell; or, when it is installed: export PATH=\"\$$HOME/.cargo/bin:\$$PATH\""; \
	  exit 1; }
