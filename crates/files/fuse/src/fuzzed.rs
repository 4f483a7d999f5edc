//! Entry points of the fuzz target `fuzz/checks`: bytes that a descriptor which should be the kernel's gives.

use crate::wire::capability::{ASYNC_DIO, HAS_RESEND, PASSTHROUGH};
use crate::wire::init::FuseOptions;
use crate::wire::reply::ReplyBody;
use crate::wire::request::{FuseOperation, FuseRequest};
use crate::wire::{HEADER_BYTES, examples};

/// Checks a request of the kernel: its parts lie inside the request.
pub fn fuse_request(bytes: &[u8]) {
    let Some(request) = FuseRequest::parse(bytes) else {
        return;
    };
    let arguments = bytes.len() - HEADER_BYTES;
    let texts = |texts: &[&[u8]], fixed: usize| {
        let length: usize = texts.iter().map(|text| text.len() + 1).sum();
        assert!(length + fixed <= arguments);
        assert!(texts.iter().all(|text| !text.contains(&0)));
    };
    match request.operation {
        FuseOperation::Lookup(name) | FuseOperation::Unlink(name) => texts(&[name], 0),
        FuseOperation::RemoveDirectory(name) | FuseOperation::RemoveXattr(name) => texts(&[name], 0),
        FuseOperation::Symlink { name, target } => texts(&[name, target], 0),
        FuseOperation::MakeNode { name, .. } | FuseOperation::Create { name, .. } => texts(&[name], 16),
        FuseOperation::MakeDirectory { name, .. } | FuseOperation::Xattr { name, .. } => texts(&[name], 8),
        FuseOperation::Link { name, .. } => texts(&[name], 8),
        FuseOperation::Rename { name, new_name, .. } => texts(&[name, new_name], 8),
        FuseOperation::Write(write) => assert_eq!(write.data.len() + 40, arguments),
        FuseOperation::SetXattr { name, value, .. } => {
            texts(&[name], 8);
            assert_eq!(name.len() + 1 + value.len() + 8, arguments);
        }
        FuseOperation::ForgetAll(forgotten) => assert!(forgotten.nodes().count() * 16 + 8 <= arguments),
        FuseOperation::Init(init) => {
            let options = FuseOptions {
                wanted: HAS_RESEND | PASSTHROUGH,
                needed: (ASYNC_DIO, "needed"),
                background_max: 64,
            };
            let mut body = ReplyBody::default();
            if let Ok(agreed) = init.agree(&options, 1 << 20, &mut body) {
                assert_eq!(body.filled().len(), 64);
                assert!(agreed.has(ASYNC_DIO));
            }
        }
        _ => (),
    }
}

/// Seeds for [`fuse_request`]: one request of each kind.
pub fn fuse_seeds() -> Vec<Vec<u8>> {
    examples::NUMBERS.map(examples::example).to_vec()
}
