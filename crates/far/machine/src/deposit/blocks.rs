//! Blocks of pages in the bodies of frames, for pages that stay where they are.
//!
//! A page is 256 blocks of 16 bytes. A *run* names blocks of one page: a list in any order, or every `step`th
//! block from `first` on.
//!
//! ```text
//!  0  slot u32 | count u16 | step u8 | first u8
//!  8  version u64
//! 16  with step 0: the blocks' numbers, a byte each; else nothing: they are first, first + step, ...
//! ```
//!
//! The answer has for each run, in order, its count in two bytes and the blocks. A count of 0 means that the
//! slot does not have this version, or that the version is shorter.

use alloc::vec::Vec;
use core::ops::Range;

use super::Page;
use crate::limit::{BLOCK_BYTES, PAGE_BLOCKS, PAGE_HEADER_BYTES};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::wire::{ByteReader, ShortInputError};

/// Bytes before each run's blocks in an answer.
const COUNT_BYTES: usize = 2;

/// Blocks to read from several pages: at least one of each page. Each page occurs once, in ascending order,
/// so that one is found by binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRequest {
    /// Each page, with the number of blocks up to its last.
    pages: Vec<(Page, u32)>,
    /// Numbers of the blocks, page by page.
    numbers: Vec<u8>,
}

impl BlockRequest {
    /// An empty request with room for this many pages and blocks.
    pub fn with_capacity(pages: usize, blocks: usize) -> BlockRequest {
        BlockRequest {
            pages: Vec::with_capacity(pages),
            numbers: Vec::with_capacity(blocks),
        }
    }

    /// Adds a block of the last page or of a higher one.
    pub fn add(&mut self, page: Page, number: u8) {
        self.extend(page, core::slice::from_ref(&number));
    }

    /// Adds blocks, at least one, of the last page or of a higher one.
    pub fn extend(&mut self, page: Page, numbers: &[u8]) {
        self.numbers.extend_from_slice(numbers);
        let (end, before) = (self.numbers.len() as u32, self.end(self.pages.len()));
        match self.pages.last_mut() {
            Some((last, its_end)) if *last == page => *its_end = end,
            last => {
                assert!(
                    last.is_none_or(|(last, _)| *last < page),
                    "pages in ascending order"
                );
                assert!(end > before, "a page has at least one block");
                self.pages.push((page, end));
            }
        }
        let blocks = self.span(self.pages.len() - 1);
        assert!(blocks.len() <= PAGE_BLOCKS, "at most all blocks of a page");
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether the request is empty.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Number of blocks of all pages.
    pub fn blocks(&self) -> usize {
        self.numbers.len()
    }

    /// The block that was added last.
    pub fn last(&self) -> Option<(Page, u8)> {
        Some((self.pages.last()?.0, *self.numbers.last()?))
    }

    /// The page at an index.
    pub fn page(&self, index: usize) -> Page {
        self.pages[index].0
    }

    /// Indices of the page's blocks among all blocks.
    pub fn span(&self, index: usize) -> Range<usize> {
        self.end(index) as usize..self.end(index + 1) as usize
    }

    /// Byte range of the page's blocks if all blocks are stored one after another.
    pub fn bytes(&self, index: usize) -> Range<usize> {
        let span = self.span(index);
        span.start * BLOCK_BYTES..span.end * BLOCK_BYTES
    }

    /// Numbers of the page's blocks.
    pub fn numbers(&self, index: usize) -> &[u8] {
        &self.numbers[self.span(index)]
    }

    /// Each page with the numbers of its blocks.
    pub fn iter(&self) -> impl Iterator<Item = (Page, &[u8])> {
        let mut from = 0;
        self.pages.iter().map(move |(page, end)| {
            let numbers = &self.numbers[from..*end as usize];
            from = *end as usize;
            (*page, numbers)
        })
    }

    /// The request restricted to some of the pages.
    pub fn part(&self, pages: Range<usize>) -> BlockRequest {
        let (start, end) = (self.end(pages.start), self.end(pages.end));
        let pages = self.pages[pages].iter();
        BlockRequest {
            pages: pages.map(|(page, end)| (*page, *end - start)).collect(),
            numbers: self.numbers[start as usize..end as usize].to_vec(),
        }
    }

    /// Index of a page.
    pub(super) fn find(&self, page: Page) -> Option<usize> {
        self.pages.binary_search_by_key(&page, |(page, _)| *page).ok()
    }

    /// Number of blocks of the first `pages` pages.
    fn end(&self, pages: usize) -> u32 {
        pages.checked_sub(1).map_or(0, |last| self.pages[last].1)
    }
}

/// Appends a run of these blocks to a request, in its shortest form.
pub fn write_run(slot: u32, version: u64, numbers: &[u8], to: &mut Vec<u8>) {
    let step = spacing(numbers);
    let (first, listed) = match step {
        0 => (0, numbers),
        _ => (numbers[0], &[][..]),
    };
    let mut head = [0; PAGE_HEADER_BYTES];
    head[0..4].copy_from_slice(&slot.to_le_bytes());
    head[4..6].copy_from_slice(&(numbers.len() as u16).to_le_bytes());
    (head[6], head[7]) = (step, first);
    head[8..16].copy_from_slice(&version.to_le_bytes());
    to.extend_from_slice(&head);
    to.extend_from_slice(listed);
}

/// Distance between successive blocks; 0 if it is not constant.
fn spacing(numbers: &[u8]) -> u8 {
    let [first, second, ..] = numbers else { return 1 };
    let step = second.saturating_sub(*first);
    let spaced = numbers
        .windows(2)
        .all(|pair| pair[0].checked_add(step) == Some(pair[1]));
    if spaced { step } else { 0 }
}

/// Bytes that a run of `count` blocks takes in an answer.
pub(super) fn given_bytes(count: usize) -> usize {
    COUNT_BYTES + count * BLOCK_BYTES
}

/// A received run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRun<'a> {
    pub(super) slot: u32,
    pub(super) version: u64,
    pub(super) count: usize,
    step: u8,
    first: u8,
    listed: &'a [u8],
}

/// The body is not a sequence of runs, or its answer does not fit a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRunsError;

impl From<ShortInputError> for BlockRunsError {
    fn from(_: ShortInputError) -> BlockRunsError {
        BlockRunsError
    }
}

impl<'a> BlockRun<'a> {
    fn parse(cursor: &mut ByteReader<'a>) -> Result<BlockRun<'a>, BlockRunsError> {
        let (slot, count) = (cursor.u32()?, usize::from(cursor.u16()?));
        let (step, first) = (cursor.u8()?, cursor.u8()?);
        let version = cursor.u64()?;
        let sound = match step {
            0 => (1..=PAGE_BLOCKS).contains(&count) && first == 0,
            _ => count > 0 && usize::from(first) + usize::from(step) * (count - 1) < PAGE_BLOCKS,
        };
        if !sound {
            return Err(BlockRunsError);
        }
        let listed = cursor.bytes(if step == 0 { count } else { 0 })?;
        Ok(BlockRun {
            slot,
            version,
            count,
            step,
            first,
            listed,
        })
    }

    /// Numbers of the blocks, in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = usize> {
        let BlockRun {
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

/// Parses and checks all runs of a request: there is at least one, and the answer fits a frame.
pub(super) fn parse(body: &[u8]) -> Result<Vec<BlockRun<'_>>, BlockRunsError> {
    let mut cursor = ByteReader::new(body);
    let (mut runs, mut given) = (Vec::new(), 0);
    while !cursor.rest().is_empty() {
        let run = BlockRun::parse(&mut cursor)?;
        given += given_bytes(run.count);
        runs.push(run);
    }
    if runs.is_empty() || given > FRAME_BODY_BYTES_MAX {
        return Err(BlockRunsError);
    }
    Ok(runs)
}

/// Bytes of the answer if every run is there.
pub(super) fn answer_bytes(runs: &[BlockRun<'_>]) -> usize {
    runs.iter().map(|run| given_bytes(run.count)).sum()
}

/// Whether a body answers runs of these counts, each in full or not at all.
pub(super) fn answers(body: &[u8], mut counts: impl Iterator<Item = usize>) -> bool {
    let mut given = AnswerBlocks(ByteReader::new(body));
    let all = counts.all(|asked| {
        given
            .next()
            .is_some_and(|(count, _)| count == asked || count == 0)
    });
    all && given.0.rest().is_empty()
}

/// The bytes of each run of an answer, in order; empty if it is not there.
pub(super) fn given(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    AnswerBlocks(ByteReader::new(body)).map(|(_, bytes)| bytes)
}

struct AnswerBlocks<'a>(ByteReader<'a>);

impl<'a> Iterator for AnswerBlocks<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<(usize, &'a [u8])> {
        let count = usize::from(self.0.u16().ok()?);
        Some((count, self.0.bytes(count * BLOCK_BYTES).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_written_run_parses_to_itself() {
        let every_other: Vec<u8> = (0..128).map(|index| 1 + 2 * index).collect();
        let all: Vec<u8> = (0..=255).collect();
        let chosen = [
            (&[9, 3, 255, 3][..], 4),
            (&every_other, 0),
            (&all, 0),
            (&[0, 255], 0),
            (&[255], 0),
            (&[255, 0], 2),
            (&[3, 3], 2),
            (&[0, 100, 200, 44], 4),
        ];
        let mut body = Vec::new();
        for (slot, (numbers, listed)) in chosen.iter().enumerate() {
            let before = body.len();
            write_run(slot as u32, 1 << 40, numbers, &mut body);
            assert_eq!(body.len() - before, PAGE_HEADER_BYTES + listed);
        }
        let runs = parse(&body).unwrap();
        assert_eq!(runs.len(), chosen.len());
        for (run, (numbers, _)) in runs.iter().zip(chosen) {
            assert!(run.blocks().eq(numbers.iter().map(|number| usize::from(*number))));
            assert_eq!(run.version, 1 << 40);
        }
    }

    #[test]
    fn blocks_are_found_by_their_page() {
        let mut wanted = BlockRequest::default();
        wanted.add(Page(3), 7);
        wanted.extend(Page(5), &[2, 1]);
        wanted.add(Page(5), 9);
        wanted.add(Page(8), 0);
        assert_eq!((wanted.len(), wanted.blocks()), (3, 5));
        assert_eq!(wanted.last(), Some((Page(8), 0)));
        assert_eq!((wanted.page(1), wanted.numbers(1)), (Page(5), &[2, 1, 9][..]));
        assert_eq!(wanted.bytes(1), 16..64);
        assert_eq!((wanted.find(Page(8)), wanted.find(Page(4))), (Some(2), None));
        let part = wanted.part(1..3);
        assert!(part.iter().eq(wanted.iter().skip(1)));
        assert_eq!((part.span(1), part.blocks()), (3..4, 4));
        assert!(wanted.part(2..2).is_empty());
    }

    #[test]
    #[should_panic(expected = "pages in ascending order")]
    fn a_page_cannot_be_requested_twice() {
        let mut wanted = BlockRequest::default();
        [3, 5, 3].into_iter().for_each(|page| wanted.add(Page(page), 7));
    }

    #[test]
    fn a_malformed_or_too_large_request_is_refused() {
        let mut two = Vec::new();
        write_run(0, 1, &[2, 1], &mut two);
        let first = two.len();
        write_run(1, 1, &[3, 7, 11], &mut two);
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
        let page: Vec<u8> = (0..=255).collect();
        for slot in 0..FRAME_BODY_BYTES_MAX / given_bytes(page.len()) {
            write_run(slot as u32, 1, &page, &mut much);
        }
        assert!(parse(&much).is_ok());
        write_run(99, 1, &page, &mut much);
        assert!(parse(&much).is_err());
    }

    #[test]
    fn a_partial_answer_is_refused() {
        let mut body = vec![2, 0];
        body.extend([7; 32]);
        body.extend([0, 0]);
        assert!(answers(&body, [2, 3].into_iter()));
        assert!(given(&body).eq([&[7; 32][..], &[]]));
        for counts in [&[2][..], &[1, 3], &[2, 3, 1], &[]] {
            assert!(!answers(&body, counts.iter().copied()));
        }
        assert!(!answers(&body[..35], [2, 3].into_iter()));
    }
}
