//! What a configuration may say, and yet hardly means.

use url::Url;

use super::bus::is_local;
use super::{AmqpUrl, BusUrl, Config};

/// What is allowed and yet hardly meant, in words.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if let BusUrl::Amqp(urls) = &config.bus.url {
        for url in urls.iter().filter(|url| !url.is_local()) {
            if url.is_guest() {
                warnings.push(format!(
                    "bus.url: {url} is not on this machine and gets the credentials guest/guest, which brokers take \
                     from their own machine only; create a user for the daemon"
                ));
            }
            if !url.is_tls() {
                warnings.push(format!("bus.url: credentials and calls travel to {url} unencrypted; use amqps://"));
            }
        }
        let tls = &config.bus.tls;
        if (tls.ca.is_some() || tls.cert.is_some()) && !urls.iter().any(AmqpUrl::is_tls) {
            warnings.push("bus.tls: the certificates are not used, because no address is amqps://".to_owned());
        }
    }
    if !config.http.listen.ip().is_loopback() {
        warnings.push(format!("http.listen: {} can be reached from other machines", config.http.listen));
    }
    for endpoint in &config.rest.endpoints {
        let is_plain = Url::parse(&endpoint.url).is_ok_and(|url| url.scheme() == "http" && !is_local(&url));
        if is_plain && endpoint.auth.is_some() {
            warnings
                .push(format!("rest.endpoints: `{}` sends its credentials unencrypted; use https://", endpoint.name));
        }
    }
    let names = config.tool_names();
    for pattern in config.tools.limits.keys() {
        if !names.iter().any(|name| pattern.matches(name)) {
            warnings.push(format!("tools.limits: `{pattern}` matches no tool"));
        }
    }
    warnings
}
