//! Published crates can be packaged, and say what they are: a stranger finds them by their words, and their
//! source by its link.

use std::path::Path;

use serde_json::Value;

use crate::{sbom, tree};

/// Checks the manifests of everything published, and packages it. Nothing is compiled again and nothing is
/// sent.
pub(crate) fn run() -> Result<(), String> {
    let root = tree::root()?;
    let metadata = metadata(&root)?;
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .ok_or("`cargo metadata` lists no packages")?;
    let published: Vec<&Value> = packages.iter().filter(|package| is_published(package)).collect();
    let faults: Vec<String> = published.iter().flat_map(|package| faults(package)).collect();
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    let mut cargo = tree::cargo(&root);
    // What was built has been fetched: no registry is asked again for each package.
    cargo.args(["package", "--no-verify", "--allow-dirty", "--quiet", "--offline"]);
    for name in published.iter().filter_map(|package| name(package)) {
        cargo.args(["--package", name]);
    }
    let status = cargo
        .status()
        .map_err(|error| format!("`cargo package` could not be started: {error}"))?;
    if !status.success() {
        return Err(format!("`cargo package`: {status}"));
    }
    println!("package: {} packages", published.len());
    sbom::run()
}

fn metadata(root: &Path) -> Result<Value, String> {
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
    serde_json::from_slice(&output.stdout).map_err(|error| format!("`cargo metadata`: {error}"))
}

fn name(package: &Value) -> Option<&str> {
    package.get("name")?.as_str()
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    let publish = package.get("publish").and_then(Value::as_array);
    publish.is_none_or(|registries| !registries.is_empty())
}

/// Statements that the package's manifest lacks, and its dependencies without a version.
fn faults(package: &Value) -> Vec<String> {
    let name = name(package).unwrap_or("a package");
    let is_missing = |key: &&str| match package.get(key) {
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(words)) => words.is_empty(),
        _ => true,
    };
    let keys = ["description", "keywords", "license", "readme", "repository"];
    let mut faults: Vec<String> = keys
        .iter()
        .filter(|key| is_missing(key))
        .map(|key| format!("package: `{name}` has no {key} in its Cargo.toml"))
        .collect();
    let dependencies = package.get("dependencies").and_then(Value::as_array);
    for dependency in dependencies.into_iter().flatten() {
        let is_for_tests = dependency.get("kind").and_then(Value::as_str) == Some("dev");
        if !is_for_tests && dependency.get("req").and_then(Value::as_str) == Some("*") {
            let to = dependency.get("name").and_then(Value::as_str).unwrap_or("?");
            faults.push(format!("package: `{name}` depends on `{to}` without a version"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_words_for_strangers_is_refused() {
        let mut package = serde_json::json!({
            "name": "a", "description": "Stores a.", "keywords": ["a"], "license": "MIT", "readme": "README.md",
            "repository": "https://example.org/a", "publish": null,
            "dependencies": [{"name": "b", "req": "^1", "kind": null}, {"name": "c", "req": "*", "kind": "dev"}],
        });
        assert!(is_published(&package));
        assert_eq!(faults(&package), [""; 0]);
        package["keywords"] = serde_json::json!([]);
        package["readme"] = Value::Null;
        package["dependencies"][0]["req"] = "*".into();
        assert_eq!(faults(&package).len(), 3);
    }

    #[test]
    fn what_is_not_published_is_left_out() {
        assert!(!is_published(&serde_json::json!({"publish": []})));
        assert!(is_published(&serde_json::json!({"publish": ["a registry"]})));
    }
}
