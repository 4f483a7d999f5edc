//! Requests as a value: bytes go in, an answer comes out.

use crate::limit::REQUEST_BYTES_MAX;
use crate::samples::MetricsFormat;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The page of metrics.
    Metrics(MetricsFormat),
    /// The process answers.
    Health,
    /// A refusal: its status line, and a sentence.
    Refused(&'static str, &'static str),
}

/// The answer to what has arrived, or `None` while the request is incomplete.
pub(crate) fn answer_to(received: &[u8]) -> Option<Answer> {
    let ended = |end: &[u8]| received.windows(end.len()).any(|bytes| bytes == end);
    if !ended(b"\r\n\r\n") && !ended(b"\n\n") {
        let too_long = received.len() >= REQUEST_BYTES_MAX;
        return too_long.then_some(Answer::Refused(
            "431 Request Header Fields Too Large",
            "the request is longer than 4096 bytes",
        ));
    }
    let text = String::from_utf8_lossy(received);
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return Some(Answer::Refused("405 Method Not Allowed", "only GET is served"));
    }
    Some(match target.split('?').next().unwrap_or_default() {
        "/metrics" => Answer::Metrics(format_for(lines)),
        "/health" => Answer::Health,
        _ => Answer::Refused("404 Not Found", "the pages are /metrics and /health"),
    })
}

/// The format that the reader accepts.
fn format_for<'a>(mut headers: impl Iterator<Item = &'a str>) -> MetricsFormat {
    let accepts = headers.any(|line| {
        let (name, value) = line.split_once(':').unwrap_or_default();
        name.eq_ignore_ascii_case("accept") && value.contains("application/openmetrics-text")
    });
    match accepts {
        true => MetricsFormat::OpenMetrics,
        false => MetricsFormat::Prometheus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_once_it_is_complete_or_too_long() {
        let metrics = |format| Some(Answer::Metrics(format));
        assert_eq!(answer_to(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(
            answer_to(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"),
            metrics(MetricsFormat::Prometheus)
        );
        let modern = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
        assert_eq!(answer_to(modern), metrics(MetricsFormat::OpenMetrics));
        assert_eq!(answer_to(b"GET /health HTTP/1.0\n\n"), Some(Answer::Health));
        for (request, status) in [
            (&b"POST /metrics HTTP/1.1\r\n\r\n"[..], "405"),
            (b"GET / HTTP/1.1\r\n\r\n", "404"),
            (b"\xff\xfe\r\n\r\n", "405"),
            (&[b'x'; REQUEST_BYTES_MAX], "431"),
        ] {
            let Some(Answer::Refused(line, _)) = answer_to(request) else {
                panic!("{request:?} is refused")
            };
            assert!(line.starts_with(status), "{line}");
        }
    }
}
