//! Figures for Prometheus, rendered on request.
//!
//! Labels take their values from closed sets: route patterns, methods, statuses. Nothing that a caller
//! chooses becomes a label, and nothing secret becomes a figure.

use std::time::Duration;

use axum::http::Method;
use metrics::counter;
use metrics::gauge;
use metrics::histogram;
use metrics_exporter_prometheus::PrometheusBuilder;
use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::PrometheusRecorder;

/// Upper bounds in seconds, from a syscall to a long command.
const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
];

const REQUESTS: &str = "fluxvm_http_requests_total";
const REQUEST_SECONDS: &str = "fluxvm_http_request_duration_seconds";
const EXEC_SECONDS: &str = "fluxvm_exec_duration_seconds";
const SYNC_SECONDS: &str = "fluxvm_ledger_sync_seconds";
const SESSIONS: &str = "fluxvm_sessions";
const POSITION: &str = "fluxvm_ledger_position";
const LEDGER_BYTES: &str = "fluxvm_ledger_bytes";
const ERASURE_PENDING: &str = "fluxvm_ledger_erasure_pending";
const ARCHIVE_FAILED: &str = "fluxvm_ledger_archive_failed";
const ARCHIVE_POSITION: &str = "fluxvm_ledger_archive_position";
const PUSH_FAILED: &str = "fluxvm_checkpoint_push_failed";
const STREAMS: &str = "fluxvm_event_streams";
const RESIDENT_BYTES: &str = "process_resident_memory_bytes";

/// The figures of one daemon.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

/// What is looked at when somebody asks, and not counted as it happens.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) sessions: Vec<(&'static str, u64)>,
    pub(crate) position: u64,
    pub(crate) ledger_bytes: u64,
    pub(crate) sync_micros: [(&'static str, u64); 2],
    pub(crate) streams: usize,
    pub(crate) erasure_pending: bool,
    pub(crate) archive: Option<ArchiveFigures>,
    /// Whether the last push to each place failed.
    pub(crate) pushes: Vec<(&'static str, bool)>,
}

/// What the archive comes to.
#[derive(Debug)]
pub(crate) struct ArchiveFigures {
    pub(crate) failed: bool,
    pub(crate) position: u64,
}

impl Metrics {
    /// Prepares the figures and the recorder that the whole process reports to.
    pub(crate) fn new() -> (Self, PrometheusRecorder) {
        // The only error is an empty list of buckets, which ours is not; without it there are quantiles.
        let builder = PrometheusBuilder::new()
            .set_buckets(SECONDS)
            .unwrap_or_default();
        let recorder = builder.build_recorder();
        (Self(recorder.handle()), recorder)
    }

    /// Says what each figure is. Once the recorder is installed.
    pub(crate) fn describe(&self) {
        metrics::describe_counter!(REQUESTS, "Requests answered, by route, method and status.");
        metrics::describe_histogram!(REQUEST_SECONDS, "Time to the head of the answer.");
        metrics::describe_histogram!(EXEC_SECONDS, "Time that commands ran in their sandbox.");
        metrics::describe_gauge!(SYNC_SECONDS, "Time that recent ledger syncs took.");
        metrics::describe_gauge!(SESSIONS, "Sessions, by status.");
        metrics::describe_gauge!(POSITION, "Events in the ledger.");
        metrics::describe_gauge!(LEDGER_BYTES, "Size of the ledger on disk.");
        metrics::describe_gauge!(
            ERASURE_PENDING,
            "Whether erased bytes are still in a file of the ledger's."
        );
        metrics::describe_gauge!(ARCHIVE_FAILED, "Whether the ledger's archive has failed.");
        metrics::describe_gauge!(ARCHIVE_POSITION, "Events that are durable in the archive.");
        metrics::describe_gauge!(
            PUSH_FAILED,
            "Whether the last push of a checkpoint failed, by place."
        );
        metrics::describe_gauge!(STREAMS, "Event streams that are open.");
        metrics::describe_gauge!(RESIDENT_BYTES, "Resident memory of the daemon.");
    }

    /// Counts one answered request.
    pub(crate) fn request(&self, route: &str, method: &Method, status: u16, took: Duration) {
        let method = known_method(method);
        let route = route.to_owned();
        let status = status.to_string();
        counter!(REQUESTS, "route" => route.clone(), "method" => method, "status" => status)
            .increment(1);
        histogram!(REQUEST_SECONDS, "route" => route, "method" => method).record(took);
    }

    /// Counts one command.
    pub(crate) fn exec(&self, took: Duration) {
        histogram!(EXEC_SECONDS).record(took);
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn render(&self, snapshot: Option<&Snapshot>) -> String {
        if let Some(snapshot) = snapshot {
            for (status, count) in &snapshot.sessions {
                gauge!(SESSIONS, "status" => *status).set(float(*count));
            }
            gauge!(POSITION).set(float(snapshot.position));
            gauge!(LEDGER_BYTES).set(float(snapshot.ledger_bytes));
            for (quantile, micros) in snapshot.sync_micros {
                gauge!(SYNC_SECONDS, "quantile" => quantile).set(float(micros) / 1e6);
            }
            gauge!(ERASURE_PENDING).set(float(snapshot.erasure_pending.into()));
            if let Some(archive) = &snapshot.archive {
                gauge!(ARCHIVE_FAILED).set(float(archive.failed.into()));
                gauge!(ARCHIVE_POSITION).set(float(archive.position));
            }
            for (to, failed) in &snapshot.pushes {
                gauge!(PUSH_FAILED, "to" => *to).set(float(u64::from(*failed)));
            }
            gauge!(STREAMS).set(float(snapshot.streams as u64));
        }
        if let Some(bytes) = resident_bytes() {
            gauge!(RESIDENT_BYTES).set(float(bytes));
        }
        self.0.render()
    }

    /// Moves what was recorded into the buckets, so that it does not pile up while nobody asks.
    pub(crate) fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// A figure is a float to Prometheus; ours stay far below where that loses ones.
#[expect(
    clippy::cast_precision_loss,
    reason = "the format has no other numbers"
)]
fn float(value: u64) -> f64 {
    value as f64
}

/// A method that nobody knows must not become a label of the caller's choice.
fn known_method(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known
        .into_iter()
        .find(|name| method.as_str() == *name)
        .unwrap_or("other")
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_chooses_a_label() {
        let brew = Method::from_bytes(b"BREW").expect("a method");
        assert_eq!(known_method(&brew), "other");
        assert_eq!(known_method(&Method::DELETE), "DELETE");
    }

    #[test]
    fn the_daemon_knows_how_much_memory_it_holds() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1024 * 1024));
    }
}
