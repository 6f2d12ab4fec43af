//! The ring's rules, as stories: what is decided is folded in, and what is decided next follows.

use expect_test::Expect;
use expect_test::expect;
use fluxvm_eventstore::EventId;
use fluxvm_projections::Event;
use fluxvm_projections::ExecId;
use fluxvm_projections::ExecStarted;
use fluxvm_projections::KeptPoint;
use fluxvm_projections::LifecycleInterrupted;
use fluxvm_projections::OperationKind;
use fluxvm_projections::RevivalRecord;
use fluxvm_projections::RewindMoveStarted;
use fluxvm_projections::RewindMoved;
use fluxvm_projections::RewindPointTaken;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionStatus;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::Trigger;
use uuid::Uuid;

use super::decide;
use super::decide::Direction;
use super::point::Before;
use crate::book::Entry;
use crate::error::CommandError;
use crate::request::ConfigureRewind;
use crate::request::RewindTo;
use crate::testing::after;
use crate::testing::envelope;
use crate::testing::now;
use crate::testing::session;
use crate::testing::session_with;
use crate::testing::snapshot;

/// A session to which things happen.
struct Story {
    session: Session,
    events: u64,
}

impl Story {
    /// A session with a ring of this size, switched on.
    fn of(max_points: u32) -> Self {
        let mut story = Self {
            session: session(),
            events: 2,
        };
        let on = ConfigureRewind {
            enabled: Some(true),
            max_points: Some(max_points),
            ..ConfigureRewind::default()
        };
        story.configure(&on).unwrap();
        story
    }

    fn record(&mut self, event: Event, cause: Option<EventId>) -> EventId {
        self.events += 1;
        let mut envelope = envelope(self.events, event);
        envelope.cause = cause;
        self.session.apply(&envelope);
        envelope.id
    }

    fn configure(&mut self, request: &ConfigureRewind) -> Result<(), CommandError> {
        let entry = decide::configure(&self.session, request, now())?;
        self.record(entry.event, None);
        Ok(())
    }

    /// A command, with the point before it.
    fn exec(&mut self, command: &str) {
        let started = Event::ExecStarted(ExecStarted {
            exec_id: ExecId(Uuid::nil()),
            command: command.to_owned(),
            timeout_ms: 1,
            stdin: false,
        });
        let exec = self.record(started, None);
        let before = Before::exec(self.events);
        let id = snapshot(u128::from(self.events)).id;
        let intent = decide::point(&self.session, &before, id).expect("a point is wanted");
        let Event::RewindPointStarted(started) = intent.event.clone() else {
            panic!("{:?}", intent.event)
        };
        let intent = self.record(intent.event, None);
        let rewind = &self.session.rewind;
        let taken = RewindPointTaken {
            op: self.events,
            tag: started.tag,
            snapshot: snapshot(u128::from(self.events - 1)),
            trigger: started.trigger,
            before: started.before,
            evicted: rewind.evictions(rewind.config.max_points, 1),
            duration_ms: 1,
        };
        self.record(Event::RewindPointTaken(taken), Some(intent));
        let ended = Event::LifecycleInterrupted(LifecycleInterrupted {
            op: "exec".into(),
            seq: 1,
            started_at: now(),
            resolution: None,
        });
        self.record(ended, Some(exec));
    }

    fn go(
        &mut self,
        direction: Direction,
        to: &RewindTo,
    ) -> Result<RewindMoveStarted, CommandError> {
        let entry = self.decide_go(direction, to)?;
        let (Event::RewindUndoStarted(started) | Event::RewindRedoStarted(started)) =
            entry.event.clone()
        else {
            panic!("{:?}", entry.event)
        };
        let steps = decide::steps(&self.session, direction, &started.tag);
        let intent = self.record(entry.event, None);
        let kept = started.keep.as_ref().map(|keep| KeptPoint {
            tag: keep.tag.clone(),
            snapshot: snapshot(keep.snapshot.0.as_u128()),
        });
        let moved = RewindMoved {
            op: self.events,
            tag: started.tag.clone(),
            steps,
            snapshot: started.snapshot,
            disk: String::new(),
            sandbox_id: started.sandbox_id,
            previous_sandbox_id: self.session.sandbox_id,
            kept,
            not_kept: None,
            revival: RevivalRecord::default(),
            duration_ms: 1,
        };
        let event = match direction {
            Direction::Undo => Event::RewindUndone(moved),
            Direction::Redo => Event::RewindRedone(moved),
        };
        self.record(event, Some(intent));
        Ok(started)
    }

    fn decide_go(&self, direction: Direction, to: &RewindTo) -> Result<Entry, CommandError> {
        let keep = SnapshotId(Uuid::from_u128(u128::from(self.events) + 0x1000));
        let sandbox = SandboxId(Uuid::from_u128(0x5a));
        decide::go(&self.session, direction, to, sandbox, keep, now())
    }

    fn undo(&mut self, steps: u64) {
        self.go(Direction::Undo, &RewindTo::Steps(steps)).unwrap();
    }

    fn redo(&mut self, steps: u64) {
        self.go(Direction::Redo, &RewindTo::Steps(steps)).unwrap();
    }

    fn pin(&mut self, tag: &str, pinned: bool) -> Result<(), CommandError> {
        let entry = decide::pin(&self.session, tag, pinned, now())?;
        self.record(entry.event, None);
        Ok(())
    }

    /// `what can be undone | what is undone`, the state that the session is in after the bar.
    fn ring(&self) -> String {
        let tags = |points: &[fluxvm_projections::Point]| {
            let tag = |point: &fluxvm_projections::Point| {
                let command = point.command.as_deref().unwrap_or("now");
                let pin = if point.pinned { "*" } else { "" };
                format!("{}{pin}:{command}", point.tag)
            };
            points.iter().map(tag).collect::<Vec<_>>().join(" ")
        };
        let rewind = &self.session.rewind;
        format!("{} | {}", tags(rewind.points()), tags(rewind.undone()))
    }

    fn check(&self, expected: Expect) {
        expected.assert_eq(&self.ring());
    }
}

fn three() -> Story {
    let mut story = Story::of(10);
    for command in ["a", "b", "c"] {
        story.exec(command);
    }
    story
}

#[test]
fn a_point_is_the_state_before_a_command() {
    three().check(expect!["rw-1:a rw-2:b rw-3:c | "]);
}

#[test]
fn an_undo_keeps_the_state_that_it_leaves_and_a_redo_comes_back_to_it() {
    let mut story = three();
    story.undo(2);
    story.check(expect!["rw-1:a | rw-2:b rw-3:c rw-4:now"]);
    story.redo(1);
    story.check(expect!["rw-1:a rw-2:b | rw-3:c rw-4:now"]);
    story.redo(1);
    story.check(expect!["rw-1:a rw-2:b rw-3:c | rw-4:now"]);
    story.undo(3);
    story.check(expect![" | rw-1:a rw-2:b rw-3:c rw-4:now"]);
}

#[test]
fn something_new_drops_what_was_undone() {
    let mut story = three();
    story.undo(2);
    story.exec("d");
    story.check(expect!["rw-1:a rw-5:d | "]);
}

#[test]
fn what_is_pinned_outlives_the_ring_and_an_undo() {
    let mut story = Story::of(3);
    story.exec("a");
    story.pin("rw-1", true).unwrap();
    for command in ["b", "c", "d"] {
        story.exec(command);
    }
    story.check(expect!["rw-1*:a rw-3:c rw-4:d | "]);
    story.pin("rw-4", true).unwrap();
    story.undo(2);
    story.exec("e");
    story.check(expect!["rw-1*:a rw-4*:d rw-6:e | "]);
}

#[test]
fn one_slot_stays_free() {
    let mut story = Story::of(2);
    story.exec("a");
    story.exec("b");
    story.pin("rw-1", true).unwrap();
    let error = story.pin("rw-2", true).unwrap_err();
    assert_eq!(error.code(), "rewind_ring_full", "{error}");
    story.pin("rw-1", false).unwrap();
    story.pin("rw-2", true).unwrap();
    let smaller = ConfigureRewind {
        max_points: Some(1),
        ..ConfigureRewind::default()
    };
    let error = story.configure(&smaller).unwrap_err();
    assert_eq!(error.code(), "rewind_ring_full", "{error}");
}

#[test]
fn a_full_ring_lets_go_of_its_oldest_and_a_smaller_one_at_once() {
    let mut story = Story::of(2);
    for command in ["a", "b", "c"] {
        story.exec(command);
    }
    story.check(expect!["rw-2:b rw-3:c | "]);
    let smaller = ConfigureRewind {
        max_points: Some(1),
        ..ConfigureRewind::default()
    };
    story.configure(&smaller).unwrap();
    story.check(expect!["rw-3:c | "]);
    assert!(
        story.session.rewind.config.enabled,
        "the rest stays as it was"
    );
}

#[test]
fn the_state_that_an_undo_leaves_costs_no_point() {
    let mut story = Story::of(2);
    story.exec("a");
    story.exec("b");
    story.undo(2);
    story.check(expect![" | rw-1:a rw-2:b rw-3:now"]);
    story.redo(2);
    story.check(expect!["rw-1:a rw-2:b | rw-3:now"]);
}

#[test]
fn where_to_must_be_there() {
    let mut story = three();
    let fails = |story: &Story, direction, to: &RewindTo, expected: Expect| {
        expected.assert_eq(&after(story.decide_go(direction, to)));
    };
    fails(
        &story,
        Direction::Undo,
        &RewindTo::Steps(4),
        expect!["no_such_step: cannot undo so far: steps asked for 4, steps there are 3"],
    );
    fails(
        &story,
        Direction::Redo,
        &RewindTo::Steps(1),
        expect!["no_such_step: cannot redo so far: steps asked for 1, steps there are 0"],
    );
    fails(
        &story,
        Direction::Undo,
        &RewindTo::Tag("rw-9".into()),
        expect![
            "tag_not_found: the session has no point to go to `rw-9`; `rewind` lists the points"
        ],
    );
    story
        .go(Direction::Undo, &RewindTo::Tag("rw-2".into()))
        .unwrap();
    story.check(expect!["rw-1:a | rw-2:b rw-3:c rw-4:now"]);
    assert!(decide::check_target(&RewindTo::Steps(0)).is_err());
    assert!(decide::check_target(&RewindTo::Tag("../x".into())).is_err());
}

#[test]
fn a_machine_is_not_replaced_under_a_command_or_another_operation() {
    let mut story = three();
    let busy = session_with(OperationKind::Replay).in_flight;
    story.session.in_flight = busy;
    let text = after(story.decide_go(Direction::Undo, &RewindTo::Steps(1)));
    assert!(text.starts_with("commands_running"), "{text}");
    story.session.in_flight = session_with(OperationKind::Delete).in_flight;
    let text = after(story.decide_go(Direction::Undo, &RewindTo::Steps(1)));
    assert!(text.starts_with("operation_in_flight"), "{text}");
}

#[test]
fn a_point_is_skipped_while_another_operation_holds_the_session_and_the_command_goes_on() {
    let mut story = three();
    let kind = OperationKind::Fork {
        snapshot: snapshot(9).id,
    };
    story.session.in_flight = session_with(kind).in_flight;
    let entry = decide::point(&story.session, &Before::exec(7), snapshot(1).id);
    expect![[r#"rewind.skipped {"before":7,"reason":"fork is in flight","trigger":"exec"}"#]]
        .assert_eq(&after(Ok(entry.unwrap())));
}

#[test]
fn a_point_is_taken_before_what_was_chosen_only() {
    let story = Story::of(10);
    let file = Before {
        trigger: Trigger::File,
        op: None,
        label: Some("write /workspace/a".into()),
    };
    assert!(decide::point(&story.session, &file, snapshot(1).id).is_none());
    let mut story = Story::of(10);
    let both = ConfigureRewind {
        triggers: Some(vec![Trigger::File, Trigger::Exec, Trigger::File]),
        memory: Some(false),
        ..ConfigureRewind::default()
    };
    story.configure(&both).unwrap();
    let entry = decide::point(&story.session, &file, snapshot(1).id);
    expect![[r#"rewind.point.started {"label":"write /workspace/a","memory":"never","snapshot":"00000000-0000-0000-0000-000000000001","tag":"rw-1","trigger":"file"}"#]]
        .assert_eq(&after(Ok(entry.unwrap())));
    let off = ConfigureRewind {
        enabled: Some(false),
        ..ConfigureRewind::default()
    };
    story.configure(&off).unwrap();
    assert!(decide::point(&story.session, &file, snapshot(1).id).is_none());
}

#[test]
fn a_ring_is_1_to_50_points_and_has_a_trigger() {
    let max_points = |max_points| ConfigureRewind {
        max_points: Some(max_points),
        ..ConfigureRewind::default()
    };
    for (points, fits) in [(0, false), (1, true), (50, true), (51, false)] {
        let checked = decide::check_config(&max_points(points));
        assert_eq!(checked.is_ok(), fits, "{points}");
    }
    let none = ConfigureRewind {
        triggers: Some(Vec::new()),
        ..ConfigureRewind::default()
    };
    let error = decide::check_config(&none).unwrap_err();
    assert_eq!(error.field(), Some("triggers"));
}

#[test]
fn a_session_whose_sandbox_ended_can_be_undone_and_nothing_is_kept() {
    let mut story = three();
    story.session.status = SessionStatus::Gone;
    let started = story.go(Direction::Undo, &RewindTo::Steps(1)).unwrap();
    assert_eq!(started.keep, None);
    assert_eq!(story.session.status, SessionStatus::Running);
    story.check(expect!["rw-1:a rw-2:b | rw-3:c"]);
}
