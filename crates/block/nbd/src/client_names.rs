//! Which certificate opens which exports.
//!
//! ```text
//! # name in the certificate    exports
//! db1.example.org              db logs
//! operator                     *
//! ```
//!
//! A certificate has the names that its authority wrote into it: its DNS names, and its subject's common
//! name. One that has none of the file's names opens nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::limit::CLIENTS_FILE_BYTES_MAX;

/// Word that stands for every export.
const EVERY: &str = "*";
/// Permission bits with which others may change a file.
const OTHERS_WRITE: u32 = 0o022;

/// Encoded object identifier of a subject's common name, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const TAG_OBJECT: u8 = 0x06;
const TAG_SEQUENCE: u8 = 0x30;
const TAG_SET: u8 = 0x31;
/// Text as UTF-8, printable characters, or ASCII.
const TAGS_TEXT: [u8; 3] = [0x0c, 0x13, 0x16];

/// Exports that a certificate opens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OpenExports {
    Every,
    These(Vec<String>),
}

/// Certificate names, with the exports that they open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientNames {
    exports: HashMap<String, OpenExports>,
}

/// Reason why a file of names is refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientNamesError {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// Others can change the file.
    #[error("it has mode {0:04o}, so others may change it; run chmod go-w on it")]
    Writable(u32),
    /// The file is not text, or longer than any list of names.
    #[error("it is not text of at most {CLIENTS_FILE_BYTES_MAX} bytes")]
    NoText,
    /// A line has a name and no export.
    #[error("line {0} names no export; write a certificate's name and its exports, or `*` for all")]
    NoExport(usize),
    /// Two lines have the same name.
    #[error("line {line} has the name `{name}` again")]
    Twice {
        /// Number of the line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
}

impl ClientNames {
    /// Reads a file of names.
    pub(crate) fn load(path: &Path) -> Result<ClientNames, ClientNamesError> {
        let file = File::open(path)?;
        let mode = file.metadata()?.permissions().mode() & 0o7777;
        if mode & OTHERS_WRITE != 0 {
            return Err(ClientNamesError::Writable(mode));
        }
        let mut bytes = Vec::new();
        file.take(CLIENTS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > CLIENTS_FILE_BYTES_MAX {
            return Err(ClientNamesError::NoText);
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| ClientNamesError::NoText)?;
        ClientNames::parse(text)
    }

    fn parse(text: &str) -> Result<ClientNames, ClientNamesError> {
        let mut found = ClientNames::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(name) = words.next().map(str::to_ascii_lowercase) else {
                continue;
            };
            let exports: Vec<String> = words.map(str::to_owned).collect();
            let exports = match exports.iter().any(|export| export == EVERY) {
                true => OpenExports::Every,
                false if exports.is_empty() => return Err(ClientNamesError::NoExport(index + 1)),
                false => OpenExports::These(exports),
            };
            if found.exports.insert(name.clone(), exports).is_some() {
                let line = index + 1;
                return Err(ClientNamesError::Twice { line, name });
            }
        }
        Ok(found)
    }

    /// Whether one of a certificate's names opens this export.
    pub(crate) fn opens(&self, names: &[String], export: &str) -> bool {
        let mut known = names
            .iter()
            .filter_map(|name| self.exports.get(&name.to_ascii_lowercase()));
        known.any(|exports| match exports {
            OpenExports::Every => true,
            OpenExports::These(exports) => exports.iter().any(|open| open == export),
        })
    }
}

/// Names of a verified certificate: its DNS names and its common name.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let names = certificate.valid_dns_names().map(str::to_owned);
    names.chain(common_name(certificate.subject())).collect()
}

/// The common name of a subject in DER, without its outer sequence. `None` if there is none, or several, of
/// which no one can say which the authority meant.
fn common_name(mut subject: &[u8]) -> Option<String> {
    let mut found = None;
    while !subject.is_empty() {
        let (TAG_SET, mut set, behind) = element(subject)? else {
            return None;
        };
        while !set.is_empty() {
            let (TAG_SEQUENCE, pair, next) = element(set)? else {
                return None;
            };
            let (TAG_OBJECT, kind, value) = element(pair)? else {
                return None;
            };
            if kind == COMMON_NAME {
                let (tag, text, []) = element(value)? else {
                    return None;
                };
                let text = std::str::from_utf8(text)
                    .ok()
                    .filter(|_| TAGS_TEXT.contains(&tag))?;
                if found.replace(text.to_owned()).is_some() {
                    return None;
                }
            }
            set = next;
        }
        subject = behind;
    }
    found
}

/// Tag and contents of the first element, and what is behind it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&short, rest) = rest.split_first()?;
    let (length, rest) = match short {
        0..=0x7f => (usize::from(short), rest),
        0x81 => rest
            .split_first()
            .map(|(&length, rest)| (usize::from(length), rest))?,
        0x82 => rest
            .split_first_chunk()
            .map(|(length, rest)| (usize::from(u16::from_be_bytes(*length)), rest))?,
        _ => return None,
    };
    let (inside, behind) = rest.split_at_checked(length)?;
    Some((tag, inside, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_certificate_opens_the_exports_of_its_names_and_no_others() {
        let text = "# who\nDB1.example.org  db logs # both\n\noperator *\n";
        let known = ClientNames::parse(text).unwrap();
        assert!(known.opens(&names(&["other", "db1.Example.org"]), "logs"));
        assert!(!known.opens(&names(&["db1.example.org"]), "mail"));
        assert!(known.opens(&names(&["operator"]), "mail"));
        assert!(!known.opens(&names(&["operator.example.org"]), "db"));
        assert!(!known.opens(&[], "db"));
    }

    #[test]
    fn a_line_without_an_export_and_a_name_given_twice_are_refused() {
        let refused = ClientNames::parse("a db\nb\n").unwrap_err();
        assert!(matches!(refused, ClientNamesError::NoExport(2)), "{refused}");
        let refused = ClientNames::parse("a db\nA logs\n").unwrap_err();
        assert!(matches!(&refused, ClientNamesError::Twice { line: 2, name } if name == "a"));
    }

    #[test]
    fn a_common_name_is_found_unless_there_are_two_or_the_bytes_are_cut() {
        let pair = |object: &[u8], tag: u8, text: &str| {
            let mut pair = vec![TAG_OBJECT, object.len() as u8];
            pair.extend(object);
            pair.extend([tag, text.len() as u8]);
            pair.extend(text.bytes());
            let mut set = vec![TAG_SET, pair.len() as u8 + 2, TAG_SEQUENCE, pair.len() as u8];
            set.extend(pair);
            set
        };
        let country = pair(&[0x55, 0x04, 0x06], 0x13, "GR");
        let subject = [country.clone(), pair(COMMON_NAME, 0x0c, "db1")].concat();
        assert_eq!(common_name(&subject).as_deref(), Some("db1"));
        // A length of two bytes, as a long name has.
        let long = "x".repeat(100);
        let mut text = vec![0x0c, 0x81, 100];
        text.extend(long.bytes());
        assert_eq!(element(&text), Some((0x0c, long.as_bytes(), &[][..])));
        assert_eq!(common_name(&country), None);
        let two = [subject.clone(), pair(COMMON_NAME, 0x0c, "operator")].concat();
        assert_eq!(common_name(&two), None);
        // A text that is not one of the encodings that are compared as they stand.
        assert_eq!(common_name(&pair(COMMON_NAME, 0x1e, "db1")), None);
        for cut in country.len() + 1..subject.len() {
            assert_eq!(common_name(&subject[..cut]), None, "{cut}");
        }
    }
}
