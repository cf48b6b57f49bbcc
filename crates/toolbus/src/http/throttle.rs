//! Reports of wrong tokens, throttled by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use toolbus_core::audit::{Audit, Record};
use toolbus_core::throttle::Throttle;

/// Time between two records of one address.
const PERIOD: Duration = Duration::from_secs(10);
/// Most addresses that are counted apart.
const MAX_ADDRESSES: usize = 256;

/// Logs and audits wrong tokens: the first of an address at once, then how many followed.
pub(super) struct WrongTokens {
    audit: Arc<dyn Audit>,
    /// Wrong tokens of each address since its last record.
    addresses: Arc<Mutex<HashMap<Option<IpAddr>, u64>>>,
    log: Throttle,
}

impl WrongTokens {
    pub(super) fn new(audit: Arc<dyn Audit>) -> Self {
        Self { audit, addresses: Arc::default(), log: Throttle::default() }
    }

    /// Reports a wrong token from this address.
    pub(super) fn report(&self, remote: Option<IpAddr>) {
        if let Some(left_out) = self.log.due() {
            let remote = remote.map(tracing::field::display);
            tracing::warn!(remote, left_out, "door: a wrong token was given");
        }
        if let Some(counted) = self.begins(remote) {
            self.audit.record(Record::refused_entry(remote, 0));
            self.follow(counted);
        }
    }

    /// Counts a wrong token. Returns the address that it is counted for, if it is the first.
    fn begins(&self, remote: Option<IpAddr>) -> Option<Option<IpAddr>> {
        let mut addresses = self.addresses.lock();
        // Addresses beyond the limit are counted together.
        let key = if addresses.contains_key(&remote) || addresses.len() < MAX_ADDRESSES { remote } else { None };
        match addresses.get_mut(&key) {
            Some(left_out) => {
                *left_out = left_out.saturating_add(1);
                None
            }
            None => {
                addresses.insert(key, 0);
                Some(key)
            }
        }
    }

    /// Records how many followed in each period, until a period has none.
    #[expect(clippy::disallowed_methods, reason = "the task ends after a period without wrong tokens")]
    fn follow(&self, remote: Option<IpAddr>) {
        let (audit, addresses) = (Arc::clone(&self.audit), Arc::clone(&self.addresses));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PERIOD).await;
                let left_out = {
                    let mut addresses = addresses.lock();
                    let Some(count) = addresses.get_mut(&remote) else { return };
                    let left_out = std::mem::take(count);
                    if left_out == 0 {
                        addresses.remove(&remote);
                    }
                    left_out
                };
                if left_out == 0 {
                    return;
                }
                audit.record(Record::refused_entry(remote, left_out));
            }
        });
    }
}
