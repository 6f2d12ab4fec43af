//! What a session's sandbox has to work with.

use std::collections::BTreeMap;

use fluxvm_projections::SessionId;

use crate::caller::Caller;
use crate::capture;
use crate::capture::Fixed;
use crate::confinement;
use crate::confinement::Runs;
use crate::engine::Engine;
use crate::error::CommandError;
use crate::guest;

/// The programs that are looked for.
const TOOLS: [&str; 13] = [
    "git",
    "sha256sum",
    "python3",
    "node",
    "npm",
    "cargo",
    "go",
    "gcc",
    "make",
    "chromium",
    "google-chrome",
    "socat",
    "playwright",
];

/// The name under which the browsers of playwright are told.
const BROWSERS: &str = "playwright_browsers";

/// Prints where each of its arguments is, then where playwright keeps browsers.
const SCRIPT: &str = "for tool; do path=$(command -v \"$tool\") && printf '%s=%s\\n' \"$tool\" \"$path\"; done\n\
    cache=${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}\n\
    [ -d \"$cache\" ] && printf 'playwright_browsers=%s\\n' \"$cache\"\nexit 0";

/// Bytes that are read of what it prints: a dozen paths.
const PRINTED_BYTES_MAX: usize = 64 * 1024;

/// What is there, and what that is enough for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// Where each tool is; `None` where it is not.
    pub tools: BTreeMap<&'static str, Option<String>>,
    /// What can be done with them.
    pub ready_for: BTreeMap<&'static str, bool>,
}

impl Engine {
    /// Looks at what a session's sandbox has to work with.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotRunning`, `Guest`.
    pub async fn probe(&self, caller: &Caller, id: SessionId) -> Result<ProbeAnswer, CommandError> {
        let seat = guest::seat(&self.inner, caller, id).await?;
        let mut words = vec!["/bin/sh", "-c", SCRIPT, "probe"];
        words.extend(TOOLS);
        let fixed = Fixed {
            words: words.into_iter().map(str::to_owned).collect(),
            env: Vec::new(),
            stdout_bytes_max: PRINTED_BYTES_MAX,
            confine: confinement::of_session(&seat.session, Runs::Helper),
        };
        let captured = capture::capture(seat.sandbox.as_ref(), fixed).await?;
        // Where there is no shell there is nothing that one could find.
        let printed = captured.map(|captured| captured.stdout).unwrap_or_default();
        Ok(answer(&String::from_utf8_lossy(&printed)))
    }
}

/// What the printed paths amount to. Pure.
fn answer(printed: &str) -> ProbeAnswer {
    let found: BTreeMap<&str, &str> = printed
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let tools = TOOLS.into_iter().chain([BROWSERS]);
    let tools: BTreeMap<&'static str, Option<String>> = tools
        .map(|tool| (tool, found.get(tool).map(|path| (*path).to_owned())))
        .collect();
    let has = |tool: &str| found.contains_key(tool);
    let browser = has("chromium") || has("google-chrome");
    let ready_for = BTreeMap::from([
        ("git", has("git")),
        ("promote", has("sha256sum")),
        ("build_node", has("node") && has("npm")),
        ("build_python", has("python3")),
        ("build_rust", has("cargo")),
        ("build_go", has("go")),
        ("build_c", has("gcc") && has("make")),
        ("browser_cdp", browser),
        ("browser_cdp_through_preview", browser && has("socat")),
        ("playwright", has("playwright") && has(BROWSERS)),
    ]);
    ProbeAnswer { tools, ready_for }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_enough_for_what_needs_nothing_else() {
        let probed = answer("git=/usr/bin/git\ngcc=/usr/bin/gcc\nchromium=/usr/bin/chromium\n");
        let ready: Vec<_> = probed
            .ready_for
            .iter()
            .filter(|(_, ready)| **ready)
            .collect();
        assert_eq!(ready, [(&"browser_cdp", &true), (&"git", &true)]);
        assert_eq!(probed.tools["git"].as_deref(), Some("/usr/bin/git"));
        assert_eq!(probed.tools["make"], None);
    }
}
