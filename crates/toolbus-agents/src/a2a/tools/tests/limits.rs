//! Number of tasks that there may be, and cost of watching their times.

use futures_util::future::join_all;

use super::*;

/// Tasks of the sweep.
const TASKS: usize = 1000;

/// A task of a share that has as much time as this.
fn task(number: usize, share: &str, deadline: u64) -> AgentTask {
    AgentTask {
        id: format!("{number:032x}"),
        caller: name("ana"),
        share: share.to_owned(),
        agent: name("Bob"),
        skill: "sum".to_owned(),
        context: None,
        begun: 0,
        deadline,
        ended: None,
        state: AgentTaskState::Submitted,
        is_late: false,
        note: None,
        result: None,
        remote: None,
        waiter: None,
        ended_by: None,
        digest: None,
    }
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_in_several_replicas_give_no_more_tasks_than_an_agent_may_have() {
    let site = Fixture::new();
    let mut of_bob = site.queue(topic::agent_task("Bob"));
    let replicas = [site.tools.clone(), tools(&site.replica(2))];
    let calls = (0..20).map(|number| {
        let tools = &replicas[number % replicas.len()];
        testing::run(tools, testing::agent("ana"), INVOKE, add(false), site.clock)
    });
    let called = join_all(calls).await;
    let given = called.into_iter().filter(|output| output.as_ref().is_ok_and(|output| !output.is_error)).count();
    assert_eq!((given, site.kept().await.len()), (2, 2));
    next(&mut of_bob).await;
    next(&mut of_bob).await;
    assert!(of_bob.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_take_the_slot_of_each_ended_task_once() {
    let (site, _of_bob, _of_ana) = Fixture::with_queues();
    let ended = [site.dispatch("ana").await, site.dispatch("ana").await];
    for id in &ended {
        assert_eq!(site.result("Bob", id, "3").await, "result");
    }
    let calls = (0..5).map(|_| testing::run(&site.tools, testing::agent("ana"), INVOKE, add(false), site.clock));
    let called = join_all(calls).await;
    assert_eq!(called.iter().filter(|output| !output.as_ref().unwrap().is_error).count(), 2);
    let kept = site.kept().await;
    assert_eq!(
        (kept.len(), ended.iter().any(|id| kept.contains(id))),
        (2, false),
        "nothing is left of those that ended"
    );
}

#[tokio::test(start_paused = true)]
async fn tasks_that_are_not_due_are_not_read_however_many_there_are() {
    let site = Fixture::new();
    let now = site.service.now();
    for number in 0..TASKS {
        let (share, deadline) = (["ana", "eve"][number % 2], now + 600);
        site.service.tasks().begin(&task(number, share, deadline), TASKS, late_at(deadline)).await.unwrap();
    }
    let (before, mut plan) = (site.store.reads(), site.service.plan());
    for _ in 0..120 {
        site.service.sweep(&mut plan).await.unwrap();
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let reads = site.store.reads() - before;
    // Each minute, one for the list of shares, and one for each.
    assert!((1..=30).contains(&reads), "{reads} reads in ten minutes");
    assert_eq!(site.counted(), [""; 0]);

    let before = site.store.reads();
    tokio::time::advance(Duration::from_secs(10)).await;
    site.service.sweep(&mut plan).await.unwrap();
    assert_eq!(site.counted().len(), TASKS, "all are late");
    let (reads, again) = (site.store.reads() - before, site.store.reads());
    assert!(reads <= 5 * TASKS, "{reads} reads for {TASKS} tasks");
    tokio::time::advance(Duration::from_secs(5)).await;
    site.service.sweep(&mut plan).await.unwrap();
    assert_eq!(site.store.reads(), again, "they are not looked at again");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_read_keeps_no_other_task_from_its_end() {
    let site = Fixture::new();
    let now = site.service.now();
    site.store.put("a2a-shares", "bad", b"[".to_vec()).await.unwrap();
    site.service.tasks().begin(&task(1, "eve", now + 60), 2, late_at(now + 60)).await.unwrap();
    let mut plan = site.service.plan();
    site.service.sweep(&mut plan).await.unwrap_err();
    tokio::time::advance(Duration::from_secs(70)).await;
    site.service.sweep(&mut plan).await.unwrap_err();
    assert_eq!(site.counted(), ["ended timeout"]);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_list_lacks_its_end_makes_room_when_it_would_have_been_late() {
    let site = Fixture::new();
    let (now, tasks) = (site.service.now(), site.service.tasks());
    let ended = AgentTask { ended: Some(now), ..task(1, "ana", now + 60) };
    tasks.begin(&ended, 1, late_at(now + 60)).await.unwrap();
    let other = task(2, "ana", now + 600);
    assert!(matches!(tasks.begin(&other, 1, late_at(now + 600)).await, Err(BeginError::Full)));
    let mut plan = site.service.plan();
    tokio::time::advance(Duration::from_secs(70)).await;
    site.service.sweep(&mut plan).await.unwrap();
    assert_eq!(site.kept().await, std::slice::from_ref(&ended.id), "it is shown as long as others");
    tasks.begin(&other, 1, late_at(now + 600)).await.unwrap();
    assert_eq!(site.kept().await, [other.id]);
}
