//! The file of clients: names, keys, rights and limits.
//!
//! ```text
//! # A comment.
//! [db1]
//! key = netram-key-1:<64 hexadecimal digits>
//! key = netram-key-1:<a second one, while clients change to it>
//! memory = 1GiB
//! connections = 64
//! data = 2TiB
//! status = no
//! ```
//!
//! A limit is an amount, or `all`; 0 is nothing. A right is `yes` or `no`. What a client's lines do not say
//! has a default ([`ClientLimits`]). The file is secret like a key.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use netram_process::secret::{self, SecretRefusal};
use netram_proto::wire::ClientResource;
use netram_transport::{ClusterKey, KeyId};
use zeroize::Zeroizing;

use netram_proto::client::ClientLimits;

/// Maximum bytes of the file: a thousand clients.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes of a client's name.
pub const NAME_BYTES_MAX: usize = 32;
/// Maximum number of keys of one client: an old one, and a new one while programs change to it.
pub const KEYS_MAX: usize = 2;

/// Why the file of clients cannot be used or changed.
#[derive(Debug, thiserror::Error)]
pub enum ClientsFileError {
    /// The file cannot be read.
    #[error("cannot read the file of clients {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Others may read or change the file.
    #[error("the file of clients {} is not secret: {refusal}", path.display())]
    NotSecret {
        /// The file.
        path: PathBuf,
        /// The wrong mode or owner.
        refusal: SecretRefusal,
    },
    /// A line says something that cannot be.
    #[error("the file of clients {}, line {line}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The mistake, and its remedy.
        problem: String,
    },
    /// A change would make the file wrong, or names a client that it does not have.
    #[error("{0}")]
    Refused(String),
    /// The file cannot be written.
    #[error("cannot write the file of clients {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A client in the file.
#[derive(Clone, Debug)]
pub struct ClientEntry {
    /// Its name.
    pub name: Box<str>,
    /// Its keys, one or two, the older first.
    pub keys: Vec<ClusterKey>,
    /// Its limits and rights.
    pub limits: ClientLimits,
    /// Indices of the lines of its name and its keys.
    name_line: usize,
    key_lines: Vec<usize>,
    /// Index behind its last line that says something.
    end: usize,
}

/// The file of clients. Changes keep the lines that they do not concern.
#[derive(Clone, Default)]
pub struct ClientsFile {
    text: Zeroizing<String>,
    clients: Vec<ClientEntry>,
}

impl ClientsFile {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// `Unreadable`, `NotSecret`, or `Malformed` for the first wrong line.
    pub fn load(path: &Path) -> Result<ClientsFile, ClientsFileError> {
        let unreadable = |source| ClientsFileError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        secret::check(&file, path).map_err(|refusal| ClientsFileError::NotSecret {
            path: path.to_owned(),
            refusal,
        })?;
        let bytes = file.metadata().map_err(unreadable)?.len().min(FILE_BYTES_MAX);
        // Growing would leave copies of keys in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(bytes as usize + 1));
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        if read.map_err(unreadable)? as u64 > FILE_BYTES_MAX {
            let source = io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB");
            return Err(unreadable(source));
        }
        ClientsFile::parse(text).map_err(|(line, problem)| ClientsFileError::Malformed {
            path: path.to_owned(),
            line,
            problem,
        })
    }

    /// Reads the text of a file. The error is the number of the first wrong line, from 1, and what is wrong.
    fn parse(text: Zeroizing<String>) -> Result<ClientsFile, (usize, String)> {
        let mut clients: Vec<ClientEntry> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |problem| (index + 1, problem);
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                begin(&mut clients, name.trim(), index).map_err(wrong)?;
            } else {
                say(&mut clients, line, index).map_err(wrong)?;
            }
            if let Some(client) = clients.last_mut() {
                client.end = index + 1;
            }
        }
        if let Some(keyless) = clients.iter().find(|client| client.keys.is_empty()) {
            let problem = format!(
                "client `{}` has no key: make one with `netram key add`, or remove its lines",
                keyless.name
            );
            return Err((keyless.name_line + 1, problem));
        }
        Ok(ClientsFile { text, clients })
    }

    /// The clients, in the order of the file.
    pub fn clients(&self) -> &[ClientEntry] {
        &self.clients
    }

    /// The client of this name.
    pub fn client(&self, name: &str) -> Option<&ClientEntry> {
        self.clients.iter().find(|client| &*client.name == name)
    }

    /// The keys with the names of their clients.
    pub(crate) fn into_keys(self) -> impl Iterator<Item = (Box<str>, ClusterKey)> {
        self.clients.into_iter().flat_map(|client| {
            let ClientEntry { name, keys, .. } = client;
            keys.into_iter().map(move |key| (name.clone(), key))
        })
    }

    /// The text, for the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A key that is none of the file's and has an id of its own.
    pub fn new_key(&self) -> ClusterKey {
        loop {
            let key = ClusterKey::generate();
            if self.holder(KeyId::of(&key)).is_none() {
                return key;
            }
        }
    }

    /// The client that has the key with this id.
    pub fn holder(&self, id: KeyId) -> Option<&ClientEntry> {
        let has = |client: &&ClientEntry| client.keys.iter().any(|key| KeyId::of(key) == id);
        self.clients.iter().find(has)
    }

    /// Adds a client.
    ///
    /// # Errors
    /// `Refused` if there is a client of that name, or the key is another's.
    pub fn add(
        &self,
        name: &str,
        key: &ClusterKey,
        limits: &ClientLimits,
    ) -> Result<ClientsFile, ClientsFileError> {
        let mut text = Zeroizing::new(String::with_capacity(self.text.len() + 512));
        text.push_str(&self.text);
        if !text.is_empty() {
            let is_line = text.ends_with('\n');
            text.push_str(if is_line { "\n" } else { "\n\n" });
        }
        text.push_str(&format!("[{name}]\nkey = "));
        text.push_str(&key.to_text());
        text.push('\n');
        for resource in ClientResource::ALL {
            if let Some(limit) = limits.get(resource) {
                text.push_str(&format!("{resource} = {}\n", shown(resource, limit)));
            }
        }
        changed(text)
    }

    /// Adds a second key to a client.
    ///
    /// # Errors
    /// `Refused` if there is no such client, if it has two keys already, or if the key is another's.
    pub fn add_key(&self, name: &str, key: &ClusterKey) -> Result<ClientsFile, ClientsFileError> {
        let client = self.known(name)?;
        let Some(last) = client.key_lines.last().filter(|_| client.keys.len() < KEYS_MAX) else {
            return Err(ClientsFileError::Refused(format!(
                "client `{name}` has two keys already: remove the older with `netram key revoke {name} --old` once no \
                 program uses it"
            )));
        };
        let mut text = Zeroizing::new(String::with_capacity(self.text.len() + 256));
        for (index, line) in self.text.lines().enumerate() {
            text.push_str(line);
            text.push('\n');
            if index == *last {
                text.push_str("key = ");
                text.push_str(&key.to_text());
                text.push('\n');
            }
        }
        changed(text)
    }

    /// Removes the older of a client's two keys.
    ///
    /// # Errors
    /// `Refused` if there is no such client, or if it has one key.
    pub fn remove_old_key(&self, name: &str) -> Result<ClientsFile, ClientsFileError> {
        let client = self.known(name)?;
        if client.keys.len() < KEYS_MAX {
            return Err(ClientsFileError::Refused(format!(
                "client `{name}` has one key only: give it another with `netram key rotate {name}` first, or revoke the \
                 client without --old"
            )));
        }
        let old = client.key_lines[0];
        self.without(|index| index == old)
    }

    /// Removes a client with its keys.
    ///
    /// # Errors
    /// `Refused` if there is no such client.
    pub fn remove(&self, name: &str) -> Result<ClientsFile, ClientsFileError> {
        let client = self.known(name)?;
        self.without(|index| (client.name_line..client.end).contains(&index))
    }

    fn without(&self, goes: impl Fn(usize) -> bool) -> Result<ClientsFile, ClientsFileError> {
        let mut text = Zeroizing::new(String::with_capacity(self.text.len() + 1));
        for (_, line) in self.text.lines().enumerate().filter(|(index, _)| !goes(*index)) {
            text.push_str(line);
            text.push('\n');
        }
        changed(text)
    }

    fn known(&self, name: &str) -> Result<&ClientEntry, ClientsFileError> {
        self.client(name).ok_or_else(|| {
            let names: Vec<&str> = self.clients.iter().map(|client| &*client.name).collect();
            ClientsFileError::Refused(format!(
                "the file has no client `{name}`; it has: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            ))
        })
    }
}

impl std::fmt::Debug for ClientsFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("ClientsFile").field(&self.clients).finish()
    }
}

/// Checks the text of a changed file.
fn changed(text: Zeroizing<String>) -> Result<ClientsFile, ClientsFileError> {
    ClientsFile::parse(text).map_err(|(_, problem)| ClientsFileError::Refused(problem))
}

/// Takes the line that begins a client.
fn begin(clients: &mut Vec<ClientEntry>, name: &str, line: usize) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        return Err(format!(
            "`{name}` is no name of a client: use up to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`"
        ));
    }
    if let Some(other) = clients.iter().find(|client| &*client.name == name) {
        return Err(format!(
            "client `{name}` is there twice; the first is in line {}",
            other.name_line + 1
        ));
    }
    clients.push(ClientEntry {
        name: name.into(),
        keys: Vec::new(),
        limits: ClientLimits::default(),
        name_line: line,
        key_lines: Vec::new(),
        end: line + 1,
    });
    Ok(())
}

/// Takes a line that says something of the last client.
fn say(clients: &mut [ClientEntry], line: &str, index: usize) -> Result<(), String> {
    let Some((word, value)) = line.split_once('=') else {
        return Err("expected `[NAME]`, or `WORD = VALUE`, or a comment behind #".to_owned());
    };
    let (word, value) = (word.trim(), value.trim());
    let Some((client, others)) = clients.split_last_mut() else {
        return Err(format!(
            "`{word}` belongs to no client: begin one with a line `[NAME]`"
        ));
    };
    if word == "key" {
        return take_key(client, others, value, index);
    }
    let Some(resource) = ClientResource::ALL
        .into_iter()
        .find(|resource| resource.word() == word)
    else {
        let words = ClientResource::ALL.map(ClientResource::word).join(", ");
        return Err(format!("`{word}` is not known; a client has: key, {words}"));
    };
    if client.limits.get(resource).is_some() {
        return Err(format!("client `{}` has `{word}` twice", client.name));
    }
    client.limits.set(resource, Some(amount(resource, value)?));
    Ok(())
}

fn take_key(
    client: &mut ClientEntry,
    others: &[ClientEntry],
    value: &str,
    index: usize,
) -> Result<(), String> {
    // The message of this error does not repeat the text.
    let key: ClusterKey = value.parse().map_err(|error| format!("{error}"))?;
    if client.keys.len() == KEYS_MAX {
        return Err(format!(
            "client `{}` has more than two keys: remove the oldest",
            client.name
        ));
    }
    let id = KeyId::of(&key);
    let same = |client: &&ClientEntry| client.keys.iter().any(|other| KeyId::of(other) == id);
    if let Some(other) = others.iter().chain([&*client]).find(same) {
        return Err(format!(
            "this key and one of client `{}` have the same id, {id}: make another with `netram key rotate {}`",
            other.name, client.name
        ));
    }
    client.keys.push(key);
    client.key_lines.push(index);
    Ok(())
}

/// The amount that a value is.
///
/// # Errors
/// What the value should be.
pub fn amount(resource: ClientResource, value: &str) -> Result<u64, String> {
    if resource.is_right() {
        return match value {
            "yes" => Ok(1),
            "no" => Ok(0),
            _ => Err(format!(
                "`{value}` is not a right: write `{resource} = yes` or `{resource} = no`"
            )),
        };
    }
    if value == "all" {
        return Ok(u64::MAX);
    }
    let amount = match resource.is_bytes() {
        true => value.parse::<ByteSize>().ok().map(|size| size.as_u64()),
        false => value.parse().ok(),
    };
    let example = if resource.is_bytes() { "64MiB" } else { "100" };
    amount.ok_or_else(|| {
        format!("`{value}` is no amount of {resource}: write it as `{resource} = {example}`, or `all`")
    })
}

/// The text of an amount.
pub fn shown(resource: ClientResource, amount: u64) -> String {
    match amount {
        0 if resource.is_right() => "no".to_owned(),
        _ if resource.is_right() => "yes".to_owned(),
        u64::MAX => "all".to_owned(),
        _ if resource.is_bytes() => {
            // A rounded amount would be another one.
            let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
            let whole = units
                .into_iter()
                .find(|(shift, _)| amount > 0 && amount.trailing_zeros() >= *shift);
            whole.map_or_else(
                || format!("{amount}B"),
                |(shift, unit)| format!("{}{unit}", amount >> shift),
            )
        }
        _ => amount.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    pub(crate) fn write(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn parse(text: &str) -> Result<ClientsFile, (usize, String)> {
        ClientsFile::parse(Zeroizing::new(text.to_owned()))
    }

    fn key() -> String {
        ClusterKey::generate().to_text().to_string()
    }

    #[test]
    fn names_keys_rights_and_limits_are_read() {
        let (a, b) = (key(), key());
        let file = parse(&format!(
            "# mine\n[db-1]\n key = {a}\nkey={b}\nmemory = 1GiB\nsessions=7\ndata = all\n\n[x]\nkey = {}\nstatus = no\n",
            key()
        ));
        let file = match file {
            // Two random keys have the same id once in 65,536 times.
            Err((_, problem)) if problem.contains("same id") => return,
            file => file.unwrap(),
        };
        let [db, x] = file.clients() else { panic!() };
        assert_eq!((&*db.name, db.keys.len()), ("db-1", 2));
        assert!(*db.keys[0].to_text() == a && *db.keys[1].to_text() == b);
        assert_eq!(db.limits.get(ClientResource::Memory), Some(1 << 30));
        assert_eq!(db.limits.get(ClientResource::Sessions), Some(7));
        assert_eq!(db.limits.get(ClientResource::Data), Some(u64::MAX));
        assert_eq!(db.limits.get(ClientResource::Journals), None);
        assert_eq!(x.limits.get(ClientResource::Status), Some(0));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line_and_the_remedy() {
        let key = key();
        for (text, line, problem) in [
            (format!("key = {key}"), 1, "begin one with a line `[NAME]`"),
            (format!("[a]\nkey = {key}\n[a]\n"), 3, "first is in line 1"),
            (format!("[a]\nkey = {key}\nkey = {key}"), 3, "same id"),
            (format!("[a]\nkey = {key}\n[b]\nkey = {key}"), 4, "client `a`"),
            ("[a]\nkey = netram-key-1:12".to_owned(), 2, "64 hexadecimal"),
            ("\n[a]\nmemory = 1GiB\n".to_owned(), 2, "netram key add"),
            (
                format!("[a]\nkey = {key}\nroot = yes"),
                3,
                "a client has: key, memory",
            ),
            (format!("[a]\nkey = {key}\nmemory = much"), 3, "64MiB"),
            (format!("[a]\nkey = {key}\nsessions = 1GiB"), 3, "100"),
            (format!("[a]\nkey = {key}\nstatus = 1"), 3, "status = yes"),
            (format!("[a]\nkey = {key}\nstatus = no\nstatus = no"), 4, "twice"),
            (format!("[a]\nkey = {key}\nstatus"), 3, "WORD = VALUE"),
            ("[a b]".to_owned(), 1, "letters"),
            (format!("[{}]", "n".repeat(33)), 1, "letters"),
        ] {
            let (at, found) = parse(&text).map(|_| ()).unwrap_err();
            assert_eq!(at, line, "{text}: {found}");
            assert!(found.contains(problem), "{text}: {found}");
            assert!(!found.contains(&key[14..]), "the key is not shown");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients");
        write(&path, &format!("[a]\nkey = {}\n", key()));
        ClientsFile::load(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = ClientsFile::load(&path).unwrap_err();
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }

    #[test]
    fn changes_keep_the_lines_that_they_do_not_concern() {
        let empty = ClientsFile::default();
        let mut limits = ClientLimits::default();
        limits.set(ClientResource::Memory, Some(3 << 20));
        limits.set(ClientResource::Shared, Some(0));
        let first = empty.new_key();
        let file = empty.add("a", &first, &limits).unwrap();
        let text = file.text().replace("[a]", "# the first\n[a]");
        let file = parse(&text).unwrap();
        let file = file.add("b", &file.new_key(), &ClientLimits::default()).unwrap();
        assert!(file.text().contains("memory = 3MiB\nshared = no\n\n[b]\n"));
        let second = file.new_key();
        let file = file.add_key("a", &second).unwrap();
        assert!(file.client("a").unwrap().keys == [first.clone(), second.clone()]);
        let full = file.add_key("a", &file.new_key()).unwrap_err().to_string();
        assert!(full.contains("netram key revoke a --old"), "{full}");
        let file = file.remove_old_key("a").unwrap();
        assert!(file.client("a").unwrap().keys == [second.clone()]);
        assert!(
            file.remove_old_key("a")
                .unwrap_err()
                .to_string()
                .contains("one key")
        );
        let file = file.remove("b").unwrap();
        assert!(
            file.text().starts_with("# the first\n[a]\nkey = "),
            "{}",
            file.text()
        );
        assert!(file.client("b").is_none() && !file.text().contains("[b]"));
        let unknown = file.remove("c").unwrap_err().to_string();
        assert!(unknown.contains("no client `c`; it has: a"), "{unknown}");
        assert!(file.add("a", &file.new_key(), &limits).is_err());
        assert!(file.add("c", &second, &limits).is_err());
    }

    #[test]
    fn shown_amounts_are_read_back() {
        for resource in ClientResource::ALL {
            let amounts = match resource.is_right() {
                true => vec![0, 1],
                false => vec![0, 1, 1000, 1 << 20, (1 << 30) + 1, 3 << 40, u64::MAX],
            };
            for wanted in amounts {
                let text = shown(resource, wanted);
                assert_eq!(amount(resource, &text), Ok(wanted), "{resource} = {text}");
            }
        }
    }
}
