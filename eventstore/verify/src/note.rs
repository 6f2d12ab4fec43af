//! Signed notes and the keys that verify them, as C2SP writes both.
//!
//! ```text
//! note      = text ‖ "\n" ‖ signature lines           text: lines, each with its line feed
//! signature = "— " name " " base64( id 4 ‖ signature ) "\n"
//! vkey      = name "+" hex( id 4 ) "+" base64( 0x01 ‖ public key 32 )
//! id        = the first four bytes of SHA-256( name ‖ "\n" ‖ 0x01 ‖ public key )
//! ```
//!
//! What is signed is the text, with its last line feed and without the empty line. A note may bear
//! signatures of keys that are not known here, of witnesses for instance; they are kept and not
//! judged. Reading is strict: what another reader could take for another note is not a note.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signature;
use ed25519_dalek::VerifyingKey;
use sha2::Digest as _;
use sha2::Sha256;

/// The longest note in bytes: a checkpoint and signatures of more witnesses than anyone has.
pub const NOTE_BYTES_MAX: usize = 64 * 1024;
/// The most signatures on one note.
pub const NOTE_SIGNATURES_MAX: usize = 100;

/// Signed notes number the kinds of keys: this is Ed25519.
const ED25519: u8 = 1;
/// What a line with a signature begins with.
const SIGNATURE_PREFIX: &str = "\u{2014} ";

/// A public key with its name.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifierKey {
    name: String,
    id: [u8; 4],
    public: VerifyingKey,
}

/// A text that is not a verifier key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a verifier key: {reason}")]
pub struct KeyError {
    reason: &'static str,
}

impl VerifierKey {
    /// The key with this name and these bytes.
    pub fn new(name: &str, public: &[u8; 32]) -> Result<VerifierKey, KeyError> {
        if !is_name(name) {
            let reason = "its name is empty or holds white space or a plus sign";
            return Err(KeyError { reason });
        }
        let public = VerifyingKey::from_bytes(public).map_err(|_| KeyError {
            reason: "it is not an Ed25519 key",
        })?;
        if public.is_weak() {
            let reason = "it is a key that verifies anything";
            return Err(KeyError { reason });
        }
        Ok(VerifierKey {
            name: name.to_owned(),
            id: key_id(name, public.as_bytes()),
            public,
        })
    }

    /// Who the key speaks for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The four bytes that a signature names its key by.
    pub fn id(&self) -> [u8; 4] {
        self.id
    }

    /// Whether `signature` is this key's over `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.public.verify_strict(message, &signature).is_ok())
    }
}

/// The four bytes of a key of that name.
fn key_id(name: &str, public: &[u8; 32]) -> [u8; 4] {
    let mut hasher = Sha256::new();
    hasher.update(name.as_bytes());
    hasher.update([b'\n', ED25519]);
    hasher.update(public);
    let hash: [u8; 32] = hasher.finalize().into();
    hash.first_chunk().copied().unwrap_or_default()
}

impl FromStr for VerifierKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<VerifierKey, KeyError> {
        let refused = |reason| KeyError { reason };
        let mut fields = text.splitn(3, '+');
        let (Some(name), Some(_id), Some(key)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(refused("it is not a name, an identifier and a key"));
        };
        let key = BASE64
            .decode(key)
            .map_err(|_| refused("it is not base64"))?;
        let Some((&ED25519, public)) = key.split_first() else {
            return Err(refused("it is not of the kind Ed25519"));
        };
        let public = public
            .try_into()
            .map_err(|_| refused("it is not 32 bytes"))?;
        let key = VerifierKey::new(name, public)?;
        match key.to_string() == text {
            true => Ok(key),
            false => Err(refused("its identifier is not that of the key")),
        }
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = BASE64.encode([&[ED25519], self.public.as_bytes().as_slice()].concat());
        write!(f, "{}+{}+{key}", self.name, hex::encode(self.id))
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifierKey({self})")
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c == '+')
}

/// A signature as it stands on a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteSignature {
    /// The name of its key.
    pub name: String,
    /// The four bytes of its key.
    pub id: [u8; 4],
    /// What the key made; 64 bytes where it is Ed25519.
    pub signature: Vec<u8>,
}

/// A text with signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedNote {
    text: String,
    signatures: Vec<NoteSignature>,
}

/// Why bytes are not a signed note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// It is longer than any note.
    #[error("a note has at most {NOTE_BYTES_MAX} bytes")]
    TooLong,
    /// Text and signatures are not divided by an empty line, or a line has no line feed.
    #[error("a note is a text, an empty line and signatures, each line with its line feed")]
    Layout,
    /// It holds a control character.
    #[error("a note holds no control character beside the line feed")]
    Control,
    /// A line with a signature is not one.
    #[error("a signature line is a dash, a name and base64 of at least five bytes")]
    Signature,
    /// There are more signatures than any note has.
    #[error("a note has at most {NOTE_SIGNATURES_MAX} signatures")]
    TooMany,
}

/// What a note says about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteVerdict {
    /// The key signed this text.
    Signed,
    /// There is no signature that names the key.
    Unsigned,
    /// There is one and it is not the key's over this text.
    Forged,
}

impl SignedNote {
    /// Puts a text, which must end in a line feed, and signatures together.
    pub fn new(text: String, signatures: Vec<NoteSignature>) -> SignedNote {
        SignedNote { text, signatures }
    }

    /// Reads a note, which must be all of `note`. One that bears no signature is read as well:
    /// that a signature was stripped is for the caller to say.
    pub fn parse(note: &str) -> Result<SignedNote, NoteError> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(NoteError::TooLong);
        }
        if note.chars().any(|c| c.is_control() && c != '\n') {
            return Err(NoteError::Control);
        }
        // The last empty line divides: a text may hold others.
        let divide = note.rfind("\n\n").ok_or(NoteError::Layout)? + 1;
        let (text, rest) = note.split_at(divide);
        let lines = rest.strip_prefix('\n').ok_or(NoteError::Layout)?;
        if text.len() <= 1 || !(lines.is_empty() || lines.ends_with('\n')) {
            return Err(NoteError::Layout);
        }
        let signatures: Vec<_> = lines
            .split_terminator('\n')
            .take(NOTE_SIGNATURES_MAX + 1)
            .map(parse_signature)
            .collect::<Option<_>>()
            .ok_or(NoteError::Signature)?;
        match signatures.len() <= NOTE_SIGNATURES_MAX {
            true => Ok(SignedNote {
                text: text.to_owned(),
                signatures,
            }),
            false => Err(NoteError::TooMany),
        }
    }

    /// What is signed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The signatures in their order, whoever made them.
    pub fn signatures(&self) -> &[NoteSignature] {
        &self.signatures
    }

    /// What the note says about `key`. One forged signature outweighs a good one beside it.
    pub fn verdict(&self, key: &VerifierKey) -> NoteVerdict {
        let of_key = |s: &&NoteSignature| s.name == key.name && s.id == key.id;
        let mut verdict = NoteVerdict::Unsigned;
        for signature in self.signatures.iter().filter(of_key) {
            if !key.verifies(self.text.as_bytes(), &signature.signature) {
                return NoteVerdict::Forged;
            }
            verdict = NoteVerdict::Signed;
        }
        verdict
    }
}

fn parse_signature(line: &str) -> Option<NoteSignature> {
    let (name, encoded) = line.strip_prefix(SIGNATURE_PREFIX)?.split_once(' ')?;
    let bytes = BASE64.decode(encoded).ok()?;
    let (id, signature) = bytes.split_first_chunk::<4>()?;
    (is_name(name) && !signature.is_empty()).then(|| NoteSignature {
        name: name.to_owned(),
        id: *id,
        signature: signature.to_vec(),
    })
}

impl fmt::Display for SignedNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        for signature in &self.signatures {
            let bytes = [signature.id.as_slice(), &signature.signature].concat();
            writeln!(
                f,
                "{SIGNATURE_PREFIX}{} {}",
                signature.name,
                BASE64.encode(bytes)
            )?;
        }
        Ok(())
    }
}
