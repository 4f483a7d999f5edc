//! A gRPC client for one call at a time, enough for etcd: HTTP/2 without TLS, headers sent uncompressed,
//! answers judged by their data. A failed call has no data, only trailers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::error::{BenchError, ErrorContext};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest frame of an answer, HTTP/2's default.
const FRAME_BYTES_MAX: usize = 16 << 10;
/// Bytes that a server may send on the connection without further permission.
const WINDOW_BYTES: u32 = 0x7fff_0000;
/// Bytes before a message: whether it is compressed, and its length.
const MESSAGE_HEADER_BYTES: usize = 5;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection.
pub(crate) struct GrpcClient {
    stream: TcpStream,
    /// Id of the next call's stream; a client's are odd.
    next: u32,
    out: Vec<u8>,
}

impl GrpcClient {
    /// Greets a server over a new connection.
    pub(crate) fn new(stream: TcpStream) -> Result<GrpcClient, BenchError> {
        let what = "greet a gRPC server";
        stream.set_nodelay(true).context(what)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context(what)?;
        let mut client = GrpcClient {
            stream,
            next: 1,
            out: PREFACE.to_vec(),
        };
        client.add_frame(SETTINGS, 0, 0, &[]);
        client.add_frame(WINDOW_UPDATE, 0, 0, &WINDOW_BYTES.to_be_bytes());
        client.send()?;
        Ok(client)
    }

    /// Calls a method; returns its answer's bytes.
    pub(crate) fn call(&mut self, method: &str, message: &[u8]) -> Result<Vec<u8>, BenchError> {
        let id = self.next;
        self.next += 2;
        // Indices of HTTP/2's static table: POST, http, then `:path` and `:authority` with values.
        let mut headers = vec![0x83, 0x86, 0x04];
        add_text(&mut headers, method);
        headers.push(0x01);
        add_text(&mut headers, "localhost");
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            headers.push(0);
            add_text(&mut headers, name);
            add_text(&mut headers, value);
        }
        self.add_frame(HEADERS, END_HEADERS, id, &headers);
        let mut data = vec![0];
        data.extend((message.len() as u32).to_be_bytes());
        data.extend_from_slice(message);
        self.add_frame(DATA, END_STREAM, id, &data);
        self.send()?;
        let mut answer = Vec::new();
        loop {
            let (kind, flags, stream, payload) = self.frame()?;
            match kind {
                SETTINGS if flags & ACK == 0 => self.answer(SETTINGS, &[])?,
                PING if flags & ACK == 0 => self.answer(PING, &payload)?,
                // A server that answered before it had read that the request ends says so behind its answer,
                // perhaps during the next call. Its code is zero: no error.
                RST_STREAM if stream != id || payload == [0; 4] => (),
                RST_STREAM => return Err(failed(&format!("{method}, {payload:?}"))),
                // The last stream, a code, and words.
                GOAWAY => {
                    let why = String::from_utf8_lossy(payload.get(8..).unwrap_or_default());
                    return Err(failed(&format!("{method}: {why}")));
                }
                DATA if stream == id => answer.extend(payload),
                _ => (),
            }
            let ends = matches!(kind, DATA | HEADERS) && stream == id && flags & END_STREAM != 0;
            if ends {
                return match answer.len() > MESSAGE_HEADER_BYTES {
                    true => Ok(answer.split_off(MESSAGE_HEADER_BYTES)),
                    false => Err(failed(method)),
                };
            }
        }
    }

    fn add_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.out.extend(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend([kind, flags]);
        self.out.extend(stream.to_be_bytes());
        self.out.extend_from_slice(payload);
    }

    fn send(&mut self) -> Result<(), BenchError> {
        let sent = self.stream.write_all(&self.out).context("ask a gRPC server");
        self.out.clear();
        sent
    }

    fn answer(&mut self, kind: u8, payload: &[u8]) -> Result<(), BenchError> {
        self.add_frame(kind, ACK, 0, payload);
        self.send()
    }

    /// The next frame: kind, flags, stream and payload.
    fn frame(&mut self) -> Result<(u8, u8, u32, Vec<u8>), BenchError> {
        let mut header = [0; 9];
        self.stream
            .read_exact(&mut header)
            .context("hear a gRPC server")?;
        let [a, b, c, kind, flags, id @ ..] = header;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(failed("a frame that is too long"));
        }
        let mut payload = vec![0; length];
        self.stream
            .read_exact(&mut payload)
            .context("hear a gRPC server")?;
        Ok((kind, flags, u32::from_be_bytes(id) & 0x7fff_ffff, payload))
    }
}

/// Appends a text of HTTP/2's header compression, uncompressed.
fn add_text(headers: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127, "longer lengths take more bytes");
    headers.push(text.len() as u8);
    headers.extend(text.as_bytes());
}

fn failed(what: &str) -> BenchError {
    BenchError::InvalidRequest(format!("the gRPC server refused {what}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// Answers all calls that will come with these frames; returns a client of it.
    fn answered(frames: Vec<u8>) -> (GrpcClient, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&frames).unwrap();
            // Until the client has closed: what it asked must not be answered by a reset.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let client = GrpcClient::new(TcpStream::connect(address).unwrap()).unwrap();
        (client, server)
    }

    /// On a loaded machine a comparison ended when etcd's answer to one call was followed by a late reset.
    #[test]
    fn a_reset_without_an_error_is_no_refusal() {
        let answer = |stream, byte| {
            let data = frame(DATA, 0, stream, &[0, 0, 0, 0, 1, byte]);
            [data, frame(HEADERS, END_STREAM, stream, &[])].concat()
        };
        let late = frame(RST_STREAM, 0, 1, &[0; 4]);
        let (mut client, server) = answered([answer(1, b'a'), late, answer(3, b'b')].concat());
        assert_eq!(client.call("/a", b"").unwrap(), b"a");
        assert_eq!(client.call("/b", b"").unwrap(), b"b");
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn a_reset_with_an_error_and_a_farewell_are_refusals() {
        let cancel = frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
        let farewell = frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\x0btoo_many_pings");
        for (frames, told) in [(cancel, "[0, 0, 0, 8]"), (farewell, "too_many_pings")] {
            let (mut client, server) = answered(frames);
            let error = client.call("/a", b"").unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
            drop(client);
            server.join().unwrap();
        }
    }
}
