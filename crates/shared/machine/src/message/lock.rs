//! Encoding of the lock messages.

use alloc::vec::Vec;

use crate::lock::{LockOrder, LockRequestId, LockRequester, ToCache, ToService};
use crate::{GrantNumber, LockVersion};
use netram_proto::wire::{ByteReader, put_varint};

use super::{Decoded, MessageError};

pub(super) fn encode_to_service(to: &mut Vec<u8>, message: &ToService) {
    match message {
        ToService::Acquire {
            lock,
            hold,
            order,
            ask,
        } => {
            to.push(5);
            put_varint(to, u64::from(lock.0));
            super::put_hold(to, Some(*hold));
            to.push(*order as u8);
            put_varint(to, ask.0);
        }
        ToService::Release {
            lock,
            grant,
            version,
            keep,
        } => {
            to.push(6);
            put_varint(to, u64::from(lock.0));
            put_varint(to, grant.0);
            put_varint(to, version.0);
            super::put_hold(to, *keep);
        }
        ToService::Die { lock, asker } => {
            to.push(7);
            put_varint(to, u64::from(lock.0));
            put_requester(to, *asker);
        }
    }
}

pub(super) fn decode_to_service(kind: u8, from: &mut ByteReader<'_>) -> Decoded<ToService> {
    let lock = super::lock(from)?;
    Ok(match kind {
        5 => ToService::Acquire {
            lock,
            hold: super::hold(from)?,
            order: match from.u8()? {
                0 => LockOrder::Up,
                1 => LockOrder::Upgrade,
                2 => LockOrder::Out,
                _ => return Err(MessageError::Field("order")),
            },
            ask: LockRequestId(from.varint()?),
        },
        6 => ToService::Release {
            lock,
            grant: GrantNumber(from.varint()?),
            version: LockVersion(from.varint()?),
            keep: super::optional_hold(from)?,
        },
        _ => ToService::Die {
            lock,
            asker: requester(from)?,
        },
    })
}

pub(super) fn encode_to_cache(to: &mut Vec<u8>, message: &ToCache) {
    match message {
        ToCache::Grant {
            lock,
            grant,
            hold,
            version,
        } => {
            to.push(6);
            put_varint(to, u64::from(lock.0));
            put_varint(to, grant.0);
            super::put_hold(to, Some(*hold));
            put_varint(to, version.0);
        }
        ToCache::Recall {
            lock,
            grant,
            keep,
            asker,
            waits,
        } => {
            to.push(7);
            put_varint(to, u64::from(lock.0));
            put_varint(to, grant.0);
            super::put_hold(to, *keep);
            put_requester(to, *asker);
            to.push(u8::from(*waits));
        }
        ToCache::Died { lock, ask } => {
            to.push(8);
            put_varint(to, u64::from(lock.0));
            put_varint(to, ask.0);
        }
    }
}

pub(super) fn decode_to_cache(kind: u8, from: &mut ByteReader<'_>) -> Decoded<ToCache> {
    let lock = super::lock(from)?;
    Ok(match kind {
        6 => ToCache::Grant {
            lock,
            grant: GrantNumber(from.varint()?),
            hold: super::hold(from)?,
            version: LockVersion(from.varint()?),
        },
        7 => ToCache::Recall {
            lock,
            grant: GrantNumber(from.varint()?),
            keep: super::optional_hold(from)?,
            asker: requester(from)?,
            waits: super::flag(from)?,
        },
        _ => ToCache::Died {
            lock,
            ask: LockRequestId(from.varint()?),
        },
    })
}

fn put_requester(to: &mut Vec<u8>, asker: LockRequester) {
    put_varint(to, asker.node.0);
    put_varint(to, asker.ask.0);
}

fn requester(from: &mut ByteReader<'_>) -> Decoded<LockRequester> {
    Ok(LockRequester {
        node: super::node(from)?,
        ask: LockRequestId(from.varint()?),
    })
}
