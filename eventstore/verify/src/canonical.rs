//! Whether bytes are canonical JSON (RFC 8785), with integers only.
//!
//! A payload is hashed as it is stored. Because it is stored in canonical form, someone who has
//! only the parsed value can write the same bytes again. RFC 8785 takes every number for a double,
//! so fractions, exponents and integers above 2^53 are refused: they could not be written again
//! without doubt.
//!
//! The check walks the bytes once and builds nothing: exactly one text stands for each value, so it
//! is enough to refuse every other one.

use std::borrow::Cow;
use std::cmp::Ordering;

/// The largest magnitude of an integer in a payload: above it a double does not hold every integer.
pub const INTEGER_MAGNITUDE_MAX: u64 = 1 << 53;

/// How deep arrays and objects may nest, so that a payload cannot exhaust the stack of a reader.
pub const JSON_DEPTH_MAX: usize = 128;

/// Where and why bytes are not canonical JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not canonical JSON at byte {at}: {reason}")]
pub struct NotCanonical {
    /// The offset of the first byte that could not be as it is.
    pub at: usize,
    /// What is wrong there.
    pub reason: &'static str,
}

/// Passes exactly those bytes that the payload of an event may consist of.
pub fn check_canonical(bytes: &[u8]) -> Result<(), NotCanonical> {
    let text = std::str::from_utf8(bytes).map_err(|e| NotCanonical {
        at: e.valid_up_to(),
        reason: "not UTF-8",
    })?;
    let mut walker = Walker { text, at: 0 };
    walker.value(JSON_DEPTH_MAX)?;
    if walker.at == bytes.len() {
        Ok(())
    } else {
        Err(walker.refuse("bytes behind the value"))
    }
}

struct Walker<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walker<'a> {
    fn refuse(&self, reason: &'static str) -> NotCanonical {
        NotCanonical {
            at: self.at,
            reason,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: u8, reason: &'static str) -> Result<(), NotCanonical> {
        if self.take(wanted) {
            Ok(())
        } else {
            Err(self.refuse(reason))
        }
    }

    fn value(&mut self, depth_left: usize) -> Result<(), NotCanonical> {
        match self.peek() {
            Some(b'{') => self.object(depth_left),
            Some(b'[') => self.array(depth_left),
            Some(b'"') => self.string().map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.integer(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => Err(self.refuse("no value starts here")),
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), NotCanonical> {
        if !self
            .text
            .get(self.at..)
            .is_some_and(|rest| rest.starts_with(word))
        {
            return Err(self.refuse("no value starts here"));
        }
        self.at += word.len();
        Ok(())
    }

    fn integer(&mut self) -> Result<(), NotCanonical> {
        let start = self.at;
        let negative = self.take(b'-');
        let mut magnitude: u64 = 0;
        let digits_at = self.at;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            magnitude = magnitude
                .saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        let digits = self.at - digits_at;
        let leading_zero = digits > 1 && self.text.as_bytes().get(digits_at) == Some(&b'0');
        let wrong = if digits == 0 || leading_zero {
            Some("not an integer")
        } else if negative && magnitude == 0 {
            Some("minus zero")
        } else if magnitude > INTEGER_MAGNITUDE_MAX {
            Some("an integer above 2^53 must be written as a string")
        } else if matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            Some("a number must be an integer")
        } else {
            None
        };
        match wrong {
            Some(reason) => Err(NotCanonical { at: start, reason }),
            None => Ok(()),
        }
    }

    fn array(&mut self, depth_left: usize) -> Result<(), NotCanonical> {
        let depth_left = self.descend(depth_left)?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            self.value(depth_left)?;
            if self.take(b']') {
                return Ok(());
            }
            self.expect(b',', "neither `,` nor `]`")?;
        }
    }

    fn object(&mut self, depth_left: usize) -> Result<(), NotCanonical> {
        let depth_left = self.descend(depth_left)?;
        if self.take(b'}') {
            return Ok(());
        }
        let mut previous: Option<Cow<'a, str>> = None;
        loop {
            let key_at = self.at;
            let key = self.string()?;
            if previous.is_some_and(|previous| utf16_order(&previous, &key) != Ordering::Less) {
                return Err(NotCanonical {
                    at: key_at,
                    reason: "keys out of order or repeated",
                });
            }
            previous = Some(key);
            self.expect(b':', "no `:` behind a key")?;
            self.value(depth_left)?;
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',', "neither `,` nor `}`")?;
        }
    }

    /// Steps over the opening bracket.
    fn descend(&mut self, depth_left: usize) -> Result<usize, NotCanonical> {
        let left = depth_left
            .checked_sub(1)
            .ok_or(self.refuse("nested too deeply"))?;
        self.at += 1;
        Ok(left)
    }

    /// Steps over a string and returns what it says.
    fn string(&mut self) -> Result<Cow<'a, str>, NotCanonical> {
        self.expect(b'"', "no string starts here")?;
        let start = self.at;
        let mut unescaped: Option<String> = None;
        loop {
            let plain_at = self.at;
            while self
                .peek()
                .is_some_and(|b| b >= 0x20 && b != b'"' && b != b'\\')
            {
                self.at += 1;
            }
            let plain = self.text.get(plain_at..self.at).unwrap_or_default();
            if let Some(text) = &mut unescaped {
                text.push_str(plain);
            }
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    let before = self.text.get(start..self.at).unwrap_or_default();
                    let escaped = self.escape()?;
                    unescaped
                        .get_or_insert_with(|| before.to_owned())
                        .push(escaped);
                }
                Some(_) => return Err(self.refuse("a control character must be escaped")),
                None => return Err(self.refuse("the string does not end")),
            }
        }
        let plain = self.text.get(start..self.at).unwrap_or_default();
        self.at += 1;
        Ok(unescaped.map_or(Cow::Borrowed(plain), Cow::Owned))
    }

    /// Steps over the one escape that RFC 8785 allows for a character, and returns the character.
    fn escape(&mut self) -> Result<char, NotCanonical> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let (escaped, length) = match rest {
            [b'\\', b'"', ..] => ('"', 2),
            [b'\\', b'\\', ..] => ('\\', 2),
            [b'\\', b'b', ..] => ('\u{8}', 2),
            [b'\\', b't', ..] => ('\t', 2),
            [b'\\', b'n', ..] => ('\n', 2),
            [b'\\', b'f', ..] => ('\u{c}', 2),
            [b'\\', b'r', ..] => ('\r', 2),
            [b'\\', b'u', b'0', b'0', high @ b'0'..=b'1', low, ..] => {
                (self.control(*high - b'0', *low)?, 6)
            }
            _ => return Err(self.refuse("an escape that is not needed")),
        };
        self.at += length;
        Ok(escaped)
    }

    fn control(&self, high: u8, low: u8) -> Result<char, NotCanonical> {
        let low = match low {
            b'0'..=b'9' => low - b'0',
            b'a'..=b'f' => low - b'a' + 10,
            _ => return Err(self.refuse("an escape has lower-case digits")),
        };
        match high * 16 + low {
            // These five have an escape of their own.
            0x08 | 0x09 | 0x0a | 0x0c | 0x0d => Err(self.refuse("the short escape is wanted")),
            code => Ok(char::from(code)),
        }
    }
}

/// RFC 8785 orders keys by their UTF-16 code units, which differs from byte order above the BMP.
fn utf16_order(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() {
        return a.cmp(b);
    }
    a.encode_utf16().cmp(b.encode_utf16())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_canonical_form_of_a_value_passes() {
        let nested = format!(
            "{}{}",
            "[".repeat(JSON_DEPTH_MAX),
            "]".repeat(JSON_DEPTH_MAX)
        );
        for good in [
            r#"{"a":1,"b":[true,false,null,-7,0],"c":{"":"","x":"é\n\u001f\"\\/"}}"#,
            "9007199254740992",
            "-9007199254740992",
            "\"\u{7f}\"",
            "{\"\u{10000}\":1,\"\u{ffff}\":2}",
            r#"{"\n":1,"1":2}"#,
            &nested,
        ] {
            assert_eq!(check_canonical(good.as_bytes()), Ok(()), "{good}");
        }
    }

    #[test]
    fn every_other_form_of_a_value_is_refused() {
        let deep = format!(
            "{}{}",
            "[".repeat(JSON_DEPTH_MAX + 1),
            "]".repeat(JSON_DEPTH_MAX + 1)
        );
        for bad in [
            "",
            " 1",
            "1 ",
            "{ }",
            "01",
            "-0",
            "-",
            "1.0",
            "1e3",
            "9007199254740993",
            "+1",
            "tru",
            r#"{"b":1,"a":2}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,}"#,
            r#"{"a" :1}"#,
            "[1,]",
            "[1",
            "[",
            r#""\/""#,
            r#""\u0041""#,
            r#""\u000a""#,
            r#""\u001F""#,
            "\"\n\"",
            "\"",
            r#""\"#,
            r#""\u0"#,
            "{\"\u{ffff}\":1,\"\u{10000}\":2}",
            "1\n",
            "nullnull",
            &deep,
        ] {
            assert!(check_canonical(bad.as_bytes()).is_err(), "{bad:?} passed");
        }
        assert!(check_canonical(b"\"\xff\"").is_err());
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-(1_i64 << 53)..=(1 << 53)).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_an_independent_writer_calls_canonical_passes(value in json()) {
            let bytes = serde_json_canonicalizer::to_vec(&value).unwrap();
            prop_assert_eq!(check_canonical(&bytes), Ok(()));
        }

        #[test]
        fn bytes_that_pass_are_what_an_independent_writer_writes(
            text in "[\\[\\]{}\",:0-9\\\\nu a-c]{0,24}"
        ) {
            if check_canonical(text.as_bytes()).is_ok() {
                let value: Value = serde_json::from_str(&text).unwrap();
                let written = serde_json_canonicalizer::to_vec(&value).unwrap();
                prop_assert_eq!(written, text.into_bytes());
            }
        }
    }
}
