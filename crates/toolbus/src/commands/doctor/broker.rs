//! The broker: whether it is reached and of a known version, what the daemon's user may do there, and whether what exists is
//! as the daemon wants it.

use percent_encoding::percent_decode_str;
use toolbus_broker::rabbitmq::{ConnectError, Inspected, Inspection, Node, OwnQueue, Product, inspect};
use toolbus_core::Clock;
use toolbus_core::bus::{Ownership, Subscription};

use super::Finding;
use crate::app;
use crate::commands::shell_word;
use crate::config::{AmqpUrl, BusUrl, Config};

const SUBJECT: &str = "broker";
/// Name of the product that the daemon is tested with, the oldest version, and the newest major version.
const PRODUCT: &str = "RabbitMQ";
const OLDEST: (u32, u32) = (3, 10);
const NEWEST: u32 = 4;
/// Words with which RabbitMQ refuses a topic.
const TOPIC: &str = "access to topic";
/// Largest difference of two clocks that does not matter, in seconds: the broker writes whole ones.
const MAX_SKEW: u64 = 5;

/// Examines every node of the broker, and the rights on the first that takes the login.
pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let (BusUrl::Amqp(urls), Some(settings)) = (&config.bus.url, config.bus.broker_settings()) else {
        return vec![Finding::ok(SUBJECT, "the bus is embedded, and needs none")];
    };
    let nodes = match inspect(settings).await {
        Ok(nodes) => nodes,
        Err(error) => return vec![Finding::problem(SUBJECT, error.to_string())],
    };
    let account = Account::of(config, urls);
    let (mut findings, mut first) = (Vec::new(), None);
    for Node { address, product, opened } in nodes {
        match opened {
            Ok(inspection) => {
                let name = product.as_ref().map(|it| format!("{} {}, ", it.name, it.version)).unwrap_or_default();
                findings.push(Finding::ok(SUBJECT, format!("{address}: {name}takes the login")));
                first.get_or_insert(inspection);
            }
            Err(error) => findings.push(account.unopened(&address, &error)),
        }
        findings.extend(product.as_ref().and_then(unknown_version));
    }
    if let Some(inspection) = first {
        match app::subscriptions(config) {
            Ok(queues) => findings.extend(account.rights(config, &inspection, &queues).await),
            Err(error) => findings.push(Finding::problem(SUBJECT, error.to_string())),
        }
        inspection.close().await;
    }
    findings
}

/// Warns of a product or a version that the daemon is not tested with.
fn unknown_version(Product { name, version }: &Product) -> Option<Finding> {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let number = numbers.next().zip(numbers.next());
    let is_known = name == PRODUCT && number.is_some_and(|number| number >= OLDEST && number.0 <= NEWEST);
    let (major, minor) = OLDEST;
    let text = format!("{name} {version} is not supported: {PRODUCT} {major}.{minor} or newer is, up to {NEWEST}.x");
    (!is_known).then(|| Finding::warning(SUBJECT, text).mended_by(format!("run {PRODUCT} {NEWEST}.x")))
}

/// The daemon's user at the broker, with all that it needs there.
struct Account {
    /// As `rabbitmqctl` takes it.
    user: String,
    vhost: String,
    /// The command that gives it every right.
    permissions: String,
}

impl Account {
    fn of(config: &Config, urls: &[AmqpUrl]) -> Self {
        let user = config.bus.url.login().map_or_else(|| "USER".to_owned(), |login| shell_word(&login));
        let path = urls.first().map(|url| url.reveal().path().trim_start_matches('/')).unwrap_or_default();
        let vhost = match &*percent_decode_str(path).decode_utf8_lossy() {
            "" => "/".to_owned(),
            name => name.to_owned(),
        };
        let own = format!(r"{}\..*", escaped(&config.queue_prefix()));
        let exchanges = [&config.bus.exchange, &config.bus.dead_letter_exchange].map(|name| escaped(name)).join("|");
        let all = shell_word(&format!("^({own}|{exchanges})$"));
        let write = shell_word(&format!(r"^({own}|{exchanges}|amq\.default)$"));
        let compat = &config.bus.compat_queues;
        let others = [&compat.mcp, &compat.mcp_manage, &compat.mcp_refresh];
        let others: String = others.into_iter().flatten().map(|name| format!("|{}", escaped(name))).collect();
        let read = shell_word(&format!("^({own}|{exchanges}{others})$"));
        let vhost = shell_word(&vhost);
        let permissions = format!("rabbitmqctl set_permissions -p {vhost} {user} {all} {write} {read}");
        Self { user, vhost, permissions }
    }

    fn unopened(&self, address: &str, error: &ConnectError) -> Finding {
        let Self { user, vhost, .. } = self;
        let mend = match error {
            ConnectError::Unreachable(_) => "start the broker, or correct bus.url".to_owned(),
            ConnectError::Login(_) => {
                format!("set bus.user and bus.password, or bus.url; on the broker: rabbitmqctl change_password {user}")
            }
            ConnectError::VirtualHost(_) => {
                format!(
                    "correct bus.vhost or bus.url; on the broker: rabbitmqctl add_vhost {vhost}, {}",
                    self.permissions
                )
            }
        };
        Finding::problem(SUBJECT, format!("{address}: {error}")).mended_by(mend)
    }

    /// Examines exchanges and queues, and the user's permissions on them.
    async fn rights(&self, config: &Config, inspection: &Inspection, queues: &[Subscription]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for ((name, answer), key) in inspection.exchanges().await.into_iter().zip(["exchange", "dead_letter_exchange"])
        {
            let shown = format!("exchange `{name}`");
            let advice = format!("delete the exchange, or name another in bus.{key}");
            findings.push(match answer {
                Inspected::Yes => Finding::ok(SUBJECT, format!("{shown} exists as configured")),
                Inspected::Missing => {
                    Finding::ok(SUBJECT, format!("{shown} does not exist yet; the daemon declares it"))
                }
                answer => self.unlike(&shown, answer, &advice),
            });
        }
        findings.extend(self.queues(inspection, queues).await);
        let own = queues.iter().find(|queue| queue.ownership == Ownership::Replica);
        if let Some(own) = own {
            findings.extend(self.own_queue(inspection.own_queue(own).await));
        }
        let topic = &config.invoke.default_reply_topic;
        let reply = (format!("publishing replies on `{topic}`"), inspection.may_publish(topic).await);
        let queue = queues.iter().find(|queue| queue.ownership == Ownership::Shared).map(|queue| &queue.queue);
        let dead = match queue {
            Some(queue) => Some((format!("dead letters of `{queue}`"), inspection.may_dead_letter(queue).await)),
            None => None,
        };
        // A missing exchange has a finding already.
        let failing = std::iter::once(reply).chain(dead).filter(|(_, answer)| !is_fine(answer));
        findings.extend(failing.map(|(what, answer)| self.judged(&what, answer, &self.permissions)));
        findings
    }

    /// Compares the queues that outlive a connection with the declarations of the daemon.
    async fn queues(&self, inspection: &Inspection, queues: &[Subscription]) -> Vec<Finding> {
        let (mut found, mut missing, mut findings) = (0, 0, Vec::new());
        for queue in queues {
            for (name, answer) in inspection.queues(queue).await {
                let advice = format!(
                    "rabbitmqctl delete_queue -p {} {}, once it is empty; or set bus.queue_prefix, for other queues",
                    self.vhost,
                    shell_word(&name)
                );
                match answer {
                    Inspected::Yes => found += 1,
                    Inspected::Missing if queue.ownership == Ownership::Existing => {
                        let text = format!("queue `{name}` of bus.compat_queues does not exist, and is waited for");
                        let mend = "start the program that declares it, or remove the key";
                        findings.push(Finding::warning(SUBJECT, text).mended_by(mend));
                    }
                    Inspected::Missing => missing += 1,
                    answer => findings.push(self.unlike(&format!("queue `{name}`"), answer, &advice)),
                }
            }
        }
        if found > 0 {
            findings.push(Finding::ok(SUBJECT, format!("{found} queues exist as configured")));
        }
        if missing > 0 {
            findings.push(Finding::ok(SUBJECT, format!("{missing} queues do not exist yet; the daemon declares them")));
        }
        findings
    }

    /// Judges the steps on the temporary queue of this command.
    fn own_queue(&self, own: OwnQueue) -> Vec<Finding> {
        let OwnQueue { declare, bind, publish, consume, is_blocked, broker_time } = own;
        if !is_fine(&declare) {
            return vec![self.judged("declaring a queue of its own", declare, &self.permissions)];
        }
        let mut findings: Vec<Finding> = Vec::new();
        for (topic, answer) in bind.into_iter().filter(|(_, answer)| !is_fine(answer)) {
            // A binding is the operator's to make, where the daemon may not.
            let text = format!("binding a queue to `{topic}`");
            findings
                .push(Finding { verdict: super::Verdict::Warning, ..self.judged(&text, answer, &self.permissions) });
        }
        match publish {
            Inspected::Refused(words) => {
                let text = format!("replies go by topic only; requests that name a queue are dead-lettered: {words}");
                let mend = format!("{}, unless that is meant (docs/rabbitmq.md)", self.permissions);
                findings.push(Finding::warning(SUBJECT, text).mended_by(mend));
            }
            Inspected::Unknown(_) if is_blocked => {
                let mend = "rabbitmqctl status shows the alarm; free memory or disk on the broker's machine";
                findings.push(Finding::problem(SUBJECT, "it takes no messages: memory or disk alarm").mended_by(mend));
            }
            Inspected::Unknown(words) => {
                let text = format!("it confirms no message: {words}");
                findings.push(Finding::problem(SUBJECT, text).mended_by("look at the broker's log; restart it"));
            }
            _ => {}
        }
        if !is_fine(&consume) {
            findings.push(self.judged("consuming a queue of its own", consume, &self.permissions));
        }
        if findings.is_empty() {
            let text = "the user may declare, bind, publish to and consume queues of its own";
            findings.push(Finding::ok(SUBJECT, text));
        }
        findings.extend(broker_time.and_then(|time| skew(time, Clock::SYSTEM.since_epoch().as_secs())));
        findings
    }

    /// Judges an exchange or a queue that is neither as configured nor for the daemon to declare.
    fn unlike(&self, name: &str, answer: Inspected, advice: &str) -> Finding {
        match answer {
            Inspected::Refused(_) => {
                let what = format!("{name} does not exist, and the user may not declare it");
                self.judged(&what, answer, advice)
            }
            answer => self.judged(name, answer, advice),
        }
    }

    /// Judges an object or a permission; `advice` is for an object that differs.
    fn judged(&self, what: &str, found: Inspected, advice: &str) -> Finding {
        match found {
            Inspected::Yes | Inspected::Missing => Finding::ok(SUBJECT, what),
            Inspected::Refused(words) => {
                let mend = if words.contains(TOPIC) { "rabbitmqctl set_topic_permissions" } else { &*self.permissions };
                Finding::problem(SUBJECT, format!("{what}: {words}"))
                    .mended_by(format!("{mend}; docs/rabbitmq.md has all rights of the daemon"))
            }
            Inspected::Differs { what: difference, key } => {
                let key = key.map(|key| format!("; or set {key} to what it has")).unwrap_or_default();
                Finding::problem(SUBJECT, format!("{what} exists with {difference}"))
                    .mended_by(format!("{advice}{key}"))
            }
            Inspected::Unknown(words) => Finding::problem(SUBJECT, format!("{what}: {words}"))
                .mended_by("look at the broker's log; rabbitmqctl list_queues name type state leader shows its queues"),
        }
    }
}

const fn is_fine(answer: &Inspected) -> bool {
    matches!(answer, Inspected::Yes | Inspected::Missing)
}

/// Warns of clocks that differ, in seconds since 1970.
fn skew(theirs: u64, ours: u64) -> Option<Finding> {
    let seconds = theirs.abs_diff(ours);
    let text = format!("its clock differs from that of this machine by {seconds} s");
    (seconds > MAX_SKEW).then(|| Finding::warning(SUBJECT, text).mended_by("set both clocks, for example by NTP"))
}

/// A name as a regular expression that matches it alone.
fn escaped(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    name.chars().fold(String::new(), |mut escaped, c| {
        if !is_plain(c) {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    fn account(url: &str) -> Account {
        let mut config = Config::default();
        config.bus.url = url.parse().unwrap();
        let BusUrl::Amqp(urls) = &config.bus.url else { panic!("a broker") };
        Account::of(&config, urls)
    }

    #[test]
    fn the_right_to_everything_is_given_by_one_command_without_the_password() {
        let permissions = account("amqp://ana:hunter2@broker/tools").permissions;
        insta::assert_snapshot!(permissions, @r"rabbitmqctl set_permissions -p tools ana '^(toolbus\..*|rockbot|rockbot\.dlx)$' '^(toolbus\..*|rockbot|rockbot\.dlx|amq\.default)$' '^(toolbus\..*|rockbot|rockbot\.dlx)$'");
        for url in ["amqp://broker", "amqp://broker/", "amqp://broker/%2f"] {
            assert!(account(url).permissions.starts_with("rabbitmqctl set_permissions -p / USER "), "{url}");
        }
    }

    #[test]
    fn versions_from_3_10_to_4_are_known() {
        let warned = |name: &str, version: &str| {
            let product = Product { name: name.to_owned(), version: version.to_owned() };
            unknown_version(&product).is_some()
        };
        for known in ["3.10.8", "3.13.7", "4.0.5", "4.12.0-rc.1"] {
            assert!(!warned("RabbitMQ", known), "{known}");
        }
        for unknown in ["3.9.29", "2.8.7", "5.0.0", "next", ""] {
            assert!(warned("RabbitMQ", unknown), "{unknown}");
        }
        assert!(warned("LavinMQ", "4.0.0"));
    }

    #[test]
    fn a_clock_that_is_off_is_reported() {
        assert_eq!(skew(100, 100 + MAX_SKEW), None);
        assert_eq!(skew(160, 100).unwrap().text, "its clock differs from that of this machine by 60 s");
    }

    #[test]
    fn each_kind_of_failure_names_the_next_step() {
        let account = account("amqp://ana:hunter2@broker");
        let judged = |found| account.judged("queue `q`", found, "delete it");
        let refused = judged(Inspected::Refused("ACCESS_REFUSED".to_owned()));
        assert!(refused.mend.unwrap().starts_with("rabbitmqctl set_permissions -p / ana "));
        let differs = judged(Inspected::Differs { what: "another 'x'".to_owned(), key: Some("bus.queue_type") });
        assert_eq!(differs.text, "queue `q` exists with another 'x'");
        assert_eq!(differs.mend.as_deref(), Some("delete it; or set bus.queue_type to what it has"));
        let unknown = judged(Inspected::Unknown("no answer within 5 s".to_owned()));
        assert_eq!((unknown.verdict, &*unknown.text), (Verdict::Problem, "queue `q`: no answer within 5 s"));
    }

    #[test]
    fn a_queue_of_its_own_shows_what_is_missing() {
        let own = OwnQueue {
            declare: Inspected::Yes,
            bind: vec![("tool.cancel".to_owned(), Inspected::Yes)],
            publish: Inspected::Yes,
            consume: Inspected::Yes,
            is_blocked: false,
            broker_time: None,
        };
        let account = account("amqp://ana:hunter2@broker");
        let verdicts = |own| account.own_queue(own).iter().map(|it| it.verdict).collect::<Vec<_>>();
        let refused = || Inspected::Refused("ACCESS_REFUSED".to_owned());
        let blocked = OwnQueue { publish: Inspected::Unknown("late".to_owned()), is_blocked: true, ..own.clone() };
        let unbound = OwnQueue { bind: vec![("tool.cancel".to_owned(), refused())], ..own.clone() };
        assert_eq!(account.own_queue(blocked)[0].text, "it takes no messages: memory or disk alarm");
        assert_eq!(verdicts(unbound), [Verdict::Warning]);
        assert_eq!(verdicts(OwnQueue { publish: refused(), ..own.clone() }), [Verdict::Warning]);
        assert_eq!(verdicts(OwnQueue { consume: refused(), ..own.clone() }), [Verdict::Problem]);
        assert_eq!(verdicts(OwnQueue { declare: refused(), ..own.clone() }), [Verdict::Problem]);
        assert_eq!(verdicts(OwnQueue { broker_time: Some(1), ..own.clone() }), [Verdict::Ok, Verdict::Warning]);
        assert_eq!(verdicts(own), [Verdict::Ok]);
    }
}
