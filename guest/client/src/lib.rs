//! The host's client of the guest protocol.
//!
//! It promises: a guest's bytes are data and nothing more. Whatever a guest sends, the client
//! answers with a value or a typed error; it never panics, never follows a redirect, never buffers
//! past a cap, and never follows a symbolic link that a guest planted where its socket should be.
//!
//! It refuses to guess: a request that may have reached the guest is repeated only when repeating
//! it is harmless, and then once.

mod body;
mod call;
mod client;
mod connect;
mod error;
mod exact_files;
mod files;
mod pool;
mod renewal;
mod sse;
mod stream;
mod terminal;

pub use agentd_protocol as protocol;
pub use agentd_protocol::AgentToken;
pub use client::AgentdClient;
pub use connect::ByteStream;
pub use connect::Connect;
pub use connect::TcpConnector;
pub use connect::UnixConnector;
pub use error::ClientError;
pub use exact_files::FileOrder;
pub use exact_files::FileSlice;
pub use files::Download;
pub use files::LineRange;
pub use renewal::Quiesced;
pub use sse::FrameTooLarge;
pub use sse::SseEvent;
pub use sse::SseParser;
pub use stream::ExecEvent;
pub use stream::ExecStream;
