use super::capability::{ASYNC_DIO, HAS_RESEND, PASSTHROUGH};
use super::examples::{NUMBERS, example, request, words};
use super::init::{FuseInit, FuseOptions};
use super::reply::{FuseAttributes, FuseTtl, OpenReply, ReplyBody, reply_header, resend_notice};
use super::request::{FuseOperation, FuseRequest, FuseTime, FuseWrite, NewTime, SetAttributes};
use super::{Fields, capability};

const OPTIONS: FuseOptions = FuseOptions {
    wanted: HAS_RESEND | PASSTHROUGH,
    needed: (ASYNC_DIO, "this kernel's FUSE has no asynchronous direct I/O"),
    background_max: 128,
};

#[test]
fn requests_are_parsed() {
    let write = FuseWrite {
        handle: 9,
        offset: 8192,
        data: b"abc",
        flags: 0o10_001,
        from_cache: false,
        clears_set_ids: true,
    };
    let rename = FuseOperation::Rename {
        name: b"a",
        new_directory: 5,
        new_name: b"b",
        flags: 0,
    };
    let set = SetAttributes {
        mode: Some(0o644),
        bytes: Some(4096),
        accessed: Some(NewTime::Now),
        modified: Some(NewTime::At(FuseTime { s: -2, ns: 7 })),
        ..SetAttributes::default()
    };
    // Mode, size, both times, of which one is now.
    let valid = 1 | 8 | 16 | 32 | 128;
    let times = [1, (-2_i64).cast_unsigned(), 3, 5 | 7 << 32, 0o644 << 32, 0, 0];
    let set_arguments = [words(&[valid, 9, 4096, 0]), words(&times)].concat();
    for (number, arguments, operation) in [
        (1, b"netram-1\0".to_vec(), FuseOperation::Lookup(b"netram-1")),
        (4, set_arguments, FuseOperation::Set(set)),
        (
            16,
            [words(&[9, 8192, 3 | 4 << 32, 0, 0o10_001]), b"abc".to_vec()].concat(),
            FuseOperation::Write(write),
        ),
        (12, [words(&[5]), b"a\0b\0".to_vec()].concat(), rename),
        (
            15,
            words(&[9, 4096, 512, 0, 0]),
            FuseOperation::Read {
                handle: 9,
                offset: 4096,
                bytes: 512,
            },
        ),
        (
            43,
            words(&[9, 4096, 8192, 3]),
            FuseOperation::Allocate {
                handle: 9,
                offset: 4096,
                length: 8192,
                mode: 3,
            },
        ),
    ] {
        let bytes = request(number, &arguments);
        let parsed = FuseRequest::parse(&bytes).expect("the header is complete");
        assert_eq!(parsed.operation, operation);
        assert_eq!((parsed.unique, parsed.node), (7 << 60, 2));
        assert_eq!(
            (parsed.caller.user, parsed.caller.group, parsed.caller.thread),
            (1000, 100, 4711)
        );
        for cut in 0..bytes.len() {
            assert_eq!(FuseRequest::parse(&bytes[..cut]), None, "{number} {cut}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(FuseRequest::parse(&longer), None, "{number}");
    }
}

#[test]
fn several_inodes_are_forgotten_at_once() {
    let several = request(42, &words(&[2, 5, 1, 6, 1]));
    let FuseOperation::ForgetAll(forgotten) = FuseRequest::parse(&several).unwrap().operation else {
        panic!("another operation")
    };
    assert!(forgotten.nodes().eq([5, 6]));
}

/// The length in the header is right, but the arguments end early, at any byte.
#[test]
fn requests_with_too_few_arguments_are_malformed_and_none_panics() {
    let without = [2, 3, 5, 17, 20, 27, 30, 36, 38, 40, 44, 99];
    for number in NUMBERS {
        let bytes = example(number);
        let whole = FuseRequest::parse(&bytes).unwrap().operation;
        assert_ne!(whole, FuseOperation::Malformed, "{number}");
        for length in 0..bytes.len() - 40 {
            let cut = request(number, &bytes[40..][..length]);
            crate::fuzzed::fuse_request(&cut);
            let operation = FuseRequest::parse(&cut).unwrap().operation;
            if length == 0 && !without[..].contains(&number) {
                assert_eq!(operation, FuseOperation::Malformed, "{number}");
            }
        }
        crate::fuzzed::fuse_request(&bytes);
    }
    let odd = [words(&[9, 0, 5, 0, 0]), b"abc".to_vec()].concat();
    let forgets_more = words(&[u64::from(u32::MAX), 5, 1]);
    let late_time = [
        words(&[32, 0, 0, 0, 0, 0, 0]),
        words(&[1_000_000_000 << 32, 0, 0, 0]),
    ]
    .concat();
    for (number, arguments) in [
        (16, odd),
        (42, forgets_more),
        (4, late_time),
        (1, b"name".to_vec()),
        (1, b"na\0me\0".to_vec()),
        (21, [words(&[4]), b"user.a\0abc".to_vec()].concat()),
    ] {
        let bytes = request(number, &arguments);
        let parsed = FuseRequest::parse(&bytes).unwrap();
        assert_eq!(parsed.operation, FuseOperation::Malformed, "{number}");
    }
}

#[test]
fn only_capabilities_of_both_sides_are_negotiated() {
    let init = |minor, capabilities| FuseInit {
        major: 7,
        minor,
        readahead: 1 << 17,
        capabilities,
    };
    let mut body = ReplyBody::default();
    let newest = init(45, u64::MAX).agree(&OPTIONS, 1 << 20, &mut body).unwrap();
    assert!(newest.can_be_taken_over());
    assert!(!newest.has(capability::CACHE_SYMLINKS), "it was not asked for");
    let word = |at: usize| u32::from_ne_bytes(body.filled()[at..][..4].try_into().unwrap());
    assert_eq!(body.filled().len(), 64);
    assert_eq!([word(0), word(4), word(8)], [7, 40, 1 << 17]);
    assert_eq!(word(16), 128 | 96 << 16, "requests without a waiting thread");
    assert_eq!(word(20), 1 << 20);
    assert_eq!(word(28), 256, "pages of a request");
    assert_eq!(word(36), 1, "depth of stacked file systems");
    let mut agree = |init: FuseInit| init.agree(&OPTIONS, 1 << 20, &mut body);
    assert!(!agree(init(38, !HAS_RESEND)).unwrap().can_be_taken_over());
    assert!(agree(init(27, u64::MAX)).is_err());
    assert!(agree(init(38, !ASYNC_DIO)).is_err());
    let old = Fields(&[7, 0, 0, 0, 31, 0, 0, 0, 0, 0, 2, 0, 0, 128, 0, 0]);
    assert_eq!(FuseInit::parse(old).unwrap().capabilities, ASYNC_DIO);
}

#[test]
fn an_error_is_sent_as_a_negative_number_and_a_notice_as_a_positive_one() {
    let header = reply_header(5, 28, 0);
    assert_eq!(i32::from_ne_bytes(header[4..8].try_into().unwrap()), -28);
    assert_eq!(header[..4], 16u32.to_ne_bytes());
    assert_eq!(resend_notice()[4..8], 7_i32.to_ne_bytes());
}

#[test]
fn replies_have_the_sizes_of_the_kernels_structures_and_a_body_is_used_again() {
    let attributes = FuseAttributes {
        node: 2,
        bytes: 1,
        units: 8,
        accessed: FuseTime { s: -2, ns: 1 },
        modified: FuseTime { s: 3, ns: 2 },
        changed: FuseTime { s: 4, ns: 3 },
        mode: 0o100_600,
        links: 1,
        user: 5,
        group: 6,
        block_bytes: 4096,
    };
    let ttl = FuseTtl {
        name_s: 1,
        attributes_s: 2,
    };
    let mut body = ReplyBody::default();
    body.attributes(&attributes, ttl);
    assert_eq!(body.filled().len(), 104);
    body.clear();
    body.entry(&attributes, ttl).opened(OpenReply::default());
    assert_eq!(body.filled().len(), 128 + 16);
    assert_eq!(body.filled()[40 + 24..][..8], (-2_i64).to_ne_bytes());
    body.clear();
    body.space(&super::reply::FuseSpace::default());
    assert_eq!(body.filled().len(), 80);
    body.clear();
    // An entry takes 24 bytes and its name, in units of eight.
    assert!(body.directory_entry(64, 7, 1, 0o040_000, b"directory"));
    assert_eq!(body.filled().len(), 40);
    assert_eq!(body.filled()[20..24], 4_u32.to_ne_bytes(), "a directory's type");
    assert!(!body.directory_entry(64, 8, 2, 0o100_000, b"a"));
    assert!(body.directory_entry(72, 8, 2, 0o100_000, b"a"));
    body.clear();
    let before = body.room(100_000).as_ptr();
    body.take(100_000);
    body.clear();
    assert_eq!(body.room(100_000).as_ptr(), before);
    body.take(3);
    assert_eq!(body.filled().len(), 3);
}
