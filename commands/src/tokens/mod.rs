//! Session tokens: secrets that reach one session, for the operations that they were made for.
//!
//! The ledger has the SHA-256 of a secret and nothing else of it. A secret is 256 random bits, so that
//! its digest gives nothing away and is looked up without comparing secrets.

mod decide;

use std::sync::Arc;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::Actor;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::Filter;
use fluxvm_projections::Event;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::Token;
use fluxvm_projections::TokenId;
use fluxvm_projections::TokenRefused;
use fluxvm_projections::TokenRevoked;
use sha2::Digest;
use sha2::Sha256;
use uuid::Uuid;

use crate::book::Decided;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::gate;
use crate::limits::TOKEN_REFUSALS_RECORDED_MAX;

/// What every secret begins with, so that one is known for what it is wherever it turns up.
pub const TOKEN_PREFIX: &str = "fxst_";

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// A token to be made.
#[derive(Clone, Debug)]
pub struct MintToken {
    /// The operations that it may do.
    pub ops: Vec<String>,
    /// Seconds until it ends by itself.
    pub ttl_seconds: Option<u64>,
    /// Who it is for.
    pub label: Option<String>,
}

/// A token that was just made. The secret is nowhere else.
pub struct MintedToken {
    /// What the ledger has of it.
    pub token: Token,
    /// The secret.
    pub secret: String,
}

impl std::fmt::Debug for MintedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MintedToken")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// A token that may be used now, and whose session it is.
#[derive(Clone, Debug)]
pub struct LiveToken {
    /// The token.
    pub token: Token,
    /// The tenant of its session.
    pub tenant: Option<String>,
}

/// A request that a token is not for.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// Why it is refused.
    pub reason: String,
}

impl Engine {
    /// Makes a token for a session.
    ///
    /// # Errors
    ///
    /// `Invalid` for a field, `NotFound`, `NotRunning`, `TooManyTokens`, `Ledger`.
    pub async fn mint_token(
        &self,
        caller: &Caller,
        id: SessionId,
        request: MintToken,
    ) -> Result<MintedToken, CommandError> {
        self.run(caller, move |inner, caller| async move {
            mint(&inner, &caller, id, request).await
        })
        .await
    }

    /// The tokens of a session that can be used now, oldest first.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn tokens(&self, caller: &Caller, id: SessionId) -> Result<Vec<Token>, CommandError> {
        let session = self.inner.book.session(caller, id)?;
        if session.ended() {
            return Ok(Vec::new());
        }
        let now = self.inner.clock.now();
        let world = self.inner.book.world();
        let live = world.tokens.of_session(id).into_iter();
        Ok(live.filter(|token| token.is_live(now)).cloned().collect())
    }

    /// Ends a token. Ending it again is fine.
    ///
    /// # Errors
    ///
    /// `NotFound`, `TokenNotFound`, `Ledger`.
    pub async fn revoke_token(
        &self,
        caller: &Caller,
        id: SessionId,
        token: TokenId,
    ) -> Result<(), CommandError> {
        self.run(caller, move |inner, caller| async move {
            revoke(&inner, &caller, id, token).await
        })
        .await
    }

    /// The token with this secret, if it can be used now.
    #[must_use]
    pub fn live_token(&self, secret: &[u8]) -> Option<LiveToken> {
        let now = self.inner.clock.now();
        let world = self.inner.book.world();
        let token = world.tokens.by_digest(&digest(secret))?;
        let session = world.sessions.get(token.session)?;
        is_usable(session, token, now).then(|| LiveToken {
            token: token.clone(),
            tenant: session.tenant.clone(),
        })
    }

    /// Returns when the token can no longer be used: it was revoked, its time ran out, or its session
    /// ended.
    pub async fn token_ended(&self, id: SessionId, token: TokenId) {
        let ledger = self.inner.book.ledger();
        let mut changes = ledger.subscribe(Filter::Stream(id.stream()), ledger.head().position);
        loop {
            let now = self.inner.clock.now();
            let left = {
                let world = self.inner.book.world();
                let session = world.sessions.get(id);
                let known = world.tokens.get(id, token);
                match session.zip(known) {
                    Some((session, known)) if is_usable(session, known, now) => {
                        (known.expires_at - now).to_std().unwrap_or_default()
                    }
                    _ => return,
                }
            };
            tokio::select! {
                change = changes.next() => if !matches!(change, Some(Ok(_))) { return },
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Records that the holder of a token asked for what the token is not for. A holder that does so all
    /// the time does not fill the ledger: past a limit it is not recorded any more.
    ///
    /// # Errors
    ///
    /// `Ledger`.
    pub async fn record_token_refusal(
        &self,
        id: SessionId,
        token: TokenId,
        request: RefusedRequest,
    ) -> Result<(), CommandError> {
        let caller = holder(token)?;
        self.run(&caller, move |inner, caller| async move {
            refused(&inner, &caller, id, token, request).await
        })
        .await
    }
}

/// The holder of a token, as the ledger and the audit name it.
pub(crate) fn holder(token: TokenId) -> Result<Caller, CommandError> {
    let actor = Actor::parse(&format!("session-token:{token}"))
        .map_err(|error| CommandError::Internal(error.to_string()))?;
    Ok(Caller {
        actor,
        tenant: None,
        request: CorrelationId::new(Uuid::now_v7()),
    })
}

fn is_usable(session: &Session, token: &Token, now: DateTime<Utc>) -> bool {
    token.is_live(now) && !session.ended() && !gate::is_due(session, now)
}

async fn mint(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: MintToken,
) -> Result<MintedToken, CommandError> {
    let checked = decide::check(request)?;
    inner.expire_if_due(caller, id).await?;
    let secret = secret()?;
    let digest = digest(secret.as_bytes());
    let token = TokenId(Uuid::new_v4());
    let now = inner.clock.now();
    let turn = inner.turns.take(id).await;
    inner
        .book
        .decide(caller, id, |session| {
            let world = inner.book.world();
            let tokens = world.tokens.of_session(id);
            decide::mint(session, &tokens, &checked, token, &digest, now)
        })
        .await?;
    drop(turn);
    let token = inner.book.world().tokens.get(id, token).cloned();
    // Its session may have been cleaned up meanwhile.
    let token = token.ok_or(CommandError::NotFound(id))?;
    Ok(MintedToken { token, secret })
}

async fn revoke(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    token: TokenId,
) -> Result<(), CommandError> {
    let revoked = Event::TokenRevoked(TokenRevoked { token_id: token });
    inner
        .book
        .decide_all(caller, id, |_| {
            let known = inner.book.world().tokens.get(id, token).cloned();
            match known {
                None => Err(CommandError::TokenNotFound(token)),
                Some(known) if known.revoked => Ok(Decided::done(Vec::new())),
                Some(_) => Ok(Decided::done(vec![Entry::new(revoked.clone())])),
            }
        })
        .await?;
    Ok(())
}

async fn refused(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    token: TokenId,
    request: RefusedRequest,
) -> Result<(), CommandError> {
    let refused = Event::TokenRefused(TokenRefused {
        token_id: token,
        method: request.method,
        path: request.path,
        reason: request.reason,
    });
    inner
        .book
        .decide_all(caller, id, |_| {
            let known = inner.book.world().tokens.get(id, token).cloned();
            let counts = known.is_some_and(|it| it.refusals < TOKEN_REFUSALS_RECORDED_MAX);
            let entry = counts.then(|| Entry::new(refused.clone()));
            Ok(Decided::done(entry.into_iter().collect()))
        })
        .await?;
    Ok(())
}

fn secret() -> Result<String, CommandError> {
    let mut bytes = [0_u8; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| CommandError::Internal(error.to_string()))?;
    Ok(format!("{TOKEN_PREFIX}{}", hex::encode(bytes)))
}

fn digest(secret: &[u8]) -> String {
    hex::encode(Sha256::digest(secret))
}
