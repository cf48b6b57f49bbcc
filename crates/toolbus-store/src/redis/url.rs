//! The address of a Redis server.

use std::fmt;
use std::str::FromStr;

use url::Url;

/// Port of Redis.
const PORT: u16 = 6379;
/// Highest number of a database.
const MAX_DATABASE: u16 = 9999;

/// Address of a Redis server. Holds credentials: `Debug` and `Display` leave them out.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(Url);

/// Reason why a string is no address of a Redis server; never holds the string.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisUrlError {
    /// Not a URL at all.
    #[error(r#"not a URL ({0}); expected "redis://:password@host:6379/0" or "rediss://…"; {ENCODE}"#)]
    Url(#[from] url::ParseError),
    /// Of another scheme.
    #[error(r#"not an address of Redis; expected "redis://…" or "rediss://…""#)]
    Scheme,
    /// Without a host that can be connected to.
    #[error(r#"no host; expected "redis://:password@host:6379/0""#)]
    Host,
    /// With a path that is no number of a database.
    #[error("no number of a database after the host; expected for example `/0`; {ENCODE}")]
    Database,
    /// With a query or a fragment.
    #[error("nothing may follow the number of the database; {ENCODE}")]
    Options,
    /// A user or password that is no UTF-8.
    #[error("user and password must be UTF-8; {ENCODE}")]
    Login,
}

/// Advice for a reserved character that has ended the password too early.
const ENCODE: &str = "percent-encode `/`, `#`, `?`, `@`, `:` and `%` in user and password, such as `%2F` for `/`";

impl RedisUrl {
    /// The URL with its credentials, for connecting.
    #[must_use]
    pub fn reveal(&self) -> &Url {
        &self.0
    }

    /// Host and port, for messages.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", self.0.host_str().unwrap_or_default(), self.0.port().unwrap_or(PORT))
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "rediss"
    }
}

impl FromStr for RedisUrl {
    type Err = RedisUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text)?;
        if !matches!(url.scheme(), "redis" | "rediss") {
            // Not named: in `user:password@host` the user is read as a scheme.
            return Err(RedisUrlError::Scheme);
        }
        if matches!(url.host_str(), None | Some("" | "0.0.0.0" | "[::]")) {
            return Err(RedisUrlError::Host);
        }
        let database = url.path().strip_prefix('/').unwrap_or(url.path());
        if !database.is_empty() && !database.parse::<u16>().is_ok_and(|number| number <= MAX_DATABASE) {
            return Err(RedisUrlError::Database);
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(RedisUrlError::Options);
        }
        let is_text = |part: &str| percent_encoding::percent_decode_str(part).decode_utf8().is_ok();
        if !is_text(url.username()) || !is_text(url.password().unwrap_or_default()) {
            return Err(RedisUrlError::Login);
        }
        Ok(Self(url))
    }
}

impl fmt::Display for RedisUrl {
    /// Scheme, host, port and database.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.0.host_str().unwrap_or_default())?;
        self.0.port().map_or(Ok(()), |port| write!(f, ":{port}"))?;
        f.write_str(self.0.path())
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        let url: RedisUrl = "rediss://ana:hunter2@redis.example:6380/3".parse().unwrap();
        assert_eq!(format!("{url} {url:?}"), "rediss://redis.example:6380/3 rediss://redis.example:6380/3");
        assert_eq!(url.address(), "redis.example:6380");
        assert_eq!("redis://[::1]".parse::<RedisUrl>().unwrap().address(), "[::1]:6379");
    }

    #[test]
    fn a_wrong_address_is_refused_without_repeating_it() {
        for (text, expected) in [
            ("ana:hunter2@host", RedisUrlError::Scheme),
            ("http://:hunter2@host", RedisUrlError::Scheme),
            ("redis:///0", RedisUrlError::Host),
            ("redis://", RedisUrlError::Host),
            ("redis://:hunter2@0.0.0.0", RedisUrlError::Host),
            ("redis://:hunter2@host/one", RedisUrlError::Database),
            ("redis://:hunter2@host/0/1", RedisUrlError::Database),
            ("redis://:hunter2@host/-1", RedisUrlError::Database),
            ("rediss://:hunter2@host/0#insecure", RedisUrlError::Options),
            ("redis://:hunter2@host?protocol=resp3", RedisUrlError::Options),
            ("redis://:hunter2%ff@host", RedisUrlError::Login),
            ("redis://hunter2:12/x@host", RedisUrlError::Database),
            ("redis://hunter2:12?x@host", RedisUrlError::Options),
            ("redis://hunter2:12#x@host", RedisUrlError::Options),
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            let is_of_login = !matches!(error, RedisUrlError::Scheme | RedisUrlError::Host);
            assert_eq!(error.to_string().contains("percent-encode"), is_of_login, "{error}");
        }
    }
}
