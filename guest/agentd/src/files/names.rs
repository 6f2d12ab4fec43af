//! What a member's name and a link's target mean, by their text alone.
//!
//! This is the first of two guards: it judges a name as if no link lay on its way. The second one,
//! the kernel's, holds when one does.

/// A place below the root, component by component; the root itself is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place(Vec<Vec<u8>>);

/// Why a name or a target means no place below the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NameFault {
    #[error("the path is absolute")]
    Absolute,
    #[error("the path leads out of the archive")]
    Outside,
    #[error("the path is empty or holds a NUL")]
    Unusable,
}

impl Place {
    /// The place that a name means, seen from the root.
    pub(super) fn of(name: &[u8]) -> Result<Self, NameFault> {
        Self::default().then(name)
    }

    /// The place that a name means, seen from this one.
    pub(super) fn then(mut self, name: &[u8]) -> Result<Self, NameFault> {
        if name.is_empty() || name.contains(&0) {
            return Err(NameFault::Unusable);
        }
        if name.starts_with(b"/") {
            return Err(NameFault::Absolute);
        }
        for component in name.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    self.0.pop().ok_or(NameFault::Outside)?;
                }
                component => self.0.push(component.to_vec()),
            }
        }
        Ok(self)
    }

    /// The folder that it lies in and its name there; `None` for the root.
    pub(super) fn split(&self) -> Option<(Self, &[u8])> {
        let (last, before) = self.0.split_last()?;
        Some((Self(before.to_vec()), last))
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn depth(&self) -> usize {
        self.0.len()
    }

    pub(super) fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// The path relative to the root; a dot for the root itself.
    pub(super) fn path(&self) -> Vec<u8> {
        if self.is_root() {
            b".".to_vec()
        } else {
            self.0.join(&b'/')
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_judged_by_their_text() {
        let path = |name: &str| Place::of(name.as_bytes()).map(|place| place.path());
        for (name, expected) in [
            ("a", Ok("a")),
            ("./a//b/", Ok("a/b")),
            ("a/../b", Ok("b")),
            (".", Ok(".")),
            ("a/..", Ok(".")),
            ("..", Err(NameFault::Outside)),
            ("a/../../b", Err(NameFault::Outside)),
            ("/a", Err(NameFault::Absolute)),
            ("", Err(NameFault::Unusable)),
            ("a\0b", Err(NameFault::Unusable)),
        ] {
            assert_eq!(
                path(name),
                expected.map(|text| text.as_bytes().to_vec()),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_target_is_seen_from_the_links_own_folder() {
        let folder = Place::of(b"a/b").unwrap();
        assert_eq!(folder.clone().then(b"../c").unwrap().path(), b"a/c");
        assert_eq!(folder.then(b"../../../c"), Err(NameFault::Outside));
    }

    proptest! {
        #[test]
        fn no_place_holds_a_component_that_leads_anywhere_else(name in "[ab./\0]{0,20}") {
            if let Ok(place) = Place::of(name.as_bytes()) {
                for component in place.components() {
                    prop_assert!(!matches!(component, b"" | b"." | b".."));
                    prop_assert!(!component.contains(&b'/') && !component.contains(&0));
                }
            }
        }
    }
}
