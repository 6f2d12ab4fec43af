//! `GET /v1/health`: open, always 200, and answered from memory.

use agentd_protocol::DiskHealth;
use agentd_protocol::Health;
use hyper::StatusCode;
use hyper::header::HeaderName;
use hyper::header::HeaderValue;

use super::VERSION;
use crate::app::App;
use crate::capabilities::can_power_off;
use crate::identity::Repair;
use crate::respond;
use crate::respond::Answer;
use crate::settings::DefaultUser;

pub(super) fn answer(app: &App) -> Answer {
    let (execs, busy) = app.registry.activity();
    let hooks = app.hook_log.borrow();
    let repair = app.repair.borrow();
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let health = Health {
        version: VERSION.into(),
        bootstrapped: app.bootstrap.borrow().is_done(),
        disk: disk(app.settings.disk_reserve_bytes),
        identity_degraded: repair.as_ref().is_some_and(Repair::is_degraded),
        identity_repaired: repair.is_some(),
        identity_steps: repair
            .as_ref()
            .map_or(vec![], |repair| repair.steps.clone()),
        busy,
        execs: count(execs),
        hooks: hooks.entries().to_vec(),
        hooks_dropped: hooks.dropped(),
        image_env_keys: Some(count(app.image_env_keys)),
    };
    let mut answer = respond::json(StatusCode::OK, &health);
    let mut say = |name: &'static str| {
        let name = HeaderName::from_static(name);
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static("1"));
    };
    if app.settings.default_user != DefaultUser::Daemon {
        say("microvms-default-user-configured");
    }
    if can_power_off() {
        say("microvm-poweroff-on-exit");
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
