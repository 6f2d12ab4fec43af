//! Named points at which a test can end the process, as a power cut would.
//!
//! Without the feature `crash-points` there are none, and no released build has it.

/// Ends the process here if `FLUXVM_CRASH_AT` names this point.
#[cfg(feature = "crash-points")]
pub(crate) fn point(name: &str) {
    if std::env::var("FLUXVM_CRASH_AT").is_ok_and(|at| at == name) {
        tracing::error!(name, "ending at a crash point");
        std::process::abort();
    }
}

/// Does nothing: this build has no crash points.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn point(_name: &str) {}
