//! Patterns over commands. `*` stands for any characters, also none; everything else is itself.

use crate::policy::text::Atom;
use crate::policy::text::Text;

/// Whether a pattern covers a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// Whatever the gaps turn out to be.
    Always,
    /// It depends on what the gaps turn out to be.
    Perhaps,
    /// Whatever the gaps turn out to be, it does not.
    Never,
}

/// A pattern, ready to be held against many texts.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    characters: Vec<(char, Places)>,
    stars: Places,
    end: usize,
}

/// Places in a pattern, one bit each.
type Places = Vec<u64>;

/// What a gap may stand for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gaps {
    /// What a star takes whole, so that it does not matter what is in it.
    Absorbed,
    /// Any part of the pattern.
    Free,
}

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        // Two stars side by side are one, so that a star leads at most one place further.
        let mut characters: Vec<char> = pattern.chars().collect();
        characters.dedup_by(|next, previous| *next == '*' && *previous == '*');
        let words = characters.len() / 64 + 1;
        let mut by_character: Vec<(char, Places)> = Vec::new();
        let mut stars = vec![0; words];
        for (place, character) in characters.iter().enumerate() {
            if *character == '*' {
                set(&mut stars, place);
                continue;
            }
            let known = by_character.iter().position(|(it, _)| it == character);
            let known = known.unwrap_or_else(|| {
                by_character.push((*character, vec![0; words]));
                by_character.len() - 1
            });
            if let Some((_, places)) = by_character.get_mut(known) {
                set(places, place);
            }
        }
        Self {
            characters: by_character,
            stars,
            end: characters.len(),
        }
    }

    /// Whether the pattern covers the text.
    pub(crate) fn cover(&self, text: &Text) -> Cover {
        if self.reaches(text, Gaps::Absorbed) {
            Cover::Always
        } else if !text.is_known() && self.reaches(text, Gaps::Free) {
            Cover::Perhaps
        } else {
            Cover::Never
        }
    }

    /// Walks over the text with the set of all places in the pattern that it may have come to. The cost is
    /// the product of the two lengths over 64, whatever they hold.
    fn reaches(&self, text: &Text, gaps: Gaps) -> bool {
        let mut here = vec![0; self.stars.len()];
        set(&mut here, 0);
        self.skip_stars(&mut here);
        for atom in text.atoms() {
            match atom {
                Atom::Char(character) => self.step(&mut here, *character),
                Atom::Gap if gaps == Gaps::Free => fill_from_lowest(&mut here),
                Atom::Gap => and(&mut here, &self.stars),
            }
            self.skip_stars(&mut here);
            if here.iter().all(|word| *word == 0) {
                return false;
            }
        }
        has(&here, self.end)
    }

    /// One character: a star stays where it is, the character itself leads one place further.
    fn step(&self, here: &mut Places, character: char) {
        let found = self.characters.iter().find(|(it, _)| *it == character);
        let mut moved = match found {
            Some((_, places)) => {
                let mut moved = here.clone();
                and(&mut moved, places);
                shift(&mut moved);
                moved
            }
            None => vec![0; here.len()],
        };
        and(here, &self.stars);
        or(&mut moved, here);
        *here = moved;
    }

    /// A star may stand for nothing.
    fn skip_stars(&self, here: &mut Places) {
        let mut after = here.clone();
        and(&mut after, &self.stars);
        shift(&mut after);
        or(here, &after);
    }
}

fn set(places: &mut Places, place: usize) {
    if let Some(word) = places.get_mut(place / 64) {
        *word |= 1 << (place % 64);
    }
}

fn has(places: &Places, place: usize) -> bool {
    places
        .get(place / 64)
        .is_some_and(|word| word >> (place % 64) & 1 == 1)
}

fn and(places: &mut Places, other: &Places) {
    for (word, other) in places.iter_mut().zip(other) {
        *word &= other;
    }
}

fn or(places: &mut Places, other: &Places) {
    for (word, other) in places.iter_mut().zip(other) {
        *word |= other;
    }
}

fn shift(places: &mut Places) {
    let mut carry = 0;
    for word in places {
        let next = *word >> 63;
        *word = *word << 1 | carry;
        carry = next;
    }
}

fn fill_from_lowest(places: &mut Places) {
    let mut filling = false;
    for word in places {
        if filling {
            *word = u64::MAX;
        } else if *word != 0 {
            *word = u64::MAX << word.trailing_zeros();
            filling = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(shape: &str) -> Text {
        let mut text = Text::default();
        for character in shape.chars() {
            match character {
                '?' => text.push_gap(),
                character => text.push(character),
            }
        }
        text
    }

    #[test]
    fn a_long_pattern_is_held_against_a_text_like_a_short_one() {
        let long = format!("{}*{}", "a".repeat(100), "b".repeat(100));
        let same = format!("{}{}", "a".repeat(100), "b".repeat(100));
        assert_eq!(Glob::new(&long).cover(&text(&same)), Cover::Always);
        assert_eq!(Glob::new(&long).cover(&text(&same[..199])), Cover::Never);
    }

    #[test]
    fn a_pattern_covers_always_perhaps_or_never() {
        let table = [
            ("git *", "git push", Cover::Always),
            ("git *", "git", Cover::Never),
            ("git*", "git", Cover::Always),
            ("*", "", Cover::Always),
            ("rm -rf *", "rm -rf /x", Cover::Always),
            ("rm -rf *", "rm -r ?", Cover::Never),
            ("rm -rf *", "rm ?", Cover::Perhaps),
            ("git *", "git ?", Cover::Always),
            ("git push*", "git ?", Cover::Perhaps),
            ("git push*", "git push ?", Cover::Always),
            ("rm *", "? x", Cover::Perhaps),
            ("rm *", "echo ?", Cover::Never),
            ("*--force*", "git push ?", Cover::Perhaps),
            ("a*b*c", "a?c", Cover::Perhaps),
            ("a*", "?", Cover::Perhaps),
            ("é*", "éa", Cover::Always),
            ("a***b", "axxb", Cover::Always),
        ];
        for (pattern, shape, expected) in table {
            assert_eq!(
                Glob::new(pattern).cover(&text(shape)),
                expected,
                "{pattern} on {shape}"
            );
        }
    }
}
