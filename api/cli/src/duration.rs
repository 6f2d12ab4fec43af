//! Durations as people type them (`90`, `90s`, `30m`, `1h30m`, `2d`) and as people read them.
//! A number without a unit is seconds, which is what the API's `_seconds` fields count. Fractions
//! are refused because the API has no place for them; so is what does not fit in 64 bits.

/// Reads a duration in whole seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a duration: write seconds, or 90s, 30m, 1h30m, 2d");
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| wrong());
    }
    let mut total: u64 = 0;
    let mut rest = text;
    let mut unit_before = u64::MAX;
    while !rest.is_empty() {
        let digits_end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (digits, tail) = rest.split_at(digits_end);
        let mut tail_chars = tail.chars();
        let unit = match tail_chars.next() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3_600,
            Some('d') => 86_400,
            _ => return Err(wrong()),
        };
        // Units fall from left to right, so that a slip such as `30m1h` is not read as a sum.
        if unit >= unit_before {
            return Err(wrong());
        }
        unit_before = unit;
        let count: u64 = digits.parse().map_err(|_| wrong())?;
        total = count
            .checked_mul(unit)
            .and_then(|seconds| total.checked_add(seconds))
            .ok_or_else(wrong)?;
        rest = tail_chars.as_str();
    }
    Ok(total)
}

/// A measured time as a person reads it: `8 ms`, `1.25 s`, `3m 20s`.
pub(crate) fn human_millis(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{:02} s", millis / 1_000, millis % 1_000 / 10),
        60_000..3_600_000 => format!("{}m {:02}s", millis / 60_000, millis % 60_000 / 1_000),
        _ => format!(
            "{}h {:02}m",
            millis / 3_600_000,
            millis % 3_600_000 / 60_000
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_seconds() {
        assert_eq!(parse_seconds("90"), Ok(90));
        assert_eq!(parse_seconds("0"), Ok(0));
    }

    #[test]
    fn units_add_up_from_large_to_small() {
        assert_eq!(parse_seconds("90s"), Ok(90));
        assert_eq!(parse_seconds("30m"), Ok(1_800));
        assert_eq!(parse_seconds("1h30m"), Ok(5_400));
        assert_eq!(parse_seconds("1d1s"), Ok(86_401));
    }

    #[test]
    fn everything_else_is_refused() {
        for wrong in [
            "",
            "-1",
            "1.5h",
            "30m1h",
            "1h1h",
            "h",
            "1w",
            "18446744073709551616",
            "99999999999999999d",
        ] {
            assert!(parse_seconds(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn measured_times_are_short_to_read() {
        for (millis, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.00 s"),
            (59_999, "59.99 s"),
            (60_000, "1m 00s"),
            (200_000, "3m 20s"),
            (3_660_000, "1h 01m"),
        ] {
            assert_eq!(human_millis(millis), text);
        }
    }
}
