//! Names of volumes.

use std::fmt;

use ring::digest::{SHA256, digest};

/// Maximum bytes of a name, as of an attached device's name.
const BYTES_MAX: usize = 64;
/// Bytes of a long name's digest that stand for it.
const DIGEST_BYTES: usize = 20;

/// Name of a volume: of its directory, and of its device. It has no slash and no leading dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct VolumeId(String);

impl VolumeId {
    /// Returns the id in a request; `None` if it can be no volume's.
    pub(crate) fn parse(text: &str) -> Option<VolumeId> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_name =
            (1..=BYTES_MAX).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with(['.', '-']);
        is_name.then(|| VolumeId(text.to_owned()))
    }

    /// Returns the id of the volume with that name: the name, or a digest of it if it cannot name a file.
    pub(crate) fn of_name(name: &str) -> VolumeId {
        VolumeId::parse(name).unwrap_or_else(|| {
            let found = digest(&SHA256, name.as_bytes());
            let hex = found.as_ref().iter().take(DIGEST_BYTES);
            VolumeId(format!(
                "v{}",
                hex.map(|byte| format!("{byte:02x}")).collect::<String>()
            ))
        })
    }

    /// Returns the id as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_within_its_directory() {
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "-f",
            ".hidden",
            &"x".repeat(65),
            "a b",
            "ä",
        ] {
            assert_eq!(VolumeId::parse(bad), None, "{bad}");
        }
        assert_eq!(VolumeId::of_name("pvc-1").as_str(), "pvc-1");
    }

    #[test]
    fn long_names_have_ids_of_their_own() {
        let (one, other) = ("x".repeat(128), "y".repeat(128));
        let id = VolumeId::of_name(&one);
        assert_eq!(id, VolumeId::of_name(&one));
        assert_ne!(id, VolumeId::of_name(&other));
        assert_eq!(VolumeId::parse(id.as_str()), Some(id));
    }
}
