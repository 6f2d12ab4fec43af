//! Extended attributes: which of them belong to a file, and which to the overlay it lies in.

use std::io;
use std::os::fd::BorrowedFd;

use super::entry::Xattr;
use super::path::LayerPath;
use super::sys;

/// Labels of the host's own security module are the host's to give.
const NOT_TAKEN: &[u8] = b"security.selinux";

/// Where the overlay keeps its own attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attributes {
    /// `trusted.overlay.`: the overlay was mounted by the host's root.
    Trusted,
    /// `user.overlay.`: it was mounted in an ordinary user's namespace.
    User,
}

impl Attributes {
    const fn prefix(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.",
            Self::User => b"user.overlay.",
        }
    }

    fn opaque_name(self) -> Vec<u8> {
        [self.prefix(), b"opaque"].concat()
    }

    /// Whether a folder hides what is below it, and the attributes that are a file's own.
    pub(crate) fn of(self, folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<(bool, Vec<Xattr>)> {
        let mut opaque = false;
        let mut own = Vec::new();
        for (name, value) in sys::xattrs(folder, name)? {
            match name.strip_prefix(self.prefix()) {
                Some(b"opaque") => opaque = value == b"y",
                // Those that a guest set under such a name are kept under another one.
                Some(rest) if !rest.starts_with(b"overlay.") => {}
                _ if name == NOT_TAKEN => {}
                _ => own.push(Xattr {
                    name: LayerPath::from(name.as_slice()),
                    value,
                }),
            }
        }
        Ok((opaque, own))
    }

    /// Gives something its attributes.
    pub(crate) fn set(
        self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        opaque: bool,
        own: &[Xattr],
    ) -> io::Result<()> {
        if opaque {
            sys::set_xattr(folder, name, &self.opaque_name(), b"y")?;
        }
        own.iter()
            .try_for_each(|x| sys::set_xattr(folder, name, x.name.as_bytes(), &x.value))
    }
}
