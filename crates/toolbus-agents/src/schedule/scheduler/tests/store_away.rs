//! A store that fails while tasks are due, and what is read of it.

use toolbus_testing::faulty_store::StoreFault;

use super::*;
use crate::testing::TestStore;

#[tokio::test(start_paused = true)]
async fn a_task_due_while_the_store_is_away_is_published_once_when_it_is_back() {
    for (is_shared, missed) in [(false, Missed::Once), (true, Missed::Once), (false, Missed::All), (true, Missed::All)]
    {
        let store = Arc::new(TestStore::default());
        let mut fixture = Fixture::on(Arc::clone(&store) as Arc<dyn Store>);
        let mut queue = fixture.queue("ana");
        fixture.schedule("mail", "* * * * *", 60, false).await;
        fixture.schedule("once", "2 0 * * *", 120, true).await;
        fixture.schedule_call("send", "2 0 * * *", 120, true).await;
        fixture.start(missed, is_shared);
        fixture.wait(100).await;
        assert_eq!(all(&fixture, &mut queue).await, times("mail", [60]));
        store.set(StoreFault::Away);
        fixture.wait(100).await;
        assert_eq!(all(&fixture, &mut queue).await, [], "it cannot be known whether it was cancelled");
        assert_eq!(fixture.tools.runs().len(), 0);
        // It is queried twice a second, and not as fast as it fails.
        let failed = store.failed();
        assert!((100..=500).contains(&failed), "{failed}");
        store.set(None);
        // The lease may have been lost with it.
        fixture.wait(12).await;
        let mut found = all(&fixture, &mut queue).await;
        found.sort();
        let mail: &[u64] = if missed == Missed::All { &[120, 180] } else { &[180] };
        let expected = [times("mail", mail.iter().copied()), times("once", [120]), times("send", [120])].concat();
        assert_eq!((found, fixture.tools.runs().len()), (expected, 1), "{is_shared} {missed:?}");
        fixture.wait(38).await;
        assert_eq!(all(&fixture, &mut queue).await, times("mail", [240]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_responses_are_lost_makes_nothing_come_twice() {
    let store = Arc::new(TestStore::default());
    let mut fixture = Fixture::on(Arc::clone(&store) as Arc<dyn Store>);
    let mut queue = fixture.queue("ana");
    fixture.schedule("mail", "* * * * *", 60, false).await;
    fixture.schedule_call("hang", "1 0 * * *", 60, true).await;
    fixture.start(Missed::All, false);
    fixture.wait(80).await;
    assert_eq!(all(&fixture, &mut queue).await, times("mail", [60]));
    // The call ends meanwhile.
    store.set(StoreFault::LostResponses);
    fixture.wait(60).await;
    store.set(None);
    fixture.wait(50).await;
    let mut found = all(&fixture, &mut queue).await;
    found.sort();
    assert_eq!(found, [times("hang", [60]), times("mail", [120, 180])].concat());
    assert_eq!(fixture.tools.runs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_one_agent_reads_the_tasks_of_that_agent_alone() {
    let store = Arc::new(TestStore::default());
    let mut fixture = Fixture::on(Arc::clone(&store) as Arc<dyn Store>);
    for number in 0..100 {
        fixture.add(task(&format!("agent-{number}"), "mail", "0 0 1 1 *", 1_000_000)).await;
    }
    fixture.start(Missed::Once, true);
    let reads = async |wait: u64| {
        store.take_keys("schedules");
        fixture.wait(wait).await;
        store.take_keys("schedules")
    };
    assert_eq!(reads(1).await, 100);
    assert_eq!(reads(50).await, 0, "nothing is read while nothing changes");
    let mut queue = fixture.queue("agent-7");
    fixture.add(task("agent-7", "soon", "0 0 2 1 *", 55)).await;
    assert_eq!(reads(3).await, 1);
    assert_eq!(reads(3).await, 2, "read once before it is published, and once to note that");
    assert_eq!(all(&fixture, &mut queue).await, times("soon", [55]));
    assert_eq!(reads(60).await, 100, "once a minute");
}
