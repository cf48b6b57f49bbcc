//! Addresses of this machine.

use url::Url;

/// Whether a URL's host is this machine.
#[must_use]
pub fn is_local(url: &Url) -> bool {
    // Schemes other than HTTP keep addresses as text, so they are read here.
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_name_and_addresses() {
        let is_local = |text: &str| is_local(&Url::parse(text).unwrap());
        for local in ["amqp://localhost", "amqp://127.0.0.2:5672/%2f", "amqp://[::1]:5672", "http://LOCALHOST:80"] {
            assert!(is_local(local), "{local}");
        }
        assert!(!is_local("amqp://broker"));
    }
}
