//! What models used, as their clients or gateways report it.

use fluxvm_projections::Event;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::UsageReported;

use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::CommandError;
use crate::gate;
use crate::limits::AGENT_LABEL_BYTES_MAX;
use crate::limits::USAGE_REPORT_MAX;

/// A report.
#[derive(Clone, Debug, Default)]
pub struct ReportUsage {
    /// The model.
    pub model: Option<String>,
    /// Tokens that it read.
    pub input_tokens: u64,
    /// Tokens that it wrote.
    pub output_tokens: u64,
    /// What it cost, in millionths of a US dollar.
    pub cost_microusd: u64,
}

impl Engine {
    /// Counts what a model used, also past a limit: it was used. What follows is refused then.
    ///
    /// # Errors
    ///
    /// `Invalid` for a field, `NotFound`, `NotRunning`, `Ledger`.
    pub async fn report_usage(
        &self,
        caller: &Caller,
        id: SessionId,
        report: ReportUsage,
    ) -> Result<Session, CommandError> {
        self.run(caller, move |inner, caller| async move {
            let reported = check(report)?;
            inner
                .book
                .decide(&caller, id, |session| {
                    gate::running(session, inner.clock.now())?;
                    Ok(Entry::new(Event::UsageReported(reported.clone())))
                })
                .await?;
            inner.book.session(&caller, id)
        })
        .await
    }
}

fn check(report: ReportUsage) -> Result<UsageReported, CommandError> {
    let numbers = [
        ("input_tokens", report.input_tokens),
        ("output_tokens", report.output_tokens),
        ("cost_usd", report.cost_microusd),
    ];
    if let Some((field, _)) = numbers
        .iter()
        .find(|(_, number)| *number > USAGE_REPORT_MAX)
    {
        let message = "is more than one report can say".to_owned();
        return Err(CommandError::Invalid { field, message });
    }
    let odd = |model: &String| {
        model.is_empty()
            || model.len() > AGENT_LABEL_BYTES_MAX
            || model.chars().any(char::is_control)
    };
    if report.model.as_ref().is_some_and(odd) {
        let message = format!("must be 1 to {AGENT_LABEL_BYTES_MAX} bytes of one line");
        return Err(CommandError::Invalid {
            field: "model",
            message,
        });
    }
    Ok(UsageReported {
        model: report.model,
        input_tokens: report.input_tokens,
        output_tokens: report.output_tokens,
        cost_microusd: report.cost_microusd,
    })
}
