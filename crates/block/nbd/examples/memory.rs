//! Serves a memory device: the baseline for measurements of volumes, and a server for trying out clients.
//!
//! `cargo run --release -p netram-nbd --example memory -- unix:/tmp/nbd 64` serves 64 MiB until its standard
//! input ends.

use std::io::Read;
use std::sync::Arc;

use netram_nbd::{MemoryDevice, NbdExport, NbdServer, NbdServerConfig, TlsMode};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(mebibytes)) = (arguments.next(), arguments.next()) else {
        return Err("give an address and a number of MiB: memory unix:/tmp/nbd 64".into());
    };
    let bytes = mebibytes.parse::<u32>()?;
    let server = NbdServer::start(NbdServerConfig {
        listen: vec![address.parse()?],
        exports: vec![NbdExport {
            name: "memory".into(),
            description: "memory only, not durable".into(),
            device: Arc::new(MemoryDevice::new(u64::from(bytes) << 20)),
            read_only: false,
        }],
        tls: TlsMode::Off,
        insecure: false,
        other_users: false,
    })?;
    eprintln!("serving {} until standard input ends", server.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    eprintln!("{:?}", server.stats());
    server.stop();
    Ok(())
}
