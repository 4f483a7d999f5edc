//! `netram-lender`: the commands that a machine needs which only lends.
//!
//! They are those of `netram lender`, one word shorter, and `netram key`. Nothing else is reachable from its
//! `main`, so that the linker leaves everything else out.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::StyledStr;
use clap::{Command, CommandFactory, Parser, Subcommand};

use crate::Program;
use crate::command::key::KeyCommand;
use crate::command::lender::LenderCommand;
use crate::command::manual::{PrintCompletions, WriteManPages};
use crate::log::LogArgs;

/// Section of its manual: those of `netram lender` have the same names in section 1.
const MANUAL_SECTION: &str = "8";
/// Commands of `netram` that this program has, as help spells them, and its own.
const SPELLINGS: [(&str, &str); 4] = [
    ("netram lender", "netram-lender"),
    ("netram key", "netram-lender key"),
    ("netram man ", "netram-lender man "),
    ("netram completions ", "netram-lender completions "),
];

/// Lends this machine's memory to others, and nothing else.
///
/// A small program for machines that only lend. It has the commands of `netram lender`, one word
/// shorter, and `netram key`; what a message calls `netram lender status` is its `status`.
///
///   netram-lender key create /etc/netram/key      # once; copy it to all machines
///   netram-lender serve --domain ups-1
///   netram-lender status tcp://10.0.0.2:7420
#[derive(Debug, Parser)]
#[command(name = "netram-lender", version, verbatim_doc_comment, max_term_width = 100)]
pub struct LenderProgram {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: LenderProgramCommand,
}

#[derive(Debug, Subcommand)]
enum LenderProgramCommand {
    #[command(flatten)]
    Lender(LenderCommand),
    #[command(subcommand)]
    Key(KeyCommand),
    Man(WriteManPages),
    Completions(PrintCompletions),
}

impl Program for LenderProgram {
    const NOUN: Option<&'static str> = Some("lender");

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_quiet(&self) -> bool {
        false
    }

    fn is_service(&self) -> bool {
        matches!(&self.command, LenderProgramCommand::Lender(lender) if lender.is_service())
    }

    fn run(self) -> Result<ExitCode> {
        match self.command {
            LenderProgramCommand::Lender(lender) => lender.run(),
            LenderProgramCommand::Key(key) => key.run(),
            LenderProgramCommand::Man(man) => man.run(&Self::grammar(), MANUAL_SECTION),
            LenderProgramCommand::Completions(completions) => completions.run(Self::grammar()),
        }
    }

    fn grammar() -> Command {
        Self::command().mut_subcommands(spelled)
    }
}

/// Returns a command with this program's spelling of commands in its help.
fn spelled(command: Command) -> Command {
    let text = |text: &StyledStr| {
        let text = text.to_string();
        SPELLINGS
            .iter()
            .fold(text, |text, (theirs, ours)| text.replace(theirs, ours))
    };
    let about = command.get_about().map(text);
    let long_about = command.get_long_about().map(text);
    let mut command = command.mut_args(|arg| {
        let (help, long_help) = (arg.get_help().map(text), arg.get_long_help().map(text));
        let arg = help.into_iter().fold(arg, clap::Arg::help);
        long_help.into_iter().fold(arg, clap::Arg::long_help)
    });
    if let Some(about) = about {
        command = command.about(about);
    }
    if let Some(long_about) = long_about {
        command = command.long_about(long_about);
    }
    command.mut_subcommands(spelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(path: &[&str]) -> String {
        let mut command = LenderProgram::grammar();
        command.build();
        for word in path {
            command = command.find_subcommand(word).expect(word).clone();
        }
        command.render_long_help().to_string()
    }

    #[test]
    fn help_shows_commands_that_this_program_has() {
        for path in [&["serve"][..], &["status"], &["drain"], &["key"], &["key", "add"]] {
            let help = help(path);
            let own = format!("\n  netram-lender {}", path.join(" "));
            assert!(help.contains(&own), "{path:?} shows no example:\n{help}");
            assert!(!help.contains("netram lender"), "{help}");
            assert!(!help.contains("netram key"), "{help}");
        }
    }

    #[test]
    fn it_has_every_command_of_the_noun() {
        let all = crate::Netram::grammar();
        let own = LenderProgram::grammar();
        let noun = all.find_subcommand("lender").expect("netram lender");
        for verb in noun.get_subcommands() {
            assert!(
                own.find_subcommand(verb.get_name()).is_some(),
                "{}",
                verb.get_name()
            );
        }
    }
}
