//! A server over a real socket, and a guest's driver with queues in shared memory. `make guest` boots a real
//! guest under QEMU with such a disk.

mod driver;
mod hostile;
mod requests;
mod takeover;

use std::path::Path;
use std::sync::Arc;

use netram_block::BlockDevice;
use netram_vhost::{VhostServer, VhostServerConfig};

const MIB: u64 = 1 << 20;

/// A server of `device` whose socket is `disk` in `directory`.
fn serve<D: BlockDevice + 'static>(directory: &Path, device: &Arc<D>, read_only: bool) -> VhostServer {
    let device: Arc<dyn BlockDevice> = Arc::<D>::clone(device);
    VhostServer::start(VhostServerConfig {
        socket: directory.join("disk"),
        device,
        name: "a-name-of-more-than-twenty-bytes".to_owned(),
        read_only,
        other_users: false,
    })
    .unwrap()
}
