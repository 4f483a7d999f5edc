//! One deleted journal in the list of journals whose lenders must still be told.

use std::path::{Path, PathBuf};

use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::{ForgetNotice, SlotPair, View};
use netram_proto::limit::SLOT_BYTES;
use netram_transport::owner::SECRET_BYTES;
use netram_transport::{NetAddress, OwnerKey};

use crate::file::DiskFile;
use crate::owner::JournalOwner;
use crate::paths::JournalPaths;
use crate::seal::DataKey;

const FIRST_LINE: &str = "netram over 1";

/// A deleted journal, and the lenders that may still hold a window of it.
///
/// ```text
/// netram over 1
/// journal 0123456789abcdef0123456789abcdef
/// epoch 7
/// writer 0123456789abcdef
/// end 8192
/// root /srv/db
/// key /etc/netram/key
/// owner 64 hexadecimal digits
/// lender tcp://10.0.0.2:7420
/// ```
///
/// `end all` means that no byte of the journal is needed any more. Without `key` the lenders are reached in
/// the clear. `owner` is the seed of the owner's signing key, which opens no record of the journal. There may
/// be any number of lenders.
#[derive(Clone, PartialEq, Eq)]
pub struct ForgetEntry {
    /// The journal's id.
    pub journal: JournalId,
    /// The journal's last epoch, which the notice to lenders carries.
    pub epoch: Epoch,
    /// The writer of that epoch.
    pub writer: WriterId,
    /// LSN up to which the deleted log was on its disk. Lenders that hold more keep it
    /// ([`ForgetNotice::holds_more`]).
    pub end: Lsn,
    /// The deleted path.
    pub root: PathBuf,
    /// Path of the cluster key's file, since the key itself may be replaced.
    pub key: Option<PathBuf>,
    /// Seed of the owner's signing key; `None` if the journal has no owner, or its key could not be read.
    pub owner: Option<[u8; SECRET_BYTES]>,
    /// Addresses of the lenders that have not been told.
    pub lenders: Vec<String>,
}

impl std::fmt::Debug for ForgetEntry {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let journal = format_args!("{:032x}", self.journal.0);
        out.debug_struct("ForgetEntry")
            .field("journal", &journal)
            .field("epoch", &self.epoch)
            .field("end", &self.end)
            .field("root", &self.root)
            .field("lenders", &self.lenders)
            .finish_non_exhaustive()
    }
}

impl ForgetEntry {
    /// The entry of the journal at `place`, whose log is on its disk up to `end`; `None` if its view names no
    /// epoch that a lender could know, or cannot be read.
    pub fn of(
        root: &Path,
        place: &JournalPaths,
        end: Lsn,
        lenders: &[NetAddress],
        key: Option<&Path>,
    ) -> Option<ForgetEntry> {
        let file = DiskFile::new(place.open(place.view(), false).ok()?);
        let (_, payload) = SlotPair::open(&file, View::MAGIC, SLOT_BYTES).ok()?;
        let view = View::decode(&payload).ok()?;
        let mut told: Vec<String> = lenders.iter().map(NetAddress::to_string).collect();
        told.extend(view.members.iter().map(|member| member.address.clone()));
        told.sort();
        told.dedup();
        let entry = ForgetEntry {
            journal: view.journal,
            epoch: view.epoch,
            writer: view.writer,
            end,
            root: root.to_owned(),
            key: key.and_then(|key| std::path::absolute(key).ok()),
            owner: owner_seed(place, view.journal),
            lenders: told,
        };
        let is_line = |text: &Path| text.to_str().is_some_and(|text| !text.contains('\n'));
        let paths = is_line(root) && entry.key.as_deref().is_none_or(is_line);
        (view.epoch > Epoch(0) && !entry.lenders.is_empty() && paths).then_some(entry)
    }

    /// The journal's owner, as far as the entry knows it.
    pub fn journal_owner(&self) -> JournalOwner {
        let key = self.owner.as_ref().map(OwnerKey::from_seed);
        let owner = key.and_then(|key| JournalOwner::with(self.journal, key).ok());
        owner.unwrap_or(JournalOwner::none(self.journal))
    }

    pub(super) fn to_text(&self) -> String {
        let end = match self.end {
            ForgetNotice::ALL => "all".to_owned(),
            end => end.to_string(),
        };
        let mut text = format!(
            "{FIRST_LINE}\njournal {:032x}\nepoch {}\nwriter {:016x}\nend {end}\nroot {}\n",
            self.journal.0,
            self.epoch.0,
            self.writer.0,
            self.root.display()
        );
        if let Some(key) = &self.key {
            text += &format!("key {}\n", key.display());
        }
        if let Some(seed) = &self.owner {
            let digits: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("owner {digits}\n");
        }
        for lender in &self.lenders {
            text += &format!("lender {lender}\n");
        }
        text
    }

    pub(super) fn parse(text: &str) -> Option<ForgetEntry> {
        let mut lines = text.lines();
        let mut field = |name: &str| {
            let (found, value) = lines.next()?.split_once(' ')?;
            (found == name).then_some(value)
        };
        let head = format!("netram {}", field("netram")?);
        let journal = JournalId(u128::from_str_radix(field("journal")?, 16).ok()?);
        let epoch = Epoch(field("epoch")?.parse().ok()?);
        let writer = WriterId(u64::from_str_radix(field("writer")?, 16).ok()?);
        let end = match field("end")? {
            "all" => ForgetNotice::ALL,
            end => Lsn(end.parse().ok()?),
        };
        let root = PathBuf::from(field("root")?);
        let (mut key, mut owner, mut lenders) = (None, None, Vec::new());
        for line in lines {
            match line.split_once(' ')? {
                ("key", path) => key = Some(PathBuf::from(path)),
                ("owner", digits) => owner = Some(parse_seed(digits)?),
                ("lender", address) => lenders.push(address.to_owned()),
                _ => return None,
            }
        }
        (head == FIRST_LINE).then_some(ForgetEntry {
            journal,
            epoch,
            writer,
            end,
            root,
            key,
            owner,
            lenders,
        })
    }
}

/// The seed of the owner's signing key, from the journal's data key.
fn owner_seed(place: &JournalPaths, journal: JournalId) -> Option<[u8; SECRET_BYTES]> {
    let key = DataKey::of(place).ok()?;
    let owner = JournalOwner::of(journal, &key).ok()?;
    owner.key().map(|key| *key.seed())
}

fn parse_seed(digits: &str) -> Option<[u8; SECRET_BYTES]> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let parsed = pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    let bytes: Option<Vec<u8>> = parsed.collect();
    bytes.filter(|_| rest.is_empty())?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_and_one_cut_off_before_its_lenders_does_not() {
        let entry = ForgetEntry {
            journal: JournalId(7 << 90),
            epoch: Epoch(3),
            writer: WriterId(u64::MAX - 1),
            end: Lsn(8192),
            root: "/srv/a b".into(),
            key: Some("/etc/netram/the key".into()),
            owner: Some([0xa7; SECRET_BYTES]),
            lenders: vec!["tcp://10.0.0.2:7420".into(), "unix:/run/a".into()],
        };
        let text = entry.to_text();
        assert_eq!(ForgetEntry::parse(&text), Some(entry.clone()));
        let open = ForgetEntry {
            key: None,
            end: ForgetNotice::ALL,
            ..entry
        };
        assert_eq!(ForgetEntry::parse(&open.to_text()), Some(open));
        let root = text.find("root").unwrap();
        for cut in 0..root {
            assert_eq!(ForgetEntry::parse(&text[..cut]), None, "{cut}");
        }
        assert_eq!(ForgetEntry::parse(&text.replace("over 1", "over 2")), None);
    }
}
