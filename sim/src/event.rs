//! Events of the world in which a client journals, and the messages that they carry.

use netram_proto::journal::{ServerAck, View};
use netram_proto::spill::SpillRun;
use netram_proto::wire::ChainPoint;

use crate::silent_window::WindowStep;

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameDirection {
    /// To the lender.
    Up,
    /// To the client.
    Down,
}

/// A frame on its way over a connection.
#[derive(Debug)]
pub(crate) struct FrameInFlight {
    pub(crate) conn: usize,
    pub(crate) way: FrameDirection,
    /// Number of the frame on its lane.
    pub(crate) number: u64,
    pub(crate) packet: Vec<u8>,
}

/// A node's message to its server.
#[derive(Clone, Debug)]
pub(crate) enum NodeMessage {
    /// The journal's view that is to count.
    View(Box<View>),
    /// The end of the appended records; the bytes themselves are left out.
    Tail(ChainPoint),
}

/// An event of the world.
#[derive(Debug)]
pub(crate) enum WorldEvent {
    Frame(FrameInFlight),
    /// A multicast append arrives at one listener.
    Datagram {
        conn: usize,
        channel: u32,
        packet: Vec<u8>,
    },
    Connected {
        conn: usize,
    },
    Closed {
        conn: usize,
    },
    Tick {
        process: usize,
    },
    /// The log's writer finished writing; its sync ends now.
    Flushed {
        process: usize,
    },
    /// The view's writer reaches its write and sync.
    ViewStored {
        process: usize,
    },
    LenderUp {
        lender: usize,
    },
    LenderStops {
        lender: usize,
    },
    LenderRoomBack {
        lender: usize,
    },
    /// A lender whose process has ended reaches the next step of writing its memory to its disk.
    SpillStep {
        lender: usize,
        run: SpillRun,
    },
    /// A step of a lender's disk, for the window of a silent client.
    WindowStep {
        lender: usize,
        boot: u32,
        step: WindowStep,
    },
    /// The operator of a lender gives its clients back what they may have.
    ClientsGranted {
        lender: usize,
    },
    Nemesis,
    /// A program that runs beside the scenario's, a second writer, runs one step.
    Busy {
        process: usize,
    },
    /// The client's connection to its data lender is up, or the data lender could not be reached.
    DataConnected {
        process: usize,
        session: u64,
    },
    /// A frame arrives at the data lender.
    DataUp {
        process: usize,
        session: u64,
        packet: Vec<u8>,
    },
    /// A frame arrives from the data lender.
    DataDown {
        process: usize,
        session: u64,
        packet: Vec<u8>,
    },
    /// The connection to the data lender is gone.
    DataLost {
        process: usize,
        session: u64,
    },
    /// A sync of the data lender's log ends.
    DataFlushed,
    /// The data lender's process is started.
    DataStarts,
    /// A node's message arrives at its server.
    ServerMessage {
        process: usize,
        boot: u32,
        word: NodeMessage,
    },
    /// The server's disk has stored the message.
    ServerStores {
        process: usize,
        boot: u32,
        word: NodeMessage,
    },
    /// The server is started again.
    ServerStarts,
    /// A node hears how much of its journal its server keeps.
    ServerAck {
        process: usize,
        said: ServerAck,
    },
    /// A node hears that it was given up.
    NodeFenced {
        process: usize,
    },
    /// No action: the world runs until this time.
    Mark,
}
