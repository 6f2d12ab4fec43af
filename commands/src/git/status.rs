//! Reading what git prints for programs. Pure.

use super::GitChange;
use super::GitLogEntry;
use super::GitStatus;

/// The fields of one commit as [`LOG_FORMAT`] asks for them.
const LOG_FIELDS: usize = 6;

/// What a log prints of each commit, each field ended by a zero byte.
pub(super) const LOG_FORMAT: &str = "--format=%H%x00%T%x00%P%x00%an <%ae>%x00%at%x00%s%x00";

/// Reads `status --porcelain=v2 --branch -z`.
pub(super) fn parse(repo: &str, printed: &[u8], truncated: bool) -> GitStatus {
    let text = String::from_utf8_lossy(printed);
    let mut status = GitStatus {
        repo: repo.to_owned(),
        truncated,
        ..GitStatus::default()
    };
    let mut records: Vec<&str> = text.split('\0').collect();
    // Either nothing follows the last zero byte, or a record that was cut.
    records.pop();
    let mut records = records.into_iter();
    while let Some(record) = records.next() {
        match record.split_once(' ') {
            Some(("#", header)) => read_header(&mut status, header),
            Some(("?", path)) => status.changes.push(change("??", path, None)),
            Some(("1", rest)) => push(&mut status, rest, 8, None),
            Some(("u", rest)) => push(&mut status, rest, 10, None),
            Some(("2", rest)) => {
                let from = records.next().map(str::to_owned);
                push(&mut status, rest, 9, from);
            }
            _ => {}
        }
    }
    status
}

fn read_header(status: &mut GitStatus, header: &str) {
    let text = |value: &str, none: &str| (value != none).then(|| value.to_owned());
    match header.split_once(' ') {
        Some(("branch.oid", value)) => status.commit = text(value, "(initial)"),
        Some(("branch.head", value)) => status.branch = text(value, "(detached)"),
        Some(("branch.upstream", value)) => status.upstream = Some(value.to_owned()),
        Some(("branch.ab", value)) => {
            let mut counts = value
                .split(' ')
                .map(|count| count.get(1..).and_then(|digits| digits.parse().ok()));
            status.ahead = counts.next().flatten();
            status.behind = counts.next().flatten();
        }
        _ => {}
    }
}

/// A record whose path is its field of this number.
fn push(status: &mut GitStatus, record: &str, fields: usize, from: Option<String>) {
    let mut fields = record.splitn(fields, ' ');
    if let (Some(letters), Some(path)) = (fields.next(), fields.last()) {
        status.changes.push(change(letters, path, from));
    }
}

fn change(letters: &str, path: &str, from: Option<String>) -> GitChange {
    let mut letters = letters.chars();
    GitChange {
        path: path.to_owned(),
        index: letters.next().unwrap_or('.'),
        worktree: letters.next().unwrap_or('.'),
        from,
    }
}

/// Reads a log of [`LOG_FORMAT`].
pub(super) fn parse_log(printed: &[u8]) -> Vec<GitLogEntry> {
    let text = String::from_utf8_lossy(printed);
    let fields: Vec<&str> = text.split('\0').collect();
    let entry = |fields: &[&str]| {
        let [commit, tree, parents, author, date, subject] = fields else {
            return None;
        };
        // Between two commits git ends a line.
        Some(GitLogEntry {
            commit: commit.trim_start().to_owned(),
            tree: (*tree).to_owned(),
            parents: parents.split_whitespace().map(str::to_owned).collect(),
            author: (*author).to_owned(),
            date: date.parse().ok()?,
            subject: (*subject).to_owned(),
        })
    };
    fields.chunks_exact(LOG_FIELDS).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_record_by_record() {
        let printed = b"# branch.oid 1234\0# branch.head main\0# branch.upstream origin/main\0\
            # branch.ab +2 -1\x001 .M N... 100644 100644 100644 aa bb a b.txt\0\
            2 R. N... 100644 100644 100644 aa bb R100 new name\0old name\0\
            u UU N... 100644 100644 100644 100644 aa bb cc both\0? not tracked\0? cut";
        let status = parse("/w", printed, true);
        assert_eq!(status.branch.as_deref(), Some("main"));
        assert_eq!(status.commit.as_deref(), Some("1234"));
        assert_eq!((status.ahead, status.behind), (Some(2), Some(1)));
        let changes: Vec<_> = status
            .changes
            .iter()
            .map(|it| format!("{}{} {} {:?}", it.index, it.worktree, it.path, it.from))
            .collect();
        assert_eq!(
            changes,
            [
                ".M a b.txt None",
                "R. new name Some(\"old name\")",
                "UU both None",
                "?? not tracked None"
            ]
        );
    }

    #[test]
    fn an_empty_repository_has_no_commit_and_a_detached_head_no_branch() {
        let status = parse(
            "/w",
            b"# branch.oid (initial)\0# branch.head (detached)\0",
            false,
        );
        assert_eq!((status.commit, status.branch), (None, None));
    }

    #[test]
    fn a_log_is_read_commit_by_commit() {
        let printed = b"c2\0t2\0c1\0A <a@b>\x0017\0second\0\nc1\0t1\0\0A <a@b>\x0016\0first\0\n";
        let log = parse_log(printed);
        assert_eq!(log.len(), 2);
        assert_eq!(
            (log[0].commit.as_str(), log[1].commit.as_str()),
            ("c2", "c1")
        );
        assert_eq!(log[0].parents, ["c1"]);
        assert!(log[1].parents.is_empty());
        assert_eq!((log[1].date, log[1].subject.as_str()), (16, "first"));
    }
}
