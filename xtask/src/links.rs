//! Documents that point at nothing mislead at the worst moment: every relative link must resolve, and every
//! path of the tree that the architecture names must exist.

use std::path::{Path, PathBuf};

use crate::tree;

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
    let mut checked = 0;
    for document in &documents {
        let text = tree::read(&root, document)?;
        let directory = document.parent().unwrap_or(Path::new(""));
        let mut wanted: Vec<(usize, PathBuf)> = links(&text)
            .into_iter()
            .map(|(line, target)| (line, directory.join(target)))
            .collect();
        if names_the_tree(document) {
            wanted.extend(
                tree_paths(&text)
                    .into_iter()
                    .map(|(line, path)| (line, PathBuf::from(path))),
            );
        }
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
        println!("docs: {} documents, {checked} links and paths", documents.len());
        return Ok(());
    }
    Err(faults.join("\n"))
}

fn names_the_tree(document: &Path) -> bool {
    document == Path::new("ARCHITECTURE.md") || document.starts_with("docs")
}

/// Targets of `[text](target)` and `[name]: target` that are files, with their lines. Code blocks are
/// skipped.
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
                .filter_map(file_of)
                .map(|target| (index + 1, target)),
        );
    }
    found
}

/// The file part of a link's target; nothing for another site or a place on the same page.
fn file_of(target: &str) -> Option<&str> {
    let target = target.split_whitespace().next()?;
    let file = target.split('#').next()?;
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    (!file.is_empty() && !elsewhere).then_some(file)
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
        assert_eq!(links(text), [(1, "docs/a.md"), (3, "../d.md")]);
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
