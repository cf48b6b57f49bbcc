//! Tests of what may be reached, in every spelling, and that nothing else is connected to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::header::HeaderMap;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use toolbus_core::caller::{AgentName, Caller};
use url::Url;

use super::*;

fn hosts(entries: &[&str]) -> Vec<HostRule> {
    entries.iter().map(|entry| entry.parse().unwrap()).collect()
}

fn rules(allow: &[&str], deny: &[&str]) -> EgressRules {
    let config = EgressConfig { allow_hosts: hosts(allow), deny_hosts: hosts(deny), ..EgressConfig::default() };
    EgressRules::new(config, BTreeMap::new(), HostLists::default())
}

fn check(rules: &EgressRules, lists: &HostLists, url: &str) -> Result<EgressTarget, Refusal> {
    rules.check_url(&Url::parse(url).unwrap(), lists)
}

/// Every spelling of what may not be reached, as text that some parser takes for a URL.
const REFUSED: &[&str] = &[
    // Loopback.
    "http://127.0.0.1/",
    "https://127.0.0.1/",
    "http://127.0.0.1./",
    "http://127.0.0.1:80/",
    "http://127.1/",
    "http://127.0.1/",
    "http://127.255.255.254/",
    "http://2130706433/",
    "http://2130706433./",
    "http://017700000001/",
    "http://0x7f000001/",
    "http://0X7F000001/",
    "http://0x7f.0x0.0x0.0x1/",
    "http://0177.0.0.01/",
    "http://0x7f.1/",
    "http://127.0x1/",
    "http://00000177.0.0.1/",
    "http://%31%32%37.0.0.1/",
    "http://127%2e0%2e0%2e1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://１２７.０.０.１/",
    "http://127。0。0。1/",
    "http://127．0．0．1/",
    "http:127.0.0.1/",
    "http:\\\\127.0.0.1\\",
    "http:///127.0.0.1/",
    " \thttp://127.0.0.1/ ",
    "ht\ntp://127.0.0.1/",
    "HTTP://127.0.0.1/",
    "http://127.0.0.1\t/",
    "http://127.0.0.1?x",
    "http://127.0.0.1#x",
    "http://0/",
    "http://0.0.0.0/",
    "http://00.0.0.0/",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[0000:0000:0000:0000:0000:0000:0000:0001]/",
    "http://[::]/",
    // IPv4 within IPv6.
    "http://[::ffff:127.0.0.1]/",
    "http://[::FFFF:7f00:1]/",
    "http://[::ffff:8.8.8.8]/",
    "http://[::127.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::a00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[2001:0:7f00:1::]/",
    "http://[2606:4700::5efe:a00:1]/",
    "http://[2606:4700::200:5efe:a00:1]/",
    // Private, shared, link-local, metadata.
    "http://10.0.0.1/",
    "http://10.255.255.255/",
    "http://012.0.0.1/",
    "http://167772161/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.0.1/",
    "http://192.168.257/",
    "http://0xc0a80101/",
    "http://100.64.0.1/",
    "http://100.127.255.255/",
    "http://100.100.100.200/",
    "http://169.254.169.254/latest/meta-data/",
    "http://0xa9fea9fe/",
    "http://2852039166/",
    "http://169.254.43518/",
    "http://169.254.170.2/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://[fd00:ec2::254]/",
    "http://[fc00::1]/",
    "http://[fe80::1]/",
    "http://[febf::1]/",
    "http://[fec0::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[::1%25lo]/",
    // Reserved, for documentation and benchmarks, multicast, broadcast.
    "http://192.0.2.1/",
    "http://198.51.100.1/",
    "http://203.0.113.1/",
    "http://198.18.0.1/",
    "http://198.19.255.255/",
    "http://192.88.99.1/",
    "http://224.0.0.1/",
    "http://239.255.255.250/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://4294967295/",
    "http://[ff02::1]/",
    "http://[ff0e::1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[2001:2::1]/",
    "http://[2001:20::1]/",
    "http://[100::1]/",
    "http://[4000::1]/",
    "http://[5f00::1]/",
    // Names of machines and networks that are not public.
    "http://localhost/",
    "http://LOCALHOST/",
    "http://LocalHost./",
    "http://ｌｏｃａｌｈｏｓｔ/",
    "http://loc%61lhost/",
    "http://a.localhost/",
    "http://printer.local/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://metadata.google.internal./",
    "http://metadata/",
    "http://redis/",
    "http://nas.home.arpa/",
    "http://router.lan/",
    // User names, ports, protocols, and no URL at all.
    "http://user@example.com/",
    "http://user:password@example.com/",
    "http://:password@example.com/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1@example.com/",
    "http://example.com:22/",
    "http://example.com:6379/",
    "http://8.8.8.8:8080/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com:70/_x",
    "data:text/html,x",
    "javascript:alert(1)",
    "blob:http://example.com/x",
    "view-source:http://example.com/",
    "ws://example.com/",
    "//example.com/",
    "example.com",
    "http://",
    "http://./",
    "http://../",
    "http://exa mple.com/",
    "http://1.2.3.4.5/",
    "http://256.256.256.256/",
    "http://0x100000000/",
    "http://[::1/",
    "http://[::g]/",
];

#[test]
fn whatever_is_not_public_is_refused_in_every_spelling() {
    assert!(REFUSED.len() >= 80);
    let rules = rules(&[], &[]);
    for text in REFUSED {
        let is_refused = Url::parse(text).map_or(true, |url| rules.check_url(&url, &HostLists::default()).is_err());
        assert!(is_refused, "{text}");
    }
}

#[test]
fn public_addresses_may_be_reached() {
    let rules = rules(&[], &[]);
    for url in [
        "http://example.com/",
        "https://example.com:443/a?b#c",
        "https://EXAMPLE.com./",
        "http://bücher.example/",
        "http://8.8.8.8/",
        "http://1.1.1.1./",
        "http://172.15.255.255/",
        "http://172.32.0.1/",
        "http://100.128.0.1/",
        "http://169.253.0.1/",
        "http://[2606:4700::1]/",
        "http://[2a00:1450:4001::5eff:1]/",
        "http://[2001:4860:4860::8888]/",
        "http://localhost.example.com/",
        "http://127.0.0.1.example.com/",
        "http://example.com#@127.0.0.1:22/",
        "http://example.com/@127.0.0.1",
    ] {
        assert!(check(&rules, &HostLists::default(), url).is_ok(), "{url}");
    }
}

#[test]
fn an_exception_is_for_its_port_and_for_nothing_else() {
    let all = HostLists::default();
    let rules = rules(&["127.0.0.1:9000", "10.0.0.0/8", "wiki.corp.internal", "*.dev.example:8443"], &["10.6.0.0/16"]);
    let table = [
        ("http://127.0.0.1:9000/", true),
        ("http://0x7f.1:9000/", true),
        ("http://127.0.0.1/", false),
        ("http://127.0.0.2:9000/", false),
        ("http://[::ffff:127.0.0.1]:9000/", false),
        ("http://10.1.2.3/", true),
        ("http://10.1.2.3:22/", false),
        ("http://10.6.2.3/", false),
        ("http://wiki.corp.internal/", true),
        ("http://wiki.corp.internal:9000/", true), // It may be 127.0.0.1: its address decides.
        ("http://other.corp.internal/", true),     // It may be in 10.0.0.0/8: its address decides.
        ("https://a.dev.example:8443/", true),
        ("https://a.dev.example:8444/", false),
    ];
    for (url, expected) in table {
        assert_eq!(check(&rules, &all, url).is_ok(), expected, "{url}");
    }
    let at = |url: &str, address: &str| {
        let target = check(&rules, &all, url).unwrap();
        rules.check_address(&target, address.parse::<IpAddr>().unwrap(), &all)
    };
    assert_eq!(at("http://wiki.corp.internal/", "192.168.1.1"), Ok(()));
    assert_eq!(at("http://wiki.corp.internal/", "10.6.1.1"), Err(Refusal::Denied("wiki.corp.internal".into())));
    let mapped = at("http://wiki.corp.internal/", "::ffff:10.6.1.1");
    assert_eq!(mapped, Err(Refusal::Denied("wiki.corp.internal".into())), "the same address");
    let agent = HostLists { allowed: Vec::new(), denied: hosts(&["169.254.0.0/16"]) };
    let target = check(&rules, &agent, "http://wiki.corp.internal/").unwrap();
    assert!(rules.check_address(&target, "::ffff:169.254.169.254".parse().unwrap(), &agent).is_err());
    assert_eq!(at("http://wiki.corp.internal:9000/", "127.0.0.1"), Ok(()));
    assert!(at("http://wiki.corp.internal:9000/", "192.168.1.1").is_err());
    assert_eq!(at("http://other.corp.internal/", "10.1.1.1"), Ok(()));
    assert!(at("http://other.corp.internal/", "192.168.1.1").is_err());
    assert_eq!(at("http://example.com:9000/", "8.8.8.8"), Err(Refusal::Port(9000)));
}

#[test]
fn behind_a_proxy_a_network_allows_written_addresses_and_no_names() {
    let config = EgressConfig {
        allow_hosts: hosts(&["127.0.0.1:9000", "10.0.0.0/8", "wiki.corp.internal"]),
        proxy: ProxyMode::Environment,
        ..EgressConfig::default()
    };
    let rules = EgressRules::new(config, BTreeMap::new(), HostLists::default());
    let all = HostLists::default();
    let local = "metadata.google.internal";
    assert_eq!(check(&rules, &all, &format!("http://{local}/")), Err(Refusal::LocalName(local.into())));
    assert_eq!(check(&rules, &all, "http://any.example:9000/"), Err(Refusal::Port(9000)));
    for url in ["http://127.0.0.1:9000/", "http://10.1.2.3/", "http://wiki.corp.internal/", "https://any.example/"] {
        assert!(check(&rules, &all, url).is_ok(), "{url}");
    }
    let some = HostLists { allowed: hosts(&["8.8.8.0/24", "docs.rs"]), denied: Vec::new() };
    assert_eq!(check(&rules, &some, "https://any.example/"), Err(Refusal::NotListed("any.example".into())));
    for url in ["https://8.8.8.8/", "https://docs.rs/"] {
        assert!(check(&rules, &some, url).is_ok(), "{url}");
    }
}

#[test]
fn the_lists_of_an_agent_narrow_and_never_widen() {
    let (ana, bob) = (AgentName::parse("ana").unwrap(), AgentName::parse("bob").unwrap());
    let of_ana = HostLists {
        allowed: hosts(&["docs.rs", "*.example.com", "8.8.0.0/16", "127.0.0.1"]),
        denied: hosts(&["secret.example.com"]),
    };
    let agents = BTreeMap::from([(ana.clone(), of_ana), (bob.clone(), HostLists::default())]);
    let default = HostLists { allowed: Vec::new(), denied: hosts(&["docs.rs"]) };
    let rules = EgressRules::new(EgressConfig::default(), agents, default);
    let allows = |caller: &Caller, url: &str| check(&rules, rules.lists(caller), url);
    let ana = Caller::agent(ana);
    assert!(allows(&ana, "https://docs.rs/tokio").is_ok());
    assert!(allows(&ana, "https://a.example.com/").is_ok());
    assert_eq!(allows(&ana, "https://secret.example.com/"), Err(Refusal::Denied("secret.example.com".into())));
    assert!(allows(&ana, "https://8.8.4.4/").is_ok());
    assert_eq!(allows(&ana, "https://9.9.9.9/"), Err(Refusal::NotListed("9.9.9.9".into())));
    assert!(matches!(allows(&ana, "http://127.0.0.1/"), Err(Refusal::Address { .. })));
    // Another name may have an address of the list, and nothing else.
    let other = allows(&ana, "https://other.org/").unwrap();
    let lists = rules.lists(&ana);
    assert_eq!(rules.check_address(&other, "8.8.8.8".parse().unwrap(), lists), Ok(()));
    assert!(rules.check_address(&other, "9.9.9.9".parse().unwrap(), lists).is_err());
    assert!(allows(&Caller::agent(bob), "https://docs.rs/").is_ok());
    assert!(allows(&Caller::unknown(), "https://docs.rs/").is_err());
    assert!(allows(&Caller::unknown(), "https://other.org/").is_ok());
}

/// A server that sends `response` on each connection, and counts them.
async fn server(response: &'static str) -> (SocketAddr, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&count);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(response.as_bytes()).await;
        }
    });
    (address, count, serving)
}

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nset-cookie: a=b\r\n\r\nhello";

/// An egress whose names resolve in turn to each of these lists of addresses, the last one from then on.
fn resolving(rules: EgressRules, results: Vec<Vec<&'static str>>) -> (Egress, Arc<AtomicUsize>) {
    let lookups = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&lookups);
    let lookup: HostLookup = Arc::new(move |_| {
        let nth = count.fetch_add(1, Ordering::SeqCst).min(results.len() - 1);
        let found = results[nth].iter().map(|address| address.parse().unwrap()).collect();
        Box::pin(async move { Ok(found) })
    });
    (Egress::new(rules, "toolbus-test").unwrap().with_lookup(lookup), lookups)
}

async fn get(egress: &Egress, url: &str) -> Result<String, EgressError> {
    let response = egress.get(&Url::parse(url).unwrap(), HeaderMap::new(), &HostLists::default()).await?;
    Ok(response.text().await.unwrap())
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_is_refused_without_a_connection() {
    let (address, connections, _serving) = server(HELLO).await;
    for resolved in ["127.0.0.1", "::ffff:127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "fd00::1"] {
        // The port would be allowed: the address alone is refused.
        let config = EgressConfig { ports: vec![address.port()], ..EgressConfig::default() };
        let (egress, _) =
            resolving(EgressRules::new(config, BTreeMap::new(), HostLists::default()), vec![vec![resolved]]);
        let error = get(&egress, &format!("http://rebind.example.com:{}/", address.port())).await.unwrap_err();
        assert!(matches!(error, EgressError::Refused(Refusal::Address { .. })), "{resolved}: {error:?}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn of_several_addresses_only_those_are_connected_to_that_are_allowed() {
    let (address, connections, _serving) = server(HELLO).await;
    let allowed = format!("127.0.0.1:{}", address.port());
    let (egress, lookups) = resolving(rules(&[&allowed], &[]), vec![vec!["127.0.0.2", "127.0.0.1", "10.0.0.1"]]);
    assert_eq!(get(&egress, &format!("http://mixed.example.com:{}/", address.port())).await.unwrap(), "hello");
    assert_eq!((connections.load(Ordering::SeqCst), lookups.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_connected_to_and_each_request_is_checked_again() {
    let (address, connections, _serving) = server(HELLO).await;
    let allowed = format!("127.0.0.1:{}", address.port());
    // A name that resolves to another address at the second request, as rebinding does.
    let (egress, lookups) = resolving(rules(&[&allowed], &[]), vec![vec!["127.0.0.1"], vec!["127.0.0.3"]]);
    let url = format!("http://rebind.example.com:{}/", address.port());
    assert_eq!(get(&egress, &url).await.unwrap(), "hello");
    assert_eq!(lookups.load(Ordering::SeqCst), 1, "a second lookup could return another address");
    assert!(matches!(get(&egress, &url).await, Err(EgressError::Refused(_))));
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_redirect_is_not_followed_but_named() {
    let (address, _, _serving) =
        server("HTTP/1.1 302 Found\r\nlocation: //169.254.169.254/x\r\ncontent-length: 0\r\n\r\n").await;
    let allowed = format!("127.0.0.1:{}", address.port());
    let (egress, _) = resolving(rules(&[&allowed], &[]), vec![vec!["127.0.0.1"]]);
    let url = Url::parse(&format!("http://{allowed}/")).unwrap();
    let response = egress.get(&url, HeaderMap::new(), &HostLists::default()).await.unwrap();
    let target = next_hop(&response).unwrap().unwrap();
    assert_eq!(target.as_str(), "http://169.254.169.254/x");
    assert!(matches!(
        egress.get(&target, HeaderMap::new(), &HostLists::default()).await,
        Err(EgressError::Refused(Refusal::Address { .. }))
    ));
}

#[tokio::test]
async fn a_name_without_addresses_is_unknown() {
    let unknown: HostLookup = Arc::new(|_| Box::pin(async { Err(std::io::Error::other("NXDOMAIN")) }));
    let egress = Egress::new(rules(&[], &[]), "toolbus-test").unwrap().with_lookup(unknown);
    assert!(matches!(get(&egress, "http://absent.example.com/").await, Err(EgressError::UnknownHost)));
}
