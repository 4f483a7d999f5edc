//! The bill of materials of a release: every crate that is linked into what is released, with version,
//! licence and checksum, as CycloneDX.
//!
//! It is read off the lock file and the dependency graph that cargo resolves, so it cannot say something else
//! than what was built.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::tree;

/// Packages whose programs and libraries are released.
const RELEASED: [&str; 8] = [
    "netram-cli",
    "librvm",
    "netram-preload",
    "netram-sqlite-extension",
    "netram-python",
    "netram-csi",
    "netram-lab",
    "netram-tracer",
];
const FILE: &str = "netram.cdx.json";

/// Writes the bill of materials into the build directory.
pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let bill = bill(&root)?;
    let text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
    let directory = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = directory.join("package").join(FILE);
    let written = fs::create_dir_all(directory.join("package")).and_then(|()| fs::write(&path, text + "\n"));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    let count = bill["components"].as_array().map_or(0, Vec::len);
    println!("sbom: {count} crates in {}", path.display());
    Ok(())
}

/// Makes the bill of materials of this checkout.
fn bill(root: &Path) -> Result<Value, String> {
    let platform = said(Command::new("rustc").arg("-vV"))?;
    let platform = platform.lines().find_map(|line| line.strip_prefix("host: "));
    let platform = platform.ok_or("`rustc -vV` names no host")?;
    let asked = [
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        platform,
    ];
    let metadata = said(tree::cargo(root).args(asked))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("`cargo metadata`: {error}"))?;
    let lock = tree::read(root, Path::new("Cargo.lock"))?;
    Ok(bill_of(&metadata, &checksums(&lock)))
}

fn said(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Checksums in a lock file, by name and version.
fn checksums(lock: &str) -> HashMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let line = block
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.map(|text| text.trim_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]").skip(1);
    let entry = |block: &str| {
        let key = (value(block, "name")?, value(block, "version")?);
        Some((key, value(block, "checksum")?))
    };
    blocks.filter_map(entry).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The bill of what `cargo metadata` lists and a lock file has checksums of.
fn bill_of(metadata: &Value, checksums: &HashMap<(String, String), String>) -> Value {
    let packages: HashMap<&str, &Value> = list(&metadata["packages"])
        .iter()
        .map(|package| (text(package, "id"), package))
        .collect();
    let linked = linked(metadata, &packages);
    let reference = |id: &str| {
        let package = packages[id];
        format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version"))
    };
    let component = |id: &str| {
        let (package, reference) = (packages[id], reference(id));
        let mut component = json!({
            "type": "library", "bom-ref": reference, "purl": reference,
            "name": package["name"], "version": package["version"],
            "licenses": [{"expression": text(package, "license").replace('/', " OR ")}],
        });
        let key = (
            text(package, "name").to_owned(),
            text(package, "version").to_owned(),
        );
        if let Some(checksum) = checksums.get(&key) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        component
    };
    let components: Vec<Value> = linked.keys().map(|id| component(id)).collect();
    let dependencies: Vec<Value> = linked
        .iter()
        .map(|(id, needs)| {
            let needs: Vec<String> = needs.iter().map(|id| reference(id)).collect();
            json!({"ref": reference(id), "dependsOn": needs})
        })
        .collect();
    let version = packages
        .values()
        .find(|package| text(package, "name") == RELEASED[0]);
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": "netram", "name": "netram",
            "version": version.map(|package| text(package, "version")),
        }},
        "components": components,
        "dependencies": dependencies,
    })
}

/// Ids of the packages that are linked into what is released, each with those that it links itself.
fn linked<'a>(metadata: &'a Value, packages: &HashMap<&str, &Value>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let nodes: HashMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(node, "id"), node))
        .collect();
    let is_released = |id: &&str| RELEASED.contains(&text(packages[*id], "name"));
    let mut open: Vec<&str> = nodes
        .keys()
        .copied()
        .filter(|id| packages.contains_key(id))
        .collect();
    open.retain(is_released);
    let mut found = BTreeMap::new();
    while let Some(id) = open.pop() {
        if found.contains_key(id) {
            continue;
        }
        // Neither tests nor build scripts end up in a release.
        let is_linked = |need: &&Value| list(&need["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let needs: BTreeSet<&str> = list(&nodes[id]["deps"])
            .iter()
            .filter(is_linked)
            .map(|need| text(need, "pkg"))
            .collect();
        open.extend(&needs);
        found.insert(id, needs);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo tree` walks the graph by itself.
    #[test]
    fn each_crate_that_the_program_links_is_in_the_bill_with_its_checksum() {
        let root = tree::root().unwrap();
        let bill = bill(&root).unwrap();
        let components = list(&bill["components"]);
        let tree = [
            "tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}",
        ];
        let tree = said(tree::cargo(&root).args(tree).args(["--package", RELEASED[0]])).unwrap();
        let mut count = 0;
        for line in tree.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let (name, version) = (words.next().unwrap(), words.next().unwrap());
            let version = version.strip_prefix('v').unwrap();
            let is_it = |component: &&Value| component["name"] == name && component["version"] == version;
            let component = components
                .iter()
                .find(is_it)
                .unwrap_or_else(|| panic!("{line} is missing"));
            let is_ours = line.contains(" (/");
            assert_eq!(component["hashes"].is_null(), is_ours, "{component}");
            assert_ne!(component["licenses"][0]["expression"], "", "{component}");
            count += 1;
        }
        assert!(count > 50, "{tree}");
    }

    #[test]
    fn what_only_tests_and_build_scripts_use_is_left_out() {
        let need = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let package =
            |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let packages = ["netram-cli", "linked", "deep", "tests", "builds", "other"].map(package);
        let metadata = json!({
            "packages": packages,
            "resolve": {"nodes": [
                {"id": "netram-cli", "deps": [
                    need("linked", Value::Null), need("tests", "dev".into()), need("builds", "build".into()),
                ]},
                {"id": "linked", "deps": [need("deep", Value::Null)]},
                {"id": "deep", "deps": []}, {"id": "tests", "deps": []}, {"id": "builds", "deps": []},
                {"id": "other", "deps": [need("deep", Value::Null)]},
            ]},
        });
        let lock = "[[package]]\nname = \"deep\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bill = bill_of(&metadata, &checksums(lock));
        let names: Vec<&str> = list(&bill["components"])
            .iter()
            .map(|one| text(one, "name"))
            .collect();
        assert_eq!(names, ["deep", "linked", "netram-cli"]);
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "abc");
        assert_eq!(
            bill["components"][0]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        assert_eq!(
            bill["dependencies"][1]["dependsOn"],
            json!(["pkg:cargo/deep@1.0.0"])
        );
    }
}
