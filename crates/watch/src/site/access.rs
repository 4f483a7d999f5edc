//! Access to the pages: whoever is on this machine, or has the token.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;

use netram_process::secret::{self, SecretRefusal};
use netram_telemetry::PageRequest;
use ring::hmac;
use zeroize::Zeroizing;

use crate::limit::{REFUSAL_WINDOW, REFUSED_PEERS_MAX, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, WRONG_TOKENS_MAX};

/// Text whose code is the value of a browser's cookie.
const COOKIE_TEXT: &[u8] = b"netram dashboard, cookie";
/// Text whose code stands for the token itself, so that it is compared in constant time.
const TOKEN_TEXT: &[u8] = b"netram dashboard, token";

/// The secret that shows the pages to whoever has it.
pub struct SiteToken {
    /// Code of [`TOKEN_TEXT`] under the token.
    expected: Vec<u8>,
    /// Value of the cookie, as hexadecimal digits. It stays the same when the dashboard is started again.
    cookie: String,
}

/// The token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file: {0}")]
    Unreadable(#[from] io::Error),
    /// Mode or owner let others read it.
    #[error("the token file is refused: {0}")]
    Refused(String),
    /// The token is too short or too long, or no plain text.
    #[error(
        "the token in {0} is none: it has 16 to 512 printable ASCII characters in one line; make one with: \
         (umask 077; openssl rand -hex 24 > {0})"
    )]
    Malformed(String),
}

impl SiteToken {
    /// Reads the token in a file that only its owner can read.
    ///
    /// # Errors
    /// One [`TokenError`] a cause.
    pub fn read(path: &Path) -> Result<SiteToken, TokenError> {
        let file = File::open(path)?;
        secret::check(&file, path).map_err(|refusal| match refusal {
            SecretRefusal::System(error) => TokenError::Unreadable(error),
            refusal => TokenError::Refused(refusal.to_string()),
        })?;
        let malformed = || TokenError::Malformed(path.display().to_string());
        let mut text = Zeroizing::new(Vec::with_capacity(2 * TOKEN_BYTES_MAX));
        file.take(2 * TOKEN_BYTES_MAX as u64).read_to_end(&mut text)?;
        let text = std::str::from_utf8(&text).map_err(|_| malformed())?;
        SiteToken::new(text.trim_end_matches(['\r', '\n'])).ok_or_else(malformed)
    }

    /// A token; `None` if the text is none.
    pub fn new(text: &str) -> Option<SiteToken> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        let has_length = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&text.len());
        (is_plain && has_length).then(|| SiteToken {
            expected: code(text, TOKEN_TEXT).as_ref().to_vec(),
            cookie: code(text, COOKIE_TEXT)
                .as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        })
    }

    fn is(&self, given: &str) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, given.as_bytes());
        hmac::verify(&key, TOKEN_TEXT, &self.expected).is_ok()
    }

    fn is_cookie(&self, given: &str) -> bool {
        // A code of both is compared, which takes the same time whatever is given.
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.expected);
        let expected = hmac::sign(&key, self.cookie.as_bytes());
        hmac::verify(&key, given.as_bytes(), expected.as_ref()).is_ok()
    }
}

fn code(token: &str, text: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes()), text)
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// The page.
    Allowed,
    /// The page, and a cookie of this value for the next one.
    Proven(String),
    /// The question for the token.
    Asked,
    /// A refusal: the token is wrong.
    Wrong,
    /// A refusal: too many tokens were wrong.
    TooMany,
    /// A refusal: a name other than this machine's own led here.
    OtherHost,
}

/// Decides who sees the pages.
pub struct SiteAccess {
    token: Option<SiteToken>,
    cookie_name: String,
    wrong: BTreeMap<IpAddr, WrongTokens>,
}

#[derive(Clone, Copy, Debug)]
struct WrongTokens {
    since_ms: u64,
    count: u32,
}

impl SiteAccess {
    /// Access with this token; without one for whoever asks this machine by its own name. The port makes the
    /// cookies of two dashboards differ.
    pub fn new(token: Option<SiteToken>, port: u16) -> SiteAccess {
        SiteAccess {
            token,
            cookie_name: format!("netram-{port}"),
            wrong: BTreeMap::new(),
        }
    }

    /// The header that gives a reader its cookie.
    pub fn set_cookie(&self, value: &str) -> String {
        format!(
            "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000",
            self.cookie_name
        )
    }

    /// Judges a request.
    pub fn judge(&mut self, now_ms: u64, request: &PageRequest) -> AccessVerdict {
        let Some(token) = &self.token else {
            // A foreign page whose name leads to this machine is stopped here.
            return match request.peer.is_none() || is_own_name(request.header("host").unwrap_or_default()) {
                true => AccessVerdict::Allowed,
                false => AccessVerdict::OtherHost,
            };
        };
        let cookies = request.header("cookie").unwrap_or_default().split(';');
        let mut cookies = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        if cookies.any(|(name, value)| name == self.cookie_name && token.is_cookie(value)) {
            return AccessVerdict::Allowed;
        }
        let bearer = request
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "));
        let given = bearer.map(str::to_owned).or_else(|| request.parameter("token"));
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return AccessVerdict::Asked;
        };
        let window_ms = REFUSAL_WINDOW.as_millis() as u64;
        self.wrong.retain(|_, wrong| wrong.since_ms + window_ms > now_ms);
        let peer = request.peer.unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let count = self.wrong.get(&peer).map_or(0, |wrong| wrong.count);
        let is_crowded = self.wrong.len() >= REFUSED_PEERS_MAX && count == 0;
        if count >= WRONG_TOKENS_MAX || is_crowded {
            return AccessVerdict::TooMany;
        }
        if token.is(&given) {
            return AccessVerdict::Proven(token.cookie.clone());
        }
        let wrong = self.wrong.entry(peer).or_insert(WrongTokens {
            since_ms: now_ms,
            count: 0,
        });
        wrong.count += 1;
        AccessVerdict::Wrong
    }
}

/// Whether a header names this machine by a name that no other can have.
fn is_own_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn ask(access: &mut SiteAccess, now_ms: u64, peer: u8, target: &str, headers: &str) -> AccessVerdict {
        let text = format!("GET {target} HTTP/1.1\r\n{headers}\r\n");
        let peer = Some(IpAddr::from([10, 0, 0, peer]));
        let request = PageRequest::read(text.as_bytes(), peer).unwrap().unwrap();
        access.judge(now_ms, &request)
    }

    #[test]
    fn without_a_token_only_the_machines_own_names_lead_to_the_page() {
        let mut access = SiteAccess::new(None, 1);
        for (host, allowed) in [
            ("localhost", true),
            ("LOCALHOST:7480", true),
            ("127.0.0.1:7480", true),
            ("127.9.9.9", true),
            ("[::1]:7480", true),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:7480", false),
            ("192.168.0.1", false),
            ("[fe80::1]:1", false),
            ("", false),
        ] {
            let verdict = ask(&mut access, 0, 1, "/", &format!("Host: {host}\r\n"));
            assert_eq!(verdict == AccessVerdict::Allowed, allowed, "{host}: {verdict:?}");
        }
    }

    #[test]
    fn a_token_is_given_in_a_header_or_once_in_the_address_and_then_as_a_cookie() {
        let mut access = SiteAccess::new(SiteToken::new(TOKEN), 7480);
        assert_eq!(
            ask(&mut access, 0, 1, "/", "Host: localhost\r\n"),
            AccessVerdict::Asked
        );
        let bearer = ask(
            &mut access,
            0,
            1,
            "/",
            &format!("Authorization: Bearer {TOKEN}\r\n"),
        );
        let AccessVerdict::Proven(cookie) = bearer else {
            panic!("{bearer:?}")
        };
        assert!(!cookie.contains(TOKEN));
        let once = ask(&mut access, 0, 1, &format!("/?token={TOKEN}"), "");
        assert_eq!(once, AccessVerdict::Proven(cookie.clone()));
        let set = access.set_cookie(&cookie);
        assert!(
            set.contains("HttpOnly") && set.contains("SameSite=Strict"),
            "{set}"
        );
        let with = |name: &str, value: &str| format!("Cookie: a=b; {name}={value}\r\n");
        assert_eq!(
            ask(&mut access, 0, 1, "/", &with("netram-7480", &cookie)),
            AccessVerdict::Allowed
        );
        assert_eq!(
            ask(&mut access, 0, 1, "/", &with("netram-1", &cookie)),
            AccessVerdict::Asked
        );
        assert_eq!(
            ask(&mut access, 0, 1, "/", &with("netram-7480", TOKEN)),
            AccessVerdict::Asked
        );
    }

    #[test]
    fn after_ten_wrong_tokens_an_address_waits_a_minute_and_no_other_does() {
        let mut access = SiteAccess::new(SiteToken::new(TOKEN), 1);
        for _ in 0..WRONG_TOKENS_MAX {
            assert_eq!(ask(&mut access, 0, 1, "/?token=wrong", ""), AccessVerdict::Wrong);
        }
        let right = format!("/?token={TOKEN}");
        assert_eq!(ask(&mut access, 59_999, 1, &right, ""), AccessVerdict::TooMany);
        assert!(matches!(
            ask(&mut access, 0, 2, &right, ""),
            AccessVerdict::Proven(_)
        ));
        assert!(matches!(
            ask(&mut access, 60_000, 1, &right, ""),
            AccessVerdict::Proven(_)
        ));
    }

    #[test]
    fn a_token_file_is_private_and_holds_a_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            SiteToken::read(&path)
        };
        assert!(write(&format!("{TOKEN}\n"), 0o600).unwrap().is(TOKEN));
        for text in [
            "short",
            "has a space in it .....",
            "é0123456789abcdef",
            "",
            &"x".repeat(600),
        ] {
            let error = write(text, 0o600).err().unwrap().to_string();
            assert!(error.contains("openssl rand"), "{error}");
        }
        let error = write(TOKEN, 0o644).err().unwrap().to_string();
        assert!(error.contains("0644") && error.contains("chmod"), "{error}");
        assert!(matches!(
            SiteToken::read(&directory.path().join("none")),
            Err(TokenError::Unreadable(_))
        ));
    }
}
