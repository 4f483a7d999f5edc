//! Access to elements of an allocation without their pages.

use std::ops::Range;
use std::sync::PoisonError;

use super::{FarAllocation, FarTable, nothing_at};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::lock;
use crate::slots::ObjectHandle;

/// Elements moved in one batch. Their bytes are copied, because the program's array may lie in far memory
/// itself.
const AT_ONCE: usize = 16_384;
/// Bytes copied in one batch; at least one element.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Largest element in bytes. Its pages stay resident while it is moved, and the smallest cap is four times as
/// large.
const ELEMENT_BYTES_MAX: usize = 64 << 10;

/// Elements of one size, each at an index.
pub(crate) struct FarElements<'a> {
    pub(crate) far: ObjectHandle,
    /// Address of the allocation, where element 0 is.
    pub(crate) address: usize,
    pub(crate) size: usize,
    pub(crate) count: usize,
    /// Index of the nth element to move; `None` if it does not fit a number.
    pub(crate) index_of: &'a dyn Fn(usize) -> Option<u64>,
}

impl FarTable {
    /// Passes the bytes of elements to `store` in batches: the number of the first, and the bytes.
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

    /// Stores the bytes that `load` writes into the buffer it is given, in batches of elements.
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
    /// Number of elements in `bytes`. No element is moved unless all indexes are below it.
    fn check(&self, bytes: usize) -> Result<usize, CallFailure> {
        let size = self.size;
        if size == 0 || size > ELEMENT_BYTES_MAX {
            return Err(wrong(format!(
                "the element has {size} bytes; 1 to {ELEMENT_BYTES_MAX} are possible"
            )));
        }
        if !bytes.is_multiple_of(size) {
            return Err(wrong(format!(
                "the allocation of {bytes} bytes is not a whole number of elements of {size}"
            )));
        }
        let length = bytes / size;
        (0..self.count).try_for_each(|which| self.index(which, length).map(drop))?;
        Ok(length)
    }

    fn index(&self, which: usize, length: usize) -> Result<usize, CallFailure> {
        match (self.index_of)(which) {
            Some(index) if index < length as u64 => Ok(index as usize),
            Some(index) => Err(wrong(format!(
                "element {index} is out of range: there are {length}"
            ))),
            None => Err(wrong(format!(
                "the index of item {which} is too large: there are {length} elements"
            ))),
        }
    }

    fn batches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (count, at_once) = (self.count, AT_ONCE.min(BYTES_AT_ONCE / self.size).max(1));
        (0..count)
            .step_by(at_once)
            .map(move |start| start..count.min(start + at_once))
    }

    /// Read again, because the program may have changed the indexes since.
    fn indices(&self, batch: Range<usize>, length: usize) -> Result<Vec<usize>, CallFailure> {
        batch.map(|which| self.index(which, length)).collect()
    }
}

fn wrong(text: String) -> CallFailure {
    CallFailure::new(ReturnCode::Range, text)
}
