//! How the kernel reaches a served volume.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{nbd_device, ublk};

/// Method by which the kernel reaches a served volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMethod {
    /// The kernel's ublk driver. Needs two context switches per request fewer than FUSE, and another server
    /// can take over.
    Ublk,
    /// The kernel's own NBD client. Needs one context switch per request fewer than FUSE, and another server
    /// can take over.
    Nbd,
    /// A FUSE file with a loop device on it. Nearly every kernel supports it.
    Fuse,
}

impl AttachMethod {
    /// The best method that this kernel has ready. Drivers that are not loaded are ignored.
    pub fn best() -> AttachMethod {
        if ublk::is_available() {
            AttachMethod::Ublk
        } else if nbd_device::is_available() {
            AttachMethod::Nbd
        } else {
            AttachMethod::Fuse
        }
    }

    /// Name of the method in records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AttachMethod::Ublk => "ublk",
            AttachMethod::Nbd => "nbd",
            AttachMethod::Fuse => "fuse+loop",
        }
    }
}

impl fmt::Display for AttachMethod {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            AttachMethod::Ublk => "ublk",
            AttachMethod::Nbd => "nbd",
            AttachMethod::Fuse => "fuse",
        })
    }
}

impl FromStr for AttachMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<AttachMethod, String> {
        match text {
            "ublk" => Ok(AttachMethod::Ublk),
            "nbd" => Ok(AttachMethod::Nbd),
            "fuse" => Ok(AttachMethod::Fuse),
            _ => Err(format!(
                "`{text}` is not an attach method: use `ublk`, `nbd` or `fuse`"
            )),
        }
    }
}
