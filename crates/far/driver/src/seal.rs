//! Sealing of pages: AES-256-GCM with a key that is drawn at the start and never leaves the process. The
//! nonce is the page's version, which never repeats; page and version are the associated data. A page is
//! sealed as it is or compressed, in which case its length is verified too. The tag is kept locally, so that
//! a page fits its slot.
//!
//! A lender can neither read a page nor change it, nor return an older or another one, unnoticed. Costs about
//! 1 µs per page.

use std::sync::Arc;

use netram_far_machine::deposit::{BlockMac, Page, PageSeal, SealedBlock};
use netram_far_machine::limit::PAGE_BYTES;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::block_cipher::BlockCipher;
use crate::compression::PlainPage;

/// Authentication tag of a sealed page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageTag([u8; 16]);

/// Bytes of a page.
pub(crate) type PageBytes = [u8; PAGE_BYTES];

/// Form in which pages are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealForm {
    /// As given, compressed or not.
    AsGiven,
    /// Uncompressed, so that a block is at its offset and can be read by itself.
    Whole,
}

/// Seals pages from any thread. [`PageSealer`] knows which tag is current.
pub(crate) struct PageCipher {
    form: SealForm,
    key: LessSafeKey,
}

pub(crate) struct PageSealer {
    cipher: Arc<PageCipher>,
    /// The same key, for single blocks.
    blocks: Arc<BlockCipher>,
    /// Tag of each page's last sealed version.
    tags: Vec<PageTag>,
}

impl PageCipher {
    /// Seals a page. `version` must be new.
    pub(crate) fn seal(&self, page: Page, version: u64, clear: &PlainPage) -> (Arc<[u8]>, PageTag) {
        let mut sealed: Arc<[u8]> = self.formed(clear, |bytes| bytes.into());
        let bytes = Arc::get_mut(&mut sealed).expect("the buffer is not shared yet");
        let tag = self.seal_in_place(page, version, bytes);
        (sealed, tag)
    }

    /// Tag of a page under a version. The sealed bytes are discarded, so that no version seals two contents
    /// that leave.
    pub(crate) fn tag(&self, page: Page, version: u64, clear: &PlainPage) -> PageTag {
        let mut room = [0; PAGE_BYTES];
        self.formed(clear, |bytes| {
            let room = &mut room[..bytes.len()];
            room.copy_from_slice(bytes);
            self.seal_in_place(page, version, room)
        })
    }

    fn seal_in_place(&self, page: Page, version: u64, bytes: &mut [u8]) -> PageTag {
        let aad = Aad::from(associated(page, version));
        let tag = self.key.seal_in_place_separate_tag(nonce(version), aad, bytes);
        let tag = tag.expect("a page is far smaller than the limit of one nonce");
        let mut known = PageTag::default();
        known.0.copy_from_slice(tag.as_ref());
        known
    }

    /// Passes the bytes to seal to `what`.
    fn formed<T>(&self, clear: &PlainPage, what: impl FnOnce(&[u8]) -> T) -> T {
        match (self.form, clear) {
            (SealForm::AsGiven, _) | (SealForm::Whole, PlainPage::Whole(_)) => what(clear.parts()),
            (SealForm::Whole, PlainPage::Packed(_)) => {
                let mut bytes = [0; PAGE_BYTES];
                clear.unpack(&mut bytes);
                what(&bytes)
            }
        }
    }
}

impl PageSealer {
    /// A sealer with a new random key.
    pub(crate) fn generate(form: SealForm) -> Result<PageSealer, Unspecified> {
        // Erased here; `BlockCipher` erases what it makes of them, and `ring` keeps its own until the process
        // ends.
        let [mut key, mut marks] = [(); 2].map(|()| Zeroizing::new([0; 32]));
        SystemRandom::new().fill(&mut key[..])?;
        SystemRandom::new().fill(&mut marks[..])?;
        Ok(PageSealer {
            cipher: Arc::new(PageCipher {
                form,
                key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key[..])?),
            }),
            blocks: Arc::new(BlockCipher::new(&key, &marks)),
            tags: Vec::new(),
        })
    }

    /// Decrypts blocks of remote pages.
    pub(crate) fn blocks(&self) -> Arc<BlockCipher> {
        Arc::clone(&self.blocks)
    }

    /// Seals pages without this value.
    pub(crate) fn cipher(&self) -> Arc<PageCipher> {
        Arc::clone(&self.cipher)
    }

    /// Tag of the page's last sealed version.
    pub(crate) fn tag(&self, page: Page) -> Option<PageTag> {
        self.tags.get(page.0 as usize).copied()
    }

    /// Records the tag of a page that was sealed elsewhere and is put now.
    pub(crate) fn tell(&mut self, page: Page, tag: PageTag) {
        let index = page.0 as usize;
        if index >= self.tags.len() {
            self.tags.resize(index + 1, PageTag::default());
        }
        self.tags[index] = tag;
    }
}

impl PageSeal for PageSealer {
    type Clear = PlainPage;
    type Sealed = Arc<[u8]>;

    fn zeros() -> Box<PlainPage> {
        Box::new(PlainPage::whole(&[0; PAGE_BYTES]))
    }

    fn seal(&mut self, page: Page, version: u64, clear: &PlainPage) -> Arc<[u8]> {
        let (sealed, tag) = self.cipher.seal(page, version, clear);
        self.tell(page, tag);
        sealed
    }

    fn open(&self, page: Page, version: u64, sealed: &[u8]) -> Option<Box<PlainPage>> {
        let tag = self.tags.get(page.0 as usize)?;
        let mut whole = [0; PAGE_BYTES + 16];
        let length = sealed.len();
        if length > PAGE_BYTES {
            return None;
        }
        let whole = &mut whole[..length + tag.0.len()];
        whole[..length].copy_from_slice(sealed);
        whole[length..].copy_from_slice(&tag.0);
        let aad = Aad::from(associated(page, version));
        let opened = self.cipher.key.open_in_place(nonce(version), aad, whole).ok()?;
        Some(Box::new(PlainPage::of(opened)))
    }

    fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>) {
        self.blocks.mac_blocks(blocks, marks);
    }

    fn keep(&self, sealed: &[u8]) -> Arc<[u8]> {
        sealed.into()
    }

    fn bytes(sealed: &Arc<[u8]>) -> &[u8] {
        sealed
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
    fn only_the_sealed_bytes_of_a_page_and_version_open() {
        let mut sealer = PageSealer::generate(SealForm::AsGiven).unwrap();
        let page = PlainPage::whole(&[7; PAGE_BYTES]);
        let sealed = sealer.seal(Page(3), 9, &page);
        // Seal another page, so that both have a tag.
        sealer.seal(Page(4), 10, &page);
        let mut bytes = sealed.to_vec();
        assert!(bytes.iter().filter(|byte| **byte == 7).count() < 100);
        assert_eq!(*sealer.open(Page(3), 9, &bytes).unwrap(), page);
        let is_same = |sealer: &PageSealer, clear: &PlainPage| {
            sealer.tag(Page(3)) == Some(sealer.cipher.tag(Page(3), 9, clear))
        };
        assert!(is_same(&sealer, &page));
        assert!(sealer.open(Page(4), 9, &bytes).is_none());
        assert!(sealer.open(Page(3), 8, &bytes).is_none());
        assert!(sealer.open(Page(3), 9, &bytes[1..]).is_none());
        let mut other = PageSealer::generate(SealForm::AsGiven).unwrap();
        other.seal(Page(3), 9, &page);
        assert!(other.open(Page(3), 9, &bytes).is_none());
        bytes[4095] ^= 1;
        assert!(sealer.open(Page(3), 9, &bytes).is_none());
        let packed = PlainPage::pack(&[7; PAGE_BYTES]).unwrap();
        assert!(!is_same(&sealer, &packed));
        let sealed = sealer.seal(Page(3), 11, &packed);
        assert_eq!(*sealer.open(Page(3), 11, &sealed).unwrap(), packed);
        assert!(sealer.open(Page(3), 11, &sealed[1..]).is_none());
    }

    #[test]
    fn a_block_opens_without_its_page_and_has_its_own_mac() {
        let mut sealer = PageSealer::generate(SealForm::Whole).unwrap();
        let mut clear = [0; PAGE_BYTES];
        for (at, byte) in clear.iter_mut().enumerate() {
            *byte = (at / 16) as u8;
        }
        // The form `Whole` stores a full page, although it would compress.
        let packed = PlainPage::pack(&clear).unwrap();
        let sealed = sealer.seal(Page(3), 9, &packed);
        assert_eq!(sealed.len(), PAGE_BYTES);
        for same in [&packed, &PlainPage::whole(&clear)] {
            assert_eq!(sealer.tag(Page(3)), Some(sealer.cipher.tag(Page(3), 9, same)));
        }
        assert_eq!(
            *sealer.open(Page(3), 9, &sealed).unwrap(),
            PlainPage::whole(&clear)
        );
        let numbers = [255, 0, 17, 18];
        let part = |bytes: &[u8], number: u8| {
            let at = usize::from(number) * 16;
            bytes[at..at + 16].to_vec()
        };
        let mut given: Vec<u8> = numbers.iter().flat_map(|number| part(&sealed, *number)).collect();
        // The same version twice, only to split the block numbers.
        let names = [(9, &numbers[..1]), (9, &numbers[1..])];
        sealer.blocks().open(names.into_iter(), &mut given);
        let expected: Vec<u8> = numbers.iter().flat_map(|number| part(&clear, *number)).collect();
        assert_eq!(given, expected);

        let bytes: [u8; 16] = part(&sealed, 17).try_into().unwrap();
        let block = SealedBlock {
            page: Page(3),
            version: 9,
            number: 17,
            bytes,
        };
        let mark = |blocks: &[SealedBlock]| {
            let mut marks = Vec::new();
            sealer.mac_blocks(blocks, &mut marks);
            marks
        };
        // More than are encrypted together.
        let same = mark(&[block; 70]);
        assert!(same.len() == 70 && same.iter().all(|mark| *mark == same[0]));
        let others = mark(&[
            SealedBlock {
                page: Page(4),
                ..block
            },
            SealedBlock { version: 8, ..block },
            SealedBlock { number: 18, ..block },
            SealedBlock {
                bytes: bytes.map(|byte| byte ^ 1),
                ..block
            },
        ]);
        assert!(!others.contains(&same[0]));
    }
}
