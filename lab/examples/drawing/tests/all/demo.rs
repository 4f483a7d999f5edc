//! The example, in a few seconds: editors, lenders, the server and the viewer are killed, and no acknowledged
//! stroke is missing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Response of the page's address.
fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut link = TcpStream::connect(address)?;
    link.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(link, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    link.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn killing_any_process_loses_no_acknowledged_stroke() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_netram-drawing"))
        .args(["demo", "--strokes", "8", "--pause", "1", "--stay"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(demo.stdout.take().expect("it is piped"))
        .lines()
        .map_while(Result::ok);
    let (mut shown, mut killed, mut counted) = (String::new(), 0, false);
    for line in &mut lines {
        if let Some((_, address)) = line.split_once("http://") {
            shown = address.to_owned();
        }
        killed += u32::from(line.starts_with("kill -9"));
        counted = line.starts_with("every one of ");
        if counted {
            break;
        }
    }
    assert!(counted, "it ended without a verdict");
    assert_eq!(killed, 7);
    // This is the second viewer: the first was killed.
    let page = get(&shown, "/").expect("the viewer answers");
    assert!(page.contains("fetch(\"/picture.svg\")"), "{page}");
    let picture = get(&shown, "/picture.svg").expect("the viewer answers");
    assert!(picture.contains("<polyline"), "{picture}");
    let other = get(&shown, "/other").expect("the viewer answers");
    assert!(other.starts_with("HTTP/1.1 404"), "{other}");
    drop(demo.stdin.take());
    assert!(demo.wait().expect("it ends").success());
}
