//! The durable view: the members that hold the journal's unsynced tail, the commit rule, and the epoch.

use alloc::string::String;
use alloc::vec::Vec;

use crate::failure::CallError;
use crate::id::{Epoch, EpochSalt, Incarnation, JournalId, Lsn, WriterId};
use crate::limit::{
    ADDRESS_BYTES_MAX, DOMAIN_BYTES_MAX, EPOCH_MAX, EPOCH_SALT_BYTES, MEMBERS_MAX, VIEW_VERSION_MAX,
    WINDOW_BYTES_MAX,
};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::port::StorageFile;
use crate::wire::{ByteReader, ShortInputError};

use super::epoch_history::{self, EpochHistory};
use super::note::ClaimNote;
use super::rule::CommitRule;
use super::slot_pair::SlotPair;

const FORMAT: u16 = 4;
/// Format 3: without the epoch's salt.
const FORMAT_WITHOUT_SALT: u16 = 3;
/// Format 2: without joins, window sizes and clean ends.
const FORMAT_WITHOUT_JOINS: u16 = 2;
/// Format 1: as format 2, and without the epoch history.
const FORMAT_WITHOUT_EPOCHS: u16 = 1;
const COUNTING: u8 = 1;
const CLEAN: u8 = 2;

/// The join that opened a window: its epoch, and its number in that epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinId {
    /// The epoch that joined the window.
    pub epoch: Epoch,
    /// The number of the join in that epoch, from 1.
    pub generation: u32,
}

impl JoinId {
    /// No join: joins are numbered from 1.
    const NONE: JoinId = JoinId {
        epoch: Epoch(0),
        generation: 0,
    };
}

/// One member of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewMember {
    /// The life of the memory that holds the window.
    pub incarnation: Incarnation,
    /// The join that opened the window; `None` in views of an earlier format.
    pub join: Option<JoinId>,
    /// Its address.
    pub address: String,
    /// Its power domain.
    pub domain: String,
}

/// The contents of the view file. `docs/design/journal.md` draws the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The number of this view among the journal's views, from 1.
    pub version: u64,
    /// The journal.
    pub journal: JournalId,
    /// The epoch that stored it.
    pub epoch: Epoch,
    /// The writer of that epoch.
    pub writer: WriterId,
    /// The salt of the key that seals this epoch's records. `None` if the epoch seals none, or in views of
    /// an earlier format.
    pub salt: Option<EpochSalt>,
    /// How many members must hold a record.
    pub rule: CommitRule,
    /// Whether the members' acknowledgements count. They do not while there are fewer members than the
    /// configured minimum, or while all share one power domain and that is not allowed. Every acknowledged
    /// record is then on the local disk.
    pub counting: bool,
    /// Set if the journal is clean: everything that it ever acknowledged lies below, on the local disk. The
    /// members then do not count.
    pub clean: Option<Lsn>,
    /// Size of each member's window, in bytes; zero in views of an earlier format.
    pub window_bytes: u64,
    /// Everything below was on the local disk when the epoch began.
    pub base: Lsn,
    /// The members, at most [`MEMBERS_MAX`].
    pub members: Vec<ViewMember>,
    /// The epochs up to this one.
    pub epochs: EpochHistory,
    /// A note for people about the process that claimed this epoch.
    pub note: Option<ClaimNote>,
}

/// Why the payload of a view file is not a usable view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewError {
    /// The view was written in another version of the format.
    Format(u16),
    /// The view is truncated, or one of its fields is out of bounds.
    Malformed,
}

impl core::fmt::Display for ViewError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ViewError::Format(found) => {
                write!(
                    out,
                    "the view file has format {found}, this version reads up to {FORMAT}; open it with the version that wrote it"
                )
            }
            ViewError::Malformed => out.write_str(
                "the view file is malformed although its checksum matches; open the journal with the release that used it last",
            ),
        }
    }
}

impl core::error::Error for ViewError {}

impl From<ShortInputError> for ViewError {
    fn from(_: ShortInputError) -> ViewError {
        ViewError::Malformed
    }
}

impl View {
    /// The first bytes of a view file's slots.
    pub const MAGIC: [u8; 8] = *b"NETRAMVW";

    /// The view of a journal that has just been created: no writer yet, no members.
    pub fn first(journal: JournalId) -> View {
        View {
            version: 1,
            journal,
            epoch: Epoch(0),
            writer: WriterId(0),
            salt: None,
            rule: CommitRule::All,
            counting: false,
            clean: None,
            window_bytes: 0,
            base: Lsn(0),
            members: Vec::new(),
            epochs: EpochHistory::default(),
            note: None,
        }
    }

    /// The claim of a new writer: the same members in the next epoch, which has no salt yet.
    pub fn claimed(&self, writer: WriterId) -> View {
        let mut claim = View {
            version: self.version + 1,
            epoch: self.epoch.next(),
            writer,
            salt: None,
            note: None,
            ..self.clone()
        };
        if claim.epochs.is_empty() {
            claim.epochs = self.adopted().epochs;
        }
        claim
    }

    /// The salt of the key that seals this epoch's records, which a claim must have drawn before it is
    /// stored.
    pub fn sealing_salt(&self, planted: FaultSwitch) -> Option<EpochSalt> {
        self.salt.filter(|_| !planted.is(PlantedFault::SaltIgnored))
    }

    /// The text of the claim's note, or else the writer's number.
    pub fn claimant(&self) -> String {
        match &self.note {
            Some(note) => String::from(note.by()),
            None => alloc::format!("writer {}", self.writer),
        }
    }

    /// A claim above every epoch seen elsewhere, made when an operator states that this directory is the
    /// newest.
    pub fn claimed_above(&self, seen: Epoch, writer: WriterId) -> View {
        let claim = self.claimed(writer);
        View {
            epoch: claim.epoch.max(seen.next()),
            ..claim
        }
    }

    /// Whether `other` is of a newer epoch, or of another writer in the same one, and so refuses the writer
    /// of this view.
    pub fn is_fenced_by(&self, other: &View) -> bool {
        let twin = other.epoch == self.epoch && other.writer != self.writer && other.writer != WriterId(0);
        other.epoch > self.epoch || twin
    }

    /// Whether the epoch that stored this view has served, as far as the view says. A claim that was given up
    /// has not.
    pub fn has_served(&self) -> bool {
        self.epochs.last_served() == Some((self.epoch, self.writer))
    }

    /// Whether `other` has served in an epoch that this view's history lacks. Then this view is not the
    /// newest.
    pub fn lacks_epoch_of(&self, other: &View) -> bool {
        let unknown = |(epoch, writer)| self.adopted().epochs.fork(epoch, writer, Lsn(0)).is_some();
        other.epochs.last_served().is_some_and(unknown)
    }

    /// The same view with the epoch of `other` in its history, as one that claimed and never served.
    pub fn with_claim_of(&self, other: &View) -> View {
        let mut view = self.adopted();
        if other.epoch > view.epoch {
            view.epochs
                .begin(other.epoch, other.writer, epoch_history::NEVER_SERVED);
        }
        view
    }

    /// A claim of a replica, or of a journal restored from one. Its client may have continued in later epochs
    /// that nothing here knows of. Those epochs are skipped, so that the client stays fenced.
    pub fn restored(&self, writer: WriterId) -> View {
        let claim = self.claimed(writer);
        let heard = self.epochs.last_served_epoch().unwrap_or(self.epoch);
        View {
            epoch: claim.epoch.max(epoch_history::epoch_after_any(heard)),
            ..claim
        }
    }

    /// The epoch and writer under which the server of a shared region fences the members of a dead node. The
    /// epoch is above all that the node's own directory can have claimed. Nothing is written under it, so it
    /// need not be unique.
    pub fn fence(&self) -> (Epoch, WriterId) {
        (epoch_history::epoch_after_any(self.epoch), self.writer)
    }

    /// The same view with its own epoch in its history even if that epoch never served. An epoch that claimed
    /// a replica to restore a volume is one.
    pub fn adopted(&self) -> View {
        let mut view = self.clone();
        if self.epoch > Epoch(0) && view.epochs.fork(self.epoch, self.writer, Lsn(0)).is_some() {
            view.epochs
                .begin(self.epoch, self.writer, epoch_history::NEVER_SERVED);
        }
        view
    }

    /// The view that the claiming epoch stores once the local disk has everything below `end`. It names no
    /// members.
    pub fn released(&self, end: Lsn) -> View {
        let mut released = View {
            version: self.version + 1,
            counting: false,
            clean: None,
            window_bytes: 0,
            base: end,
            members: Vec::new(),
            ..self.clone()
        };
        released.epochs.begin(self.epoch, self.writer, end);
        released
    }

    /// The largest window that a member of this view can hold.
    pub fn window_bytes_max(&self) -> u64 {
        match self.window_bytes {
            0 => WINDOW_BYTES_MAX,
            bytes => bytes.min(WINDOW_BYTES_MAX),
        }
    }

    /// Everything below was on the writer's disk, as far as the view says.
    pub fn proof(&self) -> Lsn {
        self.base.max(self.clean.unwrap_or_default())
    }

    /// Whether this view and `other` name the same windows, under the same rule, in the same epoch. They may
    /// then differ only in whether members count.
    pub fn has_windows_of(&self, other: &View) -> bool {
        let neither = |view: &View| View {
            version: 0,
            counting: false,
            clean: None,
            ..view.clone()
        };
        neither(self) == neither(other)
    }

    /// Stores this view in `file`, durably. `full` is the last view that both slots hold, and is updated.
    ///
    /// If `full` names the same windows and counts, one slot may keep it: falling back to it demands more of
    /// recovery, not less. So a journal that becomes idle or active again pays one sync instead of two.
    ///
    /// # Errors
    ///
    /// The write or the sync failed. After a failed sync every later store fails too.
    pub fn store<F: StorageFile>(
        &self,
        slots: &mut SlotPair,
        file: &F,
        full: &mut View,
    ) -> Result<(), CallError> {
        if full.counting && self.has_windows_of(full) {
            return slots.store_loosely(file, &self.encode());
        }
        slots.store(file, &self.encode())?;
        *full = self.clone();
        Ok(())
    }

    /// Number of members that must answer before recovery may conclude that it has seen every acknowledged
    /// record.
    pub fn answers(&self) -> usize {
        if self.counting {
            self.rule.answers(self.members.len())
        } else {
            0
        }
    }

    /// The view as bytes.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.members.len() <= MEMBERS_MAX);
        let (rule, k) = match self.rule {
            CommitRule::All => (0, 0),
            CommitRule::Any => (1, 0),
            CommitRule::AtLeast(k) => (2, k),
        };
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[rule, k]);
        bytes.extend_from_slice(&self.epoch.0.to_le_bytes());
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.journal.0.to_le_bytes());
        bytes.extend_from_slice(&self.writer.0.to_le_bytes());
        bytes.extend_from_slice(&self.base.0.to_le_bytes());
        bytes.extend_from_slice(&self.window_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.clean.unwrap_or_default().0.to_le_bytes());
        bytes.extend_from_slice(&self.salt.unwrap_or(EpochSalt::NONE).0);
        let counting = if self.counting { COUNTING } else { 0 };
        bytes.push(counting | if self.clean.is_some() { CLEAN } else { 0 });
        bytes.push(self.members.len() as u8);
        for member in &self.members {
            assert!(member.address.len() <= ADDRESS_BYTES_MAX && member.domain.len() <= DOMAIN_BYTES_MAX);
            let join = member.join.unwrap_or(JoinId::NONE);
            bytes.extend_from_slice(&member.incarnation.0.to_le_bytes());
            bytes.extend_from_slice(&join.epoch.0.to_le_bytes());
            bytes.extend_from_slice(&join.generation.to_le_bytes());
            bytes.extend_from_slice(&(member.address.len() as u16).to_le_bytes());
            bytes.extend_from_slice(member.address.as_bytes());
            bytes.push(member.domain.len() as u8);
            bytes.extend_from_slice(member.domain.as_bytes());
        }
        self.epochs.encode(&mut bytes);
        if let Some(note) = &self.note {
            note.encode(&mut bytes);
        }
        bytes
    }

    /// Reads a view that [`View::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The format is unknown, or the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<View, ViewError> {
        let mut cursor = ByteReader::new(bytes);
        let format = cursor.u16()?;
        if !(FORMAT_WITHOUT_EPOCHS..=FORMAT).contains(&format) {
            return Err(ViewError::Format(format));
        }
        let rule = match (cursor.u8()?, cursor.u8()?) {
            (0, _) => CommitRule::All,
            (1, _) => CommitRule::Any,
            (2, k) if (1..=MEMBERS_MAX).contains(&usize::from(k)) => CommitRule::AtLeast(k),
            _ => return Err(ViewError::Malformed),
        };
        let epoch = Epoch(cursor.u32()?);
        let version = cursor.u64()?;
        if epoch.0 > EPOCH_MAX || version > VIEW_VERSION_MAX {
            // A later view or epoch could not be numbered. Only a lying peer has such a view.
            return Err(ViewError::Malformed);
        }
        let journal = JournalId(cursor.u128()?);
        let writer = WriterId(cursor.u64()?);
        let base = Lsn(cursor.u64()?);
        let (window_bytes, clean) = match format {
            FORMAT_WITHOUT_SALT.. => (cursor.u64()?, Lsn(cursor.u64()?)),
            _ => (0, Lsn(0)),
        };
        let mut salt = EpochSalt::NONE;
        if format == FORMAT {
            salt.0.copy_from_slice(cursor.bytes(EPOCH_SALT_BYTES)?);
        }
        let flags = cursor.u8()?;
        let clean = (flags & CLEAN != 0 && format >= FORMAT_WITHOUT_SALT).then_some(clean);
        let count = usize::from(cursor.u8()?);
        if count > MEMBERS_MAX {
            return Err(ViewError::Malformed);
        }
        let members = (0..count)
            .map(|_| member(&mut cursor, format))
            .collect::<Result<_, _>>()?;
        let epochs = match format {
            FORMAT_WITHOUT_JOINS.. => EpochHistory::decode(&mut cursor)?.ok_or(ViewError::Malformed)?,
            _ => EpochHistory::default(),
        };
        Ok(View {
            version,
            journal,
            epoch,
            writer,
            salt: (salt != EpochSalt::NONE).then_some(salt),
            rule,
            counting: flags & COUNTING != 0,
            clean,
            window_bytes,
            base,
            members,
            epochs,
            note: ClaimNote::decode(&mut cursor),
        })
    }
}

fn member(cursor: &mut ByteReader<'_>, format: u16) -> Result<ViewMember, ViewError> {
    let incarnation = Incarnation(cursor.u64()?);
    let join = match format {
        FORMAT_WITHOUT_SALT.. => JoinId {
            epoch: Epoch(cursor.u32()?),
            generation: cursor.u32()?,
        },
        _ => JoinId::NONE,
    };
    let address = cursor.u16()?;
    let address = text(cursor, usize::from(address), ADDRESS_BYTES_MAX)?;
    let domain = cursor.u8()?;
    let domain = text(cursor, usize::from(domain), DOMAIN_BYTES_MAX)?;
    Ok(ViewMember {
        incarnation,
        join: (join != JoinId::NONE).then_some(join),
        address,
        domain,
    })
}

fn text(cursor: &mut ByteReader<'_>, length: usize, max: usize) -> Result<String, ViewError> {
    if length > max {
        return Err(ViewError::Malformed);
    }
    core::str::from_utf8(cursor.bytes(length)?)
        .map(String::from)
        .map_err(|_| ViewError::Malformed)
}

#[cfg(test)]
mod tests;
