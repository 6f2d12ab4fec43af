//! What can go wrong between the host and a guest.

use std::io;

/// A call on a guest failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection could be made.
    #[error("the guest daemon cannot be reached: {0}")]
    Unreachable(#[source] io::Error),
    /// No answer within the request's time.
    #[error("the guest daemon did not answer in time")]
    Timeout,
    /// The daemon answered with an error.
    #[error("the guest daemon refused with {status}{}: {detail}", slug_text(slug.as_deref()))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The stable name, on routes that have one.
        slug: Option<Box<str>>,
        /// Prose for people; empty where the daemon said nothing.
        detail: String,
        /// Bytes of a write to standard input that were taken all the same.
        written: Option<u64>,
        /// Bytes that were taken of all such writes together, where that was asked for.
        taken: Option<u64>,
    },
    /// The daemon said something that is not the protocol.
    #[error("the guest daemon broke the protocol: {0}")]
    Protocol(String),
    /// The connection ended before the answer did.
    #[error("the guest daemon's connection ended before its answer did")]
    Disconnected,
}

fn slug_text(slug: Option<&str>) -> String {
    slug.map(|slug| format!(" {slug}")).unwrap_or_default()
}
