//! What holds for every route, before any of them does anything.

use axum::body::Body;
use axum::body::to_bytes;
use axum::http::Request;
use axum::response::Response;
use expect_test::Expect;
use expect_test::expect;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::router;
use crate::app::App;
use crate::auth::Authenticator;
use crate::config::Role;
use crate::config::TokenConfig;
use crate::metrics::Metrics;

const ADMIN: &str = "fxad_admin-token";
const TENANT: &str = "a-tenants-admin-token";
const READ_ONLY: &str = "a-read-only-token";
const SESSION: &str = "/v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001";

/// An app without its engine, as it is between the first connection and the end of recovery.
fn starting(metrics_are_public: bool) -> App {
    let token = |token: &str, role, tenant: Option<&str>| TokenConfig {
        token: token.into(),
        role,
        name: None,
        tenant: tenant.map(Into::into),
    };
    let configured = [
        token(TENANT, Role::Admin, Some("a")),
        token(READ_ONLY, Role::ReadOnly, None),
    ];
    let auth = Authenticator::with_tokens(ADMIN, &configured);
    App::new(auth, None, Metrics::new().0, metrics_are_public)
}

async fn send(app: App, request: Request<Body>) -> Response {
    TowerToHyperService::new(router(app))
        .call(request)
        .await
        .expect("infallible")
}

/// One request per line, `METHOD path [token]`, and what is answered.
async fn check(lines: &[&str], expected: Expect) {
    let mut answers = String::new();
    for line in lines {
        let mut words = line.split(' ');
        let (method, path) = (words.next().expect("method"), words.next().expect("path"));
        let mut request = Request::builder().method(method).uri(path);
        let token = match words.next() {
            Some("admin") => Some(ADMIN),
            Some("tenant") => Some(TENANT),
            Some("read-only") => Some(READ_ONLY),
            other => other,
        };
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = send(
            starting(false),
            request.body(Body::empty()).expect("request"),
        )
        .await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 4096).await.expect("body");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let word = body
            .get("code")
            .or(body.get("status"))
            .expect("a code or a status");
        answers.push_str(&format!(
            "{line}: {status} {}\n",
            word.as_str().expect("text")
        ));
    }
    expected.assert_eq(&answers);
}

#[tokio::test]
async fn what_is_done_to_the_ledger_is_for_admins_without_a_tenant_and_proofs_are_for_any_token() {
    let mut lines = Vec::new();
    for path in [
        "GET /v1/ledger/events",
        "POST /v1/ledger/redact",
        "POST /v1/ledger/holds",
        "GET /v1/ledger/holds",
        "DELETE /v1/ledger/holds/7",
        "POST /v1/ledger/rotate-key",
        "GET /v1/ledger/checkpoint",
        "GET /v1/ledger/proof/7",
        "GET /v1/ledger/consistency",
        "GET /v1/ledger/key",
    ] {
        for caller in ["", " read-only", " tenant", " admin"] {
            lines.push(format!("{path}{caller}"));
        }
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    check(
        &lines,
        expect![[r#"
        GET /v1/ledger/events: 401 unauthorized
        GET /v1/ledger/events read-only: 403 forbidden
        GET /v1/ledger/events tenant: 403 forbidden
        GET /v1/ledger/events admin: 503 starting
        POST /v1/ledger/redact: 401 unauthorized
        POST /v1/ledger/redact read-only: 403 forbidden
        POST /v1/ledger/redact tenant: 403 forbidden
        POST /v1/ledger/redact admin: 503 starting
        POST /v1/ledger/holds: 401 unauthorized
        POST /v1/ledger/holds read-only: 403 forbidden
        POST /v1/ledger/holds tenant: 403 forbidden
        POST /v1/ledger/holds admin: 503 starting
        GET /v1/ledger/holds: 401 unauthorized
        GET /v1/ledger/holds read-only: 403 forbidden
        GET /v1/ledger/holds tenant: 403 forbidden
        GET /v1/ledger/holds admin: 503 starting
        DELETE /v1/ledger/holds/7: 401 unauthorized
        DELETE /v1/ledger/holds/7 read-only: 403 forbidden
        DELETE /v1/ledger/holds/7 tenant: 403 forbidden
        DELETE /v1/ledger/holds/7 admin: 503 starting
        POST /v1/ledger/rotate-key: 401 unauthorized
        POST /v1/ledger/rotate-key read-only: 403 forbidden
        POST /v1/ledger/rotate-key tenant: 403 forbidden
        POST /v1/ledger/rotate-key admin: 503 starting
        GET /v1/ledger/checkpoint: 401 unauthorized
        GET /v1/ledger/checkpoint read-only: 503 starting
        GET /v1/ledger/checkpoint tenant: 503 starting
        GET /v1/ledger/checkpoint admin: 503 starting
        GET /v1/ledger/proof/7: 401 unauthorized
        GET /v1/ledger/proof/7 read-only: 503 starting
        GET /v1/ledger/proof/7 tenant: 503 starting
        GET /v1/ledger/proof/7 admin: 503 starting
        GET /v1/ledger/consistency: 401 unauthorized
        GET /v1/ledger/consistency read-only: 503 starting
        GET /v1/ledger/consistency tenant: 503 starting
        GET /v1/ledger/consistency admin: 503 starting
        GET /v1/ledger/key: 401 unauthorized
        GET /v1/ledger/key read-only: 503 starting
        GET /v1/ledger/key tenant: 503 starting
        GET /v1/ledger/key admin: 503 starting
    "#]],
    )
    .await;
}

#[tokio::test]
async fn who_may_do_what() {
    let paths = [
        format!("GET {SESSION}"),
        format!("DELETE {SESSION}"),
        format!("GET {SESSION}/events"),
        format!("GET {SESSION}/events/stream"),
        format!("GET {SESSION}/export"),
        "GET /v1/agents/sessions".to_owned(),
        "GET /v1/ledger/export".to_owned(),
        "GET /v1/ledger/info".to_owned(),
        "GET /v1/capabilities".to_owned(),
    ];
    let callers = ["", " nobody-has-this", " read-only", " tenant", " admin"];
    let lines: Vec<String> = paths
        .iter()
        .flat_map(|path| callers.iter().map(move |caller| format!("{path}{caller}")))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    check(&lines, expect![[r#"
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 nobody-has-this: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 read-only: 403 forbidden
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 tenant: 503 starting
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 admin: 503 starting
        DELETE /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001: 401 unauthorized
        DELETE /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 nobody-has-this: 401 unauthorized
        DELETE /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 read-only: 403 forbidden
        DELETE /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 tenant: 503 starting
        DELETE /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001 admin: 503 starting
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events nobody-has-this: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events read-only: 403 forbidden
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events tenant: 503 starting
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events admin: 503 starting
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events/stream: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events/stream nobody-has-this: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events/stream read-only: 403 forbidden
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events/stream tenant: 503 starting
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/events/stream admin: 503 starting
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/export: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/export nobody-has-this: 401 unauthorized
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/export read-only: 403 forbidden
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/export tenant: 503 starting
        GET /v1/agents/sessions/0c1d2e3f-0000-4000-8000-000000000001/export admin: 503 starting
        GET /v1/agents/sessions: 401 unauthorized
        GET /v1/agents/sessions nobody-has-this: 401 unauthorized
        GET /v1/agents/sessions read-only: 403 forbidden
        GET /v1/agents/sessions tenant: 503 starting
        GET /v1/agents/sessions admin: 503 starting
        GET /v1/ledger/export: 401 unauthorized
        GET /v1/ledger/export nobody-has-this: 401 unauthorized
        GET /v1/ledger/export read-only: 403 forbidden
        GET /v1/ledger/export tenant: 403 forbidden
        GET /v1/ledger/export admin: 503 starting
        GET /v1/ledger/info: 401 unauthorized
        GET /v1/ledger/info nobody-has-this: 401 unauthorized
        GET /v1/ledger/info read-only: 503 starting
        GET /v1/ledger/info tenant: 503 starting
        GET /v1/ledger/info admin: 503 starting
        GET /v1/capabilities: 401 unauthorized
        GET /v1/capabilities nobody-has-this: 401 unauthorized
        GET /v1/capabilities read-only: 503 starting
        GET /v1/capabilities tenant: 503 starting
        GET /v1/capabilities admin: 503 starting
    "#]]).await;
}

#[tokio::test]
async fn every_error_has_a_code_whatever_is_asked() {
    check(
        &[
            "GET /healthz",
            "GET /readyz",
            "POST /healthz",
            "GET /nothing",
            "GET /nothing admin",
            "PUT /v1/agents/sessions admin",
            "POST /v1/ledger/info admin",
            "GET /v1/agents/sessions/nope admin",
            "GET /v1/agents/sessions/0C1D2E3F-0000-4000-8000-000000000001 admin",
            "GET /v1/agents/sessions/%ff admin",
            "GET /v1/agents/sessions/../../etc admin",
            "BREW /v1/agents/sessions admin",
            "GET /metrics",
        ],
        expect![[r#"
            GET /healthz: 200 ok
            GET /readyz: 503 starting
            POST /healthz: 405 method_not_allowed
            GET /nothing: 401 unauthorized
            GET /nothing admin: 404 not_found
            PUT /v1/agents/sessions admin: 405 method_not_allowed
            POST /v1/ledger/info admin: 405 method_not_allowed
            GET /v1/agents/sessions/nope admin: 404 session_not_found
            GET /v1/agents/sessions/0C1D2E3F-0000-4000-8000-000000000001 admin: 404 session_not_found
            GET /v1/agents/sessions/%ff admin: 404 not_found
            GET /v1/agents/sessions/../../etc admin: 404 not_found
            BREW /v1/agents/sessions admin: 405 method_not_allowed
            GET /metrics: 401 unauthorized
        "#]],
    )
    .await;
}

#[tokio::test]
async fn metrics_are_open_only_where_nobody_else_can_reach_them() {
    let request = || {
        Request::get("/metrics")
            .body(Body::empty())
            .expect("request")
    };
    assert_eq!(send(starting(true), request()).await.status(), 200);
    assert_eq!(send(starting(false), request()).await.status(), 401);
}

#[tokio::test]
async fn a_request_keeps_the_id_that_its_caller_gave_it() {
    let id = "0c1d2e3f-0000-4000-8000-000000000002";
    let with = async |value: &str| {
        let request = Request::get("/healthz").header("x-request-id", value);
        let response = send(
            starting(false),
            request.body(Body::empty()).expect("request"),
        )
        .await;
        response.headers()["x-request-id"]
            .to_str()
            .expect("text")
            .to_owned()
    };
    assert_eq!(with(id).await, id);
    let minted = with("not one").await;
    assert!(
        uuid::Uuid::try_parse(&minted).is_ok_and(|id| !id.is_nil()),
        "{minted}"
    );
}

#[tokio::test]
async fn a_refused_token_says_how_to_do_better() {
    let response = send(
        starting(false),
        Request::get(SESSION).body(Body::empty()).expect("request"),
    )
    .await;
    assert_eq!(
        response.headers()["www-authenticate"],
        "Bearer realm=\"fluxvm\""
    );
    assert_eq!(response.headers()["content-type"], "application/json");
}
