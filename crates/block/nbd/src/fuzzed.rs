//! Entry point of the fuzz target `fuzz/checks`: a connection as bytes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::config::{NbdExport, TlsMode};
use crate::connection::serve;
use crate::memory::MemoryDevice;
use crate::server::NbdServerState;

/// Bytes of the export: one block, so that the replies to any fuzzer input fit in the socket's buffer.
pub const EXPORT_BYTES: u64 = 4096;

/// Serves a client that sends these bytes and no more. Returns the bytes that it would have received.
pub fn serve_bytes(bytes: &[u8]) -> Vec<u8> {
    let export = |name: &str, read_only| NbdExport {
        name: name.into(),
        description: String::new(),
        device: Arc::new(MemoryDevice::new(EXPORT_BYTES)),
        read_only,
    };
    let shared = NbdServerState::new(vec![export("first", false), export("second", true)], TlsMode::Off);
    let (server, mut client) = UnixStream::pair().expect("a pair of sockets");
    client.set_nonblocking(true).expect("a socket's flag");
    client
        .write_all(bytes)
        .expect("what a fuzzer sends fits the socket's buffer");
    client.shutdown(Shutdown::Write).expect("a socket's end");
    serve(&shared, Arc::new(server.into()), "fuzzer", |_| true);
    let mut answer = Vec::new();
    client
        .read_to_end(&mut answer)
        .expect("the server has closed its end");
    answer
}
