//! Checks that rustfmt and clippy do not make: how long files and functions are, what was left behind, where
//! `unsafe` stands.

use std::path::Path;

use crate::{code, tree};

/// A longer file fails, unless its first lines argue for it: `//! length: reason`.
const FILE_LINES_MAX: usize = 600;
/// A longer file is named: the time to look for a seam is before the limit.
const FILE_LINES_WARN: usize = 400;
/// A longer function does not fit a screen, and fails.
const FUNCTION_LINES_MAX: usize = 70;
/// How far down the argument for a long file may stand.
const ARGUMENT_LINES: usize = 20;

/// The one module of each crate that may hold `unsafe`: a file, or the directory of a module too large for
/// one.
const UNSAFE_MODULES: [&str; 20] = [
    "crates/core/alloc-counter/src/lib.rs",
    "crates/core/supervise/src/sys.rs",
    "crates/core/transport/src/sys.rs",
    "crates/lender/src/sys.rs",
    "crates/core/journal/src/sys.rs",
    "crates/memory/rvm/src/memory",
    "lab/bench/src/sys.rs",
    "crates/block/attach/src/sys",
    "crates/block/vhost/src/sys.rs",
    "crates/files/fuse/src/ring/area.rs",
    "crates/files/fuse/src/ring/queue.rs",
    "crates/files/fuse/src/sys.rs",
    "crates/far/driver/src/sys",
    "crates/far/preload/src/abi",
    "crates/bindings/librvm/src/abi",
    "lab/tracer/src/abi",
    "crates/files/sqlite/src/vfs",
    "crates/files/sqlite-extension/src/abi",
    "lab/sql-stores/src/sys",
    "crates/bindings/python/src/sys.rs",
];

/// Macros that promise work instead of doing it, or print what only their author wanted to see.
const LEFTOVER_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// A note to oneself. Spelt in two halves, so that this line is not one.
const NOTE: &str = concat!("FIX", "ME");

/// Findings of the gate in one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    faults: Vec<String>,
    warnings: Vec<String>,
}

/// Checks every Rust file of the tree. Warnings are printed and do not fail.
pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let files = tree::files(&root, "rs")?;
    let mut all = Findings::default();
    for path in &files {
        let found = judge(path, &tree::read(&root, path)?);
        all.faults.extend(found.faults);
        all.warnings.extend(found.warnings);
    }
    for warning in &all.warnings {
        println!("warning: {warning}");
    }
    if all.faults.is_empty() {
        println!("style: {} files, {} warnings", files.len(), all.warnings.len());
        return Ok(());
    }
    Err(all.faults.join("\n"))
}

fn judge(path: &Path, text: &str) -> Findings {
    let mut found = Findings::default();
    judge_length(path, text, &mut found);
    let blanked = code::blank(text);
    for (index, (line, source)) in blanked.lines().zip(text.lines()).enumerate() {
        let place = format!("{}:{}", path.display(), index + 1);
        for name in LEFTOVER_MACROS {
            if calls_macro(line, name) {
                found.faults.push(format!("{place}: `{name}!` is left over"));
            }
        }
        if source.contains(NOTE) {
            found
                .faults
                .push(format!("{place}: {NOTE}: do it, or open an issue"));
        }
        if code::words(line).any(|word| word == "unsafe") && !may_be_unsafe(path) {
            found
                .faults
                .push(format!("{place}: `unsafe` outside the crate's one unsafe module"));
        }
    }
    for function in functions(&blanked) {
        if function.lines > FUNCTION_LINES_MAX {
            found.faults.push(format!(
                "{}:{}: function `{}` has {} lines; {FUNCTION_LINES_MAX} fit a screen",
                path.display(),
                function.line,
                function.name,
                function.lines
            ));
        }
    }
    found
}

fn judge_length(path: &Path, text: &str, found: &mut Findings) {
    let lines = text.lines().count();
    let argued = text.lines().take(ARGUMENT_LINES).any(|line| {
        line.strip_prefix("//! length:")
            .is_some_and(|reason| !reason.trim().is_empty())
    });
    let sentence = format!("{}: {lines} lines", path.display());
    if lines > FILE_LINES_MAX && !argued {
        found.faults.push(format!(
            "{sentence}, more than {FILE_LINES_MAX}: find the seam, or argue in a first line `//! length: reason`"
        ));
    } else if lines > FILE_LINES_WARN && !argued {
        found.warnings.push(format!(
            "{sentence}, more than {FILE_LINES_WARN}: is there a seam?"
        ));
    }
}

/// `name!` as a word of its own, in code.
fn calls_macro(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        line[at + name.len()..].starts_with('!') && !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn may_be_unsafe(path: &Path) -> bool {
    // A test may bring an allocator that counts, and an allocator cannot be written without.
    let counts_allocations = path.components().any(|part| part.as_os_str() == "tests")
        && path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.contains("alloc"));
    counts_allocations || UNSAFE_MODULES.iter().any(|module| path.starts_with(module))
}

/// A function's place and size, from the line of its `fn` to its closing brace.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// The functions of blanked text. Relies on rustfmt: a body ends with a brace at the indentation of its `fn`.
fn functions(blanked: &str) -> Vec<Function> {
    let lines: Vec<&str> = blanked.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = indentation(line);
        let ends = |line: &&str| {
            let code = line.trim();
            indentation(line) == indent && (code.starts_with('}') || code.ends_with(';'))
        };
        let one_line = matches!(line.trim_end().chars().next_back(), Some(';' | '}'));
        let length = if one_line {
            1
        } else {
            lines[index + 1..].iter().position(ends).map_or(1, |at| at + 2)
        };
        found.push(Function {
            name: name.to_string(),
            line: index + 1,
            lines: length,
        });
    }
    found
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name after `fn`, when only qualifiers stand before it.
fn function_name(line: &str) -> Option<&str> {
    let mut words = code::words(line);
    loop {
        match words.next()? {
            "fn" => return words.next(),
            "pub" | "crate" | "super" | "const" | "async" | "unsafe" | "extern" => (),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        judge(Path::new(path), text).faults
    }

    #[test]
    fn a_long_file_fails_unless_it_argues() {
        let long = "fn a() {}\n".repeat(FILE_LINES_MAX + 1);
        assert_eq!(faults("crates/x/src/a.rs", &long).len(), 1);
        assert_eq!(
            faults("crates/x/src/a.rs", &format!("//! length: one table\n{long}")),
            [""; 0]
        );
        assert_eq!(
            faults("crates/x/src/a.rs", &format!("//! length:\n{long}")).len(),
            1
        );
    }

    #[test]
    fn a_file_on_its_way_to_the_limit_is_named() {
        let text = "fn a() {}\n".repeat(FILE_LINES_WARN + 1);
        let found = judge(Path::new("crates/x/src/a.rs"), &text);
        assert_eq!((found.faults.len(), found.warnings.len()), (0, 1));
    }

    #[test]
    fn unsafe_is_refused_outside_its_module_and_in_prose_ignored() {
        assert_eq!(
            faults("crates/memory/rvm/src/region.rs", "fn a() { unsafe {} }\n").len(),
            1
        );
        assert_eq!(
            faults("crates/memory/rvm/src/memory", "fn a() { unsafe {} }\n"),
            [""; 0]
        );
        assert_eq!(
            faults(
                "crates/bindings/librvm/src/abi/calls.rs",
                "fn a() { unsafe {} }\n"
            ),
            [""; 0]
        );
        assert_eq!(
            faults("crates/bindings/librvm/src/abi.rs", "fn a() { unsafe {} }\n").len(),
            1
        );
        assert_eq!(
            faults(
                "crates/core/journal/tests/allocation.rs",
                "unsafe impl A for B {}\n"
            ),
            [""; 0]
        );
        assert_eq!(
            faults("crates/core/journal/src/alloc.rs", "unsafe impl A for B {}\n").len(),
            1
        );
        assert_eq!(
            faults("crates/memory/rvm/src/region.rs", "// no unsafe here\n"),
            [""; 0]
        );
    }

    #[test]
    fn what_was_left_behind_is_found() {
        for name in LEFTOVER_MACROS {
            assert_eq!(
                faults("a.rs", &format!("fn a() {{ {name}!() }}\n")).len(),
                1,
                "{name}"
            );
        }
        assert_eq!(faults("a.rs", &format!("// {NOTE} later\n")).len(), 1);
        assert_eq!(faults("a.rs", "fn a() { my_todo!() }\n"), [""; 0]);
    }

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let text = "\
impl A {
    pub(crate) const fn wide(
        a: u8,
    ) -> u8
    where
        u8: Copy,
    {
        a
    }
    fn declared(&self) -> u8;
    fn short() {}
}
";
        let sizes: Vec<_> = functions(text)
            .into_iter()
            .map(|f| (f.name, f.line, f.lines))
            .collect();
        assert_eq!(
            sizes,
            [
                ("wide".into(), 2, 8),
                ("declared".into(), 10, 1),
                ("short".into(), 11, 1)
            ]
        );
    }

    #[test]
    fn a_function_longer_than_a_screen_is_named() {
        let text = format!("fn a() {{\n{}}}\n", "    b();\n".repeat(FUNCTION_LINES_MAX));
        assert_eq!(judge(Path::new("a.rs"), &text).faults.len(), 1);
    }
}
