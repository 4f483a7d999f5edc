//! Tips for command lines that are close to a command.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Words at the beginning of a command line, and the command that is meant.
const MEANT: [(&str, &str); 6] = [
    ("lend", "netram lender serve"),
    ("status", "netram lender status"),
    ("disk", "netram volume"),
    ("unmount", "netram mount detach"),
    ("umount", "netram mount detach"),
    ("recover", "netram mount recover"),
];
const VERBS_OF_MOUNT: [&str; 5] = ["attach", "list", "status", "detach", "recover"];

/// Adds a tip to an error of the command line, if it is known what is meant.
pub(crate) fn with_tip(mut error: Error) -> Error {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(command) = meant(error.kind(), &words) {
        // The parser's own guess would contradict it.
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = StyledStr::from(format!("the command is `{command}`"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Returns the command that is meant by a command line that was refused.
fn meant(kind: ErrorKind, words: &[OsString]) -> Option<String> {
    if !matches!(kind, ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument) {
        return None;
    }
    let mut words = words
        .iter()
        .map(|word| word.to_string_lossy())
        .filter(|word| !word.starts_with("-v"));
    let first = words.next()?;
    if let Some((_, command)) = MEANT.iter().find(|(word, _)| *word == first) {
        return Some((*command).to_owned());
    }
    let second = words.next()?;
    (first == "mount" && !VERBS_OF_MOUNT.contains(&&*second))
        .then(|| "netram mount attach DIR --on JOURNAL".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_tools_lead_to_the_command() {
        let tip = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            meant(ErrorKind::InvalidSubcommand, &words)
        };
        assert_eq!(tip("lend --listen tcp://a:1").unwrap(), "netram lender serve");
        assert_eq!(tip("-v disk create x").unwrap(), "netram volume");
        assert!(tip("mount /srv/db --on x").unwrap().contains("mount attach"));
        assert!(tip("mount --on x /srv/db").unwrap().contains("mount attach"));
        assert_eq!(tip("mount attach"), None);
        assert_eq!(tip("lned"), None);
        assert_eq!(meant(ErrorKind::MissingRequiredArgument, &["lend".into()]), None);
    }
}
