//! Formats of disks, settings and reports.

use std::path::Path;

use netram_files::{Catalog, DirectoryChange as FileChange};
use netram_lender::StatusReport;
use netram_proto::port::RecordKind;
use netram_proto::wire::crc32c;
use netram_rvm::record;
use netram_shared::server::spans::Spans;
use netram_sqlite_machine::DatabaseChange as PartyChange;
use netram_sqlite_machine::{FileOp, FileRole};
use netram_store::StoreSettings;
use netram_store::loader;
use netram_transport::{ClusterKey, MulticastGroup, NetAddress, WaitPolicy};

use crate::input::FuzzInput;

const PAGE: usize = 4096;

/// A mount's catalog, with a valid checksum if the first byte is odd. It must be re-encoded as it was.
pub fn catalog(bytes: &[u8]) {
    let Some((mend, bytes)) = bytes.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if mend & 1 != 0 {
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    if let Ok(catalog) = Catalog::decode(&bytes) {
        let encoded = catalog.encode();
        let again = Catalog::decode(&encoded).expect("what was read is read again");
        assert_eq!(again.encode(), encoded);
        assert_eq!((again.journal, again.lsn), (catalog.journal, catalog.lsn));
    }
}

pub(crate) fn catalog_seeds() -> Vec<Vec<u8>> {
    let encoded = netram_files::fuzzed::a_catalog().encode();
    let bare = &encoded[..encoded.len() - 4];
    vec![[&[1], bare].concat(), [&[0], &encoded[..]].concat()]
}

/// A mount's record, after a byte with its kind.
pub fn file_change(bytes: &[u8]) {
    let Some((kind, payload)) = bytes.split_first() else {
        return;
    };
    if let Ok(Some((change, request))) = FileChange::decode(RecordKind(*kind), payload) {
        netram_files::fuzzed::check(&change, request, payload);
    }
}

/// A database's record, after a byte with its kind. It must have only one encoding.
pub fn party_change(bytes: &[u8]) {
    let Some((kind, payload)) = bytes.split_first() else {
        return;
    };
    if let Ok(Some(change)) = PartyChange::decode(RecordKind(*kind), payload) {
        let mut again = vec![0; change.payload_bytes()];
        change.encode(&mut again);
        assert_eq!(again, payload, "a record has one form");
        assert_eq!(change.kind(), RecordKind(*kind));
    }
}

pub(crate) fn database_seeds() -> Vec<Vec<u8>> {
    let deeds = [
        FileOp::Write {
            offset: 4096,
            bytes: b"a page",
        },
        FileOp::Resize { size: 8192 },
        FileOp::Remove,
    ];
    let one = |deed| {
        let change = PartyChange {
            number: 77,
            role: FileRole::Wal,
            op: deed,
        };
        let mut payload = vec![0; change.payload_bytes()];
        change.encode(&mut payload);
        [&[change.kind().0], &payload[..]].concat()
    };
    deeds.map(one).to_vec()
}

/// A transaction's record, after a byte with its kind. Walking its ranges must agree with their count, and
/// the compact form must be the only one.
pub fn transaction(bytes: &[u8]) {
    let Some((kind, payload)) = bytes.split_first() else {
        return;
    };
    let Ok(changes) = record::decode(RecordKind(*kind), payload) else {
        return;
    };
    let ranges: Vec<_> = changes.ranges().collect();
    for range in &ranges {
        assert!(range.end() >= range.offset && range.bytes.len() <= payload.len());
    }
    if RecordKind(*kind) == record::KIND_COMPACT {
        assert_eq!(record::encode(changes.preamble(), &ranges), payload);
    }
}

pub(crate) fn transaction_seeds() -> Vec<Vec<u8>> {
    let range = |segment, offset, bytes| netram_rvm::RangeView {
        segment,
        offset,
        bytes,
    };
    let ranges = [
        range(0, 8, &[1; 8][..]),
        range(0, 100_000, &[2; 90]),
        range(3, 1 << 40, &[3; 5]),
    ];
    let compact = record::encode(b"preamble", &ranges);
    let mut wide = 1_u32.to_le_bytes().to_vec();
    wide.extend_from_slice(&[0; 4]);
    wide.extend_from_slice(&3_u32.to_le_bytes());
    wide.extend_from_slice(&4_u32.to_le_bytes());
    wide.extend_from_slice(&64_u64.to_le_bytes());
    wide.extend_from_slice(&[7; 8]);
    vec![
        [&[record::KIND_COMPACT.0], &compact[..]].concat(),
        [&[record::KIND_TRANSACTION.0], &wide[..]].concat(),
    ]
}

/// A heap in a damaged segment: a valid header, and arbitrary bytes behind it. Every block found must be in
/// the heap, and none inside another.
pub fn heap(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let pages = 4 + usize::from(input.u8() % 16);
    let length = pages * PAGE;
    let mut heap = vec![0; length];
    heap[..8].copy_from_slice(b"NRAMHEAP");
    heap[8..12].copy_from_slice(&1_u32.to_le_bytes());
    heap[12..16].copy_from_slice(&(PAGE as u32).to_le_bytes());
    heap[16..24].copy_from_slice(&(length as u64).to_le_bytes());
    heap[24..32].copy_from_slice(&2_u64.to_le_bytes());
    let raw = input.u8();
    while !input.is_over() {
        let place = match raw & 1 {
            // A descriptor gets a valid checksum.
            0 => {
                let page = u32::from(input.u8());
                let descriptor =
                    netram_heap::fuzzed::descriptor(page, u32::from(input.u8()), input.u8(), input.u8());
                write(&mut heap, PAGE + page as usize * 8, &descriptor);
                usize::from(input.u8()) * PAGE
            }
            _ => usize::from(input.u16()) * 8,
        };
        write(&mut heap, place, input.bytes());
    }
    let crc = crc32c(&heap[..32]);
    heap[32..36].copy_from_slice(&crc.to_le_bytes());
    let Ok(report) = netram_heap::inspect(&heap) else {
        return;
    };
    let mut end = 0;
    for (begin, bytes) in &report.blocks {
        assert!(*begin >= end, "no two blocks overlap");
        end = begin + bytes;
    }
    assert!(end <= heap.len() as u64);
    for (begin, bytes) in &report.free {
        assert!(begin + bytes <= heap.len() as u64);
    }
}

fn write(heap: &mut [u8], at: usize, bytes: &[u8]) {
    for (into, byte) in heap.iter_mut().skip(at).zip(bytes) {
        *into = *byte;
    }
}

pub(crate) fn heap_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![8, 0, 2, 3, 0, b'E', 0, 0, 5, 1, 0, b'E', 0, 0],
        vec![
            8, 0, 2, 1, 3, b'R', 2, 16, b'N', b'R', b'U', b'N', 2, 0, 0, 0, 3, 0, 9, 0, 1, 2, 3, 4,
        ],
        vec![0, 1, 64, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8],
    ]
}

/// A segment's first page, as its loader writes it.
pub fn loader_header(bytes: &[u8]) {
    let mut header = [0; loader::HEADER_BYTES];
    write(&mut header, 0, bytes);
    let Ok(mut definitions) = loader::decode(&header) else {
        return;
    };
    assert!(!definitions.is_empty());
    let again = loader::encode(&definitions);
    assert_eq!(loader::decode(&again).as_ref(), Ok(&definitions));
    loader::sort(&mut definitions);
}

pub(crate) fn loader_seeds() -> Vec<Vec<u8>> {
    let one = |address: usize| loader::RegionDefinition {
        offset: 0,
        length: 2 * PAGE,
        address,
    };
    let mut definitions = [one(1 << 30), one(1 << 31)];
    let laid_out = loader::lay_out(&mut definitions);
    assert!(laid_out.is_ok());
    vec![loader::encode(&definitions)[..512].to_vec()]
}

/// Settings from a file and from the environment.
pub fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let parsed = StoreSettings::parse(text, Path::new("/etc/netram/netram.toml"));
    let parsed = parsed.map_err(|error| assert!(!error.to_string().is_empty()));
    let Ok(settings) = parsed else {
        return;
    };
    let told =
        settings.with_environment(&|name| text.len().is_multiple_of(2).then(|| format!("{name} {text}")));
    let _ = told.map_err(|error| assert!(!error.to_string().is_empty()));
}

pub(crate) fn settings_seeds() -> Vec<Vec<u8>> {
    let all = "[journal]\nlenders = [\"tcp://a:7411\", \"unix:/run/b\"]\nkey-file = \"key\"\nmembers = 2\nmembers-min = 1\nrule = \"all\"\n\
               domain = \"rack 1\"\none-domain = true\nwait = \"yield:50\"\nwindow = \"64MiB\"\npatience = \"10s\"\n\
               [rvm]\ntruncation-threshold = 50\nspool = \"1MiB\"\n";
    let multicast =
        "[journal]\nmulticast = \"239.1.2.3:7411\"\ndatagram = 1400\nttl = 1\nrule = 2\ninsecure = true\n";
    vec![
        all.into(),
        multicast.into(),
        b"insecure = true # a remark".to_vec(),
    ]
}

/// Words of settings and commands: addresses, keys, groups, wait policies, spans of locks. Each that is
/// parsed must be parsed again as it is printed.
pub fn words(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(address) = text.parse::<NetAddress>() {
        assert_eq!(address.to_string().parse::<NetAddress>().as_ref(), Ok(&address));
    }
    if let Ok(group) = text.parse::<MulticastGroup>() {
        assert_eq!(group.to_string().parse::<MulticastGroup>().ok(), Some(group));
    }
    if let Ok(policy) = text.parse::<WaitPolicy>() {
        assert_eq!(policy.to_string().parse::<WaitPolicy>().ok(), Some(policy));
    }
    let _ = text.parse::<ClusterKey>();
    if let Ok(spans) = Spans::parse(1 << 20, text) {
        assert!(spans.iter().all(|span| span.end() <= 1 << 20));
    }
}

pub(crate) fn words_seeds() -> Vec<Vec<u8>> {
    let words = [
        "tcp://lender:7411",
        "tcp://[::1]:7411",
        "unix:/run/netram/lender",
        "239.1.2.3:7411",
        "yield:50",
        "# spans\n0 0 64\n1 64 0x40\n",
    ];
    words.map(|word| word.as_bytes().to_vec()).to_vec()
}

/// A lender's status, which must be decoded as it was encoded.
pub fn report(bytes: &[u8]) {
    if let Ok(report) = StatusReport::from_frame_body(bytes) {
        let (name, journals) = (report.name.clone(), report.journals.len());
        let again = StatusReport::from_frame_body(&report.to_frame_body()).expect("a status is read");
        assert!(again.journals.len() <= journals);
        assert_eq!(again.name, name);
    }
}

pub(crate) fn report_seeds() -> Vec<Vec<u8>> {
    vec![StatusReport::default().to_frame_body()]
}
