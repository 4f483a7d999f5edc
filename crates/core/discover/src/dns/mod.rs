//! Lenders in DNS: the SRV records of `_netram._tcp.DOMAIN` (RFC 2782).
//!
//! | module | decides |
//! |---|---|
//! | [`message`] | the question's bytes, and the meaning of an answer |
//! | [`order`] | the order of records by priority and weight |
//! | [`servers`] | the name servers of this machine |
//! | [`resolver`] | which server is asked when: it has the sockets |

pub mod message;
pub mod order;
pub mod resolver;
pub mod servers;

pub use message::SrvRecord;
pub use resolver::{DnsError, look_up};

/// The service's labels before the domain.
const SERVICE: &str = "_netram._tcp";

/// The name whose SRV records name the lenders of `domain`.
///
/// # Errors
///
/// `domain` is not a domain's name; the text says why.
pub fn service_name(domain: &str) -> Result<String, String> {
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(named);
    if domain.len() > 253 - SERVICE.len() - 1 || !domain.split('.').all(is_label) {
        return Err("not a DNS domain such as example.org".to_owned());
    }
    Ok(format!("{SERVICE}.{domain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_one_name_for_its_lenders() {
        assert_eq!(service_name("example.org").unwrap(), "_netram._tcp.example.org");
        assert_eq!(service_name("example.org.").unwrap(), "_netram._tcp.example.org");
        let long = vec!["a".repeat(60); 5].join(".");
        for wrong in ["", ".", "a..b", "a b", "exämple.org", &"a".repeat(64), &long] {
            assert!(service_name(wrong).is_err(), "{wrong}");
        }
    }
}
