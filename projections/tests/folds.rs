//! What the folds make of a story: given these events, this is the state.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

use bytes::Bytes;
use chrono::DateTime;
use expect_test::Expect;
use expect_test::expect;
use fluxvm_projections::*;
use fluxvm_verify::Actor;
use fluxvm_verify::CommandId;
use fluxvm_verify::CorrelationId;
use fluxvm_verify::EventHash;
use fluxvm_verify::EventId;
use fluxvm_verify::EventKind;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Header;
use fluxvm_verify::Payload;
use fluxvm_verify::RecordedAt;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;
use uuid::Uuid;

const SESSION: SessionId = SessionId(Uuid::from_u128(0x5e55));
const SANDBOX: SandboxId = SandboxId(Uuid::from_u128(0x5a2d));
const EXEC: ExecId = ExecId(Uuid::from_u128(0xe8ec));

/// Events one after the other, each a second after the last.
#[derive(Default)]
struct Story {
    events: Vec<RecordedEvent>,
}

impl Story {
    fn then(self, event: Event) -> Self {
        self.record(SESSION.stream(), event, None)
    }

    /// The outcome of the event with this number.
    fn outcome(self, of: usize, event: Event) -> Self {
        let intent = self.events[of - 1].header.event_id;
        self.record(SESSION.stream(), event, Some(intent))
    }

    fn on(self, stream: &str, event: Event) -> Self {
        self.record(StreamName::parse(stream).unwrap(), event, None)
    }

    fn erased(mut self) -> Self {
        self.events.last_mut().unwrap().payload = Payload::Redacted;
        self
    }

    fn record(mut self, stream: StreamName, event: Event, cause: Option<EventId>) -> Self {
        let seq = self.events.len() as u64 + 1;
        let version = self
            .events
            .iter()
            .filter(|it| it.header.stream == stream)
            .count() as u64
            + 1;
        let payload = serde_json::to_vec(&event.payload().unwrap()).unwrap();
        let header = Header {
            seq: GlobalSeq::new(seq).unwrap(),
            stream,
            version: StreamVersion::new(version).unwrap(),
            event_id: EventId::new(Uuid::from_u128(u128::from(seq))),
            kind: EventKind::parse(event.kind().unwrap()).unwrap(),
            schema: event.schema(),
            recorded_at: RecordedAt::from_unix_ns((1_800_000_000 + seq) * 1_000_000_000),
            actor: Actor::parse("test").unwrap(),
            command_id: CommandId::new(Uuid::nil()),
            causation_id: cause,
            correlation_id: CorrelationId::new(Uuid::nil()),
            payload_bytes: u32::try_from(payload.len()).unwrap(),
            payload_commitment: [0; 32],
        };
        let payload = Payload::Present {
            bytes: Bytes::from(payload),
            salt: [0; 32],
        };
        let hash = EventHash::from_bytes([0; 32]);
        self.events.push(RecordedEvent {
            header,
            payload,
            prev: hash,
            hash,
        });
        self
    }

    fn world(&self) -> World {
        let mut world = World::default();
        for event in &self.events {
            world.apply(event).unwrap();
        }
        world
    }

    fn check(&self, expected: Expect) {
        let world = self.world();
        let session = world.sessions.get(SESSION).unwrap();
        let in_flight: Vec<_> = session
            .in_flight
            .iter()
            .map(|it| format!("{}@{}", it.kind.name(), it.seq))
            .collect();
        let interrupted = session.interrupted_op.as_ref().map(|it| it.kind.name());
        let text = format!(
            "{:?} revision={} execs={} exec_ms={} in_flight={in_flight:?} interrupted={interrupted:?} \
             cleaned_up={}",
            session.status,
            session.revision,
            session.usage.execs,
            session.usage.exec_ms,
            session.cleaned_up,
        );
        expected.assert_eq(&text);
    }
}

fn asked() -> Event {
    Event::SessionCreateStarted(SessionCreateStarted {
        agent: "codex".into(),
        tenant: None,
        sandbox_id: SANDBOX,
        backend: "procbox".into(),
        workspace: WorkspaceRecord {
            path: "/workspace".into(),
            mode: WorkspaceMode::Clone,
            git: None,
        },
        runtime: RuntimeRecord::default(),
        policy: PolicyRecord {
            preset: None,
            offline: true,
            ..PolicyRecord::default()
        },
        record: Recording::Full,
        expires_at: DateTime::from_timestamp(1_900_000_000, 0),
        budget: None,
    })
}

fn created() -> Event {
    Event::SessionCreated(SessionCreated {
        op: 1,
        agent: "codex".into(),
        sandbox_id: SANDBOX,
        backend: "procbox".into(),
        capabilities: Capabilities::default(),
        enforcement: None,
        workspace_note: None,
        duration_ms: 7,
        forked: None,
    })
}

fn started() -> Event {
    Event::ExecStarted(ExecStarted {
        exec_id: EXEC,
        command: "true".into(),
        timeout_ms: 30_000,
        stdin: false,
    })
}

fn completed(op: u64) -> Event {
    Event::ExecCompleted(ExecCompleted {
        op,
        exec_id: EXEC,
        command: "true".into(),
        exit_code: 0,
        signal: None,
        timed_out: false,
        duration_ms: 12,
        timeout_ms: 30_000,
        stdin_bytes: None,
        stdin_cut: false,
        stdout: OutputRecord::default(),
        stderr: OutputRecord::default(),
        gap_bytes: 0,
        survivors: None,
        readopted: false,
        enforcement: None,
    })
}

fn running() -> Story {
    Story::default().then(asked()).outcome(1, created())
}

#[test]
fn a_session_is_running_once_its_sandbox_answers() {
    Story::default().then(asked()).check(expect![[
        r#"Creating revision=0 execs=0 exec_ms=0 in_flight=["session.create@1"] interrupted=None cleaned_up=false"#
    ]]);
    running().check(expect![
        "Running revision=1 execs=0 exec_ms=0 in_flight=[] interrupted=None cleaned_up=false"
    ]);
}

#[test]
fn a_session_whose_sandbox_could_not_be_made_is_failed_and_never_stays_creating() {
    let failed = SessionCreateFailed {
        op: 1,
        code: "x".into(),
        reason: "no room".into(),
    };
    Story::default()
        .then(asked())
        .outcome(1, Event::SessionCreateFailed(failed))
        .check(expect![
            "Failed revision=1 execs=0 exec_ms=0 in_flight=[] interrupted=None cleaned_up=false"
        ]);
}

#[test]
fn running_commands_counts_usage_and_never_changes_the_revision() {
    running().then(started()).check(expect![[
        r#"Running revision=1 execs=1 exec_ms=0 in_flight=["exec@3"] interrupted=None cleaned_up=false"#
    ]]);
    running()
        .then(started())
        .outcome(3, completed(3))
        .check(expect![
            "Running revision=1 execs=1 exec_ms=12 in_flight=[] interrupted=None cleaned_up=false"
        ]);
}

#[test]
fn outcomes_close_their_own_intent_in_whatever_order_they_come() {
    running().then(started()).then(started()).outcome(4, completed(4)).check(expect![[
        r#"Running revision=1 execs=2 exec_ms=12 in_flight=["exec@3"] interrupted=None cleaned_up=false"#
    ]]);
}

#[test]
fn an_erased_outcome_still_closes_its_intent() {
    running()
        .then(started())
        .outcome(3, completed(3))
        .erased()
        .check(expect![
            "Running revision=1 execs=1 exec_ms=0 in_flight=[] interrupted=None cleaned_up=false"
        ]);
}

#[test]
fn an_erased_intent_is_still_an_intent() {
    running().then(started()).erased().check(expect![[
        r#"Running revision=1 execs=1 exec_ms=0 in_flight=["erased@3"] interrupted=None cleaned_up=false"#
    ]]);
}

#[test]
fn a_deleted_session_keeps_its_record() {
    let deleting = Event::SessionDeleteStarted(SessionDeleteStarted {
        sandbox_id: Some(SANDBOX),
    });
    running()
        .then(deleting)
        .outcome(3, Event::SessionDeleted(SessionDeleted { op: 3 }))
        .then(Event::SessionCleanedUp(SessionCleanedUp {}))
        .check(expect![
            "Deleted revision=2 execs=0 exec_ms=0 in_flight=[] interrupted=None cleaned_up=true"
        ]);
}

#[test]
fn an_expired_session_stays_expired_when_its_sandbox_ends() {
    let expires_at = DateTime::from_timestamp(1_900_000_000, 0).unwrap();
    let gone = SandboxGone {
        sandbox_id: SANDBOX,
        reason: "killed".into(),
    };
    running()
        .then(Event::SessionExpired(SessionExpired { expires_at }))
        .then(Event::SandboxGone(gone))
        .check(expect![
            "Expired revision=2 execs=0 exec_ms=0 in_flight=[] interrupted=None cleaned_up=false"
        ]);
}

#[test]
fn an_interrupted_deletion_is_shown_until_another_one_completes() {
    let deleting = || {
        Event::SessionDeleteStarted(SessionDeleteStarted {
            sandbox_id: Some(SANDBOX),
        })
    };
    let interrupted = Event::LifecycleInterrupted(LifecycleInterrupted {
        op: "session.delete".into(),
        seq: 3,
        started_at: DateTime::from_timestamp(1_800_000_003, 0).unwrap(),
        resolution: None,
    });
    let story = running().then(deleting()).outcome(3, interrupted);
    story.check(expect![[
        r#"Running revision=1 execs=0 exec_ms=0 in_flight=[] interrupted=Some("session.delete") cleaned_up=false"#
    ]]);
    let deleted = Event::SessionDeleted(SessionDeleted { op: 5 });
    story.then(deleting()).outcome(5, deleted).check(expect![
        "Deleted revision=2 execs=0 exec_ms=0 in_flight=[] interrupted=None cleaned_up=false"
    ]);
}

#[test]
fn sessions_are_listed_in_the_order_in_which_they_were_asked_for() {
    let later = SessionId(Uuid::from_u128(1));
    let world = running().on(later.stream().as_str(), asked()).world();
    let ids: Vec<_> = world.sessions.iter().map(|session| session.id).collect();
    assert_eq!(ids, [SESSION, later], "the later one has the smaller id");
}

#[test]
fn a_key_is_answered_once_and_free_again_when_its_request_failed() {
    let claim = || {
        Event::IdempotencyClaimed(IdempotencyClaimed {
            body_blake3: "aa".into(),
        })
    };
    let answer = IdempotencyAnswered {
        status: 201,
        content_type: "application/json".into(),
        body: "bb".into(),
        session: None,
    };
    let stream = "idempotency/00";
    let claimed = Story::default().on(stream, claim());
    assert_eq!(claimed.world().idempotency.unanswered().count(), 1);

    let answered = claimed
        .on(stream, Event::IdempotencyAnswered(answer.clone()))
        .world();
    assert_eq!(
        answered.idempotency.get(stream).unwrap().answer,
        Some(answer)
    );
    assert_eq!(answered.idempotency.unanswered().count(), 0);

    let released = IdempotencyReleased {
        reason: "failed".into(),
    };
    let released = Story::default()
        .on(stream, claim())
        .on(stream, Event::IdempotencyReleased(released));
    assert_eq!(
        released
            .world()
            .idempotency
            .get(stream)
            .unwrap()
            .body_blake3,
        None
    );
}

#[test]
fn a_fold_that_never_saw_what_was_erased_agrees_with_one_that_did() {
    let key = "idempotency/00";
    let answer = IdempotencyAnswered {
        status: 200,
        content_type: "application/json".into(),
        body: "bb".into(),
        session: None,
    };
    let claim = IdempotencyClaimed {
        body_blake3: "aa".into(),
    };
    let redacted = SessionRedacted {
        seqs: vec![4, 5],
        exec_ms: 12,
        job_ms: 0,
    };
    let story = running()
        .on(key, Event::IdempotencyClaimed(claim))
        .then(started())
        .outcome(4, completed(4))
        .on(key, Event::IdempotencyAnswered(answer))
        .then(Event::SessionRedacted(redacted))
        .on(key, Event::IdempotencyErased(IdempotencyErased { seq: 6 }));
    let live = story.world();
    let mut again = story;
    for seq in [4, 5, 6] {
        again.events[seq - 1].payload = Payload::Redacted;
    }
    let rebuilt = again.world();
    assert_eq!(rebuilt, live);
    assert_eq!(live.sessions.get(SESSION).unwrap().usage.exec_ms, 12);
    let state = live.idempotency.get(key).unwrap();
    assert!(state.erased && state.answer.is_none() && state.body_blake3.is_some());
    assert_eq!(live.idempotency.unanswered().count(), 0);
}

#[test]
fn a_hold_covers_its_scope_until_it_is_released() {
    let other = SessionId(Uuid::from_u128(1));
    let hold = |session| {
        Event::LedgerHold(LedgerHold {
            scope: HoldScope { session },
            reason: "case 7".into(),
        })
    };
    let release = |hold| Event::LedgerHoldReleased(LedgerHoldReleased { hold });
    let story = running().on("ledger", hold(Some(SESSION)));
    let holds = story.world().holds;
    assert_eq!(holds.covering(Some(SESSION)).map(|hold| hold.seq), Some(3));
    assert_eq!(holds.covering(Some(other)), None);
    assert_eq!(holds.covering(None), None);

    let story = story.on("ledger", release(3)).on("ledger", hold(None));
    let holds = story.world().holds;
    assert_eq!(holds.get(3), None);
    for session in [Some(SESSION), Some(other), None] {
        assert_eq!(holds.covering(session).map(|hold| hold.seq), Some(5));
    }
    let released = story.on("ledger", release(5)).world().holds;
    assert_eq!(released.iter().count(), 0);
    assert_eq!(released.version().map(StreamVersion::get), Some(4));
}

#[test]
fn a_ledger_in_which_nothing_was_ever_held_has_the_state_that_it_always_had() {
    let world = serde_json::to_value(running().world()).unwrap();
    assert_eq!(world.get("holds"), None);
}

#[test]
fn the_event_that_hands_the_key_on_reads_as_the_ledger_writes_it() {
    let written = fluxvm_verify::KeyRotated {
        checkpoint: "c".into(),
        new_vkey: "n".into(),
        old_vkey: "o".into(),
        signature: "s".into(),
    };
    let payload = serde_json::to_vec(&written).unwrap();
    let kind = fluxvm_verify::KEY_ROTATED_KIND;
    let read = Event::decode(kind, fluxvm_verify::KEY_ROTATED_SCHEMA, &payload).unwrap();
    assert!(matches!(read, Event::LedgerKeyRotated(it) if it.new_vkey == "n"));
}

#[test]
fn equal_stories_have_equal_digests_and_every_event_changes_them() {
    let mut digests = Vec::new();
    let story = running().then(started()).outcome(3, completed(3));
    let mut world = World::default();
    for event in &story.events {
        world.apply(event).unwrap();
        digests.push(world.digest().unwrap().to_string());
    }
    assert_eq!(
        digests.last(),
        Some(&story.world().digest().unwrap().to_string())
    );
    digests.dedup();
    assert_eq!(digests.len(), story.events.len());
}

#[test]
fn what_a_newer_version_wrote_is_refused_by_name_and_changes_nothing() {
    let before = running().world();
    let mut strange = running().then(started()).events.pop().unwrap();
    strange.header.kind = EventKind::parse("session.teleport").unwrap();
    let mut world = before.clone();
    let error = world.apply(&strange).unwrap_err();
    expect!["event kind `session.teleport` is not known to this version; a newer one wrote it"]
        .assert_eq(&error.to_string());
    strange.header.kind = EventKind::parse("exec.started").unwrap();
    strange.header.schema = 2;
    let error = world.apply(&strange).unwrap_err();
    expect!["schema 2 of event kind `exec.started` is not known to this version"]
        .assert_eq(&error.to_string());
    assert_eq!(world, before);
}

#[test]
fn payloads_read_back_as_they_were_written() {
    for event in [asked(), created(), started(), completed(9)] {
        let payload = serde_json::to_vec(&event.payload().unwrap()).unwrap();
        let back = Event::decode(event.kind().unwrap(), event.schema(), &payload).unwrap();
        assert_eq!(back, event);
    }
}
