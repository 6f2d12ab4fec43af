//! Session tokens, by the digest of their secret.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::envelope::Envelope;
use crate::event::Event;
use crate::ids::SessionId;
use crate::ids::TokenId;

/// All tokens of sessions that have not been cleaned up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    by_digest: BTreeMap<String, Token>,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// The session that it is for.
    pub session: SessionId,
    /// The operations that it may do.
    pub ops: Vec<String>,
    /// Who it was made for.
    pub label: Option<String>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it ends by itself.
    pub expires_at: DateTime<Utc>,
    /// It was ended.
    pub revoked: bool,
    /// Refusals of it that were recorded.
    pub refusals: u64,
}

impl Token {
    /// It can be used.
    #[must_use]
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        !self.revoked && now < self.expires_at
    }
}

impl Tokens {
    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// The token whose secret has this SHA-256.
    #[must_use]
    pub fn by_digest(&self, sha256: &str) -> Option<&Token> {
        self.by_digest.get(sha256)
    }

    /// All tokens of a session, oldest first.
    #[must_use]
    pub fn of_session(&self, session: SessionId) -> Vec<&Token> {
        let its = |token: &&Token| token.session == session;
        let mut tokens: Vec<&Token> = self.by_digest.values().filter(its).collect();
        tokens.sort_by_key(|token| (token.created_at, token.id));
        tokens
    }

    /// One token of a session.
    #[must_use]
    pub fn get(&self, session: SessionId, id: TokenId) -> Option<&Token> {
        let its = |token: &&Token| token.session == session && token.id == id;
        self.by_digest.values().find(its)
    }

    /// Folds one event in. Events of other streams change nothing.
    pub fn apply(&mut self, envelope: &Envelope) {
        let Some(session) = SessionId::of_stream(&envelope.stream) else {
            return;
        };
        match &envelope.event {
            Event::TokenMinted(minted) => {
                let token = Token {
                    id: minted.token_id,
                    session,
                    ops: minted.ops.clone(),
                    label: minted.label.clone(),
                    created_at: envelope.at,
                    expires_at: minted.expires_at,
                    revoked: false,
                    refusals: 0,
                };
                self.by_digest.insert(minted.sha256.clone(), token);
            }
            Event::TokenRevoked(revoked) => {
                self.change(session, revoked.token_id, |token| token.revoked = true);
            }
            Event::TokenRefused(refused) => {
                self.change(session, refused.token_id, |token| token.refusals += 1);
            }
            Event::SessionCleanedUp(_) | Event::SessionErased(_) => {
                self.by_digest.retain(|_, token| token.session != session)
            }
            _ => {}
        }
    }

    fn change(&mut self, session: SessionId, id: TokenId, change: impl Fn(&mut Token)) {
        let its = |token: &&mut Token| token.session == session && token.id == id;
        if let Some(token) = self.by_digest.values_mut().find(its) {
            change(token);
        }
    }
}
