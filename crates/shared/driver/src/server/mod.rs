//! The server's side.
//!
//! | module | does |
//! |---|---|
//! | [`spans`] | which lock covers which bytes, checked; whether a record stays inside what it wrote under |
//! | [`table`] | what the server must know after a crash beside the region's bytes, and how that lies in a segment |
//! | [`offline`] | merging what nodes left in their directories, without a server |
//! | [`rescue`] | a region made again of copies that nodes saved |
//! | [`serve`] | serving: the machine, the store, the door and the links |
//! | [`store`] | region and table in one log: merging records, nodes, what is kept, pages |

pub mod offline;
pub mod rescue;
pub mod serve;
pub mod spans;
pub mod store;
pub mod table;

pub use offline::{OfflineError, OrphanMerge, merge_orphans};
pub use rescue::{RescueError, RescueReport, rescue};
pub use serve::{RegionServeError, ServeConfig, ServerReport, ServingRegion};
pub use spans::{Span, SpanError, Spans};
pub use store::{
    DurableRecord, LOG_BYTES_DEFAULT, MergeError, MergeReceipt, NewNode, PageRun, PayloadError, RecentRecord,
    RecordLimitError, RegionCreateError, RegionPlan, RegionStore, RegionStoreError, StoreOpenError,
    VerifiedRecord,
};
pub use table::{
    GoneEntry, NodeEntry, NodeEntryState, RegionCounters, RegionTable, RegionTableError, TableFault,
};
