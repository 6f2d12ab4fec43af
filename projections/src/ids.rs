//! Ids of the things that events are about. Each is a UUID that says of what.

use std::fmt;
use std::str::FromStr;

use fluxvm_verify::StreamName;
use serde::Deserialize;
use serde::Serialize;
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

uuid_id! {
    /// An agent session. Without its dashes it is also the session's trace id.
    SessionId
}
uuid_id! {
    /// A sandbox of some engine. A session owns one; it outlives the daemon, not the session.
    SandboxId
}
uuid_id! {
    /// A snapshot of some engine. It is minted before it is taken, so that a crash leaves a name to look
    /// for.
    SnapshotId
}
uuid_id! {
    /// One command in a guest. It is minted before the command starts and makes the start idempotent.
    ExecId
}

uuid_id! {
    /// A job: a command that outlives its request. The guest knows it by the same id.
    JobId
}
uuid_id! {
    /// A session token, without its secret.
    TokenId
}
uuid_id! {
    /// A command that people decide on.
    ApprovalId
}

uuid_id! {
    /// One upload: a file that comes in parts.
    UploadId
}

impl SessionId {
    /// The ledger stream that holds this session's events: `session/<uuid>`.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "a UUID holds nothing that a stream name may not"
    )]
    pub fn stream(&self) -> StreamName {
        StreamName::parse(&format!("session/{}", self.0.hyphenated()))
            .expect("`session/` and a UUID are a stream name")
    }

    /// The session whose stream this is, or `None` for any other kind of stream.
    #[must_use]
    pub fn of_stream(stream: &StreamName) -> Option<Self> {
        stream.as_str().strip_prefix("session/")?.parse().ok()
    }
}
