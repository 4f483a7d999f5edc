//! Dependencies between crates point down only, what ships depends on nothing of the laboratory, and the
//! crates that decide stay free of clocks and unsafe.
//!
//! The table is the one of `ARCHITECTURE.md`. Development and build dependencies are judged like the others,
//! but for those of [`TEST_ARROWS`].

use std::path::Path;

use serde_json::Value;

use crate::{code, tree};

/// Every crate and its layer. A crate that is not here is refused, so the table cannot fall behind.
const LAYERS: [(&str, u8); 48] = [
    ("netram-lab", 10),
    ("netram-bench", 9),
    ("netram-drawing", 8),
    ("netram-fuzz-checks", 8),
    ("netram-sql-stores", 8),
    ("netram-oo7", 7),
    ("netram-sim", 7),
    ("netram", 6),
    ("netram-cli", 6),
    ("netram-csi", 6),
    ("librvm", 6),
    ("netram-python", 6),
    ("netram-sqlite-extension", 6),
    ("netram-volume", 5),
    ("netram-mount", 5),
    ("netram-sqlite", 5),
    ("netram-shared", 5),
    ("netram-testkit", 5),
    ("netram-store", 4),
    ("netram-watch", 4),
    ("netram-attach", 3),
    ("netram-journal", 3),
    ("netram-heap", 3),
    ("netram-preload", 3),
    ("netram-tracer", 3),
    ("netram-lender", 3),
    ("netram-clients", 2),
    ("netram-discover", 2),
    ("netram-far", 2),
    ("netram-nbd", 2),
    ("netram-vhost", 2),
    ("netram-rvm", 2),
    ("netram-sqlite-machine", 2),
    ("netram-pagesim", 2),
    ("netram-telemetry", 1),
    ("netram-transport", 1),
    ("netram-ups", 1),
    ("netram-block-machine", 1),
    ("netram-shared-machine", 1),
    ("netram-far-machine", 1),
    ("netram-block", 1),
    ("netram-files", 1),
    ("netram-fuse", 1),
    ("netram-alloc-counter", 0),
    ("netram-log", 0),
    ("netram-process", 0),
    ("netram-proto", 0),
    ("netram-supervise", 0),
];

/// Arrows up or between equals that tests alone may draw: a made-up lender would prove nothing.
const TEST_ARROWS: [(&str, &str); 5] = [
    ("netram-journal", "netram-clients"),
    ("netram-journal", "netram-lender"),
    ("netram-far", "netram-lender"),
    ("netram-oo7", "netram-store"),
    ("netram-vhost", "netram-nbd"),
];

/// The simulator stands above the drivers but links none: a driver would bring the real clock and sockets in.
const SIM_ARROWS: [&str; 8] = [
    "netram-rvm",
    "netram-block",
    "netram-block-machine",
    "netram-far-machine",
    "netram-files",
    "netram-shared-machine",
    "netram-sqlite-machine",
    "netram-proto",
];

/// Crates that decide and never act: `no_std`, without `unsafe`.
const MACHINES: [&str; 4] = [
    "crates/core/proto",
    "crates/block/machine",
    "crates/far/machine",
    "crates/shared/machine",
];

/// Directories of what ships, and of what nothing that ships may depend on.
const SHIPPED: &str = "crates";

/// Builds everything else, depends on none of it.
const OUTSIDE: &str = "xtask";

/// A dependency of one workspace crate on another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrow {
    from: String,
    to: String,
}

/// A crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Crate {
    name: String,
    /// Its directory, relative to the workspace's root.
    directory: String,
}

/// Checks the workspace's arrows and the source of the crates that decide.
pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let (crates, arrows) = workspace(&root)?;
    let mut faults = judge(&crates, &arrows);
    for machine in MACHINES {
        faults.extend(judge_machine(&root, machine)?);
    }
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
fn workspace(root: &Path) -> Result<(Vec<Crate>, Vec<Arrow>), String> {
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

fn arrows_of(metadata: &Value) -> Option<(Vec<Crate>, Vec<Arrow>)> {
    let packages = metadata.get("packages")?.as_array()?;
    let root = Path::new(metadata.get("workspace_root")?.as_str()?);
    let mut crates = Vec::new();
    for package in packages {
        let directory = Path::new(package.get("manifest_path")?.as_str()?).parent()?;
        crates.push(Crate {
            name: package.get("name")?.as_str()?.to_string(),
            directory: directory.strip_prefix(root).ok()?.to_str()?.to_string(),
        });
    }
    let mut arrows = Vec::new();
    for (package, Crate { name: from, .. }) in packages.iter().zip(&crates) {
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
            if crates.iter().any(|known| known.name == arrow.to) && !arrows.contains(&arrow) {
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
fn judge(crates: &[Crate], arrows: &[Arrow]) -> Vec<String> {
    let mut faults = Vec::new();
    for Crate { name, .. } in crates {
        if name != OUTSIDE && layer(name).is_none() {
            faults.push(format!(
                "layers: `{name}` has no layer; add it to the table in xtask/src/layers.rs"
            ));
        }
    }
    let ships = |name: &str| {
        let known = crates.iter().find(|known| known.name == name);
        known.is_some_and(|known| Path::new(&known.directory).starts_with(SHIPPED))
    };
    for arrow in arrows {
        if ships(&arrow.from) && !ships(&arrow.to) {
            faults.push(format!(
                "layers: `{}` -> `{}`: what ships depends on nothing outside `{SHIPPED}/`",
                arrow.from, arrow.to
            ));
        } else {
            faults.extend(judge_arrow(arrow));
        }
    }
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
    // A crate without a layer has been reported already.
    let (above, below) = (layer(from)?, layer(to)?);
    (above <= below)
        .then(|| format!("layers: `{from}` (layer {above}) -> `{to}` (layer {below}) does not point down"))
}

fn judge_machine(root: &Path, directory: &str) -> Result<Vec<String>, String> {
    let source = root.join(directory).join("src");
    let mut faults = Vec::new();
    for path in tree::files(&source, "rs")? {
        let text = tree::read(&source, &path)?;
        let name = format!("{directory}/src/{}", path.display());
        if path == Path::new("lib.rs") {
            faults.extend(judge_machine_root(&name, &text));
        }
        // A module of tests in a file of its own is compiled for tests only, which have std.
        if !path.ends_with("tests.rs") && !path.components().any(|part| part.as_os_str() == "tests") {
            faults.extend(judge_std(&name, &text));
        }
    }
    Ok(faults)
}

fn judge_machine_root(name: &str, text: &str) -> Vec<String> {
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
                "{name}:{}: `std::` in a crate that has neither clock nor threads",
                index + 1
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, directory: &str) -> Crate {
        Crate {
            name: name.to_string(),
            directory: directory.to_string(),
        }
    }

    fn faults(from: &str, to: &str) -> Vec<String> {
        let arrow = Arrow {
            from: from.into(),
            to: to.into(),
        };
        judge(&[named(from, "crates/a"), named(to, "crates/b")], &[arrow])
    }

    #[test]
    fn arrows_down_pass() {
        for (from, to) in [
            ("netram-cli", "netram-lender"),
            ("netram-lab", "netram-bench"),
            ("netram-journal", "netram-transport"),
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
            ("netram-rvm", "netram-journal"),
            ("netram-journal", "netram-lender"),
            ("netram-cli", "netram-bench"),
            ("netram-sim", "netram-journal"),
            ("netram-cli", "xtask"),
            ("xtask", "netram-proto"),
        ] {
            assert_eq!(faults(from, to).len(), 1, "{from} -> {to}");
        }
    }

    #[test]
    fn what_ships_depends_on_nothing_of_the_laboratory() {
        // It would point down.
        let arrow = Arrow {
            from: "netram-cli".into(),
            to: "netram-pagesim".into(),
        };
        let crates = |directory| {
            [
                named("netram-cli", "crates/cli"),
                named("netram-pagesim", directory),
            ]
        };
        assert_eq!(
            judge(&crates("crates/pagesim"), std::slice::from_ref(&arrow)),
            [""; 0]
        );
        let found = judge(&crates("lab/pagesim"), &[arrow]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("outside `crates/`"), "{}", found[0]);
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
            serde_json::json!({"workspace_root": "/tree", "packages": [
                {"name": from, "manifest_path": "/tree/crates/a/Cargo.toml", "dependencies": [
                    {"name": to, "kind": kind}, {"name": "rustix", "kind": null}]},
                {"name": to, "manifest_path": "/tree/crates/b/Cargo.toml", "dependencies": []},
            ]})
        };
        let found = |metadata| {
            let (crates, arrows) = arrows_of(&metadata).expect("the shape of format 1");
            judge(&crates, &arrows).len()
        };
        assert_eq!(
            found(metadata("netram-journal", "dev".into(), "netram-lender")),
            0
        );
        assert_eq!(
            found(metadata(
                "netram-journal",
                serde_json::Value::Null,
                "netram-lender"
            )),
            1
        );
        assert_eq!(
            found(metadata("netram-transport", "dev".into(), "netram-lender")),
            1
        );
        assert_eq!(found(metadata("netram-files", "dev".into(), "netram-files")), 0);
    }

    #[test]
    fn proto_must_forbid_unsafe_and_std() {
        assert_eq!(
            judge_machine_root("lib.rs", "#![no_std]\n#![forbid(unsafe_code)]\n"),
            [""; 0]
        );
        assert_eq!(
            judge_machine_root("lib.rs", "//! #![no_std]\n#![forbid(unsafe_code)]\n").len(),
            1
        );
        assert_eq!(judge_std("a.rs", "use std::time::Instant;\n").len(), 1);
        let fine =
            "// std::time is banned\nuse core::time;\n#[cfg(test)]\nmod tests {\n    use std::vec;\n}\n";
        assert_eq!(judge_std("a.rs", fine), [""; 0]);
    }
}
