//! The guest daemon's program. What it does is in the library beside it, where fuzzers reach it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    microvms_agentd::main()
}
