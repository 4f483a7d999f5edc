//! Elements of what was given, without their pages.

use std::ops::Range;
use std::sync::PoisonError;

use super::{FarAllocation, FarTable, nothing_at};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::lock;
use crate::slots::ObjectHandle;

/// Elements that are moved together; what they take is copied, so that it may lie in far memory itself.
const AT_ONCE: usize = 16_384;
/// Bytes that are copied together, an element at least.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Bytes of an element. Its pages stay while it is moved, and the least cap has four times as many.
const ELEMENT_BYTES_MAX: usize = 64 << 10;

/// Elements of one size, each at its place.
pub(crate) struct FarElements<'a> {
    pub(crate) far: ObjectHandle,
    /// Of what was given: element 0 is there.
    pub(crate) address: usize,
    pub(crate) size: usize,
    pub(crate) count: usize,
    /// The place of each. `None`: too far to be a number.
    pub(crate) index_of: &'a dyn Fn(usize) -> Option<u64>,
}

impl FarTable {
    /// Gives the bytes of elements to `store`, many at once: the number of the first, and what is in them.
    pub(crate) fn gather(
        &self,
        elements: &FarElements<'_>,
        mut store: impl FnMut(usize, &[u8]),
    ) -> Result<(), CallFailure> {
        let given = self.allocation(elements)?;
        let given = given.read().unwrap_or_else(PoisonError::into_inner);
        let memory = given.as_ref().ok_or_else(|| nothing_at(elements.address))?;
        let length = elements.check(memory.len())?;
        for batch in elements.batches() {
            let indices = elements.indices(batch.clone(), length)?;
            let mut bytes = vec![0; indices.len() * elements.size];
            memory.gather_elements(elements.size, &indices, &mut bytes)?;
            store(batch.start, &bytes);
        }
        Ok(())
    }

    /// Stores what `load` puts into the bytes that it is given, many elements at once.
    pub(crate) fn scatter(
        &self,
        elements: &FarElements<'_>,
        mut load: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), CallFailure> {
        let given = self.allocation(elements)?;
        let mut given = given.write().unwrap_or_else(PoisonError::into_inner);
        let memory = given.as_mut().ok_or_else(|| nothing_at(elements.address))?;
        let length = elements.check(memory.len())?;
        for batch in elements.batches() {
            let indices = elements.indices(batch.clone(), length)?;
            let mut bytes = vec![0; indices.len() * elements.size];
            load(batch.start, &mut bytes);
            memory.scatter_elements(elements.size, &indices, &bytes)?;
        }
        Ok(())
    }

    fn allocation(&self, elements: &FarElements<'_>) -> Result<std::sync::Arc<FarAllocation>, CallFailure> {
        let far = self.find(elements.far)?;
        let given = lock(&far.allocations).get(&elements.address).cloned();
        given.ok_or_else(|| nothing_at(elements.address))
    }
}

impl FarElements<'_> {
    /// How many elements there are in so many bytes. Nothing is moved unless all are among them.
    fn check(&self, bytes: usize) -> Result<usize, CallFailure> {
        let size = self.size;
        if size == 0 || size > ELEMENT_BYTES_MAX {
            return Err(wrong(format!(
                "an element of {size} bytes: it has 1 to {ELEMENT_BYTES_MAX}"
            )));
        }
        if !bytes.is_multiple_of(size) {
            return Err(wrong(format!(
                "{bytes} bytes were given: no whole number of elements of {size}"
            )));
        }
        let length = bytes / size;
        (0..self.count).try_for_each(|which| self.index(which, length).map(drop))?;
        Ok(length)
    }

    fn index(&self, which: usize, length: usize) -> Result<usize, CallFailure> {
        match (self.index_of)(which) {
            Some(place) if place < length as u64 => Ok(place as usize),
            Some(place) => Err(wrong(format!("element {place} of {length}"))),
            None => Err(wrong(format!(
                "place {which} is behind the last of {length} elements"
            ))),
        }
    }

    fn batches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (count, at_once) = (self.count, AT_ONCE.min(BYTES_AT_ONCE / self.size).max(1));
        (0..count)
            .step_by(at_once)
            .map(move |start| start..count.min(start + at_once))
    }

    /// Looked at again: the program may have changed them meanwhile.
    fn indices(&self, batch: Range<usize>, length: usize) -> Result<Vec<usize>, CallFailure> {
        batch.map(|which| self.index(which, length)).collect()
    }
}

fn wrong(text: String) -> CallFailure {
    CallFailure::new(ReturnCode::Range, text)
}
