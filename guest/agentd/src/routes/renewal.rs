//! The two routes around a memory checkpoint: falling silent before it, and another identity for
//! what was made from it.

use std::rc::Rc;
use std::time::Duration;

use agentd_protocol::IdentityRequest;
use agentd_protocol::IdentityState;
use agentd_protocol::QuiesceRequest;
use agentd_protocol::QuiesceState;
use agentd_protocol::Slug;
use agentd_protocol::limits::ENTROPY_BYTES;
use agentd_protocol::limits::QUIESCE_HOLD;
use agentd_protocol::limits::QUIESCE_HOLD_MAX;
use agentd_protocol::limits::QUIESCE_WAIT_MAX;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Incoming;
use tokio::sync::watch;

use super::exec::malformed;
use super::exec::parse;
use super::exec::read_json;
use crate::app::App;
use crate::auth::NewIdentity;
use crate::auth::Renewal;
use crate::exec::Refusal;
use crate::identity;
use crate::identity::Fresh;
use crate::identity::OwnMachine;
use crate::identity::Repair;
use crate::identity::is_first_process;
use crate::respond;
use crate::respond::Answer;
use crate::server::Place;

/// Bytes of a host name that the kernel takes.
const HOSTNAME_BYTES_MAX: usize = 64;

/// An identity that was taken, or is being.
pub(crate) type Renewing = watch::Receiver<Option<IdentityState>>;

/// Takes another identity. The token changes at once and with it everybody's access; what of the
/// machine changes with it is done when the answer comes.
pub(super) async fn take(app: &Rc<App>, place: &Place, request: Request<Incoming>) -> Answer {
    let bytes = match read_json(app, request).await {
        Ok(bytes) => bytes,
        Err(answer) => return answer,
    };
    match begin(app, place, &bytes) {
        Ok(mut renewing) => match renewing.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(state)) => respond::closing(respond::json(StatusCode::OK, state)),
            Ok(None) | Err(_) => respond::empty(StatusCode::INTERNAL_SERVER_ERROR),
        },
        Err(refusal) => respond::refused(&refusal),
    }
}

fn begin(app: &Rc<App>, place: &Place, bytes: &[u8]) -> Result<Renewing, Refusal> {
    let request: IdentityRequest = parse(bytes)?;
    let fresh = check(&request)?;
    let renewal = app.bootstrap.borrow_mut().renew(NewIdentity {
        generation: request.generation,
        token: &request.agent_token,
        env: request.env,
        identity: request.identity.as_ref(),
    });
    match renewal {
        Renewal::Taken => {}
        Renewal::Repeated => {
            let known = app.renewal.borrow().clone();
            return known.ok_or_else(|| conflict(request.generation));
        }
        Renewal::Conflicted { generation } => return Err(conflict(generation)),
    }
    tracing::info!(generation = request.generation, "another identity");
    app.connections.cut_others(place);
    let (taken, renewing) = watch::channel(None);
    *app.renewal.borrow_mut() = Some(renewing.clone());
    let app = Rc::clone(app);
    // A task of its own: who this guest is has to be whole, whether the host waits or not.
    tokio::task::spawn_local(async move {
        let repair = renew_machine(fresh).await;
        let steps = repair
            .as_ref()
            .map_or(vec![], |repair| repair.steps.clone());
        if repair.is_some() {
            *app.repair.borrow_mut() = repair;
        }
        let generation = request.generation;
        taken.send_replace(Some(IdentityState { generation, steps }));
    });
    Ok(renewing)
}

async fn renew_machine(fresh: Fresh) -> Option<Repair> {
    if !is_first_process() {
        tracing::warn!("this is not the first process of a machine: its identity stays as it is");
        return None;
    }
    tokio::task::spawn_blocking(move || identity::renew(&OwnMachine, &fresh))
        .await
        .ok()
}

/// What of a request the types do not say.
fn check(request: &IdentityRequest) -> Result<Fresh, Refusal> {
    if request.agent_token.expose().is_empty() {
        return Err(malformed("`agent_token` is empty"));
    }
    let entropy = base64_simd::STANDARD
        .decode_to_vec(request.entropy_b64.as_bytes())
        .ok()
        .filter(|bytes| ENTROPY_BYTES.contains(&bytes.len()))
        .ok_or_else(|| malformed("`entropy_b64` is not standard base64 of 32 to 512 bytes"))?;
    let digits = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    if let Some(id) = &request.machine_id
        && !(id.len() == 32 && digits(id))
    {
        return Err(malformed("`machine_id` is not 32 hexadecimal digits"));
    }
    if let Some(id) = &request.boot_id
        && !(id.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && id.split('-').all(digits))
    {
        return Err(malformed("`boot_id` is not an id as the kernel writes it"));
    }
    if let Some(name) = &request.hostname
        && !is_hostname(name)
    {
        return Err(malformed(
            "`hostname` is not a host's name of at most 64 bytes",
        ));
    }
    Ok(Fresh {
        entropy,
        machine_id: request.machine_id.clone(),
        hostname: request.hostname.clone(),
        boot_id: request.boot_id.clone(),
        since_epoch: request.unix_ms.map(Duration::from_millis),
    })
}

fn is_hostname(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !name.is_empty() && name.len() <= HOSTNAME_BYTES_MAX && name.bytes().all(allowed)
}

fn conflict(generation: u64) -> Refusal {
    let detail = format!("this guest's identity is {generation}, and only a later one can follow");
    Refusal::new(Slug::GenerationConflict, detail)
}

/// Falls silent: ends every other connection, and holds what their readers have still to get. The
/// answer is the last that is said before its connection closes too.
pub(super) async fn quiesce(app: &App, place: &Place, request: Request<Incoming>) -> Answer {
    let bytes = match read_json(app, request).await {
        Ok(bytes) => bytes,
        Err(answer) => return answer,
    };
    let asked = if bytes.is_empty() {
        Ok(QuiesceRequest::default())
    } else {
        parse(&bytes)
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(refusal) => return respond::refused(&refusal),
    };
    let hold = asked.hold_ms.map_or(QUIESCE_HOLD, Duration::from_millis);
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let held = count(app.registry.hold_followed(hold.min(QUIESCE_HOLD_MAX)));
    app.connections.cut_others(place);
    let connections_left = count(app.connections.others_ended(QUIESCE_WAIT_MAX).await);
    let state = QuiesceState {
        connections_left,
        held,
        running: count(app.registry.running()),
    };
    respond::closing(respond::json(StatusCode::OK, &state))
}

#[cfg(test)]
mod tests {
    use agentd_protocol::AgentToken;

    use super::*;

    fn refusal(change: impl FnOnce(&mut IdentityRequest)) -> Option<String> {
        let entropy = base64_simd::STANDARD.encode_to_string([7; 32]);
        let mut request = IdentityRequest::new(1, AgentToken::new("t"), entropy);
        request.machine_id = Some("0123456789abcdef".repeat(2));
        request.boot_id = Some("01234567-89ab-cdef-0123-456789abcdef".into());
        request.hostname = Some("a-1.b_2".into());
        change(&mut request);
        check(&request).err().map(|refusal| refusal.detail)
    }

    #[test]
    fn a_new_identity_is_checked_field_by_field_and_no_value_is_quoted() {
        assert_eq!(refusal(|_| {}), None);
        type Change = fn(&mut IdentityRequest);
        let changes: [(&str, Change); 9] = [
            ("agent_token", |r| r.agent_token = AgentToken::new("")),
            ("entropy_b64", |r| r.entropy_b64 = "QQ==".into()),
            ("entropy_b64", |r| r.entropy_b64 = "secret!".into()),
            ("machine_id", |r| r.machine_id = Some("secret".into())),
            ("machine_id", |r| r.machine_id = Some("A".repeat(32))),
            ("boot_id", |r| r.boot_id = Some("secret".into())),
            ("hostname", |r| r.hostname = Some(String::new())),
            ("hostname", |r| r.hostname = Some("secret name".into())),
            ("hostname", |r| r.hostname = Some("h".repeat(65))),
        ];
        for (field, change) in changes {
            let detail = refusal(change).unwrap();
            assert!(detail.contains(field), "{detail}");
            assert!(!detail.contains("secret"), "{detail}");
        }
    }
}
