//! A measured figure and how it is printed.

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets;
use serde_json::Value;
use serde_json::json;

/// What was measured.
#[derive(Clone)]
pub(crate) enum Measure {
    /// How long one took, each in the order measured.
    Latency(Vec<Duration>),
    /// How many a second.
    Rate {
        /// How many there were.
        count: usize,
        /// How long they took together.
        took: Duration,
        /// What was counted, in the plural.
        unit: &'static str,
    },
    /// How much there is, in MiB.
    Mebibytes(f64),
}

/// One line of the report.
#[derive(Clone)]
pub(crate) struct Figure {
    name: String,
    measure: Measure,
    target: Option<String>,
    peer: Option<(String, f64)>,
}

impl Figure {
    pub(crate) fn latency(name: impl Into<String>, samples: Vec<Duration>) -> Self {
        let mut samples = samples;
        samples.sort_unstable();
        Self::new(name, Measure::Latency(samples))
    }

    pub(crate) fn rate(
        name: impl Into<String>,
        count: usize,
        took: Duration,
        unit: &'static str,
    ) -> Self {
        Self::new(name, Measure::Rate { count, took, unit })
    }

    pub(crate) fn mebibytes(name: impl Into<String>, mebibytes: f64) -> Self {
        Self::new(name, Measure::Mebibytes(mebibytes))
    }

    pub(crate) fn target(mut self, target: &str) -> Self {
        self.target = Some(target.to_owned());
        self
    }

    /// Names the peer of the same run; the ratio is this figure over the peer's, at the median.
    pub(crate) fn against(mut self, peer: &Figure) -> Self {
        if let (Some(own), Some(other)) = (self.median_value(), peer.median_value()) {
            self.peer = Some((peer.name.clone(), own / other));
        }
        self
    }

    fn new(name: impl Into<String>, measure: Measure) -> Self {
        Self {
            name: name.into(),
            measure,
            target: None,
            peer: None,
        }
    }

    fn median_value(&self) -> Option<f64> {
        match &self.measure {
            Measure::Latency(samples) => percentile(samples, 50).map(|it| it.as_secs_f64()),
            Measure::Rate { count, took, .. } => Some(*count as f64 / took.as_secs_f64()),
            Measure::Mebibytes(mebibytes) => Some(*mebibytes),
        }
    }

    fn row(&self) -> Vec<String> {
        let mut row = vec![self.name.clone()];
        match &self.measure {
            Measure::Latency(samples) => {
                row.push(samples.len().to_string());
                row.extend([50, 95, 99].map(|p| {
                    percentile(samples, p)
                        .map_or_else(String::new, |it| format!("{:.2} ms", ms(it)))
                }));
            }
            Measure::Rate { count, took, unit } => {
                let rate = *count as f64 / took.as_secs_f64();
                row.extend([count.to_string(), format!("{rate:.0} {unit}/s")]);
                row.extend([String::new(), String::new()]);
            }
            Measure::Mebibytes(mebibytes) => {
                row.extend([String::new(), format!("{mebibytes:.1} MiB")]);
                row.extend([String::new(), String::new()]);
            }
        }
        row.push(self.target.clone().unwrap_or_default());
        row.push(match &self.peer {
            Some((peer, ratio)) => format!("{ratio:.2} x {peer}"),
            None => String::new(),
        });
        row
    }

    fn json(&self) -> Value {
        let mut value = match &self.measure {
            Measure::Latency(samples) => {
                let at = |p| percentile(samples, p).map(ms);
                json!({"n": samples.len(), "p50_ms": at(50), "p95_ms": at(95), "p99_ms": at(99)})
            }
            Measure::Rate { count, took, unit } => {
                let rate = *count as f64 / took.as_secs_f64();
                json!({"n": count, "per_second": rate.round(), "unit": unit})
            }
            Measure::Mebibytes(mebibytes) => json!({"mebibytes": mebibytes}),
        };
        value["name"] = json!(self.name);
        value["target"] = json!(self.target);
        if let Some((peer, ratio)) = &self.peer {
            value["peer"] = json!({"name": peer, "ratio": ratio});
        }
        value
    }
}

/// The report for people.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "what",
        "n",
        "p50",
        "p95",
        "p99",
        "target",
        "ratio, same run",
    ]);
    for figure in figures {
        table.add_row(figure.row());
    }
    table.to_string()
}

/// The report for programs.
pub(crate) fn json(machine: &str, figures: &[Figure]) -> String {
    let figures: Vec<Value> = figures.iter().map(Figure::json).collect();
    json!({"machine": machine, "figures": figures}).to_string()
}

/// The sample below which `percent` of all lie, of sorted samples.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last * percent).div_ceil(100)).copied()
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}
