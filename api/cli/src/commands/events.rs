//! `agent events`, with and without `--follow`, and `agent timeline`.
//!
//! Following promises each event once and none left out, over any break of the connection: the
//! last seq that was printed goes back to the daemon, and what comes again is not printed again.

use std::io::BufReader;
use std::thread;
use std::time::Duration;

use chrono::Utc;
use serde_json::Value;

use super::Context;
use super::sessions;
use crate::args::EventsArgs;
use crate::client::Client;
use crate::client::with_query;
use crate::error::CliError;
use crate::output::note;
use crate::render;
use crate::sse::Frames;

/// Breaks in a row, with no event between them, after which following gives up. With the pauses
/// below that is about half a minute: longer than a restart of the daemon takes.
pub(super) const BREAKS_MAX: u32 = 20;
/// The first pause after a break; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Pages read at most, so that a daemon that repeats itself cannot hold us for ever.
const PAGES_MAX: u32 = 100_000;

/// `agent events`.
pub(super) fn run(context: &Context, args: &EventsArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = sessions::resolve(&client, &args.session.id)?;
    let since = args.since.map(|moment| moment.to_rfc3339(Utc::now()));
    if args.follow {
        let last = args.after;
        return Follow {
            context,
            id,
            since,
            last,
            connected: false,
        }
        .run(client);
    }
    let answer = history(&client, &id, since.as_deref(), args.after)?;
    context.output.show(&answer, |answer, style| {
        render::events::list(render::items(answer, "ledger"), style)
    })?;
    Ok(0)
}

/// `agent timeline`.
pub(super) fn timeline(context: &Context, id: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = sessions::resolve(&client, id)?;
    let answer = history(&client, &id, None, None)?;
    context.output.show(&answer, |answer, style| {
        render::timeline::render(render::items(answer, "ledger"), style)
    })?;
    Ok(0)
}

/// All events of a session, page by page, in the shape of one answer.
fn history(
    client: &Client,
    id: &str,
    since: Option<&str>,
    after: Option<u64>,
) -> Result<Value, CliError> {
    let path = format!("{}/{id}/events", sessions::SESSIONS);
    let page = |after: Option<u64>| {
        let pairs = [
            ("since", since.map(str::to_owned)),
            ("after", after.map(|seq| seq.to_string())),
        ];
        client.get(&with_query(&path, &pairs))
    };
    let mut answer = page(after)?;
    let mut last = last_seq(&answer);
    for _ in 0..PAGES_MAX {
        if last.is_none() {
            break;
        }
        let mut next = page(last)?;
        let newer = last_seq(&next);
        if newer <= last {
            break;
        }
        let more = next.get_mut("ledger").and_then(Value::as_array_mut);
        let all = answer.get_mut("ledger").and_then(Value::as_array_mut);
        if let (Some(all), Some(more)) = (all, more) {
            all.append(more);
        }
        last = newer;
    }
    Ok(answer)
}

fn last_seq(answer: &Value) -> Option<u64> {
    render::items(answer, "ledger")
        .last()
        .and_then(|event| render::number(event, "seq"))
}

/// How a connection of the stream ended.
enum End {
    /// The daemon said why there will be no more.
    Said(String),
    /// It broke, or the daemon only wants us to come again.
    Broke(String),
}

struct Follow<'a> {
    context: &'a Context,
    id: String,
    since: Option<String>,
    /// The last seq that was printed, or after which the person wants to see.
    last: Option<u64>,
    /// Whether the daemon has taken us in once.
    connected: bool,
}

impl Follow<'_> {
    fn run(mut self, first: Client) -> Result<u8, CliError> {
        let mut client = first;
        let mut breaks = 0;
        loop {
            let before = self.last;
            let reason = match self.one_connection(&client) {
                Ok(End::Said(reason)) => {
                    note(&format!("fluxctl: the stream ended: {reason}"));
                    return Ok(0);
                }
                Ok(End::Broke(reason)) => reason,
                // The first connection's failure is the answer; a later one may pass.
                Err(error) if self.connected && may_pass(&error) => error.to_string(),
                Err(error) => return Err(error),
            };
            breaks = if self.last > before { 1 } else { breaks + 1 };
            if breaks > BREAKS_MAX {
                return Err(CliError::Unreachable {
                    url: format!("the event stream of {}", self.id),
                    reason: format!("{BREAKS_MAX} attempts in a row failed; the last: {reason}"),
                });
            }
            thread::sleep(pause(breaks));
            // A daemon that was started anew may listen elsewhere: its state folder says where.
            if let Ok(anew) = self.context.client() {
                client = anew;
            }
        }
    }

    fn one_connection(&mut self, client: &Client) -> Result<End, CliError> {
        let path = format!("{}/{}/events/stream", sessions::SESSIONS, self.id);
        let since = self.since.clone().filter(|_| self.last.is_none());
        let headers: Vec<(&str, String)> = self
            .last
            .iter()
            .map(|seq| ("last-event-id", seq.to_string()))
            .collect();
        let reader = client.stream(&with_query(&path, &[("since", since)]), &headers)?;
        self.connected = true;
        let mut frames = Frames::new(BufReader::new(reader));
        loop {
            let frame = match frames.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(End::Broke("the connection was closed".to_owned())),
                Err(error) => return Ok(End::Broke(error.to_string())),
            };
            let event: Value =
                serde_json::from_str(&frame.data).map_err(|error| CliError::Answer {
                    method: "GET",
                    path: path.clone(),
                    reason: error.to_string(),
                })?;
            match frame.event.as_str() {
                "ledger" => self.print(&event)?,
                "error" => return Ok(ending(&event)),
                _ => {}
            }
        }
    }

    fn print(&mut self, event: &Value) -> Result<(), CliError> {
        let seq = render::number(event, "seq");
        if seq.is_some() && seq <= self.last {
            return Ok(());
        }
        if self.context.output.is_json() {
            self.context.output.json_line(event)?;
        } else {
            self.context.output.text(&render::events::line(event))?;
        }
        self.last = seq.or(self.last);
        Ok(())
    }
}

/// An `error` event ends the stream for good only when the session has ended.
fn ending(event: &Value) -> End {
    let reason = match render::string(event, "error") {
        "" => event.to_string(),
        text => text.to_owned(),
    };
    match render::string(event, "code") {
        "stream_time_limit" | "stream_lagged" | "stopping" => End::Broke(reason),
        _ => End::Said(reason),
    }
}

/// A daemon that is being started anew is not there, or not ready yet.
pub(super) fn may_pass(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Unreachable { .. } | CliError::Api { status: 503, .. }
    )
}

pub(super) fn pause(breaks: u32) -> Duration {
    PAUSE_FIRST
        .saturating_mul(1 << breaks.saturating_sub(1).min(16))
        .min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        assert_eq!(pause(1), PAUSE_FIRST);
        assert_eq!(pause(2), PAUSE_FIRST * 2);
        assert_eq!(pause(BREAKS_MAX), PAUSE_MAX);
    }
}
