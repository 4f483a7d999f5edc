//! `netram-lab pagesim cc`.
//!
//! With `-fsanitize=thread` a compiler inserts a call before every memory access. When it links with that
//! option, it would add its own library with these calls. So sources are compiled one by one, and linking is
//! done without the option.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use netram_pagesim::process;

/// Option for compiling only.
const INSTRUMENT: &str = "-fsanitize=thread";
/// Functions of the C library whose references count as the program's.
const WRAPPED: [&str; 6] = ["memcpy", "memmove", "memset", "memcmp", "strlen", "qsort"];
/// Extensions of source files.
const SOURCES: [&str; 7] = ["c", "cc", "cpp", "cxx", "C", "i", "ii"];
/// Options with which nothing is linked.
const NO_LINK: [&str; 8] = [
    "-c",
    "-S",
    "-E",
    "-M",
    "-MM",
    "--version",
    "-dumpversion",
    "-dumpmachine",
];
/// Options that take the next argument.
const PAIRED: [&str; 12] = [
    "-o", "-I", "-L", "-l", "-D", "-U", "-include", "-isystem", "-x", "-Xlinker", "-MF", "-MT",
];

/// Compile a program so that it can be studied
///
/// All arguments are passed to the compiler, so use this command in its place. The compiled
/// code reports its memory references, and linked programs get the library that receives
/// them. Run the result by `netram-lab pagesim exec`; by itself it works as before, but
/// more slowly.
///
///   netram-lab pagesim cc -O2 -o prog prog.c -lm
///   make CC='netram-lab pagesim cc'
///   NETRAM_CC=clang netram-lab pagesim cc prog.c
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompileProgram {
    /// The compiler
    #[arg(long, value_name = "PROGRAM", env = "NETRAM_CC", default_value = "gcc")]
    compiler: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<OsString>,
}

impl CompileProgram {
    pub(super) fn run(self) -> Result<ExitCode> {
        if !links(&self.words) {
            return self.compile(&[INSTRUMENT.into()], &self.words);
        }
        let directory = tempfile::tempdir().context("making a directory for object files")?;
        let (sources, others) = split(&self.words);
        let mut linked: Vec<OsString> = Vec::new();
        for (place, word) in self.words.iter().enumerate() {
            if !sources.contains(&place) {
                linked.push(word.clone());
                continue;
            }
            let object = directory.path().join(format!("{place}.o"));
            let mut words: Vec<OsString> =
                vec![INSTRUMENT.into(), "-c".into(), "-o".into(), object.clone().into()];
            words.push(word.clone());
            let code = self.compile(&words, &others)?;
            if code != ExitCode::SUCCESS {
                return Ok(code);
            }
            linked.push(object.into());
        }
        let library = process::tracer()?;
        linked.push(library.clone().into());
        if let Some(directory) = library.parent() {
            linked.push(prefixed("-Wl,-rpath,", directory));
        }
        linked.extend(WRAPPED.map(|name| OsString::from(format!("-Wl,--wrap={name}"))));
        self.compile(&linked, &[])
    }

    fn compile(&self, words: &[OsString], more: &[OsString]) -> Result<ExitCode> {
        let mut command = Command::new(&self.compiler);
        command.args(words).args(more);
        let status = command.status();
        let status = status.with_context(|| format!("running {}", self.compiler.display()))?;
        Ok(match status.code() {
            Some(0) => ExitCode::SUCCESS,
            code => ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        })
    }
}

fn prefixed(prefix: &str, path: &Path) -> OsString {
    let mut word = OsString::from(prefix);
    word.push(path);
    word
}

/// Whether the compiler would link.
fn links(words: &[OsString]) -> bool {
    !words
        .iter()
        .any(|word| NO_LINK.iter().any(|option| word == option))
}

fn is_source(word: &OsStr) -> bool {
    let extension = Path::new(word).extension().and_then(OsStr::to_str);
    let option = word.as_encoded_bytes().starts_with(b"-");
    !option && extension.is_some_and(|extension| SOURCES.contains(&extension))
}

/// Indexes of the sources among the arguments, and the arguments for compiling one of them.
fn split(words: &[OsString]) -> (Vec<usize>, Vec<OsString>) {
    let (mut sources, mut others) = (Vec::new(), Vec::new());
    let mut place = 0;
    while let Some(word) = words.get(place) {
        let text = word.to_string_lossy();
        let paired = PAIRED.contains(&text.as_ref());
        let pair = &words[place..words.len().min(place + 1 + usize::from(paired))];
        let linkers = ["-o", "-l", "-L", "-Wl,", "-Xlinker"]
            .iter()
            .any(|option| text.starts_with(option));
        match (is_source(word), text.starts_with('-')) {
            (true, _) => sources.push(place),
            (false, true) if !linkers => others.extend(pair.iter().cloned()),
            // Objects and archives, and options for linking only.
            _ => {}
        }
        place += pair.len();
    }
    (sources, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn sources_are_compiled_without_linker_options() {
        let (sources, others) = split(&words(
            "-O2 -I include -o prog main.c util.cc extra.o -lm -Wl,-z,now -DX=1",
        ));
        assert_eq!(sources, [5, 6]);
        assert_eq!(others, words("-O2 -I include -DX=1"));
    }

    #[test]
    fn an_options_argument_is_not_a_source() {
        let (sources, others) = split(&words("-include all.c main.c"));
        assert_eq!(sources, [2]);
        assert_eq!(others, words("-include all.c"));
    }

    #[test]
    fn compiling_only_adds_only_the_instrumentation() {
        assert!(!links(&words("-c main.c")));
        assert!(links(&words("main.c -o prog")));
    }
}
