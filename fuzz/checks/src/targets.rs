//! The list of targets.

/// Source of a target's bytes, which determines how long it is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// A stranger that can connect, or a lying peer: at least 10^8 executions.
    Stranger,
    /// A machine that a stranger talks to.
    Machine,
    /// A disk, a kernel, or an author of settings.
    Disk,
}

/// A fuzz target.
pub struct FuzzTarget {
    /// Name of the program in `fuzz/` and of the directory of cases.
    pub name: &'static str,
    /// Source of its bytes.
    pub whose: InputSource,
    /// Longest useful input in bytes.
    pub bytes_max: usize,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// Valid inputs to begin with, as encoders make them.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The target of this name.
pub fn target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Defines [`TARGETS`], and a function for each program, which must not be linked to all others.
macro_rules! targets {
    ($($whose:ident $name:ident($bytes_max:literal): $run:path, $seeds:path;)*) => {
        /// All targets.
        pub const TARGETS: &[FuzzTarget] = &[$(FuzzTarget {
            name: stringify!($name),
            whose: InputSource::$whose,
            bytes_max: $bytes_max,
            run: $run,
            seeds: $seeds,
        }),*];

        /// Functions that the programs in `fuzz/fuzz_targets` call.
        pub mod programs {
            $(
                /// One program.
                pub mod $name {
                    /// Runs one input.
                    pub fn run(bytes: &[u8]) {
                        $run(bytes);
                    }

                    /// Writes the target's seeds, if the environment names a directory.
                    pub fn begin() {
                        crate::seeds::write($seeds, $bytes_max, super::super::InputSource::$whose);
                    }
                }
            )*
        }
    };
}

targets! {
    Stranger preamble(16): netram_transport::fuzzed::preamble, netram_transport::fuzzed::preamble_seeds;
    Stranger frame(256): crate::frames::frame, crate::frames::frame_seeds;
    Stranger datagram(128): crate::multicast::datagram, crate::multicast::datagram_seeds;
    Stranger replica_bodies(512): crate::replica::bodies, crate::replica::bodies_seeds;
    Stranger to_server(512): crate::region::to_server, crate::region::to_server_seeds;
    Stranger to_node(512): crate::region::to_node, crate::region::to_node_seeds;
    Stranger to_peer(256): crate::region::to_peer, crate::region::to_peer_seeds;
    Stranger stamp(128): crate::region::stamp, crate::region::stamp_seeds;
    Stranger deposit_pages(256): crate::deposit::pages, crate::deposit::pages_seeds;
    Stranger nbd_handshake(256): crate::nbd::handshake, crate::nbd::handshake_seeds;
    Stranger nbd_request(33): crate::nbd::request, crate::nbd::request_seeds;
    Stranger log_bytes(256): crate::frames::log_bytes, crate::frames::log_seeds;
    Stranger view(512): crate::journal::view, crate::journal::view_seeds;
    Stranger report(2048): crate::formats::report, crate::formats::report_seeds;
    Stranger dns_answer(512): netram_discover::fuzzed::dns_answer, netram_discover::fuzzed::dns_seeds;
    Machine handshake(96): netram_transport::fuzzed::handshake, netram_transport::fuzzed::handshake_seeds;
    Machine packets(256): netram_transport::fuzzed::packets, netram_transport::fuzzed::packets_seeds;
    Machine member(512): crate::member::member, crate::member::member_seeds;
    Machine recovery(512): crate::recovery::recovery, crate::recovery::recovery_seeds;
    Machine writer(512): crate::multicast::writer, crate::multicast::writer_seeds;
    Machine gather(256): crate::multicast::gather, crate::multicast::gather_seeds;
    Machine replica_session(512): crate::replica::session, crate::replica::session_seeds;
    Machine region_server(512): crate::region::server, crate::region::server_seeds;
    Machine region_node(512): crate::region::node, crate::region::node_seeds;
    Machine holder(512): crate::deposit::holder, crate::deposit::holder_seeds;
    Machine owner(512): crate::deposit::owner, crate::deposit::owner_seeds;
    Machine nbd_session(1024): crate::nbd::session, crate::nbd::session_seeds;
    Machine ups_watch(512): netram_ups::fuzzed::watch, netram_ups::fuzzed::watch_seeds;
    Disk slots(600): crate::journal::slots, crate::journal::slots_seeds;
    Disk journal_log(256): crate::journal::log, crate::journal::log_seeds;
    Disk lender_slot(129): netram_lender::fuzzed::slot, netram_lender::fuzzed::slot_seeds;
    Disk lender_superblock(73): netram_lender::fuzzed::superblock, netram_lender::fuzzed::superblock_seeds;
    Disk segment_table(1024): netram_rvm::fuzzed::table, netram_rvm::fuzzed::table_seeds;
    Disk segment_stamp(321): netram_rvm::fuzzed::stamp, netram_rvm::fuzzed::stamp_seeds;
    Disk transaction(256): crate::formats::transaction, crate::formats::transaction_seeds;
    Disk volume_superblock(80): netram_block::fuzzed::superblock, netram_block::fuzzed::superblock_seeds;
    Disk volume_change(600): netram_block::fuzzed::change, netram_block::fuzzed::change_seeds;
    Disk catalog(256): crate::formats::catalog, crate::formats::catalog_seeds;
    Disk file_change(128): crate::formats::file_change, netram_files::fuzzed::change_seeds;
    Disk party_change(64): crate::formats::party_change, crate::formats::database_seeds;
    Disk heap(512): crate::formats::heap, crate::formats::heap_seeds;
    Disk loader_header(512): crate::formats::loader_header, crate::formats::loader_seeds;
    Disk settings(512): crate::formats::settings, crate::formats::settings_seeds;
    Disk cluster_file(512): netram_discover::fuzzed::cluster_file, netram_discover::fuzzed::cluster_seeds;
    Disk words(128): crate::formats::words, crate::formats::words_seeds;
    Disk fuse_request(640): netram_fuse::fuzzed::fuse_request, netram_fuse::fuzzed::fuse_seeds;
    Disk ublk_request(24): netram_attach::fuzzed::ublk_request, netram_attach::fuzzed::ublk_seeds;
}
