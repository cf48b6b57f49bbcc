//! Times at which the value of each share is read, so that no share is read before something of it can be due.
//!
//! A new entry is due [`SharePlan::new`]'s horizon after it began at the earliest. So the shares are listed, and each
//! is read, once in that time and when something of it is due; however many values there are.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::share_values::{ShareValueError, ShareValues};

/// Longest time between two looks at one share.
const MAX_HORIZON: Duration = Duration::from_secs(60);

/// Times at which each share is read next, in seconds since 1970.
#[derive(Debug)]
pub(crate) struct SharePlan {
    horizon: u64,
    /// When the shares are listed again.
    list_at: u64,
    shares: BTreeMap<String, u64>,
}

impl SharePlan {
    /// A plan for values in which nothing new is due before `shortest` has passed.
    pub(crate) fn new(shortest: Duration) -> Self {
        Self { horizon: shortest.min(MAX_HORIZON).as_secs().max(1), list_at: 0, shares: BTreeMap::new() }
    }

    /// The shares that are to be read now.
    pub(crate) async fn due(&mut self, values: &ShareValues, now: u64) -> Result<Vec<String>, ShareValueError> {
        if self.has_come(self.list_at, now) {
            for share in values.shares().await? {
                self.shares.entry(share).or_insert(now);
            }
            self.list_at = now + self.horizon;
        }
        Ok(self.shares.iter().filter(|(_, at)| self.has_come(**at, now)).map(|(share, _)| share.clone()).collect())
    }

    /// Notes when something of a share that was read is due next, if anything is.
    pub(crate) fn plan(&mut self, share: String, next: Option<u64>, now: u64) {
        let latest = now + self.horizon;
        self.shares.insert(share, next.map_or(latest, |next| next.min(latest)));
    }

    /// Has a share read at the next look.
    pub(crate) fn hurry(&mut self, share: String) {
        self.shares.insert(share, 0);
    }

    /// Whether a time has come, or lies so far ahead that the clock was set back.
    const fn has_come(&self, at: u64, now: u64) -> bool {
        at <= now || at > now + self.horizon
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;
    use crate::testing::TestStore;

    #[tokio::test]
    async fn a_share_is_read_when_something_is_due_and_once_in_a_while_also_after_the_clock_was_set_back() {
        let store = Arc::new(TestStore::default());
        let values = ShareValues::new(Arc::clone(&store) as _, "tests");
        let write = async |share: &str| {
            let written = values.update(share, |number: &mut u32| {
                *number = 1;
                Ok::<_, Infallible>(())
            });
            written.await.unwrap().unwrap();
        };
        write("ana").await;
        let mut plan = SharePlan::new(Duration::from_secs(3600));
        assert_eq!(plan.due(&values, 1000).await.unwrap(), ["ana"]);
        plan.plan("ana".to_owned(), Some(1020), 1000);
        let before = store.reads();
        for now in 1000..1020 {
            assert!(plan.due(&values, now).await.unwrap().is_empty(), "{now}");
        }
        assert_eq!(store.reads(), before);
        assert_eq!(plan.due(&values, 1020).await.unwrap(), ["ana"]);
        plan.plan("ana".to_owned(), Some(9999), 1020);
        write("bo").await;
        assert_eq!(plan.due(&values, 1060).await.unwrap(), ["bo"], "the list is read again");
        plan.plan("bo".to_owned(), None, 1060);
        assert_eq!(plan.due(&values, 1080).await.unwrap(), ["ana"], "in case of something new");
        plan.plan("ana".to_owned(), None, 1080);
        plan.hurry("bo".to_owned());
        assert_eq!(plan.due(&values, 1081).await.unwrap(), ["bo"]);
        plan.plan("bo".to_owned(), None, 1081);
        assert_eq!(plan.due(&values, 500).await.unwrap(), ["ana", "bo"]);
    }
}
