//! The address of a broker, as it is written in a configuration.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use lapin::uri::AMQPUri;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::{ParseError, Url};

/// Smallest frame that may be requested, in bytes: what brokers offer, and so what others may count on.
const MIN_FRAME: u32 = 131_072;
/// Parameters whose values are whole numbers.
const NUMBERS: [&str; 4] = ["frame_max", "channel_max", "heartbeat", "connection_timeout"];
/// The parameter that names how the client logs in.
const MECHANISM: &str = "auth_mechanism";

/// Address of a broker. Holds credentials: `Debug` and `Display` leave them out.
#[derive(Clone, PartialEq, Eq)]
pub struct AmqpUrl(Url);

/// Mistake in the address of a broker; never holds a part of the text, because any part may be of a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmqpUrlError {
    /// Not a URL at all.
    #[error(r#"not a URL; expected "amqp://user:password@host:5672/%2f", "amqps://…" or "embedded""#)]
    NoUrl,
    /// A URL with a part that cannot be.
    #[error("not a URL ({0}): {ENCODE}")]
    Url(ParseError),
    /// Of another scheme.
    #[error(r#"not an address of a broker; expected "amqp://…", "amqps://…" or "embedded""#)]
    Scheme,
    /// Without a host.
    #[error(r#"no host; expected "amqp://user:password@host:5672/%2f""#)]
    Host,
    /// With more than a virtual host behind the host.
    #[error("more than one name of a virtual host after the host: {ENCODE}")]
    Path,
    /// With a fragment.
    #[error("`#` and what follows it is no part of an address: {ENCODE}")]
    Fragment,
    /// With a parameter that there is not.
    #[error(
        "an unknown parameter after `?`, where only frame_max, channel_max, heartbeat, connection_timeout and \
         auth_mechanism may be: {ENCODE}"
    )]
    Parameter,
    /// With a value that the parameter cannot have.
    #[error("a wrong value of a parameter after `?`: {ENCODE}")]
    Value,
    /// With frames that are too small.
    #[error("`frame_max` must be at least {MIN_FRAME}: messages of others must fit, headers and all; or leave it out")]
    FrameMax,
    /// With credentials or a virtual host that are no text.
    #[error("user, password and virtual host must be UTF-8: {ENCODE}")]
    Text,
}

/// Advice for a reserved character that has ended a part of the address too early.
const ENCODE: &str = "percent-encode `/`, `#`, `?`, `@`, `:` and `%` in user, password and virtual host, such as `%2F` \
                      for `/`, or give these as bus.user, bus.password and bus.vhost";

/// Parts that are given beside an address.
#[derive(Debug, Clone, Copy, Default)]
pub struct AddressParts<'a> {
    /// The host: a name or an IP address.
    pub host: Option<&'a str>,
    /// The port.
    pub port: Option<u16>,
    /// The virtual host.
    pub vhost: Option<&'a str>,
    /// The user.
    pub user: Option<&'a str>,
    /// The user's password.
    pub password: Option<&'a str>,
}

impl AmqpUrl {
    /// The URL with its credentials, for connecting.
    #[must_use]
    pub fn reveal(&self) -> &Url {
        &self.0
    }

    /// The user that it names. `None` where the broker takes the name from a certificate.
    #[must_use]
    pub fn login(&self) -> Option<String> {
        let is_named = |(name, _): (Cow<'_, str>, Cow<'_, str>)| name != MECHANISM;
        let user = percent_decode_str(self.0.username()).decode_utf8().ok()?;
        (!user.is_empty() && self.0.query_pairs().all(is_named)).then(|| user.into_owned())
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "amqps"
    }

    /// Whether the credentials are those that every broker is installed with.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        matches!((self.0.username(), self.0.password()), ("" | "guest", None | Some("guest")))
    }

    /// The same address with these parts instead of its own; they need no percent-encoding.
    ///
    /// # Errors
    ///
    /// If the host is none.
    pub fn with(mut self, parts: AddressParts<'_>) -> Result<Self, AmqpUrlError> {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let AddressParts { host, port, vhost, user, password } = parts;
        let url = &mut self.0;
        let failed = |_| AmqpUrlError::Host;
        if let Some(host) = host {
            let is_v6 = host.parse::<Ipv6Addr>().is_ok();
            let host = if is_v6 { format!("[{host}]") } else { host.to_owned() };
            url.set_host(Some(&host)).map_err(AmqpUrlError::Url)?;
        }
        if port.is_some() {
            url.set_port(port).map_err(failed)?;
        }
        if let Some(user) = user {
            url.set_username(&encoded(user)).map_err(failed)?;
        }
        if let Some(password) = password {
            url.set_password(Some(&encoded(password))).map_err(failed)?;
        }
        if let Some(vhost) = vhost {
            url.set_path(&encoded(vhost));
        }
        self.endpoint().map(|_| self)
    }

    /// Host and port that the client connects to.
    pub(super) fn endpoint(&self) -> Result<AMQPUri, AmqpUrlError> {
        let mut endpoint: AMQPUri = self.0.as_str().parse().map_err(|_| AmqpUrlError::Text)?;
        // The library takes an IPv6 address for no host, and connects to its own machine.
        if let Some(host) = self.0.host_str().and_then(|host| host.strip_prefix('[')) {
            host.trim_end_matches(']').clone_into(&mut endpoint.authority.host);
        }
        Ok(endpoint)
    }
}

impl FromStr for AmqpUrl {
    type Err = AmqpUrlError;

    /// Refuses whatever the client would pass over, because it is a part of a password that ended too early.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text).map_err(|error| match error {
            ParseError::RelativeUrlWithoutBase => AmqpUrlError::NoUrl,
            error => AmqpUrlError::Url(error),
        })?;
        match (url.scheme(), url.host_str()) {
            ("amqp" | "amqps", Some(host)) if !host.is_empty() => {}
            ("amqp" | "amqps", _) => return Err(AmqpUrlError::Host),
            // Not named: in `user:password@host` the user is read as a scheme.
            _ => return Err(AmqpUrlError::Scheme),
        }
        // `//` is how some write the virtual host `/`.
        let vhost = url.path().strip_prefix('/').unwrap_or_default();
        if vhost.contains('@') || (vhost.contains('/') && vhost != "/") {
            return Err(AmqpUrlError::Path);
        }
        if url.fragment().is_some() {
            return Err(AmqpUrlError::Fragment);
        }
        for (name, value) in url.query_pairs() {
            match &*name {
                "frame_max" if value.parse::<u32>().is_ok_and(|bytes| bytes < MIN_FRAME) => {
                    return Err(AmqpUrlError::FrameMax);
                }
                name if NUMBERS.contains(&name) && value.parse::<u64>().is_err() => return Err(AmqpUrlError::Value),
                name if NUMBERS.contains(&name) || name == MECHANISM => {}
                _ => return Err(AmqpUrlError::Parameter),
            }
        }
        let is_text = |text: &str| percent_decode_str(text).decode_utf8().is_ok();
        if ![url.username(), url.password().unwrap_or_default(), vhost].into_iter().all(is_text) {
            return Err(AmqpUrlError::Text);
        }
        let url = Self(url);
        url.endpoint().map_err(|_| AmqpUrlError::Value).map(|_| url)
    }
}

impl fmt::Display for AmqpUrl {
    /// Scheme, host, port and virtual host.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.0.host_str().unwrap_or_default())?;
        self.0.port().map_or(Ok(()), |port| write!(f, ":{port}"))?;
        f.write_str(self.0.path())
    }
}

impl fmt::Debug for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_recognised() {
        let url = |text: &str| text.parse::<AmqpUrl>().unwrap();
        assert!(url("amqp://127.0.0.1").is_guest());
        assert!(url("amqp://guest:guest@broker").is_guest());
        assert!(!url("amqp://guest:other@broker").is_guest());
    }

    #[test]
    fn a_password_with_reserved_characters_is_refused_and_no_part_of_it_shown() {
        for reserved in ["/", "#", "?", "/@", "?heartbeat=", "#@", "?x=1&y=", "\\/", "//"] {
            for before in ["12", "hunter", ""] {
                let text = format!("amqp://ana:{before}{reserved}2secret@broker.example/tools");
                let error = text.parse::<AmqpUrl>().unwrap_err().to_string();
                assert!(error.contains("percent-encode"), "{text}: {error}");
                for part in ["ana", "hunter", "2secret", "broker.example"] {
                    assert!(!error.contains(part), "{text}: {error}");
                }
            }
        }
        let url: AmqpUrl = "amqp://ana:p@ss@broker/tools".parse().unwrap();
        assert_eq!(url.to_string(), "amqp://broker/tools", "the last `@` ends the password");
    }

    #[test]
    fn url_parts_that_the_client_would_ignore_are_refused() {
        use AmqpUrlError::{Fragment, FrameMax, Parameter, Path, Text, Value};
        for (rest, expected) in [
            ("/tools#x", Fragment),
            ("#", Fragment),
            ("/tools/x", Path),
            ("/tools/", Path),
            ("/to@ols", Path),
            ("?verify=none", Parameter),
            ("/tools?heartbeat=5&Heartbeat=5", Parameter),
            ("?heartbeat=soon", Value),
            ("?heartbeat=70000", Value),
            ("?auth_mechanism=none", Value),
            ("?frame_max=4096", FrameMax),
            ("/%ff", Text),
        ] {
            assert_eq!(format!("amqp://broker{rest}").parse::<AmqpUrl>(), Err(expected), "{rest}");
        }
        for rest in ["", "/", "//", "/%2f", "/a%2fb%40c", "/tools?heartbeat=5&auth_mechanism=external"] {
            assert!(format!("amqps://ana:x@broker:5671{rest}").parse::<AmqpUrl>().is_ok(), "{rest}");
        }
    }

    #[test]
    fn parts_beside_an_address_replace_its_own_whatever_characters_they_have() {
        let url: AmqpUrl = "amqps://bruno:x@one:1/old?heartbeat=5".parse().unwrap();
        let parts = AddressParts {
            host: Some("two.example"),
            port: Some(5671),
            vhost: Some("/a b"),
            user: Some("ana@home"),
            password: Some("/#?@:%2f ü"),
        };
        let url = url.with(parts).unwrap();
        assert_eq!(url.to_string(), "amqps://two.example:5671/%2Fa%20b");
        let endpoint = url.endpoint().unwrap();
        assert_eq!((endpoint.authority.userinfo.username, endpoint.vhost), ("ana@home".to_owned(), "/a b".to_owned()));
        assert_eq!(endpoint.authority.userinfo.password, "/#?@:%2f ü");
        assert_eq!(endpoint.query.heartbeat, Some(5));
        assert_eq!(url.reveal().as_str().parse::<AmqpUrl>().unwrap(), url, "it is written so that it reads the same");
    }

    #[test]
    fn an_address_of_ipv6_is_connected_to() {
        let written: AmqpUrl = "amqp://[2001:db8::1]:5673".parse().unwrap();
        let parts = AddressParts { host: Some("2001:db8::1"), port: Some(5673), ..AddressParts::default() };
        let given = "amqp://localhost".parse::<AmqpUrl>().unwrap().with(parts).unwrap();
        for url in [written, given] {
            let authority = url.endpoint().unwrap().authority;
            assert_eq!((&*authority.host, authority.port), ("2001:db8::1", 5673));
            assert_eq!(url.to_string(), "amqp://[2001:db8::1]:5673");
        }
    }
}
