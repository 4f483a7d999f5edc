//! The installed library, compilers, and C programs.

pub(crate) mod world;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// Flags of the compilers: warnings are errors, because a header must not cause any.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-O1"];

/// A compiler and its language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C,
    Cpp,
}

pub(crate) const LANGUAGES: [Language; 2] = [Language::C, Language::Cpp];

/// An installed library with programs compiled against it.
pub(crate) struct Installed {
    pub(crate) prefix: PathBuf,
    directory: TempDir,
}

impl Language {
    fn compiler(self) -> &'static str {
        match self {
            Language::C => "gcc",
            Language::Cpp => "g++",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Language::C => &["-x", "c", "-std=gnu11"],
            Language::Cpp => &["-x", "c++", "-std=c++17"],
        }
    }
}

impl Installed {
    /// Installs the library that cargo built beside this test.
    pub(crate) fn new() -> Installed {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let prefix = directory.path().join("prefix");
        let installed = Installed { prefix, directory };
        let done = installed.install_script("install", "");
        assert!(done.status.success(), "{done:?}");
        installed
    }

    pub(crate) fn install_script(&self, what: &str, destdir: &str) -> Output {
        let script = root().join("packaging/librvm/install.sh");
        Command::new(script)
            .arg(what)
            .arg(built())
            .arg(&self.prefix)
            .arg(destdir)
            .output()
            .expect("the script starts")
    }

    pub(crate) fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// Removes debugging information from the libraries; function names stay.
    pub(crate) fn strip(&self) {
        for entry in std::fs::read_dir(self.lib())
            .expect("the libraries are there")
            .flatten()
        {
            let path = entry.path();
            if path.to_string_lossy().contains(".so") && !path.is_symlink() {
                succeed(Command::new("strip").arg("-g").arg(&path), "strip");
            }
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Compiles `tests/c/<name>.c` and links it with the flags in `link`.
    pub(crate) fn compile(&self, name: &str, language: Language, link: &[&str]) -> PathBuf {
        let source = root().join(format!("crates/bindings/librvm/tests/c/{name}.c"));
        self.compile_file(&source, language, link)
    }

    pub(crate) fn compile_file(&self, source: &Path, language: Language, link: &[&str]) -> PathBuf {
        let name = source.file_stem().and_then(OsStr::to_str).expect("a plain name");
        let program = self.directory.path().join(format!("{name}-{language:?}"));
        let compiled = Command::new(language.compiler())
            .args(language.flags())
            .args(WARNINGS)
            .arg("-I")
            .arg(self.prefix.join("include"))
            .arg(source)
            .args(["-x", "none", "-o"])
            .arg(&program)
            .arg("-L")
            .arg(self.lib())
            .args(link)
            .output()
            .expect("the compiler starts");
        assert!(
            compiled.status.success(),
            "{name} as {language:?}: {}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        program
    }

    /// Command that finds a program's memory errors; an error ends it with status 99.
    pub(crate) fn valgrind(&self) -> Vec<String> {
        let suppressions = self.prefix.join("share/netram/librvm.supp");
        [
            // A case that hangs where its own alarm has no effect must not hang the whole test.
            "timeout",
            "--signal=KILL",
            "300",
            "valgrind",
            &format!("--suppressions={}", suppressions.display()),
            // Without this a thread that never sleeps keeps valgrind's one lock, and others may wait forever.
            "--fair-sched=yes",
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--child-silent-after-fork=yes",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// A command that runs with the installed library, without settings from the environment of the tests.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NETRAM_")) {
            command.env_remove(name);
        }
        command.env("LD_LIBRARY_PATH", self.lib());
        command.stdin(Stdio::null());
        command
    }
}

/// Whether the compilers exist; reports it if not.
pub(crate) fn compilers() -> bool {
    ["gcc", "g++"].iter().all(|compiler| has(compiler))
}

/// Whether a program exists; reports it if not.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        // Output of a passing test is captured, so this is written to standard error directly.
        let _ = writeln!(
            std::io::stderr(),
            "\nSKIPPED: no `{program}`; scripts/test-deps.sh installs it"
        );
    }
    found
}

/// Runs a command to its end and asserts success; returns its output.
pub(crate) fn succeed(command: &mut Command, what: &str) -> String {
    let output = command.output().expect("the program starts");
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("the output is ASCII")
}

/// Directory of the library, built in this test's profile. For a test cargo builds only what the test can
/// link to, which a C library is not. `cargo xtask test` has built it.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("this test has a path");
        let profile = test
            .ancestors()
            .nth(2)
            .expect("the test is in a directory of its profile");
        if std::env::var_os("NETRAM_TEST_BUILT").is_some() {
            return profile.to_path_buf();
        }
        let target = profile.parent().expect("the profile is in the target directory");
        let name = match profile.file_name().and_then(OsStr::to_str) {
            Some("debug") | None => "test",
            Some(other) => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--package", "librvm", "--profile", name]);
        cargo.arg("--target-dir").arg(target).current_dir(root());
        // Variables that cargo sets for this test would make `ring` rebuild, with everything that depends on
        // it, each time.
        for (name, _) in std::env::vars().filter(|(name, _)| {
            ["CARGO_MANIFEST_", "CARGO_PKG_"]
                .iter()
                .any(|told| name.starts_with(told))
        }) {
            cargo.env_remove(name);
        }
        succeed(&mut cargo, "building the library");
        let mut names = Command::new(root().join("packaging/librvm/install.sh"));
        succeed(
            names.arg("names").arg(profile),
            "making the library's other names",
        );
        profile.to_path_buf()
    })
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}
