//! Rust text with its comments and literals blanked, so that a rule about code is not misled by prose.
//!
//! A lexer of one screen and not a parser: the rules need words and indentation, and a parser would be the
//! largest dependency of the program that is built first.

/// `text` with every comment and the inside of every string and character literal replaced by spaces.
/// Lines and columns stay where they are.
pub(crate) fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => line_end(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => comment_end(&chars, at),
            '"' => string_end(&chars, at),
            'r' if !follows_word(&chars, at) => raw_string_end(&chars, at),
            // `b` and `c` need no arm of their own: a blanked `"` follows them, and before `r` they are its
            // prefix.
            '\'' => character_end(&chars, at),
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|&kept| if kept == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    out
}

/// The words of a line: runs of letters, digits and `_`.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

fn follows_word(chars: &[char], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|index| chars[index]) else {
        return false;
    };
    let prefix = matches!(before, 'b' | 'c') && !follows_word(chars, at - 1);
    !prefix && (before.is_alphanumeric() || before == '_')
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..]
        .iter()
        .position(|&c| c == '\n')
        .map_or(chars.len(), |length| at + length)
}

/// Block comments nest.
fn comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut index = at;
    while index < chars.len() {
        match (chars[index], chars.get(index + 1)) {
            ('/', Some('*')) => (depth, index) = (depth + 1, index + 2),
            ('*', Some('/')) if depth == 1 => return index + 2,
            ('*', Some('/')) => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut index = at + 1;
    while index < chars.len() {
        match chars[index] {
            '\\' => index += 2,
            '"' => return index + 1,
            _ => index += 1,
        }
    }
    chars.len()
}

/// `at` itself when this `r` begins no raw string.
fn raw_string_end(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let closes = |&index: &usize| {
        chars[index] == '"'
            && chars[index + 1..]
                .iter()
                .take(hashes)
                .filter(|&&c| c == '#')
                .count()
                == hashes
    };
    (open + 1..chars.len())
        .find(closes)
        .map_or(chars.len(), |index| index + 1 + hashes)
}

/// `at` itself when this quote begins a lifetime.
fn character_end(chars: &[char], at: usize) -> usize {
    if chars.get(at + 1) == Some(&'\\') {
        // The escaped character is skipped: it may be the quote.
        let rest = at + 3;
        let length = chars
            .get(rest..)
            .and_then(|tail| tail.iter().position(|&c| c == '\''));
        return length.map_or(chars.len(), |length| rest + length + 1);
    }
    if chars.get(at + 2) == Some(&'\'') {
        at + 3
    } else {
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsafe_words(text: &str) -> usize {
        blank(text)
            .lines()
            .flat_map(|line| words(line).map(String::from).collect::<Vec<_>>())
            .filter(|word| word == "unsafe")
            .count()
    }

    #[test]
    fn prose_about_code_is_not_code() {
        let prose = [
            "// unsafe",
            "/* unsafe /* nested */ unsafe */",
            "let a = \"unsafe \\\" unsafe\";",
            "let a = r#\"unsafe \" unsafe\"#;",
            "let a = br\"unsafe\";",
            "#![forbid(unsafe_code)]",
        ];
        for text in prose {
            assert_eq!(unsafe_words(text), 0, "{text}");
        }
    }

    #[test]
    fn code_after_a_literal_is_still_code() {
        let code = [
            "let quote = '\"'; unsafe {}",
            "let quote = '\\''; unsafe {}",
            "fn f<'a>(a: &'a str) { unsafe {} }",
            "let url = \"http://x\"; unsafe {}",
            "let r = 1; unsafe {}",
            "let tail = r\"\\\"; unsafe {}",
            "/* a */ unsafe {}",
        ];
        for text in code {
            assert_eq!(unsafe_words(text), 1, "{text}");
        }
    }

    #[test]
    fn lines_and_columns_stay() {
        let text = "a /* x\n y */ b\n\"p\nq\" c";
        let blanked = blank(text);
        assert_eq!(blanked, "a     \n      b\n  \n   c");
    }
}
