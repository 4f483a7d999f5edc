//! The part of a settings file that may change while a journal is open: reading it, and changing it without
//! touching anything else in the file.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use netram_journal::durable;
use netram_journal::{JournalSettings, Membership, SettingsFile};
use netram_proto::journal::CommitRule;
use netram_transport::NetAddress;
use toml_edit::{Array, DocumentMut, Item, Table, Value};

use crate::output;

/// A change of lenders, rule or number of members, as a command line names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MembershipEdit {
    pub(super) add: Vec<NetAddress>,
    pub(super) remove: Vec<NetAddress>,
    pub(super) rule: Option<CommitRule>,
    pub(super) members: Option<usize>,
    pub(super) members_min: Option<usize>,
}

impl MembershipEdit {
    /// The membership after the change of `present`.
    ///
    /// # Errors
    /// A lender is there already, or is not there.
    pub(super) fn apply(&self, mut present: Membership) -> Result<Membership> {
        for address in &self.add {
            if present.lenders.contains(address) {
                bail!("{address} is among the lenders already");
            }
            present.lenders.push(address.clone());
        }
        for address in &self.remove {
            let Some(index) = present.lenders.iter().position(|one| one == address) else {
                let lenders: Vec<String> = present.lenders.iter().map(NetAddress::to_string).collect();
                bail!("{address} is not among the lenders: {}", lenders.join(", "));
            };
            present.lenders.remove(index);
        }
        present.rule = self.rule.unwrap_or(present.rule);
        present.members = self.members.unwrap_or(present.members);
        present.members_min = self.members_min.or(present.members_min);
        Ok(present)
    }
}

/// A settings file, locked against other commands of this kind.
#[derive(Debug)]
pub(super) struct MembershipFile {
    path: PathBuf,
    text: String,
    /// The directory; its lock ends with it.
    _lock: File,
}

impl MembershipFile {
    /// Reads the settings file at `path`, which need not exist.
    ///
    /// # Errors
    /// The file or its directory cannot be read or locked.
    pub(super) fn read(path: &Path) -> Result<MembershipFile> {
        // A link stays a link, and what it leads to is changed.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let what = || format!("reading the settings {}", path.display());
        let lock = File::open(durable::directory_of(&path)).with_context(what)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).with_context(what)?;
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(what),
        };
        Ok(MembershipFile {
            path,
            text,
            _lock: lock,
        })
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The membership that the file asks for.
    ///
    /// # Errors
    /// The file is invalid.
    pub(super) fn membership(&self) -> Result<Membership> {
        Ok(settings_of(&self.text, &self.path)?.membership())
    }

    /// The file's text after a change, and the membership that it then asks for.
    ///
    /// # Errors
    /// The file is invalid, or the change is impossible.
    pub(super) fn changed(&self, edit: &MembershipEdit) -> Result<(String, Membership)> {
        let before = self.membership()?;
        edit.apply(before.clone())?;
        let mut document: DocumentMut = self
            .text
            .parse()
            .with_context(|| format!("{} is no TOML", self.path.display()))?;
        let table = document
            .entry("journal")
            .or_insert_with(|| Item::Table(Table::new()));
        let Some(table) = table.as_table_like_mut() else {
            bail!("`journal` in {} is no table", self.path.display());
        };
        if !edit.add.is_empty() || !edit.remove.is_empty() {
            let lenders = table
                .entry("lenders")
                .or_insert_with(|| Item::Value(Array::new().into()));
            let Some(lenders) = lenders.as_array_mut() else {
                bail!(
                    "`lenders` in {} is no list, so no lender can be added or removed by name",
                    self.path.display()
                );
            };
            change_array(lenders, edit);
        }
        let mut set = |key: &str, value: Value| {
            let item = table.entry(key).or_insert(Item::None);
            let decor = item.as_value().map(|before| before.decor().clone());
            let mut value = value;
            if let Some(decor) = decor {
                *value.decor_mut() = decor;
            }
            *item = Item::Value(value);
        };
        match edit.rule {
            Some(CommitRule::AtLeast(copies)) => set("rule", i64::from(copies).into()),
            Some(rule) => set("rule", rule.to_string().into()),
            None => (),
        }
        for (key, number) in [("members", edit.members), ("members-min", edit.members_min)] {
            if let Some(number) = number {
                set(key, (number as i64).into());
            }
        }
        let text = document.to_string();
        let settings = settings_of(&text, &self.path)?;
        if before.lenders.is_empty() {
            // Without lenders no key was needed.
            settings.journal_config()?;
        }
        let membership = settings.membership();
        // A default that follows the number of lenders takes no copy away unasked.
        if edit.members.is_none() && membership.members < before.members {
            bail!(
                "too few lenders would be left for {}: add another first, or ask for fewer copies with --members {}",
                output::count(before.members as u64, "member"),
                membership.members
            );
        }
        Ok((text, membership))
    }

    /// Replaces the file, which keeps its mode.
    ///
    /// # Errors
    /// The system's error; the file is as it was.
    pub(super) fn replace(&self, text: &str) -> Result<()> {
        let what = || format!("writing the settings {}", self.path.display());
        let mode = fs::metadata(&self.path).map(|before| before.permissions());
        durable::replace(&self.path, text.as_bytes()).with_context(what)?;
        mode.map_or(Ok(()), |mode| fs::set_permissions(&self.path, mode))
            .with_context(what)
    }
}

/// Other tables of the file are their owners' affair.
fn settings_of(text: &str, path: &Path) -> Result<JournalSettings> {
    let mut file = SettingsFile::parse(text, path)?;
    Ok(JournalSettings::take(&mut file)?)
}

/// Adds and removes addresses. A list with a line for each keeps its form. In the parser's view a comment
/// behind an address belongs to the next address, or to the list's end.
fn change_array(lenders: &mut Array, edit: &MembershipEdit) {
    let address = |value: &Value| {
        value
            .as_str()
            .and_then(|text| text.trim().parse::<NetAddress>().ok())
    };
    let is_removed = |value: &Value| address(value).is_some_and(|one| edit.remove.contains(&one));
    loop {
        let found = lenders.iter().position(is_removed);
        let Some(index) = found else { break };
        let before = prefix(&lenders.remove(index));
        match lenders.get_mut(index) {
            Some(next) => next.decor_mut().set_prefix(before),
            None => {
                let end = before.rfind('\n').map_or("", |end| &before[..=end]);
                lenders.set_trailing(end.to_owned());
            }
        }
    }
    for added in &edit.add {
        add_to_array(lenders, Value::from(added.to_string()));
    }
}

fn add_to_array(lenders: &mut Array, mut value: Value) {
    let behind_list = lenders.trailing().as_str().unwrap_or("").to_owned();
    let count = lenders.len();
    let Some(last) = count.checked_sub(1).and_then(|last| lenders.get_mut(last)) else {
        return lenders.push(value);
    };
    let before = prefix(last);
    let Some(line) = before.rfind('\n') else {
        return lenders.push(value);
    };
    let suffix = last.decor().suffix().and_then(|text| text.as_str());
    let behind = suffix.unwrap_or("").to_owned() + &behind_list;
    last.decor_mut().set_suffix("");
    let (comment, end) = behind.split_at(behind.rfind('\n').unwrap_or(behind.len()));
    value
        .decor_mut()
        .set_prefix(format!("{comment}{}", &before[line..]));
    lenders.push_formatted(value);
    lenders.set_trailing(end.to_owned());
}

fn prefix(value: &Value) -> String {
    let prefix = value.decor().prefix().and_then(|text| text.as_str());
    prefix.unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> NetAddress {
        address.parse().unwrap()
    }

    fn file(text: &str) -> (tempfile::TempDir, MembershipFile) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("netram.toml");
        fs::write(&path, text).unwrap();
        let file = MembershipFile::read(&path).unwrap();
        (directory, file)
    }

    fn changed(text: &str, edit: &MembershipEdit) -> Result<(String, Membership)> {
        file(text).1.changed(edit)
    }

    fn add(address: &str) -> MembershipEdit {
        MembershipEdit {
            add: vec![at(address)],
            ..MembershipEdit::default()
        }
    }

    fn remove(address: &str) -> MembershipEdit {
        MembershipEdit {
            remove: vec![at(address)],
            ..MembershipEdit::default()
        }
    }

    #[test]
    fn only_what_changes_is_touched() {
        let lenders = "\"tcp://a:1\", # cellar\n  \"tcp://b:1\", # attic\n";
        let text = format!(
            "# bank\n[journal]\nlenders = [\n  {lenders}]\nmembers = 2 # two\n\n[volume]\nflush = \"disk\"\n"
        );
        let (after, membership) = changed(&text, &add("tcp://c:1")).unwrap();
        assert_eq!(after, text.replace("attic\n", "attic\n  \"tcp://c:1\",\n"));
        assert_eq!(membership.lenders.len(), 3);
        let without = |address: &str| changed(&text, &remove(address)).unwrap().0;
        assert_eq!(
            without("tcp://b:1"),
            text.replace("  \"tcp://b:1\", # attic\n", "")
        );
        assert_eq!(
            without("tcp://a:1"),
            text.replace("  \"tcp://a:1\", # cellar\n", "")
        );
        let edit = MembershipEdit {
            members: Some(1),
            rule: Some(CommitRule::Any),
            ..MembershipEdit::default()
        };
        let (after, membership) = changed(&text, &edit).unwrap();
        assert_eq!(
            after,
            text.replace("members = 2 # two\n", "members = 1 # two\nrule = \"any\"\n")
        );
        assert_eq!((membership.members, membership.rule), (1, CommitRule::Any));
        let open_end = "[journal]\nlenders = [\n  \"tcp://a:1\",\n  \"tcp://b:1\"\n]\n";
        let (after, _) = changed(open_end, &add("tcp://c:1")).unwrap();
        assert_eq!(after, open_end.replace("b:1\"", "b:1\",\n  \"tcp://c:1\""));
    }

    #[test]
    fn an_empty_file_and_a_list_on_one_line_grow() {
        let (after, membership) = changed("[journal]\ninsecure = true\n", &add("tcp://a:1")).unwrap();
        let (plain, after) = (after.clone(), after.replace("insecure = true\n", ""));
        assert!(plain.starts_with("[journal]\ninsecure = true\n"), "{plain}");
        assert_eq!(after, "[journal]\nlenders = [\"tcp://a:1\"]\n");
        assert_eq!(membership.members, 1);
        let (after, membership) = changed(&after, &add("tcp://b:1")).unwrap();
        assert_eq!(after, "[journal]\nlenders = [\"tcp://a:1\", \"tcp://b:1\"]\n");
        assert_eq!(membership.members, 2, "the default follows the number of lenders");
        let (after, _) = changed(&after, &add("tcp://c:1")).unwrap();
        assert_eq!(
            after,
            "[journal]\nlenders = [\"tcp://a:1\", \"tcp://b:1\", \"tcp://c:1\"]\n"
        );
    }

    #[test]
    fn the_first_of_a_list_goes_without_a_trace() {
        let three = "[journal]\nlenders = [\"tcp://a:1\", \"tcp://b:1\", \"tcp://c:1\"]\n";
        let (after, _) = changed(three, &remove("tcp://a:1")).unwrap();
        assert_eq!(after, three.replace("\"tcp://a:1\", ", ""));
    }

    #[test]
    fn an_impossible_change_says_why() {
        let text = "[journal]\nlenders = [\"tcp://a:1\"]\n";
        let why = |text: &str, edit: &MembershipEdit| changed(text, edit).unwrap_err().to_string();
        let two = "[journal]\nlenders = [\"tcp://a:1\", \"tcp://b:1\"]\n";
        assert!(why(two, &remove("tcp://a:1")).contains("--members 1"));
        assert!(why(text, &add("tcp://a:1")).contains("already"));
        assert!(why(text, &remove("tcp://b:1")).contains("tcp://a:1"));
        assert!(why("journal = 1\n", &add("tcp://a:1")).contains("[journal]"));
        assert!(why("[journal\n", &add("tcp://a:1")).contains("invalid"));
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_its_link() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let (directory, file) = file("[journal]\n");
        let path = file.path().to_path_buf();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        drop(file);
        let link = directory.path().join("link.toml");
        symlink(&path, &link).unwrap();
        let file = MembershipFile::read(&link).unwrap();
        file.replace("[journal]\nmembers = 0\n").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(fs::read_to_string(&path).unwrap().contains("members = 0"));
    }
}
