//! Every HTTP status that the daemon answers, in one place.
//!
//! The rest of the server says what happened; which number that is, is said here and nowhere else. Each
//! code has a page in `docs/errors/`, which a test holds in place.

mod error;
mod success;

pub(crate) use error::ApiError;
pub(crate) use success::JSON;
pub(crate) use success::Success;
pub(crate) use success::answer;
pub(crate) use success::at_revision;
pub(crate) use success::kept;
pub(crate) use success::located;
pub(crate) use success::marked_replayed;
pub(crate) use success::no_content;
pub(crate) use success::not_stored;
use success::typed;
