//! `GET /v1/health`: open, always 200, and answered from memory.

use agentd_protocol::DiskHealth;
use agentd_protocol::Health;
use hyper::StatusCode;

use super::VERSION;
use crate::app::App;
use crate::respond;
use crate::respond::Answer;

pub(super) fn answer(app: &App) -> Answer {
    let (execs, busy) = app.registry.activity();
    let hooks = app.hook_log.borrow();
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let health = Health {
        version: VERSION.into(),
        bootstrapped: app.bootstrap.is_done(),
        disk: disk(app.settings.disk_reserve_bytes),
        // Nothing repairs a guest's identity yet, and this says so.
        identity_degraded: false,
        identity_repaired: false,
        identity_steps: Vec::new(),
        busy,
        execs: count(execs),
        hooks: hooks.entries().to_vec(),
        hooks_dropped: hooks.dropped(),
        image_env_keys: Some(count(app.image_env_keys)),
    };
    let mut answer = respond::json(StatusCode::OK, &health);
    if app.settings.default_user.is_some() {
        let name = hyper::header::HeaderName::from_static("microvms-default-user-configured");
        answer
            .headers_mut()
            .insert(name, hyper::header::HeaderValue::from_static("1"));
    }
    answer
}

fn disk(reserve_bytes: u64) -> Option<DiskHealth> {
    let figures = nix::sys::statvfs::statvfs(".").ok()?;
    let available_bytes = figures
        .blocks_available()
        .saturating_mul(figures.fragment_size());
    let under_pressure = available_bytes < reserve_bytes;
    Some(DiskHealth {
        available_bytes,
        reserve_bytes,
        under_pressure,
    })
}
