//! Users and groups by name, read from the guest's own files.
//!
//! The files are read for each request, since the guest may change them at any time, and directly:
//! no name service, no plug-ins. Whoever is root in the guest writes them, so they are read as
//! data: a file that is not regular or too long is no file, and a bad line is no line.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use agentd_protocol::PrincipalRef;
use agentd_protocol::Slug;
use agentd_protocol::StartRequest;

use super::Refusal;
use crate::settings::DefaultUser;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Bytes of either file that are read.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A row of the user file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

/// Who a command runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Principal {
    /// `None` keeps the daemon's.
    pub(super) uid: Option<u32>,
    /// `None` keeps the daemon's.
    pub(super) gid: Option<u32>,
    /// What the effective user's row says, as variables.
    pub(super) variables: Vec<(&'static str, String)>,
}

/// The two files, as they are now.
#[derive(Debug)]
pub(super) struct Files {
    passwd: String,
    group: String,
}

impl Files {
    /// Reads what the request needs.
    pub(super) fn read(request: &StartRequest) -> Self {
        let group = if matches!(request.group, Some(PrincipalRef::Name(_))) {
            read_text(GROUP)
        } else {
            String::new()
        };
        Self {
            passwd: read_text(PASSWD),
            group,
        }
    }

    fn users(&self) -> impl Iterator<Item = User> + '_ {
        rows(&self.passwd).filter_map(|row| {
            let fields: Vec<&str> = row.split(':').collect();
            let [name, _, uid, gid, _, home, _] = fields.as_slice() else {
                return None;
            };
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            Some(User {
                name: (*name).to_owned(),
                uid,
                gid,
                home: (*home).to_owned(),
            })
        })
    }

    fn groups(&self) -> impl Iterator<Item = (&str, u32)> + '_ {
        rows(&self.group).filter_map(|row| {
            let fields: Vec<&str> = row.split(':').collect();
            let [name, _, gid, _] = fields.as_slice() else {
                return None;
            };
            Some((*name, gid.parse().ok()?))
        })
    }

    /// Finds out who a request's command runs as. `default_user` is for a request that names none.
    pub(super) fn resolve(
        &self,
        request: &StartRequest,
        default_user: &DefaultUser,
        daemon_uid: u32,
    ) -> Result<Principal, Refusal> {
        let (uid, row_gid) = match (&request.user, default_user) {
            (Some(PrincipalRef::Id(uid)), _) => (Some(*uid), None),
            (Some(PrincipalRef::Name(name)), _) => self.named_user(name)?,
            (None, DefaultUser::Named(name)) => self.default_user(name)?,
            (None, DefaultUser::Captured(user)) => (Some(user.uid), Some(user.gid)),
            (None, DefaultUser::Broken(why)) => {
                let detail = format!("the user that the image was captured with is unknown: {why}");
                return Err(Refusal::new(Slug::UnknownUser, detail));
            }
            (None, DefaultUser::Daemon) => (None, None),
        };
        let gid = match &request.group {
            Some(PrincipalRef::Id(gid)) => Some(*gid),
            Some(PrincipalRef::Name(name)) => Some(self.named_group(name)?),
            None => row_gid,
        };
        let effective = uid.unwrap_or(daemon_uid);
        let variables = self
            .users()
            .find(|user| user.uid == effective)
            .map_or(vec![], |user| {
                vec![
                    ("HOME", user.home),
                    ("USER", user.name.clone()),
                    ("LOGNAME", user.name),
                ]
            });
        Ok(Principal {
            uid,
            gid,
            variables,
        })
    }

    fn named_user(&self, name: &str) -> Result<(Option<u32>, Option<u32>), Refusal> {
        if let Some(user) = self.users().find(|user| user.name == name) {
            return Ok((Some(user.uid), Some(user.gid)));
        }
        let unknown = || Refusal::new(Slug::UnknownUser, format!("no user is named {name:?}"));
        number(name)
            .map(|uid| (Some(uid), None))
            .ok_or_else(unknown)
    }

    /// The default user must have a row, by name or by number: without one nobody knows its group.
    fn default_user(&self, name: &str) -> Result<(Option<u32>, Option<u32>), Refusal> {
        let by_name = self.users().find(|user| user.name == name);
        let found = by_name.or_else(|| {
            let uid = number(name)?;
            self.users().find(|user| user.uid == uid)
        });
        let user = found.ok_or_else(|| {
            let detail = format!(
                "AGENTD_DEFAULT_USER is {name:?}, which needs a row in the image's {PASSWD}"
            );
            Refusal::new(Slug::UnknownUser, detail)
        })?;
        Ok((Some(user.uid), Some(user.gid)))
    }

    fn named_group(&self, name: &str) -> Result<u32, Refusal> {
        let row = self.groups().find(|(candidate, _)| *candidate == name);
        row.map(|(_, gid)| gid)
            .or_else(|| number(name))
            .ok_or_else(|| Refusal::new(Slug::UnknownGroup, format!("no group is named {name:?}")))
    }
}

/// Who a command of nobody in particular runs as: the owner of what is made for it. `None` is the
/// daemon's own.
pub(crate) fn default_owner(
    default_user: &DefaultUser,
) -> Result<(Option<u32>, Option<u32>), Refusal> {
    match default_user {
        DefaultUser::Daemon => Ok((None, None)),
        DefaultUser::Captured(user) => Ok((Some(user.uid), Some(user.gid))),
        DefaultUser::Named(name) => {
            let files = Files {
                passwd: read_text(PASSWD),
                group: String::new(),
            };
            files.default_user(name)
        }
        DefaultUser::Broken(why) => {
            let detail = format!("the user that the image was captured with is unknown: {why}");
            Err(Refusal::new(Slug::UnknownUser, detail))
        }
    }
}

fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '+', '-']))
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// A file's text; empty when it is not a regular file or too long.
fn read_text(path: &str) -> String {
    // Not to be held up by a pipe that lies where the file should be.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let mut bytes = Vec::new();
    if let Ok(file) = opened
        && file
            .metadata()
            .is_ok_and(|data| data.is_file() && data.len() <= FILE_BYTES_MAX)
    {
        let _ = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use agentd_protocol::ExecId;

    use super::*;

    fn resolve(
        user: Option<PrincipalRef>,
        group: Option<PrincipalRef>,
        default_user: Option<&str>,
    ) -> Result<(Option<u32>, Option<u32>, usize), Slug> {
        let files = Files {
            passwd: "# people\nroot:x:0:0:root:/root:/bin/sh\n\nbad line\n+nis\n\
                     web:x:33:34:Web:/var/www:/bin/false\n7:x:1007:1008::/:/bin/sh\n"
                .into(),
            group: "www:x:34:\nbad:x:many:\n".into(),
        };
        let mut request = StartRequest::new(ExecId::new("e").unwrap(), ["true"]);
        request.user = user;
        request.group = group;
        let default_user = match default_user {
            Some(name) => DefaultUser::Named(name.into()),
            None => DefaultUser::Daemon,
        };
        let resolved = files.resolve(&request, &default_user, 0);
        resolved
            .map(|p| (p.uid, p.gid, p.variables.len()))
            .map_err(|refusal| refusal.slug)
    }

    fn name(text: &str) -> Option<PrincipalRef> {
        Some(PrincipalRef::Name(text.into()))
    }

    #[test]
    fn names_and_numbers_resolve_as_the_contract_says() {
        let id = |number| Some(PrincipalRef::Id(number));
        assert_eq!(resolve(None, None, None), Ok((None, None, 3)));
        assert_eq!(
            resolve(name("web"), None, None),
            Ok((Some(33), Some(34), 3))
        );
        assert_eq!(resolve(name("33"), None, None), Ok((Some(33), None, 3)));
        assert_eq!(
            resolve(name("7"), None, None),
            Ok((Some(1007), Some(1008), 3))
        );
        assert_eq!(resolve(id(4242), None, None), Ok((Some(4242), None, 0)));
        assert_eq!(
            resolve(name("web"), name("www"), None),
            Ok((Some(33), Some(34), 3))
        );
        assert_eq!(resolve(None, name("99"), None), Ok((None, Some(99), 3)));
        assert_eq!(
            resolve(name("nobody-here"), name("x"), None),
            Err(Slug::UnknownUser)
        );
        assert_eq!(resolve(None, name("bad"), None), Err(Slug::UnknownGroup));
        assert_eq!(resolve(name(""), None, None), Err(Slug::UnknownUser));
    }

    #[test]
    fn a_default_user_needs_a_row_and_a_named_user_overrules_it() {
        assert_eq!(
            resolve(None, None, Some("web")),
            Ok((Some(33), Some(34), 3))
        );
        assert_eq!(resolve(None, None, Some("33")), Ok((Some(33), Some(34), 3)));
        assert_eq!(
            resolve(name("root"), None, Some("web")),
            Ok((Some(0), Some(0), 3))
        );
        for broken in ["", "4242", "nobody-here"] {
            assert_eq!(resolve(None, None, Some(broken)), Err(Slug::UnknownUser));
        }
    }
}
