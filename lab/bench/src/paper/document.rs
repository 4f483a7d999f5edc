//! The document of a run, as `docs/results` keeps it: written by the laboratory, and copied there unchanged.

/// Longest line of prose, in characters.
const WIDTH: usize = 110;

/// Returns a document with this title, whose prose is in the page `prose` beside it. Headings of `body` are
/// of level three and become level two; prose is wrapped, tables stay.
pub(crate) fn document(title: &str, prose: &str, body: &str) -> String {
    let mut text = format!("# {title}\n\n");
    wrap(
        &mut text,
        &format!(
            "What is measured, how, and what it says: [{prose}]({prose}). The laboratory wrote this page."
        ),
    );
    text.push('\n');
    for line in body.lines() {
        match line.strip_prefix("### ") {
            Some(heading) => text.push_str(&format!("## {heading}\n")),
            None if line.starts_with('|') || line.len() <= WIDTH => text.push_str(&format!("{line}\n")),
            None => wrap(&mut text, line),
        }
    }
    text
}

/// Adds a paragraph, in lines as long as they may be.
fn wrap(text: &mut String, paragraph: &str) {
    let mut width = 0;
    for word in paragraph.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_and_tables_are_not() {
        let table = format!("| {} |", "cell ".repeat(40));
        let body = format!(
            "{}\n\n### Figure 1: a\n\n{table}\n",
            "a word or two ".repeat(30).trim()
        );
        let text = document("All tables", "a.md", &body);
        assert!(text.starts_with("# All tables\n\nWhat is measured"), "{text}");
        assert!(text.contains("\n## Figure 1: a\n"), "{text}");
        assert!(text.contains(&table), "{text}");
        let prose = text.lines().filter(|line| !line.starts_with('|'));
        assert!(prose.map(|line| line.chars().count()).max() <= Some(WIDTH));
        let joined = text.replace('\n', " ");
        assert_eq!(joined.matches("a word or two").count(), 30);
    }
}
