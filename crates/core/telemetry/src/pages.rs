//! The pages `/metrics` and `/health` of a process.

use std::sync::Arc;
use std::time::Instant;

use crate::limit::TEXT_AGE_MAX;
use crate::registry::MetricsRegistry;
use crate::request::{PageRequest, PageResponse};
use crate::samples::MetricsFormat;
use crate::server::PageHandler;

/// The metrics of a registry, and a word that the process answers. All readers get the same text for
/// [`TEXT_AGE_MAX`].
pub struct MetricsPages {
    registry: &'static MetricsRegistry,
    /// The last text of each format.
    texts: [Option<PageText>; 2],
}

/// A response that is given to all that ask for a while.
struct PageText {
    made: Instant,
    response: Arc<[u8]>,
}

impl MetricsPages {
    /// The pages of `registry`.
    pub fn new(registry: &'static MetricsRegistry) -> MetricsPages {
        MetricsPages {
            registry,
            texts: [None, None],
        }
    }

    fn text(&mut self, format: MetricsFormat) -> Arc<[u8]> {
        let kept = &mut self.texts[usize::from(format == MetricsFormat::Prometheus)];
        let now = Instant::now();
        if let Some(text) = kept.as_ref().filter(|text| now - text.made < TEXT_AGE_MAX) {
            return Arc::clone(&text.response);
        }
        let response = PageResponse::ok(format.content_type(), self.registry.text(format)).encode();
        *kept = Some(PageText {
            made: now,
            response: Arc::clone(&response),
        });
        response
    }
}

impl PageHandler for MetricsPages {
    fn respond(&mut self, request: &PageRequest) -> Arc<[u8]> {
        match request.path.as_str() {
            "/metrics" => self.text(request.metrics_format()),
            "/health" => PageResponse::ok("text/plain; charset=utf-8", "ok\n").encode(),
            _ => PageResponse::refused("404 Not Found", "the pages are /metrics and /health").encode(),
        }
    }
}
