//! Rights with which a command of root's works: those of the user whose files the command line names.
//!
//! Every path on the command line counts, of whatever command, so that a new command cannot forget it. The
//! exceptions are listed here, each with what protects it instead.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ArgMatches;
use netram_process::rights::{PathOwner, become_user, owner_of};

use crate::output;

/// Nouns whose commands work on files. `run` starts a program of the caller's, with the caller's rights.
const NOUNS: [&str; 13] = [
    "dashboard",
    "explain",
    "journal",
    "key",
    "lender",
    "man",
    "mount",
    "rvm",
    "shared",
    "sqlite",
    "status",
    "top",
    "volume",
];
/// Arguments that are no data of a user's. The owner of a key and of a cluster file is checked where it is
/// read, and a store's where it is opened; the rest is root's choice and only read.
const NOT_DATA: [&str; 11] = [
    "cluster",
    "config",
    "data_key_file",
    "data_lender_key_file",
    "key_file",
    "proc",
    "store",
    "tls",
    "tls_clients",
    "token_file",
    "view",
];
/// Commands that use a path as a name, or that open by descriptor what a user can write (`netram-mount`).
const BY_NAME: [(&str, &str, &str); 5] = [
    ("mount", "attach", "dir"),
    ("mount", "detach", "dir"),
    ("mount", "recover", "dir"),
    ("mount", "status", "dir"),
    ("volume", "detach", "what"),
];

/// Starts this program again with the rights of the user whose files the command works on, if it runs as root
/// and there is such a user. Otherwise it returns.
///
/// # Errors
///
/// Root may not work on these paths.
pub(crate) fn take(own_noun: Option<&str>, matches: &ArgMatches) -> Result<()> {
    let Some((noun, verb, arguments)) = command_of(own_noun, matches) else {
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if (noun, verb) == ("volume", "attach") && has(arguments, "server_user") {
        // The path is a name here; the volume is opened by the user's own process.
        return Ok(());
    }
    let paths = paths_of(noun, verb, arguments);
    let mut owner = owner_of(paths.iter().map(PathBuf::as_path))?;
    if let ("mount", "recover", Some(dir)) = (noun, verb, path(arguments, "dir")) {
        owner = owner_of_mount(dir);
    }
    let Some(owner) = owner else {
        return Ok(());
    };
    if needs_root(noun, verb, arguments) {
        let PathOwner { user, path, .. } = owner;
        bail!(
            "{0} belongs to user {user}, and a block device is made by root, who works on no files of a user's: give the \
             volume to root (chown -R root {0}), or let that user serve it (netram volume attach --server-user {user})",
            path.display()
        );
    }
    output::remark(format_args!(
        "{} belongs to user {}: going on with that user's rights",
        owner.path.display(),
        owner.user
    ));
    let error = become_user(&owner);
    Err(error).with_context(|| format!("taking the rights of user {}", owner.user))
}

/// Returns noun, verb and arguments of a command that works on files. In a program for one noun a verb stands
/// alone.
fn command_of<'a>(
    own_noun: Option<&'a str>,
    matches: &'a ArgMatches,
) -> Option<(&'a str, &'a str, &'a ArgMatches)> {
    let (first, rest) = matches.subcommand()?;
    let command = match (rest.subcommand(), own_noun) {
        (None, Some(noun)) => (noun, first, rest),
        (None, None) => (first, "", rest),
        (Some((verb, arguments)), _) => (first, verb, arguments),
    };
    NOUNS.contains(&command.0).then_some(command)
}

/// Paths of the command line that are data.
fn paths_of(noun: &str, verb: &str, arguments: &ArgMatches) -> Vec<PathBuf> {
    let is_data = |id: &str| !NOT_DATA.contains(&id) && !BY_NAME.contains(&(noun, verb, id));
    let ids = arguments.ids().map(clap::Id::as_str).filter(|id| is_data(id));
    ids.filter_map(|id| arguments.try_get_many::<PathBuf>(id).ok().flatten())
        .flatten()
        // A volume may be named as it is in the registry.
        .filter(|path| (noun, verb) != ("volume", "status") || path.exists())
        .cloned()
        .collect()
}

fn has(arguments: &ArgMatches, id: &str) -> bool {
    matches!(arguments.try_contains_id(id), Ok(true))
}

fn path<'a>(arguments: &'a ArgMatches, id: &str) -> Option<&'a Path> {
    let found = arguments.try_get_one::<PathBuf>(id).ok().flatten();
    found.map(PathBuf::as_path)
}

/// A directory is recovered by the user who mounted it; a wrong path is reported by the command itself.
#[cfg(feature = "products")]
fn owner_of_mount(dir: &Path) -> Option<PathOwner> {
    netram_mount::owner_of_mount(dir).ok().flatten()
}

#[cfg(not(feature = "products"))]
fn owner_of_mount(_dir: &Path) -> Option<PathOwner> {
    None
}

/// Whether the command makes a block device, for which the user's rights do not suffice.
fn needs_root(noun: &str, verb: &str, arguments: &ArgMatches) -> bool {
    let is_volume = |on: &Path| on.join("image").exists();
    match (noun, verb) {
        ("volume", "attach") => true,
        ("mount", "attach") => path(arguments, "on").is_some_and(is_volume),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use crate::{LenderProgram, Program};

    use super::*;
    use crate::Netram;

    /// Arguments of all commands that are paths.
    fn path_arguments() -> Vec<(String, String, String)> {
        let is_path = |arg: &&clap::Arg| {
            arg.get_value_parser().type_id() == clap::builder::ValueParser::path_buf().type_id()
        };
        let mut found = Vec::new();
        for noun in Netram::command().get_subcommands() {
            let verbs: Vec<&Command> = match noun.has_subcommands() {
                true => noun.get_subcommands().collect(),
                false => vec![noun],
            };
            for verb in verbs {
                for arg in verb.get_arguments().filter(is_path) {
                    let verb = if std::ptr::eq(verb, noun) {
                        ""
                    } else {
                        verb.get_name()
                    };
                    let arg = arg.get_id().as_str();
                    found.push((noun.get_name().to_owned(), verb.to_owned(), arg.to_owned()));
                }
            }
        }
        found
    }

    #[test]
    fn every_exception_is_a_path_of_some_command() {
        let all = path_arguments();
        assert!(all.len() > 50, "{all:?}");
        for (noun, verb, id) in BY_NAME {
            let known = all
                .iter()
                .any(|(n, v, i)| (n, v, i) == (&noun.into(), &verb.into(), &id.into()));
            assert!(known, "{noun} {verb} {id}");
        }
        for id in NOT_DATA {
            assert!(all.iter().any(|(_, _, known)| known == id), "{id}");
        }
        for (noun, ..) in all {
            let starts_programs = ["run", "give-back", "part", "play"].contains(&&*noun);
            assert!(NOUNS.contains(&&*noun) || starts_programs, "{noun}");
        }
    }

    #[test]
    fn the_data_of_a_command_counts_and_its_keys_do_not() {
        let cases: [(&[&str], &[&str]); 7] = [
            (&["journal", "recover", "/a"], &["/a"]),
            (
                &["mount", "attach", "/dir", "--on", "/a", "--key-file", "/k"],
                &["/a"],
            ),
            (&["mount", "recover", "/dir"], &[]),
            (&["rvm", "relocate", "/log", "/b", "/c"], &["/b", "/c", "/log"]),
            (&["lender", "serve", "--data", "/d", "--key-file", "/k"], &["/d"]),
            (&["volume", "detach", "db"], &[]),
            (&["sqlite", "recover", "/app.db"], &["/app.db"]),
        ];
        for (words, paths) in cases {
            let line = ["netram"].iter().chain(words);
            let matches = Netram::command().try_get_matches_from(line).unwrap();
            let (noun, verbs) = matches.subcommand().unwrap();
            let (verb, arguments) = verbs.subcommand().unwrap();
            let mut found = paths_of(noun, verb, arguments);
            found.sort();
            let expected: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            assert_eq!(found, expected, "{words:?}");
        }
    }

    #[test]
    fn a_program_for_one_noun_is_held_to_the_same_rights() {
        let lines: [(&[&str], (&str, &str)); 2] = [
            (
                &["serve", "--data", "/d", "--key-file", "/k"],
                ("lender", "serve"),
            ),
            (&["key", "create", "/d"], ("key", "create")),
        ];
        for (words, expected) in lines {
            let line = ["netram-lender"].iter().chain(words);
            let matches = LenderProgram::grammar().try_get_matches_from(line).unwrap();
            let (noun, verb, arguments) = command_of(LenderProgram::NOUN, &matches).unwrap();
            assert_eq!((noun, verb), expected);
            assert_eq!(paths_of(noun, verb, arguments), [PathBuf::from("/d")]);
        }
    }
}
