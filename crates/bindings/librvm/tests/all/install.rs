//! The installation: names, symbols, flags, and no other files.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::common::{Installed, LANGUAGES, Language, compilers, has, succeed};

/// The symbols that programs may use. Those of the heap are in `rds.h`.
const SYMBOLS: &str = include_str!("../symbols.txt");

const NAMES: [&str; 9] = [
    "rvm", "seg", "rds", "rvmlwp", "seglwp", "rdslwp", "rvmpt", "segpt", "rdspt",
];

fn defined_symbols(library: &Path) -> BTreeSet<String> {
    let listed = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only", "--format=posix"])
            .arg(library),
        "nm",
    );
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_library_exports_exactly_the_symbols_of_the_interface() {
    if !has("nm") {
        return;
    }
    let installed = Installed::new();
    let found = defined_symbols(&installed.lib().join("librvm.so"));
    let wanted: BTreeSet<String> = SYMBOLS
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let leaked: Vec<_> = found.difference(&wanted).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert!(leaked.is_empty(), "not in tests/symbols.txt: {leaked:?}");
}

/// A program that declares `long rvm_no_yield` writes eight bytes to it.
#[test]
fn exported_data_is_as_wide_as_the_widest_type_in_programs() {
    if !has("nm") {
        return;
    }
    let installed = Installed::new();
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--format=posix"])
        .arg(installed.lib().join("librvm.so"));
    let listed = succeed(&mut nm, "nm");
    for name in ["rvm_no_yield", "rds_rvmsize", "rds_startaddr"] {
        let line = listed.lines().find(|line| line.split(' ').next() == Some(name));
        let size = line.and_then(|line| line.split(' ').nth(3));
        let size = size.and_then(|size| u64::from_str_radix(size, 16).ok());
        assert_eq!(size, Some(8), "{name}: {line:?}");
    }
}

#[test]
fn the_library_has_the_soname_that_old_programs_request() {
    if !has("readelf") {
        return;
    }
    let installed = Installed::new();
    let library = installed.lib().join("librvm.so.1");
    let header = succeed(Command::new("readelf").arg("-d").arg(&library), "readelf");
    assert!(header.contains("[librvm.so.1]"), "{header}");
    assert!(
        header.contains("NODELETE"),
        "its threads must survive a dlclose: {header}"
    );
    let one = std::fs::canonicalize(&library).expect("the file exists");
    for name in NAMES {
        let path = installed.lib().join(format!("lib{name}.so"));
        assert_eq!(
            std::fs::canonicalize(path).expect("the file exists"),
            one,
            "{name}"
        );
        let path = installed.lib().join(format!("lib{name}.so.1"));
        let header = succeed(Command::new("readelf").arg("-d").arg(path), "readelf");
        assert!(
            header.contains(&format!("soname: [lib{name}.so.1]")),
            "{name}: {header}"
        );
    }
}

/// Regression: files without a soname of their own were cached under the library's main name, and a program
/// that requested another name did not start from /usr/local/lib.
#[test]
fn the_loaders_cache_has_every_name() {
    if !has("ldconfig") || !has("gcc") {
        return;
    }
    let installed = Installed::new();
    let conf = installed.directory().join("ld.conf");
    let cache = installed.directory().join("ld.cache");
    std::fs::write(&conf, format!("{}\n", installed.lib().display())).expect("the file can be written");
    // `-X` leaves every link unchanged. Users other than root get a warning about the auxiliary cache.
    let mut make = Command::new("ldconfig");
    make.args(["-X", "-f"]).arg(&conf).arg("-C").arg(&cache);
    make.output().expect("ldconfig starts");
    let cache = succeed(
        Command::new("ldconfig").arg("-p").arg("-C").arg(&cache),
        "ldconfig -p",
    );
    for name in NAMES {
        let line = format!("=> {}/lib{name}.so.1\n", installed.lib().display());
        assert!(cache.contains(&line), "lib{name}.so.1 is not in {cache}");
    }
}

/// In a directory that also has the original, `ldconfig` links each name to the newest file.
#[test]
fn ldconfig_keeps_this_librarys_names_beside_the_original() {
    if !has("ldconfig") || !has("gcc") {
        return;
    }
    let installed = Installed::new();
    for name in NAMES {
        let made = Command::new("gcc")
            .args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"])
            .arg(installed.lib().join(format!("lib{name}.so.1.2.9")))
            .arg(format!("-Wl,-soname,lib{name}.so.1"))
            .status()
            .expect("the compiler starts");
        assert!(made.success());
    }
    // `-n`: only in this directory, not in the system's.
    succeed(
        Command::new("ldconfig").arg("-n").arg(installed.lib()),
        "ldconfig -n",
    );
    for name in NAMES {
        let link = installed.lib().join(format!("lib{name}.so.1"));
        let target = std::fs::read_link(&link).expect("the path is a link");
        assert_eq!(target, Path::new(&format!("lib{name}.so.1.3.0")));
    }
}

fn run_relinked(installed: &Installed, program: &Path, what: &str) {
    let place = tempfile::tempdir().expect("a temporary directory");
    succeed(installed.command(program).current_dir(place.path()), what);
}

#[test]
fn a_program_linked_with_the_original_flags_needs_only_this_library() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    for language in LANGUAGES {
        for variant in ["", "lwp", "pt"] {
            // A non-PIE program contains copies of the library's data.
            let names = [
                format!("-lrds{variant}"),
                format!("-lseg{variant}"),
                format!("-lrvm{variant}"),
            ];
            let mut link = vec!["-no-pie"];
            link.extend(names.iter().map(String::as_str));
            let program = installed.compile("relinked", language, &link);
            run_relinked(&installed, &program, &format!("relinked {language:?} {variant}"));
            let header = succeed(Command::new("readelf").arg("-d").arg(&program), "readelf");
            let needed = header.lines().filter(|line| line.contains("(NEEDED)"));
            for library in needed.filter(|line| !line.contains("[librvm.so.1]")) {
                assert!(
                    ["libc.so", "libstdc++", "libm.so", "libgcc_s"]
                        .iter()
                        .any(|system| library.contains(system)),
                    "{library}"
                );
            }
        }
    }
}

/// An old binary: linked with libraries of the original's names, of which only the recorded names remain.
#[test]
fn a_binary_that_requests_the_originals_libraries_starts() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let old = installed.directory().join("old");
    std::fs::create_dir(&old).expect("a new directory");
    for variant in ["", "lwp", "pt"] {
        let mut link = vec![
            format!("-L{}", old.display()),
            "-Wl,--no-as-needed".to_owned(),
            "-Wl,--allow-shlib-undefined".to_owned(),
        ];
        for name in ["rds", "seg"].map(|part| format!("{part}{variant}")) {
            let made = Command::new("gcc")
                .args(["-shared", "-x", "c", "/dev/null", "-o"])
                .arg(old.join(format!("lib{name}-old.so")))
                .arg(format!("-Wl,-soname,lib{name}.so.1"))
                .status()
                .expect("the compiler starts");
            assert!(made.success());
            link.push(format!("-l{name}-old"));
        }
        link.push("-lrvm".to_owned());
        let link: Vec<&str> = link.iter().map(String::as_str).collect();
        let program = installed.compile("relinked", Language::C, &link);
        let header = succeed(Command::new("readelf").arg("-d").arg(&program), "readelf");
        assert!(header.contains(&format!("[librds{variant}.so.1]")), "{header}");
        run_relinked(&installed, &program, &format!("old {variant}"));
    }
}

#[test]
fn pkg_config_knows_how_to_compile_and_link() {
    if !compilers() || !has("pkg-config") {
        return;
    }
    let installed = Installed::new();
    for package in ["rvm", "rvmlwp", "rvmpt"] {
        let ask = |what: &str| {
            let mut command = Command::new("pkg-config");
            command.env("PKG_CONFIG_PATH", installed.lib().join("pkgconfig"));
            succeed(command.args([what, package]), "pkg-config")
        };
        assert!(ask("--cflags").contains(&format!("-I{}/include", installed.prefix.display())));
        assert!(ask("--libs").contains("-lrvm"));
        assert_eq!(ask("--modversion").trim(), "1.29");
    }
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", installed.lib().join("pkgconfig"));
    let flags = succeed(command.args(["--static", "--libs", "rvm"]), "pkg-config");
    let mut link = vec!["-Wl,-Bstatic", "-lrvm", "-Wl,-Bdynamic"];
    link.extend(flags.split_whitespace().filter(|flag| *flag != "-lrvm"));
    let program = installed.compile("relinked", Language::C, &link);
    let header = succeed(Command::new("readelf").arg("-d").arg(&program), "readelf");
    assert!(
        !header.contains("librvm"),
        "the library is linked statically: {header}"
    );
    run_relinked(&installed, &program, "linked statically");
}

/// Regression: `-static` with the flags of pkg-config required a `libgcc_s.a`, which does not exist.
#[test]
fn a_program_without_any_shared_library_runs() {
    if !compilers() || !has("pkg-config") {
        return;
    }
    let installed = Installed::new();
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", installed.lib().join("pkgconfig"));
    let flags = succeed(command.args(["--static", "--libs", "rvm"]), "pkg-config");
    let mut link = vec!["-static"];
    link.extend(flags.split_whitespace());
    let program = installed.compile("relinked", Language::C, &link);
    let header = succeed(Command::new("readelf").arg("-d").arg(&program), "readelf");
    assert!(header.contains("no dynamic section"), "{header}");
    run_relinked(&installed, &program, "fully static");
}

/// The benchmark program runs; its figures are meaningful only on a quiet machine.
#[test]
fn the_measuring_program_runs() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("../../benches/calls", Language::C, &["-lrvm", "-lpthread"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let said = succeed(installed.command(program).arg(place.path()).arg("3"), "calls");
    assert_eq!(said.lines().count(), 9, "{said}");
}

/// Compiles every header alone, in both languages, with and without `extern "C"` around it.
#[test]
fn every_header_compiles_alone() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let include = installed.prefix.join("include");
    for entry in std::fs::read_dir(include.join("rvm")).expect("headers are installed") {
        let header = entry.expect("the entry can be read").file_name();
        let header = header.to_str().expect("headers have plain names").to_owned();
        for (compiler, flags, text) in [
            (
                "gcc",
                "-std=c99",
                format!("#include <rvm/{header}>\n#include <rvm/{header}>\n"),
            ),
            ("gcc", "-std=gnu17", format!("#include <rvm/{header}>\n")),
            (
                "g++",
                "-std=c++11",
                format!("extern \"C\" {{\n#include <rvm/{header}>\n}}\n#include <rvm/rvm.h>\n"),
            ),
        ] {
            let source = installed.directory().join("header.c");
            std::fs::write(&source, text).expect("the file can be written");
            let language = if compiler == "g++" { "c++" } else { "c" };
            let output = Command::new(compiler)
                .args(["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", flags])
                .args(["-x", language])
                .arg(&source)
                .arg("-I")
                .arg(&include)
                .output()
                .expect("the compiler starts");
            assert!(
                output.status.success(),
                "{header} {flags}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn a_staged_install_has_the_final_paths_and_is_removed_completely() {
    let installed = Installed::new();
    let stage = installed.directory().join("stage");
    let stage_text = stage.to_str().expect("a plain name");
    let done = installed.install_script("install", stage_text);
    assert!(done.status.success(), "{done:?}");
    let staged = stage.join(
        installed
            .prefix
            .strip_prefix("/")
            .expect("the prefix is absolute"),
    );
    let package =
        std::fs::read_to_string(staged.join("lib/pkgconfig/rvm.pc")).expect("the file is installed");
    assert!(
        package.contains(&format!("prefix={}\n", installed.prefix.display())),
        "{package}"
    );
    assert!(staged.join("share/man/man3/rvm.3").is_file());
    let gone = installed.install_script("uninstall", stage_text);
    assert!(gone.status.success(), "{gone:?}");
    let left = succeed(Command::new("find").arg(&stage).args(["!", "-type", "d"]), "find");
    assert_eq!(left, "");
    assert!(
        installed.lib().join("librvm.so").exists(),
        "the other install stays"
    );
}

#[test]
fn the_manual_page_lists_every_setting() {
    let read = |path: &str| {
        std::fs::read_to_string(crate::common::root().join(path)).expect("the file is in the tree")
    };
    let page = read("packaging/librvm/rvm.3").replace("\\-", "-");
    let settings = [
        "core/journal/src/settings/mod.rs",
        "core/journal/src/settings/ups.rs",
        "memory/store/src/settings.rs",
    ];
    let settings = settings.map(|file| read(&format!("crates/{file}"))).concat();
    let variables: BTreeSet<&str> = settings
        .split('"')
        .filter(|word| word.starts_with("NETRAM_") && !word.contains(' '))
        .collect();
    assert!(variables.len() > 10, "{variables:?}");
    for variable in variables {
        assert!(page.contains(variable), "{variable} is not in rvm(3)");
    }
}

#[test]
fn the_manual_page_has_no_markup_errors() {
    if !has("groff") {
        return;
    }
    let page = crate::common::root().join("packaging/librvm/rvm.3");
    let output = Command::new("groff")
        .args(["-man", "-ww", "-Tutf8", "-z"])
        .arg(page)
        .output()
        .expect("groff starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
