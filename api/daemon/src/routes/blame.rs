//! `GET …/blame`: which step last wrote these bytes.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use chrono::SecondsFormat;
use fluxvm_api_types::BlameView;
use fluxvm_api_types::BlamedStepView;
use fluxvm_commands::BlameAnswer;
use fluxvm_commands::BlameQuery;
use fluxvm_commands::BlamedStep;

use super::host::json;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::query::Parameters;
use crate::status::ApiError;
use crate::status::Success;

pub(super) async fn blame(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["path", "line"])?;
    let query = BlameQuery {
        path: parameters.required("path")?.to_owned(),
        line: parameters.number("line")?,
    };
    let work = async move { Ok(engine.blame(&caller, id, query).await?) };
    let answer = app.detached(work).await?;
    json(Success::Done, &view(answer))
}

fn view(answer: BlameAnswer) -> BlameView {
    BlameView {
        path: answer.path,
        line: answer.line,
        text: answer.text,
        exists: answer.exists,
        certainty: answer.certainty.as_str(),
        step: answer.step.map(step),
        candidates: answer.candidates.into_iter().map(step).collect(),
        after: answer.after,
        before: answer.before,
        parent: answer.parent.map(|parent| parent.0),
    }
}

fn step(step: BlamedStep) -> BlamedStepView {
    BlamedStepView {
        seq: step.seq,
        at: step.at.to_rfc3339_opts(SecondsFormat::Millis, true),
        kind: step.kind,
        command: step.words,
    }
}
