//! The key of one stream, and what it does.

use std::fmt;

use bytes::Bytes;
use chacha20poly1305::KeyInit as _;
use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::XNonce;
use chacha20poly1305::aead::Aead as _;
use chacha20poly1305::aead::Payload as Sealable;

use crate::AppendError;
use crate::BlobDigest;

/// What names an event's sealed payload.
const PURPOSE_EVENT: u8 = 0;
/// What names a sealed blob.
const PURPOSE_BLOB: u8 = 1;

/// Bytes that sealing adds: the tag of the cipher.
pub(crate) const TAG_BYTES: usize = 16;

/// Names the key of a stream without naming the stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SealId([u8; 16]);

impl SealId {
    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> SealId {
        SealId(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for SealId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// The key of one stream. Its own bytes are not kept: what is derived of them is all that is used.
pub(crate) struct SealKey {
    pub(crate) id: SealId,
    cipher: XChaCha20Poly1305,
    nonce_key: [u8; 32],
    place_key: [u8; 32],
    check: [u8; 16],
}

impl SealKey {
    pub(super) fn new(id: SealId, key: &[u8; 32]) -> SealKey {
        let cipher = blake3::derive_key("fluxvm ledger v1 seal cipher", key);
        let check = blake3::derive_key("fluxvm ledger v1 seal check", key);
        SealKey {
            id,
            cipher: XChaCha20Poly1305::new(&cipher.into()),
            nonce_key: blake3::derive_key("fluxvm ledger v1 seal nonce", key),
            place_key: blake3::derive_key("fluxvm ledger v1 seal place", key),
            check: *check.first_chunk().unwrap_or(&[0; 16]),
        }
    }

    /// Tells this key from any other.
    pub(super) fn check(&self) -> [u8; 16] {
        self.check
    }

    /// Salt and payload of the event with this commitment, sealed.
    pub(crate) fn seal_event(
        &self,
        commitment: &[u8; 32],
        salt: &[u8; 32],
        payload: &[u8],
    ) -> Result<Bytes, AppendError> {
        let plain = [salt.as_slice(), payload].concat();
        self.seal(PURPOSE_EVENT, commitment, &plain)
    }

    /// The salt and the payload of the event with this commitment; `None` where they are not what was
    /// sealed.
    pub(crate) fn open_event(
        &self,
        commitment: &[u8; 32],
        sealed: &[u8],
    ) -> Option<([u8; 32], Bytes)> {
        let plain = self.open(PURPOSE_EVENT, commitment, sealed)?;
        let salt = *plain.first_chunk::<32>()?;
        Some((salt, plain.slice(salt.len()..)))
    }

    /// The bytes of a blob, sealed.
    pub(crate) fn seal_blob(
        &self,
        digest: &BlobDigest,
        bytes: &[u8],
    ) -> Result<Bytes, AppendError> {
        self.seal(PURPOSE_BLOB, digest.as_bytes(), bytes)
    }

    /// The bytes of a sealed blob; `None` where they are not what was sealed.
    pub(crate) fn open_blob(&self, digest: &BlobDigest, sealed: &[u8]) -> Option<Bytes> {
        self.open(PURPOSE_BLOB, digest.as_bytes(), sealed)
    }

    /// Where a blob's seal lies in the store. Without the key nobody can ask for a content.
    pub(crate) fn place(&self, digest: &BlobDigest) -> [u8; 32] {
        *blake3::keyed_hash(&self.place_key, digest.as_bytes()).as_bytes()
    }

    fn nonce(&self, named: &[u8]) -> XNonce {
        let hash = blake3::keyed_hash(&self.nonce_key, named);
        XNonce::from(*hash.as_bytes().first_chunk::<24>().unwrap_or(&[0; 24]))
    }

    fn seal(&self, purpose: u8, name: &[u8; 32], plain: &[u8]) -> Result<Bytes, AppendError> {
        let aad = [&[purpose], name.as_slice()].concat();
        let sealable = Sealable {
            msg: plain,
            aad: &aad,
        };
        let sealed = self.cipher.encrypt(&self.nonce(&aad), sealable);
        // The cipher refuses only what is longer than 256 GiB.
        sealed.map(Bytes::from).map_err(|_| AppendError::SealKey {
            reason: "it is too long for the cipher".into(),
        })
    }

    fn open(&self, purpose: u8, name: &[u8; 32], sealed: &[u8]) -> Option<Bytes> {
        let aad = [&[purpose], name.as_slice()].concat();
        let sealable = Sealable {
            msg: sealed,
            aad: &aad,
        };
        let opened = self.cipher.decrypt(&self.nonce(&aad), sealable);
        opened.ok().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SealKey {
        SealKey::new(SealId([7; 16]), &[byte; 32])
    }

    #[test]
    fn what_was_sealed_opens_in_its_own_place_and_with_its_own_key_only() {
        let sealed = key(1).seal_event(&[2; 32], &[3; 32], b"{}").unwrap();
        let opened = key(1).open_event(&[2; 32], &sealed).unwrap();
        assert_eq!(opened, ([3; 32], Bytes::from_static(b"{}")));
        assert_eq!(
            key(1).open_event(&[9; 32], &sealed),
            None,
            "another event's"
        );
        assert_eq!(key(9).open_event(&[2; 32], &sealed), None, "another key");
        let as_blob = BlobDigest::from_bytes([2; 32]);
        assert_eq!(key(1).open_blob(&as_blob, &sealed), None, "no blob");
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key(1).open_event(&[2; 32], &bad), None, "bit {bit}");
        }
    }

    #[test]
    fn nothing_sealed_shows_its_content_and_no_two_contents_share_a_nonce() {
        let key = key(1);
        let names = (0..64_u8).map(|n| [n; 32]);
        let mut nonces: Vec<_> = names
            .flat_map(|name| [PURPOSE_EVENT, PURPOSE_BLOB].map(|purpose| (purpose, name)))
            .map(|(purpose, name)| key.nonce(&[&[purpose], name.as_slice()].concat()))
            .collect();
        nonces.sort_unstable();
        nonces.dedup();
        assert_eq!(nonces.len(), 128);
        let digest = BlobDigest::of(b"content");
        assert_ne!(key.place(&digest), *digest.as_bytes());
        let sealed = key.seal_blob(&digest, b"content").unwrap();
        assert_eq!(sealed.len(), b"content".len() + TAG_BYTES);
        assert!(!sealed.windows(4).any(|it| it == b"cont"));
    }
}
