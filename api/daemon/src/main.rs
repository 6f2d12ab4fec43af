//! fluxvmd: the daemon.
fn main() {}
