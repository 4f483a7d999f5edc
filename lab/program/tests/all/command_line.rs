//! The laboratory's command line: every subcommand has help with an example, and invalid arguments are
//! refused with a remedy.

use crate::common::run;

const COMMANDS: [&[&str]; 15] = [
    &["bash"],
    &["bench"],
    &["bench", "figures"],
    &["bench", "commit"],
    &["bench", "tpca"],
    &["bench", "lender"],
    &["bench", "heap"],
    &["bench", "oo7"],
    &["demo"],
    &["pagesim"],
    &["pagesim", "run"],
    &["pagesim", "cc"],
    &["pagesim", "exec"],
    &["pagesim", "trace"],
    &["peers"],
];

#[test]
fn every_subcommands_help_has_an_example() {
    for command in COMMANDS {
        let help = run(command.iter().copied().chain(["--help"]));
        assert_eq!(help.code, 0, "{command:?}: {}", help.err);
        let example = format!("\n  netram-lab {}", command.join(" "));
        assert!(
            help.out.contains(example.trim_end()),
            "{command:?} shows no example:\n{}",
            help.out
        );
    }
}

#[test]
fn netram_passes_the_laboratorys_commands_on() {
    let ran = netram_testkit::run(["bench", "commit", "--help"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("netram-lab bench commit"), "{}", ran.out);
    let alone = tempfile::tempdir().unwrap();
    let program = alone.path().join("netram");
    std::fs::copy(netram_testkit::program(), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    let ran = netram_testkit::finish(command.args(["demo", "--quick"]).env("PATH", "/nowhere"));
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("cargo build --release -p netram-lab"),
        "{}",
        ran.err
    );
}

#[test]
fn invalid_flags_end_in_code_2_with_a_remedy() {
    let cases: [(&[&str], &str); 6] = [
        (&["bench", "oo7", "--on", "exodus"], "berkeley-db"),
        (
            &["bench", "oo7", "--on", "sqlite", "--shared"],
            "cannot be used with",
        ),
        (&["bench", "commit", "--members", "9"], "0..=8"),
        (&["bash", "--lender", "unix:/tmp/a"], "--key-file"),
        (&["bash", "--for", "ever"], "500ms"),
        (
            &["bench", "tpca", "--pattern", "zipf"],
            "sequential, random or localised",
        ),
    ];
    for (arguments, remedy) in cases {
        let ran = run(arguments.iter().copied());
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.err);
        assert!(
            ran.err.contains(remedy),
            "{arguments:?} does not say `{remedy}`: {}",
            ran.err
        );
    }
}
