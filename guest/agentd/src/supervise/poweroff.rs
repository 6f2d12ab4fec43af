//! Powering the guest off once an exec's process group has nobody left.

use std::convert::Infallible;
use std::time::Duration;

use libc::pid_t;
use nix::sys::reboot::RebootMode;
use nix::sys::reboot::reboot;

use super::process_table::ProcessTable;
use super::process_table::Scan;
use crate::capabilities::can_power_off;

/// Pause between two looks.
const SCAN_PAUSE: Duration = Duration::from_millis(50);

/// Waits until nobody of the group lives and asks the kernel to power off. Sends no signals, and
/// gives up rather than guess.
pub(crate) async fn power_off_after(group: pid_t) {
    if let Err(error) = wait_until_gone(group).await {
        tracing::error!(%error, group, "the guest stays on: its processes cannot be read");
        return;
    }
    if !can_power_off() {
        tracing::error!("the guest stays on: the right to power it off is gone");
        return;
    }
    tracing::info!(group, "powering off");
    let Err(errno): nix::Result<Infallible> = reboot(RebootMode::RB_POWER_OFF);
    tracing::error!(%errno, "the kernel does not power off");
}

/// Two looks that agree on everybody, and in which the group has no live member: in between
/// nobody was born who could have been missed.
async fn wait_until_gone(group: pid_t) -> std::io::Result<()> {
    let mut before: Option<ProcessTable> = None;
    loop {
        let table = match ProcessTable::scan()? {
            Scan::Whole(table) => Some(table),
            // Somebody ended in the middle of it: nothing can be said from this one.
            Scan::Torn => None,
        };
        if let Some(table) = &table
            && table.group(group).is_empty()
            && before.as_ref() == Some(table)
        {
            return Ok(());
        }
        before = table;
        tokio::time::sleep(SCAN_PAUSE).await;
    }
}
