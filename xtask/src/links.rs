//! Documents that point at nothing mislead at the worst moment: every relative link must resolve, to a
//! heading if it names one, and every path of the tree that the architecture names must exist. So must every
//! test that a document names.

use std::path::{Path, PathBuf};

use crate::{named_tests, tree};

/// Paths beginning so are taken for paths of the tree when a document names them.
const TREE_PREFIXES: [&str; 8] = [
    "crates/",
    "docs/",
    "fuzz/",
    "lab/",
    "packaging/",
    "scripts/",
    "sim/",
    "xtask/",
];

/// Checks every Markdown file of the tree.
pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let documents = tree::files(&root, "md")?;
    let mut faults = Vec::new();
    let (mut checked, mut tests) = (0, 0);
    for document in &documents {
        let text = tree::read(&root, document)?;
        let directory = document.parent().unwrap_or(Path::new(""));
        let mut wanted = Vec::new();
        for (line, target) in links(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match file.is_empty() {
                true => document.clone(),
                false => directory.join(file),
            };
            if !anchor.is_empty()
                && file.extension().is_some_and(|kind| kind == "md")
                && root.join(&file).is_file()
            {
                let there = tree::read(&root, &file)?;
                if !anchors(&there).iter().any(|one| one == anchor) {
                    let document = document.display();
                    faults.push(format!(
                        "{document}:{line}: {} has no heading #{anchor}",
                        file.display()
                    ));
                }
            }
            wanted.push((line, file));
        }
        if names_the_tree(document) {
            wanted.extend(
                tree_paths(&text)
                    .into_iter()
                    .map(|(line, path)| (line, PathBuf::from(path))),
            );
        }
        tests += judge_tests(&root, document, &text, &mut faults);
        checked += wanted.len();
        for (line, path) in wanted {
            if !root.join(&path).exists() {
                faults.push(format!(
                    "{}:{line}: `{}` does not exist",
                    document.display(),
                    path.display()
                ));
            }
        }
    }
    if faults.is_empty() {
        println!(
            "docs: {} documents, {checked} links and paths, {tests} tests",
            documents.len()
        );
        return Ok(());
    }
    Err(faults.join("\n"))
}

/// Adds a fault for each test that a document names and the tree lacks. Returns how many it names.
fn judge_tests(root: &Path, document: &Path, text: &str, faults: &mut Vec<String>) -> usize {
    let named = named_tests::named(text);
    let shown = document.display();
    for test in &named {
        let file = named_tests::target(document, test.file);
        // A missing file is a link that does not resolve.
        let Ok(there) = tree::read(root, &file) else {
            continue;
        };
        if !named_tests::has_test(&there, test.name) {
            let (line, name) = (test.line, test.name);
            faults.push(format!(
                "{shown}:{line}: {} has no test `{name}`, or an ignored one",
                file.display()
            ));
        }
    }
    for line in named_tests::rows_without(document, text) {
        faults.push(format!("{shown}:{line}: this row names no test"));
    }
    named.len()
}

fn names_the_tree(document: &Path) -> bool {
    document == Path::new("ARCHITECTURE.md") || document.starts_with("docs")
}

/// Names by which links reach the headings of a document: lower case, without punctuation, `-` for spaces,
/// and a number where a heading stands several times.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        // Of a link only the text counts.
        let plain: String = heading
            .split("](")
            .enumerate()
            .fold(String::new(), |all, (at, part)| {
                all + match at {
                    0 => part,
                    _ => part.split_once(')').map_or("", |(_, rest)| rest),
                }
            });
        let kept = plain.trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
        });
        let name: String = kept.collect();
        let before = found.iter().filter(|one| **one == name).count();
        found.push(match before {
            0 => name,
            count => format!("{name}-{count}"),
        });
    }
    found
}

/// Targets of `[text](target)` and `[name]: target` on this site, with their lines. Code blocks are skipped.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let defined = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
            .map(|(_, target)| target);
        found.extend(
            inline
                .chain(defined)
                .filter_map(own_target)
                .map(|target| (index + 1, target)),
        );
    }
    found
}

/// A link's target, a file with or without the name of a heading; nothing for another site.
fn own_target(target: &str) -> Option<&str> {
    let target = target.split_whitespace().next()?;
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    (!elsewhere).then_some(target)
}

/// Paths of the tree that the text names, in prose or in drawings. One with a placeholder or an alternative
/// (`{a,b}`, `*`, `<name>`, `...`) names no single file and is left out.
fn tree_paths(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in line.split(|c: char| c.is_whitespace() || "`()[]|,;\"'".contains(c)) {
            let path = word.trim_end_matches(['.', ':', '!', '?']);
            // `crates/x/src/a.rs:12` and `crates/x/src/a.rs::f` name a place in a file.
            let path = path.split(':').next().unwrap_or(path);
            let names_one = !path.contains(['{', '}', '*', '<', '>', '$', '…']) && !path.contains("..");
            if names_one && TREE_PREFIXES.iter().any(|prefix| path.starts_with(prefix)) {
                found.push((index + 1, path.split('#').next().unwrap_or(path)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_found_and_to_other_sites_are_not() {
        let text = "see [a](docs/a.md#top) and [b](https://x.org/b), [c](#here)\n\n[d]: ../d.md \"title\"\n";
        assert_eq!(links(text), [(1, "docs/a.md#top"), (1, "#here"), (3, "../d.md")]);
    }

    #[test]
    fn headings_have_the_names_that_pages_give_them() {
        let text = "# `a`: What, [b](c.md) & it\n```sh\n# no\n```\n## Same\n## Same\n#not one\n";
        assert_eq!(anchors(text), ["a-what-b--it", "same", "same-1"]);
    }

    #[test]
    fn what_stands_in_a_code_block_is_no_link() {
        assert_eq!(
            links("```rust\nlet a = b[0](missing.md);\n```\n[x](y.md)\n"),
            [(4, "y.md")]
        );
    }

    #[test]
    fn a_document_names_paths_in_prose() {
        let text = "`crates/core/proto/src/port.rs`, crates/memory/rvm/. Not crates/{a,b}/src, nor crates/*/src.\n(sim/src/lib.rs:12)";
        assert_eq!(
            tree_paths(text),
            [
                (1, "crates/core/proto/src/port.rs"),
                (1, "crates/memory/rvm/"),
                (2, "sim/src/lib.rs")
            ]
        );
    }
}
