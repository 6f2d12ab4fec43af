//! Session tokens: made once, listed without their secrets, ended.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fluxvm_api_types::List;
use fluxvm_api_types::MintTokenRequest;
use fluxvm_api_types::TokenView;
use fluxvm_api_types::WholeSeconds;
use fluxvm_api_types::rfc3339;
use fluxvm_commands::MintToken;
use fluxvm_projections::Token;
use fluxvm_projections::TokenId;

use super::StrictBody;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Below;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

pub(super) async fn mint(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<MintTokenRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let request = MintToken {
        ops: body.value.ops,
        ttl_seconds: body.value.ttl_seconds.map(WholeSeconds::get),
        label: body.value.label,
    };
    let work = async move { Ok(engine.mint_token(&caller, id, request).await?) };
    let minted = app.detached(work).await?;
    let view = TokenView {
        token: Some(minted.secret),
        ..view(&minted.token)
    };
    let body = serde_json::to_vec(&view).map_err(|_| ApiError::internal())?;
    let response = status::answer(Success::Created, JSON, body.into());
    Ok(status::not_stored(response))
}

pub(super) async fn list(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    engine.session(&caller, id).await?;
    let tokens = engine.tokens(&caller, id)?;
    let list = List {
        items: tokens.iter().map(view).collect(),
    };
    let body = serde_json::to_vec(&list).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}

pub(super) async fn revoke(
    State(app): State<App>,
    Admin(caller): Admin,
    Below(id, token): Below<TokenId>,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let work = async move { Ok(engine.revoke_token(&caller, id, token).await?) };
    app.detached(work).await?;
    Ok(status::no_content())
}

fn view(token: &Token) -> TokenView {
    TokenView {
        id: token.id.0,
        token: None,
        ops: token.ops.clone(),
        label: token.label.clone(),
        created_at: rfc3339(&token.created_at),
        expires_at: rfc3339(&token.expires_at),
    }
}
