//! The one copy of a long-lived key in a process's memory.

use std::fmt;

use zeroize::Zeroize;

use crate::sys::LockedPage;

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// 32 secret bytes on a page of their own, which is never swapped (as far as the process may lock memory) and
/// is in no core dump. They are erased on drop, and never printed by `Debug`.
///
/// A key is made in place and shared by reference or in an `Arc`: a value that is moved or cloned leaves
/// copies behind, which nothing erases.
pub struct LockedKey(LockedPage<KEY_BYTES>);

impl LockedKey {
    /// A key that `fill` makes in place, from zeros.
    ///
    /// # Panics
    /// If the system has no page left.
    pub fn new(fill: impl FnOnce(&mut [u8; KEY_BYTES])) -> LockedKey {
        match LockedKey::try_new(|bytes| {
            fill(bytes);
            Ok::<(), std::convert::Infallible>(())
        }) {
            Ok(key) => key,
            Err(never) => match never {},
        }
    }

    /// A key that `fill` makes in place, if it can.
    ///
    /// # Errors
    /// Those of `fill`; what it had written is erased.
    ///
    /// # Panics
    /// If the system has no page left.
    pub fn try_new<E>(fill: impl FnOnce(&mut [u8; KEY_BYTES]) -> Result<(), E>) -> Result<LockedKey, E> {
        let page = LockedPage::map().expect("the system has a page left for a key");
        let mut key = LockedKey(page);
        fill(key.0.bytes_mut())?;
        Ok(key)
    }

    /// The secret itself. Whoever copies it erases the copy.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        self.0.bytes()
    }
}

impl Drop for LockedKey {
    fn drop(&mut self) {
        self.0.bytes_mut().zeroize();
    }
}

impl fmt::Debug for LockedKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("LockedKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that has this address, as the kernel shows them.
    fn flags_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let numbers = range.map(|(start, end)| [start, end].map(|text| usize::from_str_radix(text, 16)));
            match numbers {
                Some([Ok(start), Ok(end)]) => inside = (start..end).contains(&address),
                _ if inside && line.starts_with("VmFlags:") => return line.to_owned(),
                _ => (),
            }
        }
        panic!("no mapping has {address:x}");
    }

    #[test]
    fn a_key_is_locked_and_in_no_core_dump() {
        let key = LockedKey::new(|bytes| bytes.fill(7));
        assert_eq!(key.bytes(), &[7; KEY_BYTES]);
        let flags = flags_of(key.bytes().as_ptr().addr());
        let has = |flag: &str| flags.split(' ').any(|found| found == flag);
        assert!(has("dd"), "not dumped: {flags}");
        assert!(has("lo"), "locked: {flags}");
        assert_eq!(format!("{key:?}"), "LockedKey(secret)");
    }

    #[test]
    fn a_key_that_cannot_be_made_is_none() {
        let refused = LockedKey::try_new(|bytes| {
            bytes.fill(7);
            Err("malformed")
        });
        assert_eq!(refused.map(drop), Err("malformed"));
    }
}
