//! A document that names a test promises that the test runs: a link whose text is the test's name and whose
//! target is its file must find it there. In the document on security each line of a table must name one.

use std::path::{Path, PathBuf};

/// Every row of a table here whose last column is [`TEST_COLUMN`] must name a test.
const EVERY_ROW: &str = "docs/design/security.md";
const TEST_COLUMN: &str = "test";

/// A test that a document names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedTest<'a> {
    /// Line of the document, from 1.
    pub(crate) line: usize,
    pub(crate) name: &'a str,
    /// The file, as the link gives it.
    pub(crate) file: &'a str,
}

/// The tests that a document names, in order.
pub(crate) fn named(text: &str) -> Vec<NamedTest<'_>> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for rest in line.split("[`").skip(1) {
            let Some((name, rest)) = rest.split_once("`](") else {
                continue;
            };
            let file = rest.split(')').next().unwrap_or_default();
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if is_name && file.ends_with(".rs") {
                found.push(NamedTest {
                    line: index + 1,
                    name,
                    file,
                });
            }
        }
    }
    found
}

/// Lines of tables that should name a test and do not.
pub(crate) fn rows_without(document: &Path, text: &str) -> Vec<usize> {
    if document != Path::new(EVERY_ROW) {
        return Vec::new();
    }
    let named: Vec<usize> = named(text).iter().map(|test| test.line).collect();
    let (mut rows, mut demanded) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [.., last, ""] = cells[..] else {
            demanded = false;
            continue;
        };
        if last == TEST_COLUMN {
            demanded = true;
        } else if demanded && !last.starts_with("---") && !named.contains(&(index + 1)) {
            rows.push(index + 1);
        }
    }
    rows
}

/// Whether a Rust file has a test of this name that is not ignored.
pub(crate) fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = format!("fn {name}(");
    let runs = |index: usize| {
        let attributes = lines[..index].iter().rev();
        let mut attributes = attributes.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let is_test = attributes.clone().any(|line| *line == "#[test]");
        is_test && !attributes.any(|line| line.starts_with("#[ignore"))
    };
    // A macro makes tests of lines that begin with their names.
    let listed = format!("{name}: ");
    let makes_tests = text.contains("macro_rules!") && text.contains("fn $");
    lines.iter().enumerate().any(|(index, line)| {
        (line.starts_with(&declared) && runs(index)) || (makes_tests && line.starts_with(&listed))
    })
}

/// Where a link in a document leads.
pub(crate) fn target(document: &Path, file: &str) -> PathBuf {
    document.parent().unwrap_or(Path::new("")).join(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_rust_file_under_a_name_in_code_names_a_test() {
        let text = "see [`a_b`](../x/y.rs), [`Type::of`](y.rs), [`c`](c.md), [d](d.rs)\n| [`e`](e.rs) |\n";
        let found: Vec<_> = named(text)
            .into_iter()
            .map(|t| (t.line, t.name, t.file))
            .collect();
        assert_eq!(found, [(1, "a_b", "../x/y.rs"), (2, "e", "e.rs")]);
    }

    #[test]
    fn a_test_counts_if_it_runs() {
        let text = "\
/// A story.
#[test]
fn runs() {}

#[test]
#[ignore = \"long\"]
fn is_long() {}

fn helps() {}
";
        assert!(has_test(text, "runs"));
        for missing in ["is_long", "helps", "run", "story"] {
            assert!(!has_test(text, missing), "{missing}");
        }
    }

    #[test]
    fn a_macros_list_has_tests_and_a_structs_fields_are_none() {
        let list = "macro_rules! faults { ($($test:ident)*) => { $(#[test] fn $test() {})* } }\nfaults! {\n    is_found: X;\n}\n";
        assert!(has_test(list, "is_found"));
        assert!(!has_test("struct A {\n    is_found: u8,\n}\n", "is_found"));
    }

    #[test]
    fn a_row_on_security_without_a_test_is_found() {
        let text = "\
| | what | test |
|---|---|---|
| can | a | [`a`](a.rs) |
| cannot | b | |

| secret | lies |
|---|---|
| c | d |
";
        assert_eq!(rows_without(Path::new(EVERY_ROW), text), [4]);
        assert_eq!(rows_without(Path::new("docs/design/heap.md"), text), [0; 0]);
    }
}
