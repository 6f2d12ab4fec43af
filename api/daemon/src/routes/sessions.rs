//! Sessions: list, get, delete.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Uri;
use axum::http::header;
use axum::response::Response;
use fluxvm_api_types::Dollars;
use fluxvm_api_types::List;
use fluxvm_api_types::UsageRequest;
use fluxvm_commands::ReportUsage;

use super::StrictBody;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::session_view;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

pub(super) async fn list(
    Admin(caller): Admin,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let sessions = engine.sessions(&caller).await?;
    let list = List {
        items: sessions.iter().map(session_view::view).collect(),
    };
    let body = serde_json::to_vec(&list).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}

pub(super) async fn get(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let session = engine.session(&caller, id).await?;
    let body = session_view::to_json(&session).into();
    let answer = status::answer(Success::Done, JSON, body);
    Ok(status::at_revision(answer, session.revision))
}

pub(super) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let revision = if_match(&headers)?;
    let work = async move { Ok(engine.delete_session(&caller, id, revision).await?) };
    app.detached(work).await?;
    Ok(status::no_content())
}

/// `POST …/usage`.
pub(super) async fn usage(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<UsageRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let report = ReportUsage {
        model: body.value.model,
        input_tokens: body.value.input_tokens.unwrap_or(0),
        output_tokens: body.value.output_tokens.unwrap_or(0),
        cost_microusd: body.value.cost_usd.map_or(0, Dollars::microusd),
    };
    let work = async move { Ok(engine.report_usage(&caller, id, report).await?) };
    let session = app.detached(work).await?;
    let usage = serde_json::to_vec(&session_view::view(&session).usage);
    let body = usage.map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}

/// `If-Match`: a revision, bare or quoted as `ETag` has it, or `*`, which every revision matches.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let mut values = headers.get_all(header::IF_MATCH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    let unquoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let text = unquoted.unwrap_or(text);
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match (text, values.next()) {
        ("*", None) => Ok(None),
        (text, None) if digits && text.parse::<u64>().is_ok() => Ok(text.parse().ok()),
        _ => Err(ApiError::invalid_parameter(
            "If-Match",
            "must be one revision, or `*`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_match_takes_a_revision_or_a_star() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::IF_MATCH, value.parse().expect("value"));
            }
            if_match(&headers)
        };
        assert_eq!(read(&[]).expect("none"), None);
        assert_eq!(read(&["*"]).expect("any"), None);
        assert_eq!(read(&["3"]).expect("number"), Some(3));
        assert_eq!(read(&["\"3\""]).expect("as ETag has it"), Some(3));
        for bad in [
            &["\"3"][..],
            &["-1"],
            &["+1"],
            &[""],
            &["3", "4"],
            &["99999999999999999999"],
        ] {
            assert_eq!(
                read(bad).expect_err("refused").code(),
                "invalid_field",
                "{bad:?}"
            );
        }
    }
}
