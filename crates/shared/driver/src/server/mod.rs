//! The server of a region.
//!
//! | module | purpose |
//! |---|---|
//! | [`spans`] | the bytes that each lock covers; checks whether a record stays inside the locks it wrote |
//! | [`table`] | the server's durable state besides the region's bytes, and its layout in a segment |
//! | [`offline`] | merging journals from nodes' directories, without a server |
//! | [`mod@rescue`] | rescuing a region from copies that nodes saved |
//! | [`serve`] | serving: the machine, the store, the acceptor and the links |
//! | [`store`] | region and table in one log: merging records, nodes, durability, pages |

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
