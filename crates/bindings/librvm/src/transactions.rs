//! Open transactions, found by the handle in a `rvm_tid_t`.

use std::sync::Arc;

use netram_rvm::RangeError;
use netram_store::JournaledTransaction;

use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::record::Timeval;
use crate::regions::{MappedRegion, Regions};
use crate::slots::ObjectTable;
pub(crate) use crate::slots::{CallEnd, ObjectHandle};

/// An open transaction with the data that the C interface needs.
pub(crate) struct OpenTransaction {
    pub(crate) transaction: JournaledTransaction,
    /// The library's flags when the transaction began.
    pub(crate) flags: u64,
    pub(crate) uname: Timeval,
    /// The region used last. It has a range of this transaction, so it cannot be unmapped.
    recent: Option<Arc<MappedRegion>>,
    /// Addresses of the regions with ranges of this transaction.
    touched: Vec<usize>,
}

/// An open transaction in the list of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionInfo {
    pub(crate) handle: ObjectHandle,
    pub(crate) uname: Timeval,
}

/// Every open transaction.
pub(crate) struct TransactionTable(ObjectTable<OpenTransaction>);

impl OpenTransaction {
    pub(crate) fn new(transaction: JournaledTransaction, flags: u64, uname: Timeval) -> OpenTransaction {
        OpenTransaction {
            transaction,
            flags,
            uname,
            recent: None,
            touched: Vec::new(),
        }
    }

    /// Records that the transaction has ranges in the region that begins at `region`.
    pub(crate) fn touch(&mut self, region: usize) {
        if !self.touched.contains(&region) {
            self.touched.push(region);
        }
    }

    /// Declares that these bytes will change.
    #[inline]
    pub(crate) fn set_range(
        &mut self,
        regions: &Regions,
        address: usize,
        length: usize,
    ) -> Result<(), CallFailure> {
        if length == 0 {
            return self.empty_range(regions, address);
        }
        if let Some(mapped) = &self.recent
            && let Some(offset) = mapped.offset(address, length)
        {
            let declared = self.transaction.set_range(&mapped.region, offset, length);
            return declared.map_err(|error| explain(error, address));
        }
        self.set_range_elsewhere(regions, address, length)
    }

    fn set_range_elsewhere(
        &mut self,
        regions: &Regions,
        address: usize,
        length: usize,
    ) -> Result<(), CallFailure> {
        let mapped = regions
            .find(address, length)
            .ok_or_else(|| not_mapped(address, length))?;
        let offset = address - mapped.start;
        let declared = self.transaction.set_range(&mapped.region, offset, length);
        declared.map_err(|error| explain(error, address))?;
        self.touch(mapped.start);
        self.recent = Some(mapped);
        Ok(())
    }

    /// Accepts an empty range. Without optimisations the address is checked all the same, as in the original.
    fn empty_range(&self, regions: &Regions, address: usize) -> Result<(), CallFailure> {
        match self.flags & crate::library::ALL_OPTIMIZATIONS == 0 && regions.find(address, 0).is_none() {
            true => Err(not_mapped(address, 0)),
            false => Ok(()),
        }
    }
}

fn not_mapped(address: usize, length: usize) -> CallFailure {
    CallFailure::new(
        ReturnCode::NotMapped,
        format!(
            "the {length} bytes at {address:#x} are not all in one mapped region; map it, or declare one range per region"
        ),
    )
}

fn explain(error: RangeError, address: usize) -> CallFailure {
    let failure = CallFailure::from(error);
    let text = format!("the range at {address:#x}: {}", failure.text);
    CallFailure { text, ..failure }
}

impl TransactionTable {
    pub(crate) const fn new() -> TransactionTable {
        TransactionTable(ObjectTable::new())
    }

    /// Number of open transactions.
    pub(crate) fn open(&self) -> usize {
        self.0.open()
    }

    /// Adds a transaction that has begun.
    pub(crate) fn insert(&self, open: OpenTransaction) -> ObjectHandle {
        self.0.insert(open)
    }

    /// Calls `act` with an open transaction, for one thread at a time.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        handle: ObjectHandle,
        act: impl FnOnce(&mut OpenTransaction) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        self.0.with(handle, act).unwrap_or_else(|| Err(ended()))
    }

    /// Calls `act`, which may end the transaction. Ending it aborts uncommitted changes and releases its
    /// regions.
    pub(crate) fn end<R>(
        &self,
        handle: ObjectHandle,
        act: impl FnOnce(&mut OpenTransaction) -> (R, CallEnd),
    ) -> Result<(R, CallEnd), CallFailure> {
        self.0.end(handle, act).ok_or_else(ended)
    }

    /// The open transactions; with `region`, those that have ranges in the region at that address.
    pub(crate) fn list(&self, region: Option<usize>) -> Vec<TransactionInfo> {
        let mut listed = Vec::new();
        self.0.each(|handle, open| {
            if region.is_none_or(|start| open.touched.contains(&start)) {
                let uname = open.uname;
                listed.push(TransactionInfo { handle, uname });
            }
        });
        listed
    }
}

fn ended() -> CallFailure {
    CallFailure::new(
        ReturnCode::Transaction,
        "the transaction was not begun, or has ended; begin it with rvm_begin_transaction",
    )
}
