//! Blocks of pages in the bodies of frames: what is wanted of a page that stays where it is.
//!
//! A page is 256 blocks of 16 bytes. A *run* names some of one page: those of a list, in any order, or every so many from one on.
//!
//! ```text
//!  0  slot u32 | count u16 | step u8 | first u8
//!  8  version u64
//! 16  with step 0: the blocks' numbers, a byte each; else nothing: they are first, first + step, ...
//! ```
//!
//! The answer has for each run, in that order, its count (or 0: this version is not there, or not so long) in two bytes, and the blocks.

use alloc::vec::Vec;

use crate::limit::{BLOCK_BYTES, FRAME_BODY_BYTES_MAX, PAGE_BLOCKS, PAGE_HEADER_BYTES};
use crate::wire::{Cursor, Short};

/// Bytes before each run's blocks in an answer.
const COUNT_BYTES: usize = 2;

/// Blocks of one page, from one to as many as it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks(Choice);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Listed(Vec<u8>),
    Spaced { first: u8, step: u8, count: u16 },
}

impl Blocks {
    /// These, in this order. `None`: none, or more than a page has.
    pub fn listed(blocks: Vec<u8>) -> Option<Blocks> {
        (1..=PAGE_BLOCKS)
            .contains(&blocks.len())
            .then_some(Blocks(Choice::Listed(blocks)))
    }

    /// `count` of them: `first`, and each `step` behind the one before. `None`: none, or the page has not so many.
    pub fn spaced(first: u8, step: u8, count: usize) -> Option<Blocks> {
        let last = usize::from(first) + usize::from(step) * count.checked_sub(1)?;
        let sound = step > 0 && last < PAGE_BLOCKS;
        sound.then_some(Blocks(Choice::Spaced {
            first,
            step,
            count: count as u16,
        }))
    }

    /// How many.
    pub fn count(&self) -> usize {
        match &self.0 {
            Choice::Listed(blocks) => blocks.len(),
            Choice::Spaced { count, .. } => (*count).into(),
        }
    }

    /// Their numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u8> {
        (0..self.count()).map(move |index| match &self.0 {
            Choice::Listed(blocks) => blocks[index],
            // The last one is within the page, and so are those before it.
            Choice::Spaced { first, step, .. } => first + step * index as u8,
        })
    }

    /// Bytes that a run of them takes in a request.
    pub(super) fn asked_bytes(&self) -> usize {
        match &self.0 {
            Choice::Listed(blocks) => PAGE_HEADER_BYTES + blocks.len(),
            Choice::Spaced { .. } => PAGE_HEADER_BYTES,
        }
    }

    /// Bytes that a run of them takes in an answer.
    pub(super) fn given_bytes(&self) -> usize {
        COUNT_BYTES + self.count() * BLOCK_BYTES
    }

    /// Appends a run of them to a request.
    pub fn write(&self, slot: u32, version: u64, to: &mut Vec<u8>) {
        let (step, first, listed) = match &self.0 {
            Choice::Listed(blocks) => (0, 0, &blocks[..]),
            Choice::Spaced { first, step, .. } => (*step, *first, &[][..]),
        };
        to.extend_from_slice(&slot.to_le_bytes());
        to.extend_from_slice(&(self.count() as u16).to_le_bytes());
        to.extend_from_slice(&[step, first]);
        to.extend_from_slice(&version.to_le_bytes());
        to.extend_from_slice(listed);
    }
}

/// A run as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run<'a> {
    pub(super) slot: u32,
    pub(super) version: u64,
    pub(super) count: usize,
    step: u8,
    first: u8,
    listed: &'a [u8],
}

/// The body is not runs, or their answer does not fit a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRuns;

impl From<Short> for BadRuns {
    fn from(_: Short) -> BadRuns {
        BadRuns
    }
}

impl<'a> Run<'a> {
    fn parse(cursor: &mut Cursor<'a>) -> Result<Run<'a>, BadRuns> {
        let (slot, count) = (cursor.u32()?, usize::from(cursor.u16()?));
        let (step, first) = (cursor.u8()?, cursor.u8()?);
        let version = cursor.u64()?;
        let sound = match step {
            0 => (1..=PAGE_BLOCKS).contains(&count) && first == 0,
            _ => Blocks::spaced(first, step, count).is_some(),
        };
        if !sound {
            return Err(BadRuns);
        }
        let listed = cursor.bytes(if step == 0 { count } else { 0 })?;
        Ok(Run {
            slot,
            version,
            count,
            step,
            first,
            listed,
        })
    }

    /// The blocks' numbers, in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = usize> {
        let Run {
            count,
            step,
            first,
            listed,
            ..
        } = *self;
        (0..count).map(move |index| match step {
            0 => usize::from(listed[index]),
            _ => usize::from(first) + index * usize::from(step),
        })
    }
}

/// The runs of a request, checked as a whole: at least one, and what they ask for fits a frame.
pub(super) fn parse(body: &[u8]) -> Result<Vec<Run<'_>>, BadRuns> {
    let mut cursor = Cursor::new(body);
    let (mut runs, mut given) = (Vec::new(), 0);
    while !cursor.rest().is_empty() {
        let run = Run::parse(&mut cursor)?;
        given += COUNT_BYTES + run.count * BLOCK_BYTES;
        runs.push(run);
    }
    if runs.is_empty() || given > FRAME_BODY_BYTES_MAX {
        return Err(BadRuns);
    }
    Ok(runs)
}

/// The answer to these runs, in order: the blocks' bytes of each; empty: not there. `None`: it is not the answer.
pub(super) fn parse_given(body: &[u8], counts: impl Iterator<Item = usize>) -> Option<Vec<&[u8]>> {
    let mut cursor = Cursor::new(body);
    let mut given = Vec::new();
    for asked in counts {
        let count = usize::from(cursor.u16().ok()?);
        if count != 0 && count != asked {
            return None;
        }
        given.push(cursor.bytes(count * BLOCK_BYTES).ok()?);
    }
    cursor.rest().is_empty().then_some(given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn runs_come_back_as_they_were() {
        let chosen = [
            Blocks::listed(vec![9, 3, 255, 3]).unwrap(),
            Blocks::spaced(1, 2, 128).unwrap(),
            Blocks::spaced(0, 255, 2).unwrap(),
            Blocks::spaced(255, 1, 1).unwrap(),
        ];
        let mut body = Vec::new();
        for (slot, blocks) in chosen.iter().enumerate() {
            blocks.write(slot as u32, 1 << 40, &mut body);
        }
        assert_eq!(body.len(), chosen.iter().map(Blocks::asked_bytes).sum::<usize>());
        let runs = parse(&body).unwrap();
        let numbers: Vec<Vec<usize>> = runs.iter().map(|run| run.blocks().collect()).collect();
        assert_eq!(numbers[0], [9, 3, 255, 3]);
        assert_eq!((numbers[1].len(), numbers[1][0], numbers[1][127]), (128, 1, 255));
        assert_eq!((&numbers[2][..], &numbers[3][..]), (&[0, 255][..], &[255][..]));
        assert!(runs.iter().all(|run| run.version == 1 << 40));
    }

    #[test]
    fn a_body_that_is_not_whole_runs_or_asks_for_too_much_is_refused() {
        let mut two = Vec::new();
        Blocks::listed(vec![1, 2]).unwrap().write(0, 1, &mut two);
        let first = two.len();
        Blocks::spaced(3, 4, 5).unwrap().write(1, 1, &mut two);
        for cut in (0..two.len()).filter(|cut| *cut != first) {
            assert!(parse(&two[..cut]).is_err(), "cut at {cut}");
        }
        for (count, step, start) in [
            (0_u16, 0, 0),
            (257, 0, 0),
            (1, 0, 1),
            (0, 1, 0),
            (2, 1, 255),
            (300, 1, 0),
        ] {
            let mut body = vec![0; 16 + 300];
            body[4..6].copy_from_slice(&count.to_le_bytes());
            (body[6], body[7]) = (step, start);
            body.truncate(if step == 0 { 16 + usize::from(count) } else { 16 });
            assert!(parse(&body).is_err(), "{count} blocks, step {step}, from {start}");
        }
        let mut much = Vec::new();
        let page = Blocks::spaced(0, 1, PAGE_BLOCKS).unwrap();
        for slot in 0..FRAME_BODY_BYTES_MAX / page.given_bytes() {
            page.write(slot as u32, 1, &mut much);
        }
        assert!(parse(&much).is_ok());
        page.write(99, 1, &mut much);
        assert!(parse(&much).is_err());
        assert_eq!(Blocks::spaced(0, 0, 1), None);
        assert_eq!(Blocks::listed(vec![]), None);
    }

    #[test]
    fn an_answer_is_taken_whole_or_not_at_all() {
        let mut body = vec![2, 0];
        body.extend([7; 32]);
        body.extend([0, 0]);
        let given = parse_given(&body, [2, 3].into_iter()).unwrap();
        assert_eq!(given, [&[7; 32][..], &[]]);
        for counts in [&[2][..], &[1, 3], &[2, 3, 1]] {
            assert_eq!(parse_given(&body, counts.iter().copied()), None);
        }
    }
}
