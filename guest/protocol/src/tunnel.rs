//! The relay to a port inside the guest: its close codes, and what its verified form binds.
//!
//! A verified relay runs a Noise KK handshake over the WebSocket before the guest's port is
//! dialled. Both sides mix the same prologue into it, so that a handshake made for one port,
//! protocol or route is good for no other.

use std::time::Duration;

/// The subprotocol that a browser-like client has to name; echoed, and nothing else is.
pub const SUBPROTOCOL: &str = "lambda-microvms";

/// The handshake and its primitives.
pub const NOISE_PATTERN: &str = "Noise_KK_25519_ChaChaPoly_BLAKE2s";

/// Bit of a handshake payload's flags: its sender says when its stream ends.
pub const END_OF_STREAM: u8 = 0b0000_0001;

/// The plaintext of the client's first transport message.
pub const READY: &[u8] = b"microvms-tunnel-ready";

/// Time for the handshake's first message and for the ready message.
pub const READY_DEADLINE: Duration = Duration::from_secs(10);

/// Time to reach the guest's port.
pub const DIAL_DEADLINE: Duration = Duration::from_secs(2);

/// Bytes of one plain frame to the client.
pub const PLAIN_CHUNK_BYTES: usize = 64 * 1024;

/// Bytes of user data in one verified frame.
pub const VERIFIED_CHUNK_BYTES: usize = 32 * 1024;

/// Bytes of a Noise message, by its specification.
pub const NOISE_MESSAGE_BYTES_MAX: usize = 65_535;

/// Bytes of a close frame's reason: a longer one breaks the frame, and the code is lost with it.
pub const CLOSE_REASON_BYTES_MAX: usize = 123;

/// Why a relay was closed.
pub mod close_code {
    /// Either side ended.
    pub const NORMAL: u16 = 1000;
    /// Port 0 is no port.
    pub const BAD_PORT: u16 = 4400;
    /// A verified relay was asked of a guest that has no identity.
    pub const NO_IDENTITY: u16 = 4401;
    /// The handshake, its prologue or the ready message was not what it has to be.
    pub const IDENTITY_REFUSED: u16 = 4403;
    /// The guest's side failed while it was read.
    pub const RELAY_FAILED: u16 = 4500;
    /// Nothing listens on the port, or it did not answer in time.
    pub const NO_LISTENER: u16 = 4502;
}

/// What both sides mix into the handshake for a port.
pub fn prologue(port: u16) -> Vec<u8> {
    let mut prologue = Vec::new();
    for field in [
        "microvms-tunnel",
        NOISE_PATTERN,
        crate::PROTOCOL_VERSION,
        crate::paths::TCP,
    ] {
        prologue.extend_from_slice(field.as_bytes());
        prologue.push(0);
    }
    prologue.extend_from_slice(&port.to_be_bytes());
    prologue
}

/// Whether a handshake payload offers an end of stream. Bits that are not known are passed over.
pub fn offers_end_of_stream(payload: &[u8]) -> bool {
    payload
        .first()
        .is_some_and(|flags| flags & END_OF_STREAM != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prologue_binds_every_field_and_the_port() {
        let expected =
            b"microvms-tunnel\0Noise_KK_25519_ChaChaPoly_BLAKE2s\x002\0/v1/tcp\0\x1f\x90";
        assert_eq!(prologue(8080), expected);
        assert_ne!(prologue(8080), prologue(8081));
    }

    #[test]
    fn unknown_flags_are_passed_over_and_an_empty_payload_offers_nothing() {
        assert!(offers_end_of_stream(&[0x81]));
        assert!(!offers_end_of_stream(&[0x80]));
        assert!(!offers_end_of_stream(&[]));
    }
}
