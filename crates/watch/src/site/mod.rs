//! The dashboard's pages, for GET only.
//!
//! | path | content |
//! |---|---|
//! | `/` | the page; it needs nothing from elsewhere, and its policy forbids everything else |
//! | `/state.json` | what the page shows: `search=TEXT`, `page=NUMBER` |
//! | `/login` | a cookie, for whoever sends the token in a header |
//! | `/metrics`, `/health` | this process's own |

mod access;

use std::sync::Arc;
use std::time::Instant;

use netram_telemetry::{
    MetricsAddress, MetricsPages, MetricsRegistry, MetricsServer, MetricsServerError, PageHandler,
    PageRequest, PageResponse,
};
use ring::rand::{SecureRandom, SystemRandom};

pub use self::access::{AccessVerdict, SiteAccess, SiteToken, TokenError};
use crate::source::ViewCollector;
use crate::view::summary::SummaryQuery;

const PAGE: &str = include_str!("page.html");
const LOGIN: &str = include_str!("login.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Content type of the pages.
const HTML: &str = "text/html; charset=utf-8";
const UNAUTHORIZED: &str = "401 Unauthorized";

/// A dashboard that is served. Dropping it ends that.
#[derive(Debug)]
pub struct DashboardServer(MetricsServer);

/// The dashboard cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// Other machines reach the address, and would see everything.
    #[error(
        "other machines can reach {0}, so the dashboard needs a token there: make one with (umask 077; openssl rand -hex 24 \
         > token) and give --token-file token; or listen at 127.0.0.1"
    )]
    NeedsToken(MetricsAddress),
    /// Another process listens there.
    #[error(
        "the dashboard cannot be served at {0}: another process listens there; choose another port with --listen"
    )]
    InUse(MetricsAddress),
    /// The system refuses the address.
    #[error(
        "the dashboard cannot be served at {address}: {source}; name an address of this machine with --listen"
    )]
    Bind {
        /// The address.
        address: MetricsAddress,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The system refuses the thread, or what wakes it.
    #[error("cannot start the thread that serves the dashboard: {0}")]
    System(#[source] std::io::Error),
}

impl From<MetricsServerError> for DashboardError {
    fn from(error: MetricsServerError) -> DashboardError {
        match error {
            MetricsServerError::InUse(address) => DashboardError::InUse(address),
            MetricsServerError::Bind { address, source } => DashboardError::Bind { address, source },
            MetricsServerError::System(source) => DashboardError::System(source),
        }
    }
}

impl DashboardServer {
    /// Serves what `collector` knows at `address`.
    ///
    /// # Errors
    /// `NeedsToken` if other machines reach the address and there is no token; others if the system refuses.
    pub fn start(
        address: &MetricsAddress,
        token: Option<SiteToken>,
        collector: ViewCollector,
    ) -> Result<DashboardServer, DashboardError> {
        let port = match address {
            MetricsAddress::Tcp(address) if token.is_none() && !address.ip().is_loopback() => {
                return Err(DashboardError::NeedsToken(MetricsAddress::Tcp(*address)));
            }
            MetricsAddress::Tcp(address) => address.port(),
            MetricsAddress::Unix(_) => 0,
        };
        let pages = DashboardPages {
            collector,
            access: SiteAccess::new(token, port),
            metrics: MetricsPages::new(MetricsRegistry::of_process()),
            begun: Instant::now(),
        };
        Ok(DashboardServer(MetricsServer::serve(
            address,
            "netram-pages",
            Box::new(pages),
        )?))
    }

    /// The address, with the port that the system chose.
    pub fn address(&self) -> &MetricsAddress {
        self.0.address()
    }
}

struct DashboardPages {
    collector: ViewCollector,
    access: SiteAccess,
    metrics: MetricsPages,
    begun: Instant,
}

impl PageHandler for DashboardPages {
    fn respond(&mut self, request: &PageRequest) -> Arc<[u8]> {
        if request.path == "/health" {
            return self.metrics.respond(request);
        }
        let now_ms = self.begun.elapsed().as_millis() as u64;
        match self.access.judge(now_ms, request) {
            AccessVerdict::Allowed => self.page(request),
            AccessVerdict::Proven(cookie) => {
                let cookie = self.access.set_cookie(&cookie);
                self.proven(request, &cookie)
            }
            AccessVerdict::Asked => refused(request, UNAUTHORIZED, "This dashboard needs its token."),
            AccessVerdict::Wrong => refused(request, UNAUTHORIZED, "The token is wrong."),
            AccessVerdict::TooMany => refused(
                request,
                "429 Too Many Requests",
                "Too many wrong tokens came from your address: wait a minute.",
            ),
            AccessVerdict::OtherHost => guarded(PageResponse::refused(
                "403 Forbidden",
                "The dashboard is served to this machine, as localhost or 127.0.0.1. To use another name, give it \
                 a token: netram dashboard --token-file FILE",
            ))
            .encode(),
        }
    }
}

impl DashboardPages {
    fn page(&mut self, request: &PageRequest) -> Arc<[u8]> {
        match request.path.as_str() {
            "/" => html(PAGE, ""),
            "/state.json" => self.state(request),
            "/login" => guarded(PageResponse::ok("text/plain; charset=utf-8", "ok\n")).encode(),
            "/metrics" => self.metrics.respond(request),
            _ => guarded(PageResponse::refused(
                "404 Not Found",
                "the pages are /, /state.json, /metrics and /health",
            ))
            .encode(),
        }
    }

    /// The response to a reader that has just given the token.
    fn proven(&mut self, request: &PageRequest, cookie: &str) -> Arc<[u8]> {
        match (request.path.as_str(), request.parameter("token")) {
            // Away from the address that has the token in it.
            ("/", Some(_)) => guarded(PageResponse::ok(HTML, "").status("303 See Other"))
                .header("Location", "/")
                .header("Set-Cookie", cookie)
                .encode(),
            ("/login", _) => guarded(PageResponse::ok("text/plain; charset=utf-8", "ok\n"))
                .header("Set-Cookie", cookie)
                .encode(),
            _ => self.page(request),
        }
    }

    fn state(&self, request: &PageRequest) -> Arc<[u8]> {
        let query = SummaryQuery {
            search: request.parameter("search").unwrap_or_default(),
            page: request
                .parameter("page")
                .and_then(|page| page.parse().ok())
                .unwrap_or_default(),
        };
        let (view, age) = self.collector.view();
        let summary = view.summary(&query, age.as_millis() as u64);
        let body = serde_json::to_vec(&summary).expect("a summary is maps with text as keys");
        guarded(PageResponse::ok("application/json", body)).encode()
    }
}

/// A refusal: a form for people, a sentence for programs.
fn refused(request: &PageRequest, status: &'static str, sentence: &str) -> Arc<[u8]> {
    if request.path != "/" {
        let response = PageResponse::refused(status, sentence).header("WWW-Authenticate", "Bearer");
        return guarded(response).encode();
    }
    let (body, policy) = filled(LOGIN, sentence);
    guarded(PageResponse::ok(HTML, body).status(status))
        .header("Content-Security-Policy", policy)
        .encode()
}

fn html(page: &str, sentence: &str) -> Arc<[u8]> {
    let (body, policy) = filled(page, sentence);
    guarded(PageResponse::ok(HTML, body))
        .header("Content-Security-Policy", policy)
        .encode()
}

/// A page with its parts, and the policy that allows nothing else.
fn filled(page: &str, sentence: &str) -> (String, String) {
    let mut random = [0_u8; 16];
    if SystemRandom::new().fill(&mut random).is_err() {
        panic!("the kernel gives no random bytes; no page can be made");
    }
    let nonce: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let body = page
        .replace("{{nonce}}", &nonce)
        .replace("{{sentence}}", sentence)
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    (body, policy)
}

/// A response that no other page may use.
fn guarded(response: PageResponse) -> PageResponse {
    response
        .header("X-Content-Type-Options", "nosniff")
        .header("X-Frame-Options", "DENY")
        .header("Referrer-Policy", "no-referrer")
        .header("Cross-Origin-Resource-Policy", "same-origin")
        .header("Cross-Origin-Opener-Policy", "same-origin")
}
