//! Requests and responses as values: bytes go in, bytes come out.

use std::net::IpAddr;
use std::sync::Arc;

use crate::limit::REQUEST_BYTES_MAX;
use crate::samples::MetricsFormat;

/// Content type of a sentence.
const PLAIN: &str = "text/plain; charset=utf-8";

/// A complete request for a page. Its method is GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The reader's address; `None` if it came through a socket in the file system.
    pub peer: Option<IpAddr>,
    /// The path, without the query.
    pub path: String,
    query: String,
    headers: Vec<(String, String)>,
}

/// A response, before it is sent.
#[derive(Clone, Debug)]
pub struct PageResponse {
    status: &'static str,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl PageRequest {
    /// Reads what has arrived: a request; a refusal if it is none; `None` while it is incomplete.
    pub fn read(received: &[u8], peer: Option<IpAddr>) -> Option<Result<PageRequest, PageResponse>> {
        let ended = |end: &[u8]| received.windows(end.len()).any(|bytes| bytes == end);
        if !ended(b"\r\n\r\n") && !ended(b"\n\n") {
            let too_long = received.len() >= REQUEST_BYTES_MAX;
            return too_long.then(|| {
                Err(PageResponse::refused(
                    "431 Request Header Fields Too Large",
                    "the request is longer than 4096 bytes",
                ))
            });
        }
        let text = String::from_utf8_lossy(received);
        let mut lines = text.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if method != "GET" {
            let refused = PageResponse::refused("405 Method Not Allowed", "only GET is served");
            return Some(Err(refused));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = lines.take_while(|line| !line.is_empty());
        let headers = headers.filter_map(|line| line.split_once(':'));
        Some(Ok(PageRequest {
            peer,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect(),
        }))
    }

    /// The first header of this name, which is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut same = self.headers.iter().filter(|(other, _)| other == name);
        same.next().map(|(_, value)| value.as_str())
    }

    /// The value of the query's parameter `name`, decoded.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.find(|(other, _)| *other == name)?;
        Some(decoded(value))
    }

    /// The format of metrics that the reader accepts.
    pub(crate) fn metrics_format(&self) -> MetricsFormat {
        match self.header("accept") {
            Some(value) if value.contains("application/openmetrics-text") => MetricsFormat::OpenMetrics,
            _ => MetricsFormat::Prometheus,
        }
    }
}

/// A query's value without its escapes; wrong ones stay as they are.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (byte, behind) = match (first, code) {
            (b'%', Some(code)) => (code, &behind[2..]),
            (b'+', _) => (b' ', behind),
            (first, _) => (*first, behind),
        };
        bytes.push(byte);
        rest = behind;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl PageResponse {
    /// A response with a body.
    pub fn ok(content_type: &'static str, body: impl Into<Vec<u8>>) -> PageResponse {
        PageResponse {
            status: "200 OK",
            content_type,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// A refusal: its status line, and a sentence.
    pub fn refused(status: &'static str, sentence: &str) -> PageResponse {
        PageResponse {
            status,
            ..PageResponse::ok(PLAIN, format!("{sentence}\n"))
        }
    }

    /// The response with another status line.
    #[must_use]
    pub fn status(self, status: &'static str) -> PageResponse {
        PageResponse { status, ..self }
    }

    /// The response with a header more. The caller vouches that the value has no line break.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> PageResponse {
        let value = value.into();
        assert!(!value.contains(['\r', '\n']), "a header is one line");
        self.headers.push((name, value));
        self
    }

    /// The bytes to send.
    pub fn encode(&self) -> Arc<[u8]> {
        let PageResponse {
            status,
            content_type,
            body,
            ..
        } = self;
        let bytes = body.len();
        let mut head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {bytes}\r\nAllow: GET\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n"
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        [head.as_bytes(), body].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(received: &[u8]) -> Option<Result<PageRequest, String>> {
        let read = PageRequest::read(received, None)?;
        Some(read.map_err(|refused| String::from_utf8_lossy(&refused.encode()).into_owned()))
    }

    #[test]
    fn a_request_is_read_once_it_is_complete_or_too_long() {
        assert_eq!(read(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        let request = read(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(request.path, "/metrics");
        assert_eq!(request.metrics_format(), MetricsFormat::Prometheus);
        let modern = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
        let modern = read(modern).unwrap().unwrap();
        assert_eq!(modern.metrics_format(), MetricsFormat::OpenMetrics);
        assert_eq!(
            read(b"GET /health HTTP/1.0\n\n").unwrap().unwrap().path,
            "/health"
        );
        for (request, status) in [
            (&b"POST /metrics HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 405 "),
            (b"\xff\xfe\r\n\r\n", "HTTP/1.1 405 "),
            (&[b'x'; REQUEST_BYTES_MAX], "HTTP/1.1 431 "),
        ] {
            let refused = read(request).unwrap().unwrap_err();
            assert!(refused.starts_with(status), "{refused}");
        }
    }

    #[test]
    fn headers_and_parameters_are_found_by_name() {
        let text =
            b"GET /?page=2&search=a%2Fb+c%zz%2 HTTP/1.1\r\nHOST: here:1\r\nCookie:a=b\r\n\r\nHost: body";
        let request = read(text).unwrap().unwrap();
        assert_eq!(
            (request.header("host"), request.header("cookie")),
            (Some("here:1"), Some("a=b"))
        );
        assert_eq!(request.header("accept"), None);
        assert_eq!(request.parameter("page").as_deref(), Some("2"));
        assert_eq!(request.parameter("search").as_deref(), Some("a/b c%zz%2"));
        assert_eq!(request.parameter("token"), None);
    }

    #[test]
    fn a_response_has_its_length_and_its_headers() {
        let response = PageResponse::ok("text/html", "é").header("X-A", "b").encode();
        let text = std::str::from_utf8(&response).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("X-A: b\r\n\r\né"),
            "{text}"
        );
        assert!(text.contains("Content-Length: 2\r\n"), "{text}");
    }
}
