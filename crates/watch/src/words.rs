//! Numbers, spans of time and foreign text in words for people.

use std::time::Duration;

/// Returns a number of bytes for people.
pub fn bytes(count: u64) -> String {
    bytesize::ByteSize(count).display().iec().to_string()
}

/// Returns a length of time for people, without its small parts.
pub fn age(span: Duration) -> String {
    let kept = match span {
        span if span < Duration::from_secs(1) => Duration::from_millis(span.as_millis() as u64),
        span if span < Duration::from_secs(60) => Duration::from_millis(span.as_millis() as u64 / 100 * 100),
        span => Duration::from_secs(span.as_secs()),
    };
    humantime::format_duration(kept).to_string()
}

/// Returns an integer with commas between thousands.
pub fn thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

/// Returns a number of things, with an `s` for several.
pub fn count(number: u64, thing: &str) -> String {
    counted(number, thing, &format!("{thing}s"))
}

/// Returns a number of things whose plural is another word.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    let digits = thousands(i64::try_from(number).unwrap_or(i64::MAX));
    match number {
        1 => format!("{digits} {one}"),
        _ => format!("{digits} {several}"),
    }
}

/// Returns foreign text, such as a node's name, with control characters escaped, so that a terminal only
/// shows it.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => plain.extend(letter.escape_debug()),
            false => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_things_their_plural() {
        assert_eq!(thousands(-1000), "-1,000");
        assert_eq!(thousands(999), "999");
        assert_eq!(
            (count(1, "log"), count(2000, "log")),
            ("1 log".into(), "2,000 logs".into())
        );
    }

    #[test]
    fn lengths_of_time_lose_their_small_parts() {
        assert_eq!(age(Duration::from_micros(1_234_567)), "1s 200ms");
        assert_eq!(age(Duration::from_millis(61_900)), "1m 1s");
    }
}
