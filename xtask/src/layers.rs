//! Dependencies between crates point down only, and the bottom crate stays free of clocks and unsafe.
//!
//! The table is the one of `ARCHITECTURE.md`. Development and build dependencies are judged like the others, but for
//! one: the client's own tests talk to a real lender, because a made-up one would prove nothing.

use std::path::Path;

use serde_json::Value;

use crate::{code, tree};

/// Every crate and its layer. A crate that is not here is refused, so the table cannot fall behind.
const LAYERS: [(&str, u8); 31] = [
    ("netram", 4),
    ("netram-capi", 4),
    ("netram-sqlext", 4),
    ("netram-bench", 4),
    ("netram-drawing", 4),
    ("netram-fuzzed", 4),
    ("netram-python", 4),
    ("netram-home", 3),
    ("netram-volume", 3),
    ("netram-mount", 3),
    ("netram-sqlite", 3),
    ("netram-shared", 3),
    ("netram-oo7", 3),
    ("netram-rex", 3),
    ("netram-farrun", 3),
    ("netram-sim", 3),
    ("netram-party", 2),
    ("netram-lender", 2),
    ("netram-tracer", 2),
    ("netram-client", 2),
    ("netram-far", 2),
    ("netram-heap", 2),
    ("netram-nbd", 2),
    ("netram-attach", 2),
    ("netram-transport", 1),
    ("netram-rvm", 1),
    ("netram-disk", 1),
    ("netram-files", 1),
    ("netram-pagesim", 1),
    ("netram-log", 1),
    ("netram-proto", 0),
];

/// Arrows between equals that are wanted: the command line offers `netram bench`, a volume has a home's settings, a shared
/// region's server is a home, OO7 runs on shared regions, and beside them in SQLite with netram's VFS, and a
/// device of the kernel's NBD client has its server.
const LEVEL_ARROWS: [(&str, &str); 9] = [
    ("netram", "netram-bench"),
    ("netram-volume", "netram-home"),
    ("netram-mount", "netram-home"),
    ("netram-sqlite", "netram-home"),
    ("netram-shared", "netram-home"),
    ("netram-oo7", "netram-shared"),
    ("netram-rex", "netram-oo7"),
    ("netram-rex", "netram-sqlite"),
    ("netram-attach", "netram-nbd"),
];

/// Arrows between equals that tests alone may draw.
const TEST_ARROWS: [(&str, &str); 3] = [
    ("netram-client", "netram-lender"),
    ("netram-far", "netram-lender"),
    ("netram-oo7", "netram-home"),
];

/// The simulator stands above the drivers but links none: a driver would bring the real clock and sockets in.
const SIM_ARROWS: [&str; 5] = [
    "netram-rvm",
    "netram-disk",
    "netram-files",
    "netram-party",
    "netram-proto",
];

/// Builds everything else, depends on none of it.
const OUTSIDE: &str = "xtask";

/// A dependency of one workspace crate on another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrow {
    from: String,
    to: String,
}

/// Checks the workspace's arrows and the source of `proto`.
pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let (crates, arrows) = workspace(&root)?;
    let mut faults = judge(&crates, &arrows);
    faults.extend(judge_proto(&root)?);
    if faults.is_empty() {
        println!(
            "layers: {} crates, {} arrows, all down",
            crates.len(),
            arrows.len()
        );
        return Ok(());
    }
    Err(faults.join("\n"))
}

/// The workspace's crates and the arrows between them, as cargo sees them.
fn workspace(root: &Path) -> Result<(Vec<String>, Vec<Arrow>), String> {
    let output = tree::cargo(root)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .map_err(|error| format!("`cargo metadata` could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "`cargo metadata`: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("`cargo metadata`: {error}"))?;
    arrows_of(&metadata).ok_or_else(|| "`cargo metadata` has another shape than format 1".to_string())
}

fn arrows_of(metadata: &Value) -> Option<(Vec<String>, Vec<Arrow>)> {
    let packages = metadata.get("packages")?.as_array()?;
    let mut crates = Vec::new();
    for package in packages {
        crates.push(package.get("name")?.as_str()?.to_string());
    }
    let mut arrows = Vec::new();
    for (package, from) in packages.iter().zip(&crates) {
        for dependency in package.get("dependencies")?.as_array()? {
            let to = dependency.get("name")?.as_str()?.to_string();
            let for_tests = dependency.get("kind")?.as_str() == Some("dev");
            // A crate's own tests may want a feature of it.
            if for_tests && (TEST_ARROWS.contains(&(from.as_str(), to.as_str())) || to == *from) {
                continue;
            }
            let arrow = Arrow {
                from: from.clone(),
                to,
            };
            // A dev-dependency beside the normal one is the same arrow.
            if crates.contains(&arrow.to) && !arrows.contains(&arrow) {
                arrows.push(arrow);
            }
        }
    }
    Some((crates, arrows))
}

fn layer(name: &str) -> Option<u8> {
    LAYERS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, layer)| *layer)
}

/// One sentence per broken rule.
fn judge(crates: &[String], arrows: &[Arrow]) -> Vec<String> {
    let mut faults = Vec::new();
    for name in crates {
        if name != OUTSIDE && layer(name).is_none() {
            faults.push(format!(
                "layers: `{name}` has no layer; add it to the table in xtask/src/layers.rs"
            ));
        }
    }
    faults.extend(arrows.iter().filter_map(judge_arrow));
    faults
}

fn judge_arrow(arrow: &Arrow) -> Option<String> {
    let Arrow { from, to } = arrow;
    if from == OUTSIDE || to == OUTSIDE {
        return Some(format!(
            "layers: `{from}` -> `{to}`: {OUTSIDE} stands outside the layers"
        ));
    }
    if from == "netram-sim" && !SIM_ARROWS.contains(&to.as_str()) {
        return Some(format!(
            "layers: `{from}` -> `{to}`: the simulator links only {}",
            SIM_ARROWS.join(" and ")
        ));
    }
    if LEVEL_ARROWS.contains(&(from.as_str(), to.as_str())) {
        return None;
    }
    // A crate without a layer has been reported already.
    let (above, below) = (layer(from)?, layer(to)?);
    (above <= below)
        .then(|| format!("layers: `{from}` (layer {above}) -> `{to}` (layer {below}) does not point down"))
}

fn judge_proto(root: &Path) -> Result<Vec<String>, String> {
    let source = root.join("crates/proto/src");
    let mut faults = Vec::new();
    for path in tree::files(&source, "rs")? {
        let text = tree::read(&source, &path)?;
        let name = format!("crates/proto/src/{}", path.display());
        if path == Path::new("lib.rs") {
            faults.extend(judge_proto_root(&name, &text));
        }
        // A module of tests in a file of its own is compiled for tests only, which have std.
        if !path.ends_with("tests.rs") && !path.starts_with("tests") {
            faults.extend(judge_std(&name, &text));
        }
    }
    Ok(faults)
}

fn judge_proto_root(name: &str, text: &str) -> Vec<String> {
    let blanked = code::blank(text);
    ["#![no_std]", "#![forbid(unsafe_code)]"]
        .iter()
        .filter(|wanted| !blanked.lines().any(|line| line.trim() == **wanted))
        .map(|wanted| format!("{name}: lacks `{wanted}`"))
        .collect()
}

/// Mentions of `std` before the tests, which stand last in a file and may use it.
fn judge_std(name: &str, text: &str) -> Vec<String> {
    let blanked = code::blank(text);
    let lines: Vec<&str> = blanked.lines().collect();
    let begins_tests =
        |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    let product = lines.windows(2).position(begins_tests).unwrap_or(lines.len());
    lines[..product]
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains("std::") && code::words(line).any(|word| word == "std"))
        .map(|(index, _)| {
            format!(
                "{name}:{}: `std::` in proto, which has neither clock nor threads",
                index + 1
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(from: &str, to: &str) -> Vec<String> {
        let crates = [from.to_string(), to.to_string()];
        judge(
            &crates,
            &[Arrow {
                from: from.into(),
                to: to.into(),
            }],
        )
    }

    #[test]
    fn arrows_down_and_the_wanted_level_one_pass() {
        for (from, to) in [
            ("netram", "netram-lender"),
            ("netram", "netram-bench"),
            ("netram-client", "netram-transport"),
            ("netram-sim", "netram-rvm"),
            ("netram-sim", "netram-files"),
            ("netram-rvm", "netram-proto"),
        ] {
            assert_eq!(faults(from, to), [""; 0], "{from} -> {to}");
        }
    }

    #[test]
    fn arrows_up_and_sideways_are_refused() {
        for (from, to) in [
            ("netram-proto", "netram-transport"),
            ("netram-rvm", "netram-transport"),
            ("netram-client", "netram-lender"),
            ("netram-bench", "netram"),
            ("netram-sim", "netram-client"),
            ("netram", "xtask"),
            ("xtask", "netram-proto"),
        ] {
            assert_eq!(faults(from, to).len(), 1, "{from} -> {to}");
        }
    }

    #[test]
    fn a_crate_missing_from_the_table_is_refused() {
        let found = faults("netram-new", "netram-proto");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`netram-new` has no layer"), "{}", found[0]);
    }

    #[test]
    fn development_dependencies_are_arrows_too_but_for_the_clients_tests() {
        let metadata = |from: &str, kind: serde_json::Value, to: &str| {
            serde_json::json!({"packages": [
                {"name": from, "dependencies": [
                    {"name": to, "kind": kind}, {"name": "rustix", "kind": null}]},
                {"name": to, "dependencies": []},
            ]})
        };
        let found = |metadata| {
            let (crates, arrows) = arrows_of(&metadata).expect("the shape of format 1");
            judge(&crates, &arrows).len()
        };
        assert_eq!(found(metadata("netram-client", "dev".into(), "netram-lender")), 0);
        assert_eq!(
            found(metadata(
                "netram-client",
                serde_json::Value::Null,
                "netram-lender"
            )),
            1
        );
        assert_eq!(found(metadata("netram-lender", "dev".into(), "netram-client")), 1);
        assert_eq!(found(metadata("netram-files", "dev".into(), "netram-files")), 0);
    }

    #[test]
    fn proto_must_forbid_unsafe_and_std() {
        assert_eq!(
            judge_proto_root("lib.rs", "#![no_std]\n#![forbid(unsafe_code)]\n"),
            [""; 0]
        );
        assert_eq!(
            judge_proto_root("lib.rs", "//! #![no_std]\n#![forbid(unsafe_code)]\n").len(),
            1
        );
        assert_eq!(judge_std("a.rs", "use std::time::Instant;\n").len(), 1);
        let fine =
            "// std::time is banned\nuse core::time;\n#[cfg(test)]\nmod tests {\n    use std::vec;\n}\n";
        assert_eq!(judge_std("a.rs", fine), [""; 0]);
    }
}
