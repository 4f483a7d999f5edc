//! Access to single values: those of local pages in place, those of remote pages without their pages.

use netram_far_machine::arena::Page;
use netram_far_machine::deposit::BlockRequest;
use netram_far_machine::limit::{BLOCK_BYTES, PAGE_BYTES, PREFETCH_PAGES_MAX};

use super::FarVec;
use crate::arena::{BlockValues, FarAccessError, NUMBERS, PageWrite};
use crate::sys::Pod;

/// Maximum number of values gathered or scattered together; more take several round trips. Results wait
/// outside of the cap, 200 bytes each.
const AT_ONCE: usize = 16_384;

/// Location of a value within one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ValueLocation {
    page: Page,
    /// Offset in the page, in bytes.
    at: usize,
    /// Index among the requested values.
    which: usize,
}

/// Values that are accessed in their pages, in order of page if they lie in a single one.
struct RemainingValues<'r> {
    values: &'r [usize],
    done: usize,
    /// Index of the first value whose pages were not requested yet.
    asked: usize,
}

/// Values in the same pinned pages.
struct PinnedRun<'r> {
    pages: std::ops::Range<u32>,
    of: &'r [usize],
}

impl<'r> RemainingValues<'r> {
    fn of(values: &'r [usize]) -> RemainingValues<'r> {
        RemainingValues {
            values,
            done: 0,
            asked: 0,
        }
    }
}

impl<T: Pod> FarVec<T> {
    /// Reads the values at `indices`, in order. With [words](crate::WordAccess), remote ones come in one
    /// round trip per lender, except from pages of which so many are wanted that they are fetched whole.
    ///
    /// # Errors
    ///
    /// [`FarAccessError`] if a page is lost or cannot be brought; `into` may be filled in part.
    pub fn gather(&self, indices: &[usize], into: &mut [T]) -> Result<(), FarAccessError> {
        assert_eq!(indices.len(), into.len(), "as many places as values");
        for (indices, into) in indices.chunks(AT_ONCE).zip(into.chunks_mut(AT_ONCE)) {
            let stored =
                |which: usize, found: Option<&[u8]>| into[which] = found.map_or_else(T::new_zeroed, value);
            let rest = self.gather_words(size_of::<T>(), indices, stored);
            let mut rest = RemainingValues::of(&rest);
            while let Some(run) = self.pin_next(size_of::<T>(), indices, &mut rest)? {
                let values = self.as_slice();
                run.of
                    .iter()
                    .for_each(|which| into[*which] = values[indices[*which]]);
                self.unpin(run);
            }
        }
        Ok(())
    }

    /// Reads the values at `first`, `first + step` and so on, until `into` is full. As
    /// [`gather`](FarVec::gather).
    ///
    /// # Errors
    ///
    /// As [`gather`](FarVec::gather).
    pub fn gather_strided(&self, first: usize, step: usize, into: &mut [T]) -> Result<(), FarAccessError> {
        // An index that overflows is beyond the end as well.
        let index = |which: usize| which.saturating_mul(step).saturating_add(first);
        let indices: Vec<usize> = (0..into.len()).map(index).collect();
        self.gather(&indices, into)
    }

    /// Stores values at `indices`; of several at one index the last remains. With [words](crate::WordAccess),
    /// values of remote pages are kept locally until the pages arrive, and cost no round trip.
    ///
    /// # Errors
    ///
    /// [`FarAccessError`] if a page is lost or cannot be brought; some values may be stored.
    pub fn scatter(&mut self, indices: &[usize], values: &[T]) -> Result<(), FarAccessError> {
        assert_eq!(indices.len(), values.len(), "as many places as values");
        for (indices, values) in indices.chunks(AT_ONCE).zip(values.chunks(AT_ONCE)) {
            let bytes = |which: usize| values[which].as_bytes();
            let rest = self.scatter_words(size_of::<T>(), indices, bytes);
            let mut rest = RemainingValues::of(&rest);
            while let Some(run) = self.pin_next(size_of::<T>(), indices, &mut rest)? {
                let places = self.as_mut_slice();
                run.of
                    .iter()
                    .for_each(|which| places[indices[*which]] = values[*which]);
                self.unpin(run);
            }
        }
        Ok(())
    }

    /// Stores values at `first`, `first + step` and so on. As [`scatter`](FarVec::scatter).
    ///
    /// # Errors
    ///
    /// As [`scatter`](FarVec::scatter).
    pub fn scatter_strided(&mut self, first: usize, step: usize, values: &[T]) -> Result<(), FarAccessError> {
        // An index that overflows is beyond the end as well.
        let index = |which: usize| which.saturating_mul(step).saturating_add(first);
        let indices: Vec<usize> = (0..values.len()).map(index).collect();
        self.scatter(&indices, values)
    }

    /// Reads a value without its page, if possible.
    pub(super) fn get_word(&self, index: usize) -> Option<T> {
        if !self.arena.takes_words() {
            return None;
        }
        let place = self.place(size_of::<T>(), index, 0)?;
        let blocks = place.at / BLOCK_BYTES..(place.at + size_of::<T>()).div_ceil(BLOCK_BYTES);
        self.arena
            .word(place.page, &NUMBERS[blocks], |found| match found {
                BlockValues::Zeros => Some(T::new_zeroed()),
                BlockValues::Blocks(bytes) => {
                    let at = place.at % BLOCK_BYTES;
                    Some(value(&bytes[at..at + size_of::<T>()]))
                }
                BlockValues::Page => None,
            })
    }

    /// Stores a value without its page. Returns whether that was possible.
    pub(super) fn set_word(&mut self, index: usize, value: T) -> bool {
        if !self.arena.takes_words() {
            return false;
        }
        let Some(place) = self.place(size_of::<T>(), index, 0) else {
            return false;
        };
        let mut stored = false;
        let written = PageWrite {
            page: place.page,
            words: ((place.at + size_of::<T>()).div_ceil(BLOCK_BYTES) - place.at / BLOCK_BYTES) as u32,
            values: &[(place.at, value.as_bytes())],
        };
        self.arena.patch(&[written], |stays| stored = stays);
        stored
    }

    /// Stores values without their pages where possible. Returns the indices of the others; equal locations
    /// keep their order.
    fn scatter_words<'a>(
        &mut self,
        size: usize,
        indices: &[usize],
        bytes: impl Fn(usize) -> &'a [u8],
    ) -> Vec<usize> {
        if !self.arena.takes_words() {
            return (0..indices.len()).collect();
        }
        let (places, mut rest) = self.places(size, indices);
        let values: Vec<(usize, &[u8])> = places
            .iter()
            .map(|place| (place.at, bytes(place.which)))
            .collect();
        let mut values = &values[..];
        let pages: Vec<&[ValueLocation]> = places.chunk_by(|one, next| one.page == next.page).collect();
        let written: Vec<PageWrite<'_>> = pages
            .iter()
            .map(|places| {
                let (of_page, behind) = values.split_at(places.len());
                values = behind;
                PageWrite {
                    page: places[0].page,
                    words: blocks_of(size, places).count() as u32,
                    values: of_page,
                }
            })
            .collect();
        let mut pages = pages.into_iter();
        self.arena.patch(&written, |stays| {
            let places = pages.next().filter(|_| !stays);
            rest.extend(places.into_iter().flatten().map(|place| place.which));
        });
        rest
    }

    /// Pins the pages of the next value, for all further values in the same pages. Pinning takes a lock, and
    /// many values lie in a local page.
    fn pin_next<'r>(
        &self,
        size: usize,
        indices: &[usize],
        rest: &mut RemainingValues<'r>,
    ) -> Result<Option<PinnedRun<'r>>, FarAccessError> {
        let Some(which) = rest.values.get(rest.done) else {
            return Ok(None);
        };
        if rest.done >= rest.asked {
            rest.asked = self.ask(size, indices, rest);
        }
        let pages = self.pages_of(size, indices[*which]);
        pages.clone().try_for_each(|page| self.pin(pages.start, page))?;
        let behind = &rest.values[rest.done..];
        let together = |which: &&usize| self.pages_of(size, indices[**which]) == pages;
        let of = &behind[..behind.iter().take_while(together).count()];
        rest.done += of.len();
        Ok(Some(PinnedRun { pages, of }))
    }

    fn unpin(&self, run: PinnedRun<'_>) {
        run.pages.for_each(|page| self.arena.unpin(Page(page)));
    }

    /// Requests the pages of further values together, except for the first, which its user fetches and
    /// measures. Returns the index of the first value whose pages were not requested.
    fn ask(&self, size: usize, indices: &[usize], rest: &RemainingValues<'_>) -> usize {
        let (mut pages, mut end) = (Vec::new(), rest.done);
        for which in &rest.values[rest.done..] {
            let of_value = self.pages_of(size, indices[*which]);
            let last = pages.last().copied();
            let new = of_value.skip_while(|page| Some(*page) == last);
            if end > rest.done && pages.len() >= PREFETCH_PAGES_MAX as usize {
                break;
            }
            pages.extend(new);
            end += 1;
        }
        // With fewer than two there is nothing to overlap.
        if pages.len() > 1 {
            self.arena.will_need(pages.into_iter().skip(1).map(Page));
        }
        end
    }

    /// Locations in order of page, and the indices of values that lie in several pages.
    fn places(&self, size: usize, indices: &[usize]) -> (Vec<ValueLocation>, Vec<usize>) {
        let (mut places, mut rest) = (Vec::with_capacity(indices.len()), Vec::new());
        for (which, index) in indices.iter().enumerate() {
            match self.place(size, *index, which) {
                Some(place) => places.push(place),
                None => rest.push(which),
            }
        }
        places.sort_unstable();
        (places, rest)
    }

    /// Reads values without their pages where possible, and passes them to `store`, with `None` for zeros.
    /// Returns the indices of the others.
    fn gather_words(
        &self,
        size: usize,
        indices: &[usize],
        mut store: impl FnMut(usize, Option<&[u8]>),
    ) -> Vec<usize> {
        if !self.arena.takes_words() {
            return (0..indices.len()).collect();
        }
        let (places, mut rest) = self.places(size, indices);
        let mut wanted = BlockRequest::with_capacity(places.len(), places.len());
        for places in places.chunk_by(|one, next| one.page == next.page) {
            for block in blocks_of(size, places) {
                wanted.add(places[0].page, block);
            }
        }
        let mut pages = places.chunk_by(|one, next| one.page == next.page);
        let mut index = 0;
        self.arena.words(&wanted, |found| {
            let places = pages.next().unwrap_or_default();
            let numbers = wanted.numbers(index);
            index += 1;
            match found {
                BlockValues::Zeros => places.iter().for_each(|place| store(place.which, None)),
                BlockValues::Page => rest.extend(places.iter().map(|place| place.which)),
                BlockValues::Blocks(bytes) => {
                    for place in places {
                        let first = (place.at / BLOCK_BYTES) as u8;
                        let before = numbers.partition_point(|number| *number < first);
                        let at = before * BLOCK_BYTES + place.at % BLOCK_BYTES;
                        store(place.which, Some(&bytes[at..at + size]));
                    }
                }
            }
        });
        rest
    }

    /// Location of a value. `None`: it lies in several pages.
    fn place(&self, size: usize, index: usize, which: usize) -> Option<ValueLocation> {
        let pages = self.pages_of(size, index);
        let at = index * size % PAGE_BYTES;
        (pages.len() == 1).then_some(ValueLocation {
            page: Page(pages.start),
            at,
            which,
        })
    }
}

/// Bytes as elements of a given size, at least one byte: for C and Python. Element 0 is at the beginning.
impl FarVec<u8> {
    /// Reads the elements of `size` bytes at `indices` into one buffer. As [`gather`](FarVec::gather).
    ///
    /// # Errors
    ///
    /// As [`gather`](FarVec::gather).
    pub fn gather_elements(
        &self,
        size: usize,
        indices: &[usize],
        into: &mut [u8],
    ) -> Result<(), FarAccessError> {
        assert_eq!(indices.len() * size, into.len(), "as many places as elements");
        // Without any element the size does not matter.
        let bytes_at_once = AT_ONCE.saturating_mul(size);
        for (indices, into) in indices.chunks(AT_ONCE).zip(into.chunks_mut(bytes_at_once)) {
            let store = |which: usize, found: Option<&[u8]>| {
                let target = &mut into[which * size..(which + 1) * size];
                match found {
                    Some(bytes) => target.copy_from_slice(bytes),
                    None => target.fill(0),
                }
            };
            let rest = self.gather_words(size, indices, store);
            let mut rest = RemainingValues::of(&rest);
            while let Some(run) = self.pin_next(size, indices, &mut rest)? {
                let elements = self.as_slice();
                for which in run.of {
                    let first = indices[*which] * size;
                    let target = &mut into[which * size..(which + 1) * size];
                    target.copy_from_slice(&elements[first..first + size]);
                }
                self.unpin(run);
            }
        }
        Ok(())
    }

    /// Stores elements of `size` bytes at `indices`. As [`scatter`](FarVec::scatter).
    ///
    /// # Errors
    ///
    /// As [`scatter`](FarVec::scatter).
    pub fn scatter_elements(
        &mut self,
        size: usize,
        indices: &[usize],
        values: &[u8],
    ) -> Result<(), FarAccessError> {
        assert_eq!(indices.len() * size, values.len(), "as many places as elements");
        let bytes_at_once = AT_ONCE.saturating_mul(size);
        for (indices, values) in indices.chunks(AT_ONCE).zip(values.chunks(bytes_at_once)) {
            let bytes = |which: usize| &values[which * size..(which + 1) * size];
            let rest = self.scatter_words(size, indices, bytes);
            let mut rest = RemainingValues::of(&rest);
            while let Some(run) = self.pin_next(size, indices, &mut rest)? {
                let elements = self.as_mut_slice();
                for which in run.of {
                    let first = indices[*which] * size;
                    elements[first..first + size].copy_from_slice(bytes(*which));
                }
                self.unpin(run);
            }
        }
        Ok(())
    }
}

/// Numbers of the blocks that contain these values of one page, without duplicates. The values must be
/// sorted.
fn blocks_of(size: usize, places: &[ValueLocation]) -> impl Iterator<Item = u8> {
    let mut end = 0;
    places.iter().flat_map(move |place| {
        let first = (place.at / BLOCK_BYTES).max(end);
        end = (place.at + size).div_ceil(BLOCK_BYTES).max(end);
        (first..end).map(|block| block as u8)
    })
}

/// The value with these bytes.
fn value<T: Pod>(bytes: &[u8]) -> T {
    match T::read_from_bytes(bytes) {
        Ok(value) => value,
        Err(_) => unreachable!("the slice has the size of a value"),
    }
}
