//! Debian packages, as far as they can be judged without building them: `make packages-test` installs them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{CommandOutput, clean, finish, program};

fn debian(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/debian")
        .join(name)
}

/// Values of a field in all paragraphs of the control file.
fn fields(key: &str) -> Vec<String> {
    let text = fs::read_to_string(debian("control")).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    lines.map(str::to_owned).collect()
}

#[test]
fn every_package_says_what_it_is_and_no_file_is_in_two() {
    let (packages, mut seen) = (fields("Package"), BTreeSet::new());
    assert_eq!(fields("Description").len(), packages.len());
    for package in &packages {
        let list = fs::read_to_string(debian(&format!("{package}.install"))).expect(package);
        assert!(!list.is_empty(), "{package}");
        for path in list.lines() {
            assert!(
                seen.insert(path.to_owned()),
                "{path} is in {package} and in another"
            );
        }
    }
}

#[test]
fn every_script_belongs_to_a_package_and_can_be_read_by_a_shell() {
    let packages = fields("Package");
    let mut scripts = 0;
    for entry in fs::read_dir(debian("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some((package, kind)) = name.split_once('.') else {
            continue;
        };
        assert!(
            packages.iter().any(|known| known == package),
            "{name} belongs to no package"
        );
        if ["prerm", "postinst", "postrm"].contains(&kind) {
            let ran = finish(Command::new("sh").arg("-n").arg(debian(&name)));
            assert_eq!(ran.code, 0, "{name}: {}", ran.err);
            scripts += 1;
        }
    }
    assert!(scripts >= 4, "{scripts}");
}

/// Runs the lender's program, without the settings of the user who runs the tests.
fn lender(words: &[&str]) -> CommandOutput {
    let file = Path::new(program()).with_file_name("netram-lender");
    finish(clean(Command::new(file)).args(words))
}

/// Pages of both programs are installed side by side: `netram lender` has its own in section 1.
#[test]
fn pages_and_completions_of_the_lenders_program_are_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let ran = lender(&["man", directory.path().to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for page in ["netram-lender", "netram-lender-serve", "netram-lender-key-create"] {
        let text = fs::read_to_string(directory.path().join(format!("{page}.8"))).expect(page);
        assert!(text.contains(&format!(".TH {page} 8")), "{page}: {text}");
        assert!(text.contains(r"netram\-lender"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let ran = lender(&["completions", shell]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains("netram-lender"), "{shell}");
    }
}

#[test]
fn the_lenders_program_knows_nothing_of_clients() {
    for words in [&["volume", "list"][..], &["lender", "serve"], &["rvm"]] {
        let ran = lender(words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.out);
    }
}
