//! What an image configures: handlers, identity, users, rights. Each daemon is the first process
//! of namespaces of its own, with folders of its own in the place of the machine's.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing
)]

mod support;

use std::time::Duration;
use std::time::Instant;

use agentd_client::AgentdClient;
use agentd_client::protocol::AgentToken;
use agentd_client::protocol::Health;
use agentd_client::protocol::Hook;
use agentd_client::protocol::IdentityStepOutcome;
use agentd_client::protocol::RunHookPayload;
use support::*;

/// Namespaces in which everything that the daemon may change is the test's own.
const ISOLATED: [&str; 8] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--uts",
    "--pid",
    "--fork",
    "--mount-proc",
];

/// Covers the folders that matter, or ends before the daemon could touch the machine's.
const COVERED: &str = "set -e; umask 022; for folder in /etc /run /var/lib; do \
     mount -t tmpfs none $folder; done; mkdir -p /etc/agentd/hooks.d; \
     echo 'root:x:0:0::/root:/bin/sh' > /etc/passwd; ";

/// A daemon after `prepare` has run as root of its namespaces.
fn isolated(prepare: &str, variables: &[(&str, &str)]) -> Guest {
    let script = format!("{COVERED}{prepare}\nexec \"$0\"");
    let shell = ["sh", "-c", script.as_str()];
    let starter: Vec<&str> = ISOLATED.iter().chain(shell.iter()).copied().collect();
    Guest::under(&starter, variables)
}

/// Whether this machine lets us make namespaces; said loudly when it does not.
fn can_isolate() -> bool {
    let works = std::process::Command::new(ISOLATED[0])
        .args(&ISOLATED[1..])
        .args(["sh", "-c", "mount -t tmpfs none /etc"])
        .status()
        .is_ok_and(|status| status.success());
    if !works {
        eprintln!("SKIPPED: no user namespaces here, so what an image configures is NOT tested");
    }
    works
}

fn launch() -> RunHookPayload {
    let mut payload = RunHookPayload::new(AgentToken::new(TOKEN));
    payload.env.insert("LAUNCHED".into(), "yes".into());
    payload
}

fn handler(hook: &str, script: &str) -> String {
    let path = format!("/etc/agentd/hooks.d/{hook}");
    format!("printf '%s\\n' '#!/bin/sh' '{script}' > {path}; chmod 755 {path};\n")
}

async fn hooked(client: &AgentdClient, hook: Hook) -> Health {
    client.hook(hook).await.unwrap();
    client.health().await.unwrap()
}

#[tokio::test]
async fn handlers_run_at_their_hook_with_its_environment_and_are_recorded() {
    if !can_isolate() {
        return;
    }
    let prepare = [
        handler("run", "env > /run/seen; echo said; exit 3"),
        handler("suspend", "kill -9 $$"),
        handler("ready", "touch /run/never"),
        "echo text > /etc/agentd/hooks.d/resume;\n".to_owned(),
    ]
    .concat();
    let guest = isolated(&prepare, &[("AGENTD_DEFAULT_USER", "root")]);
    let client = guest.client(TOKEN);
    client.hook(Hook::Ready).await.unwrap();
    client.run_hook(&launch()).await.unwrap();
    client.run_hook(&launch()).await.unwrap();
    let health = hooked(&client, Hook::Suspend).await;
    let handlers: Vec<_> = health.hooks.iter().map(|hook| &hook.handler).collect();
    assert!(handlers[0].is_none(), "{handlers:?}");
    let run = handlers[1].as_ref().unwrap();
    assert_eq!(
        (run.exit_code, run.signal, run.timed_out),
        (Some(3), None, false)
    );
    assert!(handlers[2].is_none(), "a repeated launch runs none");
    let suspend = handlers[3].as_ref().unwrap();
    assert_eq!((suspend.exit_code, suspend.signal), (None, Some(9)));

    let seen = support::run(&client, &command(["cat", "/run/seen"])).await;
    let seen = String::from_utf8(seen.stdout).unwrap();
    for pair in [
        "AGENTD_HOOK=run",
        "LAUNCHED=yes",
        "AGENTD_DEFAULT_USER=root",
    ] {
        assert!(seen.lines().any(|line| line == pair), "{pair}: {seen}");
    }
    assert!(!seen.contains(TOKEN));
    assert!(guest.log().contains("said") && !guest.log().contains(TOKEN));
    // One that cannot run says why, and the hook is fine all the same.
    let health = hooked(&client, Hook::Resume).await;
    let resume = health.hooks.last().unwrap().handler.clone().unwrap();
    assert_eq!(resume.exit_code, None);
    assert!(resume.error.is_some(), "{resume:?}");
    // None for this hook.
    let health = hooked(&client, Hook::Terminate).await;
    assert!(health.hooks.last().unwrap().handler.is_none());
    let never = support::run(&client, &command(["ls", "/run/never"])).await;
    assert_ne!(never.code(), Some(0));
}

#[tokio::test]
async fn a_handlers_budget_covers_its_output_and_ends_its_group() {
    if !can_isolate() {
        return;
    }
    let marker = marker();
    // As the kernel lists it; the script that says so is listed too, with a space.
    let sleeping = format!("sleep\0{marker}");
    let left_behind = format!("sleep {marker} & exit 0");
    let prepare = handler("suspend", &left_behind) + &handler("resume", "sleep 300");
    let guest = isolated(&prepare, &[("AGENTD_HOOK_HANDLER_TIMEOUT_SECS", "1")]);
    let client = guest.client(TOKEN);
    for (hook, exit_code, signal) in [
        (Hook::Suspend, Some(0), None),
        (Hook::Resume, None, Some(9)),
    ] {
        let asked = Instant::now();
        let health = hooked(&client, hook).await;
        assert!(asked.elapsed() < Duration::from_secs(5));
        let outcome = health.hooks.last().unwrap().handler.clone().unwrap();
        assert!(
            outcome.timed_out && outcome.duration_ms >= 1000,
            "{outcome:?}"
        );
        assert_eq!((outcome.exit_code, outcome.signal), (exit_code, signal));
    }
    until("the group is gone", || processes_with(&sleeping).is_empty()).await;
}

#[tokio::test]
async fn handlers_stop_when_the_log_is_full_and_the_hook_goes_on() {
    if !can_isolate() {
        return;
    }
    let guest = isolated(&handler("suspend", "echo x >> /run/count"), &[]);
    let client = guest.client(TOKEN);
    for _ in 0..63 {
        client.hook(Hook::Validate).await.unwrap();
    }
    for _ in 0..3 {
        client.hook(Hook::Suspend).await.unwrap();
    }
    let health = client.health().await.unwrap();
    assert_eq!((health.hooks.len(), health.hooks_dropped), (64, 2));
    client.run_hook(&launch()).await.unwrap();
    let count = support::run(&client, &command(["cat", "/run/count"])).await;
    assert_eq!(count.stdout, b"x\n");
}

#[tokio::test]
async fn the_winning_launch_gives_the_guest_an_identity_of_its_own() {
    if !can_isolate() {
        return;
    }
    let prepare = "echo shared > /etc/machine-id; mkdir -p /var/lib/dbus /var/lib/systemd; \
                   echo s > /var/lib/dbus/machine-id; hostname shared;";
    let guest = isolated(prepare, &[("AGENTD_REPAIR_IDENTITY", "true")]);
    let client = guest.client(TOKEN);
    let before = client.health().await.unwrap();
    assert!(!before.identity_repaired && before.identity_steps.is_empty());
    client.run_hook(&launch()).await.unwrap();
    let health = client.health().await.unwrap();
    assert!(health.identity_repaired);
    use IdentityStepOutcome::{NotApplicable, Repaired};
    let steps: Vec<_> = health
        .identity_steps
        .iter()
        .map(|step| (step.name.as_str(), step.outcome))
        .collect();
    assert_eq!(
        steps,
        [
            ("machine-id", Repaired),
            ("hostname", Repaired),
            ("boot-id", Repaired),
            ("random-seed", NotApplicable),
            ("cached-credential", Repaired)
        ]
    );
    assert!(!health.identity_degraded);
    let looked = script(
        "cat /etc/machine-id; hostname; cat /proc/sys/kernel/random/boot_id; \
         stat -c %a /etc/machine-id; ls /var/lib/dbus",
    );
    let said = support::run(&client, &looked).await.stdout;
    let said = String::from_utf8(said).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0].len(), 32);
    assert_eq!(lines[1], format!("microvm-{}", &lines[0][..12]));
    assert_eq!(lines[2].replace('-', ""), lines[0]);
    assert_eq!(lines[3..], ["444"]);
}

#[tokio::test]
async fn a_repair_that_is_switched_off_or_not_the_first_process_changes_nothing() {
    let guest = Guest::bare(&[("AGENTD_REPAIR_IDENTITY", "off")]);
    let client = guest.client(TOKEN);
    client.run_hook(&launch()).await.unwrap();
    assert!(!client.health().await.unwrap().identity_repaired);
}

#[tokio::test]
async fn commands_lose_the_rights_that_reach_past_the_guest() {
    if !can_isolate() {
        return;
    }
    let guest = isolated("", &[("AGENTD_DROP_EXEC_CAPABILITIES", "true")]);
    let client = guest.client(TOKEN);
    client.run_hook(&launch()).await.unwrap();
    let show = script("grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status");
    let said = support::run(&client, &show).await.stdout;
    let said = String::from_utf8(said).unwrap();
    let set = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_ascii_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    let dropped = [16, 17, 19, 21, 22, 38, 39].map(|bit: u32| 1u64 << bit);
    for name in ["CapPrm", "CapEff", "CapBnd"] {
        assert!(dropped.iter().all(|bit| set(name) & bit == 0), "{said}");
        // Others stay: CHOWN, SETGID, SETUID, NET_ADMIN.
        assert!(
            [0, 6, 7, 12].iter().all(|bit| set(name) & (1 << bit) != 0),
            "{said}"
        );
    }
    assert_eq!((set("CapInh"), set("CapAmb")), (0, 0));
    // The daemon keeps what it had.
    let own = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    assert!(own.contains("CapEff"));
}

#[tokio::test]
async fn a_setting_about_rights_that_cannot_be_understood_refuses_the_start() {
    let guest = Guest::bare(&[("AGENTD_DROP_EXEC_CAPABILITIES", "yes")]);
    until("it ends and says why", || {
        guest.log().contains("AGENTD_DROP_EXEC_CAPABILITIES")
    })
    .await;
}

#[tokio::test]
async fn powering_off_waits_for_the_group_and_ends_the_guest() {
    if !can_isolate() {
        return;
    }
    let guest = isolated("", &[]);
    let client = guest.client(TOKEN);
    client.run_hook(&launch()).await.unwrap();
    let head = guest.http("GET", "/v1/health", "", "");
    assert_eq!(head.header("microvm-poweroff-on-exit"), Some("1"));
    let mut request = script("sleep 0.5 & exit 0");
    request.poweroff_on_exit = true;
    request.x = Some(agentd_client::protocol::StartExtension {
        output_linger_ms: Some(0),
        ..Default::default()
    });
    let asked = Instant::now();
    client.start(&request).await.unwrap();
    let stat = format!("/proc/{}/stat", guest.pid());
    until("the guest is off", || {
        std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
    })
    .await;
    assert!(asked.elapsed() >= Duration::from_millis(500));
}

#[tokio::test]
async fn a_daemon_that_may_not_power_off_refuses_before_anything_runs() {
    let (guest, client) = Guest::start().await;
    let head = guest.http("GET", "/v1/health", "", "");
    assert_eq!(head.header("microvm-poweroff-on-exit"), None);
    let mut request = command(["true"]);
    request.poweroff_on_exit = true;
    let refused = client.start(&request).await.unwrap_err();
    assert_eq!(refusal(&refused), (400, Some("poweroff_unavailable")));
    let unknown = client.poll(&request.exec_id).await.unwrap_err();
    assert_eq!(refusal(&unknown), (404, Some("unknown_exec")));
}

#[tokio::test]
async fn the_images_own_user_is_kept_or_refused_and_never_roots_by_accident() {
    if !can_isolate() {
        return;
    }
    let preserve = [("AGENTD_PRESERVE_IMAGE_USER", "1")];
    // Nothing was captured, so nothing can be sealed.
    let program = env!("CARGO_BIN_EXE_microvms-agentd");
    let (_plain, client) = Guest::start().await;
    let sealing = command([program, "--seal-image-user"]);
    assert_eq!(support::run(&client, &sealing).await.code(), Some(1));
    // No record: starts that name no user are refused, others run.
    let guest = isolated("", &preserve);
    let client = guest.client(TOKEN);
    client.run_hook(&launch()).await.unwrap();
    let mut request = command(["id", "-u"]);
    let refused = client.start(&request).await.unwrap_err();
    assert_eq!(refusal(&refused), (400, Some("unknown_user")));
    request.user = Some(agentd_client::protocol::PrincipalRef::Id(0));
    assert_eq!(support::run(&client, &request).await.stdout, b"0\n");
    assert_eq!(client.discovery().await.unwrap().default_user, None);
    let head = guest.http("GET", "/v1/health", "", "");
    assert_eq!(head.header("microvms-default-user-configured"), Some("1"));
}

#[tokio::test]
async fn discovery_says_who_a_start_runs_as() {
    let (_guest, client) = Guest::start().await;
    assert_eq!(client.discovery().await.unwrap().default_user, None);
    let (_guest, client) = Guest::start_with(&[("AGENTD_DEFAULT_USER", "nobody-here")]).await;
    let discovery = client.discovery().await.unwrap();
    assert_eq!(discovery.default_user.as_deref(), Some("nobody-here"));
    let bare = Guest::bare(&[]);
    let early = bare.client(TOKEN).discovery().await.unwrap_err();
    assert_eq!(refusal(&early), (503, None));
}
