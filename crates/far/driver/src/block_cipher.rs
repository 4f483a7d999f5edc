//! Decryption of single blocks of a sealed page. GCM's key stream is AES of nonce and block number, so a
//! block can be decrypted without the others; the page's tag does not verify it.
//!
//! `ring` seals pages faster but does not expose the key stream. The same key is therefore kept a second
//! time, for the AES implementation that the links' handshake uses.

use aes::Aes256;
use aes::cipher::{BlockEncrypt, KeyInit};
use netram_far_machine::deposit::{BlockMac, SealedBlock};
use netram_far_machine::limit::BLOCK_BYTES;

type Block = aes::Block;

/// Round keys are erased with their cipher: `aes` does so by a feature, which could get lost.
const _: fn() = || {
    fn is_erased<T: zeroize::ZeroizeOnDrop>() {}
    is_erased::<Aes256>();
};

/// Number of blocks encrypted together: enough to keep the processor's AES units busy.
const TOGETHER: usize = 32;

/// GCM counter of a page's first block; 1 is used for the tag.
const FIRST: u32 = 2;

/// Decrypts blocks, and computes their MACs.
pub(crate) struct BlockCipher {
    pages: Aes256,
    mac_cipher: Aes256,
}

impl BlockCipher {
    /// `pages`: the key that seals pages. `marks`: a different key, for MACs.
    pub(crate) fn new(pages: &[u8; 32], marks: &[u8; 32]) -> BlockCipher {
        BlockCipher {
            pages: Aes256::new(pages.into()),
            mac_cipher: Aes256::new(marks.into()),
        }
    }

    /// Decrypts blocks of pages, one after another. `names`: for each page the version of its seal and the
    /// block numbers.
    pub(crate) fn open<'n>(&self, names: impl Iterator<Item = (u64, &'n [u8])>, sealed: &mut [u8]) {
        let of_page =
            |(version, numbers): (u64, &'n [u8])| numbers.iter().map(move |number| counter(version, *number));
        let mut counters = names.flat_map(of_page);
        for sealed in sealed.chunks_mut(TOGETHER * BLOCK_BYTES) {
            let mut stream = [Block::default(); TOGETHER];
            let stream = &mut stream[..sealed.len() / BLOCK_BYTES];
            for (block, counter) in stream.iter_mut().zip(&mut counters) {
                *block = counter;
            }
            self.pages.encrypt_blocks(stream);
            for (byte, key) in sealed.iter_mut().zip(stream.iter().flatten()) {
                *byte ^= key;
            }
        }
    }

    /// Appends the MACs of blocks, kept until their pages verify them: a truncated CBC-MAC over two blocks
    /// each.
    pub(crate) fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>) {
        for blocks in blocks.chunks(TOGETHER) {
            let mut states = [Block::default(); TOGETHER];
            let states = &mut states[..blocks.len()];
            for (state, block) in states.iter_mut().zip(blocks) {
                state[..8].copy_from_slice(&block.version.to_le_bytes());
                state[8..12].copy_from_slice(&block.page.0.to_le_bytes());
                state[12] = block.number;
            }
            self.mac_cipher.encrypt_blocks(states);
            for (byte, sealed) in states
                .iter_mut()
                .zip(blocks)
                .flat_map(|(state, block)| state.iter_mut().zip(&block.bytes))
            {
                *byte ^= sealed;
            }
            self.mac_cipher.encrypt_blocks(states);
            marks.extend(
                states
                    .iter()
                    .map(|state| [state[0], state[1], state[2], state[3]]),
            );
        }
    }
}

/// Input of AES for a block's key stream: the nonce, which is the version, and the GCM counter.
fn counter(version: u64, number: u8) -> Block {
    let mut block = Block::default();
    block[..8].copy_from_slice(&version.to_le_bytes());
    block[12..].copy_from_slice(&(FIRST + u32::from(number)).to_be_bytes());
    block
}
