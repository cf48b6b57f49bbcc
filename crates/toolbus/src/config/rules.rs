//! Checks between values of a configuration, which no schema can express.

mod agents;
mod entries;
mod http;
mod mcp;
mod script;
mod tools;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toolbus_config::{ByteSize, HumanDuration, KeyPath, Part, SchemaDifference, Tree};
use toolbus_mcp_client::config::ServersFile;
use toolbus_memory::working_memory::MAX_TTL;
use toolbus_protocol::topic::{self, REQUEST_TOPICS};
use toolbus_store::StoreConfig;

use super::Secret;
use super::audit::AuditConfig;
use super::bus::{BusConfig, BusUrl};
use super::described::DescribedRest;
use super::http::HttpConfig;
use super::identity::{IdentityConfig, sidecar_topic};
use super::invoke::InvokeConfig;
use super::ledger::LedgerConfig;
use super::{MemoryConfig, ResultsConfig, ScheduleConfig, WebConfig};

/// Time after the deadline of a call in which its reply is published.
const REPLY_TIME: Duration = Duration::from_secs(10);
/// Shortest secret of the daemon's own, in bytes.
const MIN_SECRET: usize = 16;
/// Bytes of a file with certificates in which the first of them begins.
const MAX_PEM: u64 = 1024 * 1024;
/// Largest result that may be read: its texts are copied more than once.
const MAX_RESULT: ByteSize = ByteSize::from_mib(512);

/// Every contradiction between values that are valid by themselves.
///
/// Reads the tree rather than the finished configuration, because the rest of it may be wrong. A rule that compares a
/// wrong value (one in `wrong`) with another is left out. `servers` is the file of MCP servers, `described` the files and
/// specifications of REST tools.
pub(crate) fn contradictions(
    tree: &Tree,
    wrong: Vec<KeyPath>,
    servers: &ServersFile,
    described: &DescribedRest,
) -> Vec<SchemaDifference> {
    let mut checker = RuleChecker { tree, wrong, servers, described, found: Vec::new() };
    let bus: Option<BusConfig> = checker.section("bus");
    let invoke: Option<InvokeConfig> = checker.section("invoke");
    let identity: Option<IdentityConfig> = checker.section("identity");
    if let Some(bus) = &bus {
        checker.bus(bus);
    }
    if let Some(StoreConfig { tls, .. }) = checker.section("store") {
        checker.certificates("store", [tls.ca, tls.cert, tls.key]);
    }
    if let Some(invoke) = &invoke {
        checker.invoke(invoke);
    }
    if let (Some(bus), Some(invoke)) = (&bus, &invoke) {
        let own = identity.as_ref().and_then(|identity| identity.agent.as_ref()).map(sidecar_topic);
        checker.topics(bus, invoke, own);
        checker.consumer_timeout(bus, invoke);
    }
    let sections = checker.sections();
    if let Some(identity) = &identity {
        checker.identity(identity, &sections);
    }
    checker.toolsets(&sections);
    if let (Some(ledger), Some(invoke)) = (checker.section::<LedgerConfig>("ledger"), &invoke) {
        checker.ledger(&ledger, invoke);
    }
    if let Some(memory) = checker.section::<MemoryConfig>("memory") {
        checker.memory(&memory);
    }
    if let Some(results) = checker.section::<ResultsConfig>("results") {
        checker.results(&results);
    }
    if let Some(schedule) = checker.section::<ScheduleConfig>("schedule") {
        checker.schedule(&schedule);
    }
    if let Some(web) = checker.section::<WebConfig>("web") {
        checker.web(&web);
    }
    checker.servers(&sections);
    if let Some(tools) = checker.section("tools") {
        checker.tools(&tools, &sections);
    }
    checker.agents(&sections);
    if let Some(AuditConfig { key, .. }) = checker.section("audit") {
        checker.secret("audit.key", key);
    }
    if let Some(http) = checker.section::<HttpConfig>("http") {
        checker.http(&http, identity.as_ref(), invoke.as_ref());
    }
    checker.endpoints();
    checker.described();
    checker.script();
    checker.commands();
    checker.found
}

struct RuleChecker<'a> {
    tree: &'a Tree,
    wrong: Vec<KeyPath>,
    servers: &'a ServersFile,
    described: &'a DescribedRest,
    found: Vec<SchemaDifference>,
}

impl RuleChecker<'_> {
    /// A section as far as it is in order: without its wrong values.
    fn section<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let mut tree = self.tree.clone();
        for path in &self.wrong {
            // An element of a list takes its list along.
            let in_list = |depth: usize| path.get(..depth).and_then(|p| self.tree.get(p)).is_some_and(Value::is_array);
            let depth = (0..path.len()).find(|depth| in_list(*depth)).unwrap_or(path.len());
            tree.remove(path.get(..depth).unwrap_or_default());
        }
        let section = tree.get(&[name.to_owned()]).cloned().unwrap_or_else(|| Value::Object(Default::default()));
        serde_json::from_value(section).ok()
    }

    /// Every entry of a map of sections that is in order, and whether all are.
    fn entries<K: DeserializeOwned + Ord, T: DeserializeOwned>(&self, name: &str) -> (BTreeMap<K, T>, bool) {
        let entries: BTreeMap<String, Value> = self.section(name).unwrap_or_default();
        let count = entries.len();
        let read = |(key, value)| {
            let key = serde_json::from_value(Value::String(key)).ok()?;
            Some((key, serde_json::from_value(value).ok()?))
        };
        let read: BTreeMap<K, T> = entries.into_iter().filter_map(read).collect();
        let is_whole = read.len() == count && !self.is_wrong_in(name);
        (read, is_whole)
    }

    fn is_wrong_in(&self, section: &str) -> bool {
        self.wrong.iter().any(|path| path.first().is_some_and(|first| first == section))
    }

    /// Reports a contradiction between keys, at the first of them that was given; none if one of them is wrong anyway.
    fn report(&mut self, keys: &[&str], what: impl Into<String>) {
        self.report_at(keys.iter().map(|key| path(key)).collect(), Part::Value, what);
    }

    /// Like [`Self::report`], for keys with dots in their names.
    fn report_at(&mut self, paths: Vec<KeyPath>, part: Part, what: impl Into<String>) {
        let is_wrong =
            |path: &KeyPath| self.wrong.iter().any(|wrong| wrong.starts_with(path) || path.starts_with(wrong));
        if paths.iter().any(is_wrong) {
            return;
        }
        let given = paths.iter().find(|path| self.tree.get(path).is_some());
        if let Some(path) = given.or(paths.first()) {
            self.found.push(SchemaDifference { path: path.clone(), part, what: what.into() });
        }
    }

    fn bus(&mut self, bus: &BusConfig) {
        if bus.exchange == bus.dead_letter_exchange {
            self.report(
                &["bus.dead_letter_exchange", "bus.exchange"],
                "the same as `bus.exchange`; dead letters would come back as requests: expected another name",
            );
        }
        let compat = &bus.compat_queues;
        let queues = [("mcp", &compat.mcp), ("mcp-manage", &compat.mcp_manage), ("mcp-refresh", &compat.mcp_refresh)];
        for (index, (key, queue)) in queues.iter().enumerate() {
            let twin = queues.iter().take(index).find(|(_, other)| queue.is_some() && queue == other);
            if let Some((other, _)) = twin {
                let keys = [format!("bus.compat_queues.{key}"), format!("bus.compat_queues.{other}")];
                self.report(
                    &keys.each_ref().map(String::as_str),
                    format!("the same queue as for `{other}`; expected another"),
                );
            }
        }
        let tls = bus.tls.clone();
        self.certificates("bus", [tls.ca, tls.cert, tls.key]);
        if let Err((key, what)) = bus.address() {
            self.report(&[key, "bus.url", "bus.user", "bus.password", "bus.host"], what);
        }
    }

    /// Reports certificates and keys of a section that are incomplete or cannot be read.
    fn certificates(&mut self, section: &str, [ca, cert, key]: [Option<PathBuf>; 3]) {
        let [of_ca, of_cert, of_key] = ["ca", "cert", "key"].map(|name| format!("{section}.tls.{name}"));
        match (&cert, &key) {
            (Some(_), None) => {
                self.report(&[&of_cert], format!("needs `{of_key}`, the private key of this certificate"))
            }
            (None, Some(_)) => self.report(&[&of_key], format!("needs `{of_cert}`, the certificate of this key")),
            _ => {}
        }
        for (name, file, expected) in
            [(of_ca, ca, "CERTIFICATE"), (of_cert, cert, "CERTIFICATE"), (of_key, key, "PRIVATE KEY")]
        {
            match file.as_deref().map(begins_pem(expected)) {
                Some(Err(error)) => self.report(&[&name], format!("the file cannot be read: {error}")),
                Some(Ok(false)) => self.report(&[&name], format!("the file holds no {expected} in PEM")),
                Some(Ok(true)) | None => {}
            }
        }
    }

    /// Reports a secret of the daemon's own that is shorter than [`MIN_SECRET`].
    fn secret(&mut self, key: &str, secret: Option<Secret>) {
        let bytes = secret.map(|secret| secret.expose().len());
        if let Some(bytes) = bytes.filter(|bytes| *bytes < MIN_SECRET) {
            let what = format!("{bytes} bytes long, which can be guessed; expected at least {MIN_SECRET} random ones");
            self.report(&[key], what);
        }
    }

    fn invoke(&mut self, invoke: &InvokeConfig) {
        if invoke.max_timeout < invoke.default_timeout {
            self.report(
                &["invoke.max_timeout", "invoke.default_timeout"],
                format!(
                    "max_timeout ({}) is shorter than default_timeout ({}); expected it to be at least as long",
                    invoke.max_timeout, invoke.default_timeout
                ),
            );
        }
        let prefetch = invoke.max_in_flight.saturating_add(invoke.max_waiting);
        if prefetch > usize::from(u16::MAX) {
            self.report(
                &["invoke.max_waiting", "invoke.max_in_flight"],
                format!("max_in_flight + max_waiting is {prefetch}; AMQP hands over at most 65535 messages at a time"),
            );
        }
    }

    fn results(&mut self, results: &ResultsConfig) {
        self.ttl("results.ttl", "parts are", results.ttl);
        let ResultsConfig { max_size, max_total_size, .. } = results;
        if *max_size > MAX_RESULT {
            self.report(&["results.max_size"], format!("a result has at most {MAX_RESULT}, not {max_size}"));
        }
        if max_size > max_total_size {
            self.report(
                &["results.max_size", "results.max_total_size"],
                format!("max_size ({max_size}) is larger than max_total_size ({max_total_size})"),
            );
        }
    }

    fn web(&mut self, web: &WebConfig) {
        self.ttl("web.browse.chunk_ttl", "chunks are", web.browse.chunk_ttl);
    }

    /// Entries of working memory are kept for whole seconds.
    fn ttl(&mut self, key: &'static str, what: &str, ttl: HumanDuration) {
        if !(Duration::from_secs(1)..=MAX_TTL).contains(&ttl.get()) {
            self.report(&[key], format!("{what} kept for 1s to 24h, not for {ttl}"));
        }
    }

    fn memory(&mut self, memory: &MemoryConfig) {
        let MemoryConfig { default_ttl, max_value, max_size, max_total_size, .. } = memory;
        self.ttl("memory.default_ttl", "an entry is", *default_ttl);
        if max_value > max_size {
            self.report(
                &["memory.max_value", "memory.max_size"],
                format!("max_value ({max_value}) is larger than max_size ({max_size})"),
            );
        }
        if max_size > max_total_size {
            self.report(
                &["memory.max_size", "memory.max_total_size"],
                format!("max_size ({max_size}) is larger than max_total_size ({max_total_size})"),
            );
        }
    }

    fn schedule(&mut self, schedule: &ScheduleConfig) {
        if let (None, Some(name)) = (schedule.zone(), &schedule.timezone) {
            let what = format!("`{name}` is no time zone; expected an IANA name such as `Europe/Berlin`, or `UTC`");
            self.report(&["schedule.timezone"], what);
        }
    }

    fn ledger(&mut self, ledger: &LedgerConfig, invoke: &InvokeConfig) {
        if ledger.ttl <= invoke.max_timeout {
            let LedgerConfig { ttl, .. } = ledger;
            let longest = invoke.max_timeout;
            self.report(
                &["ledger.ttl", "invoke.max_timeout"],
                format!("ttl ({ttl}) is no longer than max_timeout ({longest}); a call must be known while it runs"),
            );
        }
        if ledger.max_answer > ledger.max_size {
            self.report(
                &["ledger.max_answer", "ledger.max_size"],
                format!("max_answer ({}) is larger than max_size ({})", ledger.max_answer, ledger.max_size),
            );
        }
    }

    /// `invoke.max_timeout` bounds all that a call may take, its wait and its tool's own limit included.
    fn consumer_timeout(&mut self, bus: &BusConfig, invoke: &InvokeConfig) {
        let (longest, allowed) = (invoke.max_timeout, bus.consumer_timeout);
        if bus.address() == Ok(BusUrl::Embedded) || longest.get().saturating_add(REPLY_TIME) <= allowed.get() {
            return;
        }
        let seconds = REPLY_TIME.as_secs();
        self.report(
            &["invoke.max_timeout", "bus.consumer_timeout"],
            format!(
                "max_timeout ({longest}) and {seconds} s for the answer are longer than bus.consumer_timeout ({allowed}), \
                 after which RabbitMQ closes the channel and delivers every unfinished call again; expected a shorter \
                 max_timeout, or the broker's own `consumer_timeout` raised, and bus.consumer_timeout with it"
            ),
        );
    }

    fn topics(&mut self, bus: &BusConfig, invoke: &InvokeConfig, own: Option<String>) {
        let topics: Vec<&str> = invoke.topics.iter().chain(&own).map(String::as_str).collect();
        for pattern in &bus.reply_topics {
            let own = topics.iter().copied().find(|request| overlap(pattern, request));
            let any = REQUEST_TOPICS.into_iter().find(|request| overlap(pattern, request));
            if let Some(request) = own.or(any) {
                self.report(
                    &["bus.reply_topics", "invoke.topics"],
                    format!("`{pattern}` takes in requests (`{request}`); an answer there would be read as a request"),
                );
            }
        }
        let default = &invoke.default_reply_topic;
        let mut requests = topics.iter().copied().chain(REQUEST_TOPICS);
        if let Some(request) = requests.find(|request| topic::matches(request, default)) {
            self.report(
                &["invoke.default_reply_topic", "invoke.topics"],
                format!("`{default}` is a topic of requests (`{request}`); an answer there would be read as a request"),
            );
        }
    }
}

/// A key without dots in its names, as a path.
fn path(key: &str) -> KeyPath {
    key.split('.').map(str::to_owned).collect()
}

/// A path below another.
fn below(path: &[String], keys: &[&str]) -> KeyPath {
    path.iter().cloned().chain(keys.iter().map(|key| (*key).to_owned())).collect()
}

/// Finds out whether a file holds something of this kind in PEM, in its first [`MAX_PEM`] bytes.
fn begins_pem(kind: &'static str) -> impl Fn(&Path) -> io::Result<bool> {
    move |path| {
        let mut read = Vec::new();
        File::open(path)?.take(MAX_PEM).read_to_end(&mut read)?;
        let text = String::from_utf8_lossy(&read);
        Ok(text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(kind)))
    }
}

/// Whether there is a topic that both patterns match.
fn overlap(left: &str, right: &str) -> bool {
    let left: Vec<&str> = left.split('.').collect();
    let right: Vec<&str> = right.split('.').collect();
    // reachable[r]: whether the words of `left` so far and the first r words of `right` can stand for the same text.
    let mut reachable = vec![true];
    reachable.extend(right.iter().scan(true, |open, word| {
        *open = *open && *word == "#";
        Some(*open)
    }));
    for word in &left {
        let mut next = vec![*word == "#" && reachable.first() == Some(&true)];
        for (index, other) in right.iter().enumerate() {
            let at = |row: &[bool], index: usize| row.get(index).copied().unwrap_or(false);
            let same = *word == *other || *word == "*" || *other == "*";
            let either_takes_more = (*word == "#" && (at(&reachable, index + 1) || at(&next, index)))
                || (*other == "#" && (at(&next, index) || at(&reachable, index + 1)));
            next.push(either_takes_more || (same && at(&reachable, index)));
        }
        reachable = next;
    }
    reachable.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_overlap_when_a_topic_matches_both() {
        let table = [
            ("tool.result.#", "tool.invoke.#", false),
            ("tool.#", "tool.invoke.#", true),
            ("tool.*", "tool.invoke.#", true),
            ("#", "mcp.manage", true),
            ("mcp.manage.response.#", "mcp.manage", false),
            ("mcp.manage.#", "mcp.manage", true),
            ("*.manage", "mcp.*", true),
            ("#.end", "tool.#", true),
            ("#.end", "tool.*", true),
            ("a.b", "a.b.c", false),
            ("a.*", "a", false),
            ("a.#.b", "#.c", false),
        ];
        for (left, right, expected) in table {
            assert_eq!(overlap(left, right), expected, "{left} {right}");
            assert_eq!(overlap(right, left), expected, "{right} {left}");
        }
    }
}
