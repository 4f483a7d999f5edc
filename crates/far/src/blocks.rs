//! Blocks of a sealed page by themselves. GCM's key stream is AES of nonce and number, so a block opens without the others; what proves a page
//! proves nothing of them.
//!
//! `ring` seals pages faster, and gives nobody its key stream; so the same key is here a second time, in the AES that the links' handshake uses.

use aes::Aes256;
use aes::cipher::{BlockEncrypt, KeyInit};
use netram_proto::deposit::{Mark, Page};
use netram_proto::limit::BLOCK_BYTES;

type Block = aes::Block;

/// GCM's numbers of a page's blocks begin with this: 1 is the tag's.
const FIRST: u32 = 2;

/// Opens blocks, and marks them.
pub(crate) struct BlockCipher {
    pages: Aes256,
    marks: Aes256,
}

impl BlockCipher {
    /// `pages`: the key that pages are sealed with. `marks`: another.
    pub(crate) fn new(pages: &[u8; 32], marks: &[u8; 32]) -> BlockCipher {
        BlockCipher {
            pages: Aes256::new(pages.into()),
            marks: Aes256::new(marks.into()),
        }
    }

    /// Opens blocks with these numbers, one behind the other, of a page that was sealed under this version.
    pub(crate) fn open(&self, version: u64, numbers: impl Iterator<Item = u8>, sealed: &mut [u8]) {
        let mut stream: Vec<Block> = numbers.map(|number| counter(version, number)).collect();
        assert_eq!(stream.len() * BLOCK_BYTES, sealed.len());
        self.pages.encrypt_blocks(&mut stream);
        for (byte, key) in sealed.iter_mut().zip(stream.iter().flatten()) {
            *byte ^= key;
        }
    }

    /// What is kept of a block until its page proves it: a CBC-MAC over two blocks, cut short.
    pub(crate) fn mark(&self, page: Page, version: u64, block: u8, sealed: &[u8]) -> Mark {
        assert_eq!(sealed.len(), BLOCK_BYTES);
        let mut state = Block::default();
        state[..8].copy_from_slice(&version.to_le_bytes());
        state[8..12].copy_from_slice(&page.0.to_le_bytes());
        state[12] = block;
        self.marks.encrypt_block(&mut state);
        for (byte, sealed) in state.iter_mut().zip(sealed) {
            *byte ^= sealed;
        }
        self.marks.encrypt_block(&mut state);
        [state[0], state[1], state[2], state[3]]
    }
}

/// What GCM encrypts to have a block's key stream: the nonce, which is the version, and the block's number.
fn counter(version: u64, number: u8) -> Block {
    let mut block = Block::default();
    block[..8].copy_from_slice(&version.to_le_bytes());
    block[12..].copy_from_slice(&(FIRST + u32::from(number)).to_be_bytes());
    block
}
