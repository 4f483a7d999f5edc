//! Fetching a page of metrics within a deadline.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::limit::PAGE_BYTES_MAX;

/// A page of metrics: `HOST:PORT`, `http://HOST:PORT/PATH` or `unix:/PATH`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageTarget {
    /// A port.
    Tcp {
        /// Host and port.
        host: String,
        /// The path, with its slash.
        path: String,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The text names no page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no page of metrics: write HOST:PORT, http://HOST:PORT/metrics or unix:/PATH. There is no https: reach \
     another network through a tunnel"
)]
pub struct PageTargetError(pub String);

impl FromStr for PageTarget {
    type Err = PageTargetError;

    fn from_str(text: &str) -> Result<PageTarget, PageTargetError> {
        let wrong = || PageTargetError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(PageTarget::Unix(path.into())),
                false => Err(wrong()),
            };
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (host, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/metrics"),
        };
        let (name, port) = host.rsplit_once(':').ok_or_else(wrong)?;
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if name.is_empty() || port.parse::<u16>().is_err() || name.contains("//") || !is_plain(rest) {
            return Err(wrong());
        }
        Ok(PageTarget::Tcp {
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for PageTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageTarget::Tcp { host, path } if path == "/metrics" => out.write_str(host),
            PageTarget::Tcp { host, path } => write!(out, "{host}{path}"),
            PageTarget::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// A connection that gives up at a deadline.
trait Timed: Read + Write {
    fn set_timeout(&self, left: Duration) -> io::Result<()>;
}

impl Timed for TcpStream {
    fn set_timeout(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Timed for UnixStream {
    fn set_timeout(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl PageTarget {
    /// The text of the page. Takes no longer than `patience`, but for the look-up of a name.
    ///
    /// # Errors
    /// A sentence that says why there is none.
    pub fn fetch(&self, patience: Duration) -> Result<String, String> {
        let deadline = Instant::now() + patience;
        let said = |error: io::Error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => "nothing listens there".to_owned(),
            ErrorKind::TimedOut | ErrorKind::WouldBlock => "no answer in time".to_owned(),
            _ => error.to_string(),
        };
        match self {
            PageTarget::Tcp { host, path } => {
                let mut stream = connect(host, deadline).map_err(said)?;
                get(&mut stream, host, path, deadline).map_err(said)
            }
            PageTarget::Unix(path) => {
                let mut stream = UnixStream::connect(path).map_err(said)?;
                get(&mut stream, "localhost", "/metrics", deadline).map_err(said)
            }
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn connect(host: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("the name has no address");
    for address in host.to_socket_addrs()?.take(4) {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn get(stream: &mut dyn Timed, host: &str, path: &str, deadline: Instant) -> io::Result<String> {
    stream.set_timeout(left(deadline)?)?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 8 * 1024];
    loop {
        stream.set_timeout(left(deadline)?)?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(bytes) if answer.len() + bytes > PAGE_BYTES_MAX => {
                return Err(io::Error::other("its page is longer than 8 MiB"));
            }
            Ok(bytes) => answer.extend_from_slice(&chunk[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    body(&String::from_utf8_lossy(&answer))
}

fn body(answer: &str) -> io::Result<String> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head.lines().next().unwrap_or_default();
    let other = |what: String| Err(io::Error::other(what));
    let lower = head.to_ascii_lowercase();
    if !status.starts_with("HTTP/1.") {
        return other("it does not speak HTTP".to_owned());
    }
    if !status.contains(" 200") {
        return other(format!("it answers `{status}`"));
    }
    if lower.contains("transfer-encoding:") {
        return other("it sends the page in chunks, which netram's own pages are not".to_owned());
    }
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    if length.is_some_and(|length| body.len() < length) {
        return other("the page was cut off".to_owned());
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use netram_telemetry::{MetricsRegistry, MetricsServer};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_page_is_named_in_three_ways_and_a_wrong_name_says_how() {
        for (text, shown) in [
            ("10.0.0.2:9464", "10.0.0.2:9464"),
            ("http://db.example.org:9464/metrics", "db.example.org:9464"),
            ("http://[::1]:1/other", "[::1]:1/other"),
            ("unix:/run/m", "unix:/run/m"),
        ] {
            assert_eq!(text.parse::<PageTarget>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "host",
            "https://a:1",
            "unix:m",
            "a:99999",
            "a b:1",
            "http://a:1/\r\nX: y",
        ] {
            let error = text.parse::<PageTarget>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn a_page_is_fetched_over_both_kinds_of_sockets() {
        let directory = tempfile::tempdir().unwrap();
        for address in [
            "127.0.0.1:0".to_owned(),
            format!("unix:{}/m", directory.path().display()),
        ] {
            let server =
                MetricsServer::start(&address.parse().unwrap(), MetricsRegistry::of_process()).unwrap();
            let target: PageTarget = server.address().to_string().parse().unwrap();
            assert!(target.fetch(PATIENCE).unwrap().contains("netram_build_info"));
        }
    }

    #[test]
    fn who_does_not_answer_costs_the_deadline_and_who_does_not_listen_is_named() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let target: PageTarget = silent.local_addr().unwrap().to_string().parse().unwrap();
        assert_eq!(
            target.fetch(Duration::from_millis(50)).unwrap_err(),
            "no answer in time"
        );
        drop(silent);
        assert_eq!(target.fetch(PATIENCE).unwrap_err(), "nothing listens there");
    }

    #[test]
    fn an_answer_that_is_no_page_is_refused_with_the_reason() {
        for (answer, why) in [
            ("SSH-2.0", "HTTP"),
            ("HTTP/1.1 401 Unauthorized\r\n\r\n", "401"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "chunks"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "cut off"),
        ] {
            assert!(body(answer).unwrap_err().to_string().contains(why), "{answer}");
        }
        assert_eq!(
            body("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab").unwrap(),
            "ab"
        );
    }
}
