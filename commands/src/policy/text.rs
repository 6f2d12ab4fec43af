//! A command as far as it is known before it runs: characters, and gaps that only the shell fills.

/// Text with gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    atoms: Vec<Atom>,
    /// As a word of a command it may turn out to be no word at all, as `$x` does when it is empty.
    vanishes: bool,
}

/// One piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atom {
    /// This character.
    Char(char),
    /// Any characters, also none: what a variable or a substitution will say.
    Gap,
}

impl Text {
    /// A text without gaps.
    pub(crate) fn literal(text: &str) -> Self {
        Self {
            atoms: text.chars().map(Atom::Char).collect(),
            vanishes: false,
        }
    }

    /// A gap and nothing else.
    pub(crate) fn gap() -> Self {
        Self {
            atoms: vec![Atom::Gap],
            vanishes: false,
        }
    }

    /// The words with one space between each, as if every word were one.
    pub(crate) fn joined(words: &[Self]) -> Self {
        let mut text = Self::default();
        for (index, word) in words.iter().enumerate() {
            if index > 0 {
                text.push(' ');
            }
            text.append(word);
        }
        text
    }

    /// The words with one space between each, where a word that may vanish stands for the spaces around it
    /// too. `None` when no word may vanish.
    pub(crate) fn joined_without(words: &[Self]) -> Option<Self> {
        words.iter().find(|word| word.vanishes)?;
        let mut text = Self::default();
        let mut space = false;
        for word in words {
            if space && !word.vanishes {
                text.push(' ');
            }
            text.append(word);
            space = !word.vanishes;
        }
        Some(text)
    }

    pub(crate) fn set_vanishing(&mut self) {
        self.vanishes = true;
    }

    pub(crate) fn push(&mut self, character: char) {
        self.atoms.push(Atom::Char(character));
    }

    pub(crate) fn push_str(&mut self, text: &str) {
        self.atoms.extend(text.chars().map(Atom::Char));
    }

    /// Two gaps side by side are one.
    pub(crate) fn push_gap(&mut self) {
        if self.atoms.last() != Some(&Atom::Gap) {
            self.atoms.push(Atom::Gap);
        }
    }

    pub(crate) fn append(&mut self, other: &Self) {
        for atom in &other.atoms {
            match atom {
                Atom::Char(character) => self.push(*character),
                Atom::Gap => self.push_gap(),
            }
        }
    }

    pub(crate) fn atoms(&self) -> &[Atom] {
        &self.atoms
    }

    /// Nothing of it is left to the shell.
    pub(crate) fn is_known(&self) -> bool {
        !self.atoms.contains(&Atom::Gap)
    }

    /// The whole text, if all of it is known.
    pub(crate) fn known(&self) -> Option<String> {
        let character = |atom: &Atom| match atom {
            Atom::Char(character) => Some(*character),
            Atom::Gap => None,
        };
        self.atoms.iter().map(character).collect()
    }

    /// What follows the last slash that is known, if there is one.
    pub(crate) fn behind_slash(&self) -> Option<Self> {
        let slash = self
            .atoms
            .iter()
            .rposition(|atom| *atom == Atom::Char('/'))?;
        Some(Self {
            atoms: self.atoms.get(slash + 1..)?.to_vec(),
            vanishes: false,
        })
    }

    /// What follows the last slash, if all of the text is known.
    pub(crate) fn file_name(&self) -> Option<String> {
        let whole = self.known()?;
        let name = whole.rsplit('/').next().unwrap_or_default();
        Some(name.to_owned())
    }

    /// For people: a gap is an ellipsis.
    pub(crate) fn shown(&self) -> String {
        self.with_gaps_as("…")
    }

    /// The text with something else in place of each gap.
    pub(crate) fn with_gaps_as(&self, filling: &str) -> String {
        let mut text = String::with_capacity(self.atoms.len());
        for atom in &self.atoms {
            match atom {
                Atom::Char(character) => text.push(*character),
                Atom::Gap => text.push_str(filling),
            }
        }
        text
    }
}
