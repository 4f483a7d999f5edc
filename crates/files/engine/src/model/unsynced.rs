//! Unsynced operations on a disk in memory: on inodes and on names.

use std::collections::BTreeMap;

use super::ModelInode;

/// An operation on an inode since its last sync.
#[derive(Clone, Debug)]
pub(super) enum InodeOp {
    Write(u64, Vec<u8>),
    Resize(u64),
    Punch(u64, u64),
    Mode(Option<u32>, Option<u32>, Option<u32>),
    SetXattr(Vec<u8>, Option<Vec<u8>>),
}

/// An operation on names.
#[derive(Clone, Debug)]
pub(super) enum NameOp {
    Add(Vec<u8>, u64),
    Remove(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>, bool),
}

impl InodeOp {
    pub(super) fn carry_out(&self, inode: &mut ModelInode) {
        match self {
            InodeOp::Write(offset, bytes) => {
                let end = *offset as usize + bytes.len();
                if inode.bytes.len() < end {
                    inode.bytes.resize(end, 0);
                }
                inode.bytes[*offset as usize..end].copy_from_slice(bytes);
            }
            InodeOp::Resize(size) => inode.bytes.resize(*size as usize, 0),
            InodeOp::Punch(offset, length) => {
                let end = ((offset + length) as usize).min(inode.bytes.len());
                let start = (*offset as usize).min(end);
                inode.bytes[start..end].fill(0);
            }
            InodeOp::Mode(mode, user, group) => {
                inode.mode = mode.unwrap_or(inode.mode);
                inode.owner.user = user.unwrap_or(inode.owner.user);
                inode.owner.group = group.unwrap_or(inode.owner.group);
            }
            InodeOp::SetXattr(name, Some(value)) => drop(inode.xattrs.insert(name.clone(), value.clone())),
            InodeOp::SetXattr(name, None) => drop(inode.xattrs.remove(name)),
        }
    }
}

impl NameOp {
    pub(super) fn carry_out(&self, names: &mut BTreeMap<Vec<u8>, u64>) {
        match self {
            NameOp::Add(path, inode) => drop(names.insert(path.clone(), *inode)),
            NameOp::Remove(path) => drop(names.remove(path)),
            NameOp::Rename(from, to, false) => {
                let moved = take(names, from);
                take(names, to);
                put(names, to, moved);
            }
            NameOp::Rename(from, to, true) => {
                let (first, second) = (take(names, from), take(names, to));
                put(names, to, first);
                put(names, from, second);
            }
        }
    }
}

/// Removes and returns all entries at or below a path.
fn take(names: &mut BTreeMap<Vec<u8>, u64>, path: &[u8]) -> Vec<(Vec<u8>, u64)> {
    let within = |other: &[u8]| other == path || other.starts_with(&[path, b"/"].concat());
    let taken: Vec<(Vec<u8>, u64)> = { names.iter() }
        .filter(|(other, _)| within(other))
        .map(|(other, inode)| (other[path.len()..].to_vec(), *inode))
        .collect();
    names.retain(|other, _| !within(other));
    taken
}

fn put(names: &mut BTreeMap<Vec<u8>, u64>, path: &[u8], moved: Vec<(Vec<u8>, u64)>) {
    names.extend({ moved.into_iter() }.map(|(rest, inode)| ([path, &rest].concat(), inode)));
}
