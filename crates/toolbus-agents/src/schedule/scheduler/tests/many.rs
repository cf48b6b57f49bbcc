//! Many tasks, clocks that are wrong, and processes that stand still.

use std::pin::pin;

use tokio::sync::watch;

use super::*;

/// Agents with 100 tasks each.
const AGENTS: u64 = 100;

#[tokio::test(start_paused = true)]
async fn ten_thousand_tasks_of_a_hundred_agents_are_each_published_once_at_their_time() {
    let mut fixture = Fixture::new();
    let mut queues = Vec::new();
    for agent in 0..AGENTS {
        let agent = format!("agent-{agent}");
        queues.push(fixture.queue(&agent));
        let tasks = (0..100).map(|number| {
            // A tenth of all tasks is due in the same second.
            let minute = 1 + number % 10;
            task(&agent, &format!("task {number}"), &format!("{minute} 0 1 1 *"), minute * 60)
        });
        let tasks: Vec<Task> = tasks.collect();
        let added = fixture.tasks.update(&agent, |all| {
            all.clone_from(&tasks);
            Ok::<_, Infallible>(())
        });
        added.await.unwrap().unwrap();
    }
    fixture.start(Missed::Once, false);
    fixture.wait(700).await;
    for queue in &mut queues {
        let mut found = all(&fixture, queue).await;
        found.sort();
        let mut expected: Vec<_> = (0..100).map(|number| (format!("task {number}"), (1 + number % 10) * 60)).collect();
        expected.sort();
        assert_eq!(found, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_forward_and_back_does_not_silence_a_task() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    let year = 365 * 24 * 60 * 60;
    // Published a year ahead of the clock, and made then.
    fixture.add(Task { last: Some(START + year), ..task("ana", "mail", "* * * * *", year + 60) }).await;
    fixture.add(Task { created: START + year, ..task("ana", "note", "* * * * *", year + 60) }).await;
    fixture.start(Missed::All, false);
    fixture.wait(125).await;
    let mut found = all(&fixture, &mut queue).await;
    found.sort();
    assert_eq!(found, [times("mail", [60, 120]), times("note", [60, 120])].concat());
}

/// Runs a future, except while `is_paused`.
async fn while_not_paused(running: impl Future<Output = ()>, mut is_paused: watch::Receiver<bool>) {
    let mut running = pin!(running);
    loop {
        tokio::select! {
            biased;
            Ok(_) = is_paused.wait_for(|is_paused| *is_paused) => {}
            () = &mut running => return,
        }
        let _ = is_paused.wait_for(|is_paused| !is_paused).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_process_publishes_nothing_that_another_has_published() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.schedule("mail", "* * * * *", 60, false).await;
    let (pause, paused) = watch::channel(false);
    let first = fixture.scheduler(Missed::All, true).run(fixture.stop.clone());
    fixture.running.spawn(while_not_paused(first, paused));
    fixture.wait(1).await;
    fixture.start(Missed::All, true);
    fixture.wait(64).await;
    assert_eq!(all(&fixture, &mut queue).await, times("mail", [60]));
    pause.send_replace(true);
    fixture.wait(175).await;
    assert_eq!(all(&fixture, &mut queue).await, times("mail", [120, 180, 240]), "the other one has taken over");
    pause.send_replace(false);
    fixture.wait(180).await;
    assert_eq!(all(&fixture, &mut queue).await, times("mail", [300, 360, 420]));
}
