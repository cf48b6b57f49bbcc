//! Tasks that call tools.

use serde_json::Value;

use super::*;

/// The body of the next message, acknowledged.
async fn result(queue: &mut mpsc::Receiver<Delivery>) -> Value {
    let delivery = queue.recv().await.unwrap();
    delivery.settle.acknowledge().await;
    serde_json::from_slice(&delivery.body).unwrap()
}

/// Every message that is in the queue now: its time, in seconds after the start, and what became of the call.
async fn results(queue: &mut mpsc::Receiver<Delivery>) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    while let Ok(body) = tokio::time::timeout(Duration::from_millis(1), result(queue)).await {
        let due: Timestamp = body["dueAt"].as_str().unwrap().parse().unwrap();
        let text = body["toolResponse"]["content"].as_str().or(body["toolError"]["message"].as_str()).unwrap();
        found.push((due.as_second() as u64 - START, text.to_owned()));
    }
    found
}

fn done(times: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
    times.into_iter().enumerate().map(|(number, time)| (time, format!("done {number}"))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_tool_is_called_as_the_agent_under_the_profile_for_it_and_its_result_is_published() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.start(Missed::Once, false);
    fixture.schedule_call("send", "*/5 * * * *", 300, false).await;
    let delivery = queue.recv().await.unwrap();
    assert_eq!(fixture.seconds(), 300);
    let envelope = Envelope::read(&delivery.properties);
    let body = std::str::from_utf8(&delivery.body).unwrap();
    insta::assert_snapshot!(body, @r#"{"taskName":"send","description":"Do send","dueAt":"2026-01-01T00:05:00Z","toolResponse":{"toolCallId":"eb47812a17dcd8b2f617c6b13e6e1f73","toolName":"send","content":"done 0","isError":false}}"#);
    let key = derived_message_id("ana", "id-of-send", &(START + 300).to_string());
    assert_eq!(
        (envelope.message_type.as_str(), envelope.message_id.unwrap()),
        ("RockBot.Host.ScheduledTaskMessage", key)
    );
    let headers = [("rb-tool-profile", "scheduled"), ("rb-content-trust", "tool-output")];
    assert_eq!(envelope.headers, headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
    delivery.settle.acknowledge().await;
    insta::assert_snapshot!(fixture.tools.runs().join("\n"), @r#"send {"text":"hi"} as ("ana", Some("scheduled"), true)"#);
    fixture.wait(1).await;
    let task = fixture.tasks.read("ana").await.unwrap().remove(0);
    assert_eq!((task.last, task.next, task.begun), (Some(START + 300), START + 600, None));
    fixture.wait(600).await;
    assert_eq!(results(&mut queue).await, [(600, "done 1".to_owned()), (900, "done 2".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ran_before_a_crash_is_not_run_again_and_its_result_is_published() {
    let mut fixture = Fixture::new();
    fixture.schedule_call("send", "1 0 * * *", 60, true).await;
    let first = fixture.start(Missed::Once, false);
    fixture.wait(61).await;
    assert_eq!(fixture.tools.runs().len(), 1, "it ran, and no queue takes the message");
    first.abort();
    let mut queue = fixture.queue("ana");
    fixture.start(Missed::Once, false);
    fixture.wait(60).await;
    assert_eq!(results(&mut queue).await, done([60]));
    assert_eq!(fixture.tools.runs().len(), 1);
    assert_eq!(fixture.tasks.read("ana").await, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_process_died_is_reported_as_unknown_unless_it_may_be_run_again() {
    for (tool, expected, runs) in [("hang", "This request had begun when", 1), ("hang_looking", "at last", 2)] {
        let (mut fixture, mut queue) = Fixture::with_queue();
        fixture.schedule_call(tool, "1 0 * * *", 60, true).await;
        let first = fixture.start(Missed::Once, false);
        fixture.wait(65).await;
        assert_eq!(fixture.tools.running(), 1);
        first.abort();
        fixture.wait(1).await;
        fixture.start(Missed::Once, false);
        fixture.wait(60).await;
        let results = results(&mut queue).await;
        assert!(matches!(&results[..], [(60, text)] if text.starts_with(expected)), "{results:?}");
        assert_eq!(fixture.tools.runs().len(), runs, "{tool}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_agent_may_not_make_by_then_publishes_why() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.start(Missed::Once, false);
    fixture.schedule_call("send", "1 0 * * *", 60, true).await;
    fixture.tools.remove_all();
    let body = result(&mut queue).await;
    insta::assert_snapshot!(body["toolError"], @r#"{"code":"tool_not_found","isRetryable":false,"message":"Tool 'send' is not registered.","toolCallId":"244e32a3e23428c60f9c4341d68b1aff","toolName":"send"}"#);
    assert_eq!(body["toolResponse"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn an_operator_sees_the_last_failure_until_success_and_only_running_calls_as_running() {
    let mut fixture = Fixture::new();
    let scheduler = fixture.scheduler(Missed::Once, false);
    let seen = scheduler.tasks.clone();
    let shown = async || seen.overview().await.unwrap().rows.remove(0);
    let failure = async || shown().await.failure;
    fixture.running.spawn(scheduler.run(fixture.stop.clone()));
    fixture.schedule_call("unreachable_twice", "* * * * *", 60, false).await;
    fixture.wait(61).await;
    insta::assert_snapshot!(failure().await.unwrap(), @"its call failed: execution_failed");
    let waiting = shown().await;
    assert_eq!((waiting.is_running, waiting.retry), (false, Some(START + 65)));
    fixture.wait(20).await;
    insta::assert_snapshot!(failure().await.unwrap(), @"not published: no queue is bound to `scheduled.task.ana`");
    let ended = shown().await;
    assert_eq!((ended.is_running, ended.retry), (false, None));
    let _queue = fixture.queue("ana");
    fixture.wait(60).await;
    assert_eq!(failure().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_could_not_begin_is_tried_again_and_at_last_its_failure_is_published() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.start(Missed::Once, false);
    fixture.schedule_call("unreachable_twice", "1 0 * * *", 60, true).await;
    assert_eq!(result(&mut queue).await["toolResponse"]["content"], "done 2");
    assert_eq!(fixture.seconds(), 75);
    fixture.schedule_call("unreachable", "2 0 * * *", 120, true).await;
    fixture.wait(600).await;
    assert_eq!(results(&mut queue).await, [(120, "Not there.".to_owned())]);
    assert_eq!(fixture.tools.runs().len(), 3 + 6);
}

#[tokio::test(start_paused = true)]
async fn a_long_call_holds_up_no_other_task_and_is_not_made_twice_at_a_time() {
    for (missed, expected) in [(Missed::Once, [60, 90, 120]), (Missed::All, [60, 70, 100])] {
        let (mut fixture, mut queue) = Fixture::with_queue();
        fixture.schedule("mail", "1 0 * * *", 65, true).await;
        fixture.schedule_call("hang", "*/10 * * * * *", 60, false).await;
        fixture.start(missed, false);
        fixture.wait(66).await;
        assert_eq!(next(&fixture, &mut queue).await, ("mail".to_owned(), 65));
        fixture.wait(23).await;
        assert_eq!((fixture.tools.runs().len(), fixture.tools.running()), (1, 1));
        fixture.wait(67).await;
        let times: Vec<u64> = results(&mut queue).await.into_iter().map(|(time, _)| time).collect();
        assert_eq!(times, expected, "{missed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_calls_of_an_agent_run_a_few_at_a_time_and_all_in_the_end() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    for number in 0..20 {
        fixture.schedule_call("hang", "1 0 * * *", 60, true).await;
        fixture.change(|tasks| tasks.last_mut().unwrap().id = number.to_string()).await;
    }
    fixture.start(Missed::Once, false);
    for running in [8, 8, 4, 0] {
        fixture.wait(if fixture.seconds() == 0 { 61 } else { 30 }).await;
        assert_eq!(fixture.tools.running(), running);
    }
    assert_eq!(results(&mut queue).await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_process_begins_nothing_and_publishes_the_results_of_its_calls() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.schedule_call("hang", "1 0 * * *", 60, true).await;
    fixture.schedule("mail", "* * * * *", 65, false).await;
    fixture.start(Missed::Once, true);
    fixture.wait(62).await;
    fixture.stop.cancel();
    while fixture.running.join_next().await.is_some() {}
    assert_eq!(fixture.seconds(), 90);
    assert_eq!(results(&mut queue).await, [(60, "at last".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_of_a_call_whose_task_was_cancelled_meanwhile() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.schedule_call("hang", "* * * * *", 60, false).await;
    fixture.start(Missed::Once, false);
    fixture.wait(65).await;
    fixture.change(Vec::clear).await;
    fixture.wait(300).await;
    assert_eq!(results(&mut queue).await, []);
    assert_eq!((fixture.tools.runs().len(), fixture.tools.running()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn each_call_is_made_by_one_of_several_processes_even_if_it_is_killed() {
    let (mut fixture, mut queue) = Fixture::with_queue();
    fixture.schedule_call("send", "* * * * *", 60, false).await;
    let first = fixture.start(Missed::All, true);
    fixture.wait(1).await;
    fixture.start(Missed::All, true);
    fixture.wait(180).await;
    first.abort();
    fixture.wait(180).await;
    assert_eq!(results(&mut queue).await, done((1..=6).map(|minute| minute * 60)));
    assert_eq!(fixture.tools.runs().len(), 6);
}
