//! What a page is at a lender: AES-256-GCM under a key that is drawn with the depot and never leaves it. The nonce is the page's version, which
//! never repeats in a depot; page and version are the associated data. The tag stays here, so that a page takes no more than a slot.
//!
//! A lender can neither read a page, nor change it, nor give an older one or another one back, unnoticed. About 1 µs a page.

use netram_proto::deposit::Page;
use netram_proto::limit::PAGE_BYTES;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};

/// What proves a page to be the one that left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tag([u8; 16]);

/// A page's bytes, in the clear or sealed.
pub(crate) type Bytes = [u8; PAGE_BYTES];

pub(crate) struct Sealer(LessSafeKey);

impl Sealer {
    /// With a new key.
    pub(crate) fn generate() -> Result<Sealer, Unspecified> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key)?;
        Ok(Sealer(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key)?)))
    }

    /// Seals a page where it stands.
    pub(crate) fn seal(&self, page: Page, version: u64, bytes: &mut Bytes) -> Tag {
        let aad = Aad::from(associated(page, version));
        let sealed = self.0.seal_in_place_separate_tag(nonce(version), aad, bytes);
        let tag = sealed.expect("a page is far smaller than what one nonce may seal");
        let mut kept = Tag::default();
        kept.0.copy_from_slice(tag.as_ref());
        kept
    }

    /// Opens a page. `None`: it is not the one that left.
    pub(crate) fn open(&self, page: Page, version: u64, tag: &Tag, sealed: &[u8]) -> Option<Box<Bytes>> {
        let mut whole = [0; PAGE_BYTES + 16];
        if sealed.len() != PAGE_BYTES {
            return None;
        }
        whole[..PAGE_BYTES].copy_from_slice(sealed);
        whole[PAGE_BYTES..].copy_from_slice(&tag.0);
        let aad = Aad::from(associated(page, version));
        let opened = self.0.open_in_place(nonce(version), aad, &mut whole).ok()?;
        opened.first_chunk().copied().map(Box::new)
    }
}

fn associated(page: Page, version: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&page.0.to_le_bytes());
    bytes[4..].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn nonce(version: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_opens_as_what_it_is_and_as_nothing_else() {
        let sealer = Sealer::generate().unwrap();
        let mut bytes = [7; PAGE_BYTES];
        let tag = sealer.seal(Page(3), 9, &mut bytes);
        assert!(bytes.iter().filter(|byte| **byte == 7).count() < 100);
        assert_eq!(*sealer.open(Page(3), 9, &tag, &bytes).unwrap(), [7; PAGE_BYTES]);
        assert!(sealer.open(Page(4), 9, &tag, &bytes).is_none());
        assert!(sealer.open(Page(3), 8, &tag, &bytes).is_none());
        assert!(sealer.open(Page(3), 9, &tag, &bytes[1..]).is_none());
        assert!(
            Sealer::generate()
                .unwrap()
                .open(Page(3), 9, &tag, &bytes)
                .is_none()
        );
        bytes[4095] ^= 1;
        assert!(sealer.open(Page(3), 9, &tag, &bytes).is_none());
    }
}
