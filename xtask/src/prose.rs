//! How the tree reads, in counts that must not rise: openings of doc comments, names defined twice, long
//! lines.
//!
//! Tests are not counted for openings and names: a test's comment tells its story, and its helpers are its
//! own.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{code, tree};

/// Words that leave the reader without a subject.
const OPENINGS: [&str; 10] = [
    "What", "Whatever", "Who", "Whoever", "It", "That", "Of", "So", "Nothing", "There",
];
/// Doc comments that may open with one of them, in thousandths.
const OPENINGS_MAX: u64 = 1;
/// Names of public types that may be defined more than once, in thousandths.
const DUPLICATES_MAX: u64 = 30;
/// Columns of a comment or a line of Markdown.
const COLUMNS_MAX: usize = 110;
/// Faults of one kind that are listed.
const LISTED_MAX: usize = 20;

/// Counts of the tree.
#[derive(Debug, Default)]
struct Counts {
    comments: u64,
    /// `file:line: first words` of comments that open without a subject.
    openings: Vec<String>,
    /// Where each public type name is defined.
    types: BTreeMap<String, Vec<String>>,
    /// Lines beyond the columns.
    long: Vec<String>,
}

/// Counts the whole tree, prints the counts, and fails where one is above its limit.
pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let mut counts = Counts::default();
    for path in tree::files(&root, "rs")? {
        counts.rust(&path, &tree::read(&root, &path)?);
    }
    for path in tree::files(&root, "md")? {
        counts.markdown(&path, &tree::read(&root, &path)?);
    }
    println!("prose: {}", counts.summary());
    let faults = counts.faults();
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults.join("\n")),
    }
}

impl Counts {
    fn rust(&mut self, path: &Path, text: &str) {
        let is_test = path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
        let blanked = code::blank(text);
        let (mut follows, mut fenced) = (false, false);
        for (index, (line, code)) in text.lines().zip(blanked.lines()).enumerate() {
            let place = || format!("{}:{}", path.display(), index + 1);
            let trimmed = line.trim_start();
            fenced ^= documentation(trimmed).is_some_and(|words| words.starts_with("```"));
            // A drawing or a table is as wide as it has to be.
            if trimmed.starts_with("//") && !fenced && is_long(line) && is_prose(trimmed) {
                self.long.push(place());
            }
            if is_test {
                continue;
            }
            follows = match documentation(trimmed) {
                Some(words) if follows || words.is_empty() => follows || !words.is_empty(),
                Some(words) => {
                    self.comments += 1;
                    let first = words.split(|c: char| !c.is_alphanumeric()).next();
                    if OPENINGS.iter().any(|opening| first == Some(opening)) {
                        let shown: String = words.chars().take(60).collect();
                        self.openings.push(format!("{}: {shown}", place()));
                    }
                    true
                }
                None => false,
            };
            if let Some(name) = public_type(code) {
                self.types.entry(name.to_owned()).or_default().push(place());
            }
        }
    }

    fn markdown(&mut self, path: &Path, text: &str) {
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            if !fenced && is_long(line) && is_prose(line) {
                self.long.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    }

    fn duplicates(&self) -> impl Iterator<Item = (&String, &Vec<String>)> {
        self.types.iter().filter(|(_, places)| places.len() > 1)
    }

    fn summary(&self) -> String {
        let openings = self.openings.len() as u64;
        let duplicates = self.duplicates().count() as u64;
        format!(
            "{} doc comments, {openings} ({}) open with {}; {} names of public types, {duplicates} ({}) defined more than once; \
             {} lines beyond {COLUMNS_MAX} columns",
            self.comments,
            percent(thousandths(openings, self.comments)),
            OPENINGS.join("/"),
            self.types.len(),
            percent(thousandths(duplicates, self.types.len() as u64)),
            self.long.len()
        )
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if thousandths(self.openings.len() as u64, self.comments) > OPENINGS_MAX {
            faults.push(format!(
                "more than {} of doc comments open without a subject:",
                percent(OPENINGS_MAX)
            ));
            faults.extend(self.openings.iter().take(LISTED_MAX).cloned());
        }
        let duplicates = self.duplicates().count() as u64;
        if thousandths(duplicates, self.types.len() as u64) > DUPLICATES_MAX {
            faults.push(format!(
                "more than {} of public type names are defined more than once:",
                percent(DUPLICATES_MAX)
            ));
            let listed = self.duplicates().take(LISTED_MAX);
            faults.extend(listed.map(|(name, places)| format!("{name}: {}", places.join(", "))));
        }
        if !self.long.is_empty() {
            faults.push(format!(
                "comments and Markdown wrap at {COLUMNS_MAX} columns (tables, drawings, code and bare links may be wider):"
            ));
            faults.extend(self.long.iter().take(LISTED_MAX).cloned());
        }
        faults
    }
}

fn is_long(line: &str) -> bool {
    line.chars().count() > COLUMNS_MAX
}

/// Whether a line could be wrapped: not a row of a table, a line of code or of a drawing, or a single long
/// word.
fn is_prose(line: &str) -> bool {
    let body = line.trim_start().trim_start_matches('/').trim_start_matches('!');
    let indented = body.starts_with("     ") || body.contains("  ");
    let body = body.trim();
    !body.contains(" | ")
        && !body.starts_with('|')
        && !indented
        && body.split(' ').filter(|word| !word.is_empty()).count() > 2
}

/// The text of a doc comment's line.
fn documentation(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    (!rest.starts_with('/')).then(|| rest.trim())
}

/// The name of a type that is defined at the left margin and seen outside its module.
fn public_type(code: &str) -> Option<&str> {
    let rest = code.strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => rest,
    };
    let mut words = rest.strip_prefix(' ')?.split_whitespace();
    let kind = words.find(|word| *word != "unsafe")?;
    let name = words.next()?;
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    is_type.then(|| &name[..end.unwrap_or(name.len())])
}

fn thousandths(part: u64, whole: u64) -> u64 {
    (part * 1000).div_ceil(whole.max(1))
}

fn percent(thousandths: u64) -> String {
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Counts {
        let mut counts = Counts::default();
        counts.rust(Path::new("crates/a/src/a.rs"), text);
        counts
    }

    #[test]
    fn openings_are_counted_once_a_comment() {
        let counts = of(
            "/// What it is.\n/// It goes on.\nstruct A;\n/// Size in bytes.\n/// So it goes.\n//! Itself.\n\n//! Of b.\n",
        );
        assert_eq!((counts.comments, counts.openings.len()), (3, 2), "{counts:?}");
        assert_eq!(of("//// It\n// It\nlet a = \"/// It\";\n").comments, 0);
    }

    #[test]
    fn types_are_known_by_name_wherever_they_may_be_seen() {
        let text = "pub struct A;\npub(crate) enum A {}\nstruct B;\npub type C<T> = T;\n    pub struct D;\npub fn e() {}\npub unsafe trait F {}\n";
        let counts = of(text);
        assert_eq!(counts.types.keys().collect::<Vec<_>>(), ["A", "C", "F"]);
        assert_eq!(counts.types["A"].len(), 2);
    }

    #[test]
    fn prose_wraps_and_tables_drawings_code_and_links_need_not() {
        let words = "word ".repeat(30);
        let counts = of(&format!(
            "//! {words}\n//! | {words}|\n//!  a  |  b{words}\nlet x = 1; // {words}\n"
        ));
        assert_eq!(counts.long, ["crates/a/src/a.rs:1"]);
        let mut counts = Counts::default();
        let link = "x".repeat(120);
        counts.markdown(
            Path::new("a.md"),
            &format!("{words}\n| {words}\n```\n{words}\n```\n[a]: {link}\n"),
        );
        assert_eq!(counts.long, ["a.md:1"]);
    }

    #[test]
    fn a_share_above_its_limit_is_a_fault_and_one_at_it_is_none() {
        let many = |bad: usize| {
            let good = "/// Size.\nfn a() {}\n".repeat(2000 - bad);
            of(&(good + &"/// It.\nfn a() {}\n".repeat(bad)))
        };
        assert!(many(2).faults().is_empty());
        assert!(!many(3).faults().is_empty());
    }
}
