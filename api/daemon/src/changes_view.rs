//! Differences and promotions, out of what the engine answers.

use fluxvm_api_types::ApplyView;
use fluxvm_api_types::ArtifactsView;
use fluxvm_api_types::BisectView;
use fluxvm_api_types::Counters;
use fluxvm_api_types::CulpritView;
use fluxvm_api_types::DiffView;
use fluxvm_api_types::NotCarriedView;
use fluxvm_api_types::PathDiffView;
use fluxvm_api_types::PlanView;
use fluxvm_api_types::PromoteView;
use fluxvm_api_types::StateView;
use fluxvm_api_types::TreeEntryView;
use fluxvm_api_types::VerdictView;
use fluxvm_api_types::WorkspaceChanges;
use fluxvm_commands::ArtifactsAnswer;
use fluxvm_commands::BisectAnswer;
use fluxvm_commands::ChangeKind;
use fluxvm_commands::DiffAnswer;
use fluxvm_commands::PathDiff;
use fluxvm_commands::PromoteAnswer;
use fluxvm_commands::Rendered;
use fluxvm_commands::StateName;
use fluxvm_vmm::EntryKind;
use fluxvm_vmm::ManifestEntry;

/// What differs between two states.
pub(crate) fn diff(answer: DiffAnswer) -> DiffView {
    DiffView {
        from: state(answer.from),
        to: state(answer.to),
        items: answer.changes.into_iter().map(path).collect(),
        changed: answer.changed,
        unchanged: answer.unchanged,
        truncated: answer.truncated,
    }
}

/// What a session made.
pub(crate) fn artifacts(answer: ArtifactsAnswer) -> ArtifactsView {
    let session = answer.session;
    let tags = session.checkpoints.iter().map(|it| it.tag.clone());
    ArtifactsView {
        session: session.id.0,
        workspace: WorkspaceChanges {
            added: answer.added,
            modified: answer.modified,
            deleted: answer.deleted,
            unchanged: answer.unchanged,
            mode: "blake3",
            paths: vec![session.workspace.path.clone()],
            baseline: answer.baseline,
            baseline_taken_at_unix: session.created_at.timestamp(),
            truncated: answer.truncated,
        },
        checkpoints: tags.collect(),
        children: session.children.iter().map(|child| child.0).collect(),
        counters: Counters {
            execs: session.usage.execs,
            exec_ms: session.usage.exec_ms,
            checkpoints: session.checkpoints.iter().len() as u64,
            children: session.children.len() as u64,
            rewind_points: session.rewind.points().len() as u64,
        },
    }
}

/// A promotion, done or planned.
pub(crate) fn promoted(answer: &PromoteAnswer) -> PromoteView {
    let mut apply = ApplyView::default();
    for (path, kind) in &answer.apply {
        let list = match kind {
            ChangeKind::Added => &mut apply.added,
            ChangeKind::Modified => &mut apply.modified,
            ChangeKind::Deleted => &mut apply.deleted,
        };
        list.push(path.clone());
    }
    let conflicts = answer.conflicts.iter();
    PromoteView {
        dry_run: answer.outcome.is_none(),
        child: answer.child.0,
        parent: answer.parent.0,
        added: apply.added.len(),
        modified: apply.modified.len(),
        deleted: apply.deleted.len(),
        skipped: answer.conflicts.len(),
        plan: PlanView {
            apply,
            already_applied: answer.already_applied.clone(),
            conflicts: conflicts.clone().map(|it| it.path.clone()).collect(),
            conflict_reasons: conflicts
                .map(|it| (it.path.clone(), it.reason.clone()))
                .collect(),
            untouched: answer.untouched,
        },
        plan_id: answer.plan_id.clone(),
        not_carried: NotCarriedView {
            memory_and_processes: true,
            // No session of this version has any.
            volumes: Vec::new(),
            files_outside_the_workspace: true,
        },
        seq: answer.outcome.as_ref().map(|outcome| outcome.seq),
        checkpoint: answer.outcome.as_ref().map(|it| it.checkpoint.clone()),
    }
}

/// A search for the command that broke something.
pub(crate) fn bisected(answer: &BisectAnswer) -> BisectView {
    let outcome = &answer.outcome;
    let tested = outcome.tested.iter().map(|verdict| VerdictView {
        state: verdict.state.clone(),
        exit_code: verdict.exit_code,
        good: verdict.good,
    });
    BisectView {
        seq: answer.seq,
        culprit: CulpritView {
            tag: outcome.culprit.tag.clone(),
            command: outcome.culprit.command.clone(),
            seq: outcome.culprit.seq,
        },
        last_good: outcome.last_good.clone(),
        first_bad: outcome.first_bad.clone(),
        tested: tested.collect(),
        elapsed_ms: outcome.duration_ms,
    }
}

fn state(name: StateName) -> StateView {
    StateView {
        session: name.session.0,
        state: name.state,
        disk: name.disk,
    }
}

fn path(diff: PathDiff) -> PathDiffView {
    let change = match diff.kind {
        ChangeKind::Added => "added",
        ChangeKind::Modified => "modified",
        ChangeKind::Deleted => "deleted",
    };
    let omitted = match &diff.text {
        Rendered::Omitted(why) => Some(why.as_str()),
        _ => None,
    };
    PathDiffView {
        path: diff.path,
        change,
        before: diff.before.map(entry),
        after: diff.after.map(entry),
        diff: diff.text.text().map(ToOwned::to_owned),
        omitted,
    }
}

fn entry(entry: ManifestEntry) -> TreeEntryView {
    let mut view = TreeEntryView {
        kind: "other",
        mode: format!("{:04o}", entry.mode),
        uid: entry.uid,
        gid: entry.gid,
        bytes: None,
        blake3: None,
        target: None,
    };
    match entry.kind {
        EntryKind::File { bytes, digest } => {
            view.kind = "file";
            view.bytes = Some(bytes);
            view.blake3 = Some(digest.to_string());
        }
        EntryKind::Folder => view.kind = "dir",
        EntryKind::Link { target } => {
            view.kind = "symlink";
            view.target = Some(target);
        }
        EntryKind::Special => {}
    }
    view
}
