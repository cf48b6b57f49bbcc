use std::time::Duration;

use toolbus_core::caller::Caller;
use toolbus_store::Memory;

use super::*;
use crate::testing::{agent, run};

struct Fixture {
    tools: Vec<Tool>,
    tasks: TaskStore,
    clock: Clock,
}

fn fixture(config: ScheduleConfig) -> Fixture {
    let (clock, random) = (Clock::manual(), Random::seeded(1));
    let config = ScheduleConfig { timezone: Some("Europe/Berlin".to_owned()), ..config };
    let tasks = TaskStore::new(Arc::new(Memory::default()), random);
    let tools = ScheduleTools::new(&config, tasks.clone(), clock, random).tools();
    Fixture { tools, tasks, clock }
}

/// An agent without a section of the configuration.
fn stranger(name: &str) -> Caller {
    Caller { has_section: false, ..agent(name) }
}

impl Fixture {
    async fn run(&self, caller: &Caller, name: &str, arguments: Value) -> Result<ToolOutput, ToolFailure> {
        run(&self.tools, caller.clone(), name, arguments, Clock::SYSTEM).await
    }

    async fn text(&self, caller: &Caller, name: &str, arguments: Value) -> String {
        let output = self.run(caller, name, arguments).await.unwrap();
        assert!(!output.is_error, "{output:?}");
        output.content.unwrap()
    }

    async fn refused(&self, arguments: Value) -> String {
        let failure = self.run(&agent("ana"), SCHEDULE, arguments).await.unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        assert_eq!(self.tasks.read("ana").await, Ok(Vec::new()), "it is not stored");
        failure.message.to_string()
    }
}

fn mail(cron: &str) -> Value {
    json!({"name": "Mail", "cron": cron, "description": "Look for\nnew | mail"})
}

fn named(name: &str) -> Value {
    json!({"name": name, "cron": "0 9 * * *", "description": "x"})
}

#[tokio::test]
async fn a_task_is_scheduled_listed_replaced_and_cancelled() {
    let (fixture, ana) = (fixture(ScheduleConfig::default()), agent("ana"));
    let none = fixture.text(&ana, LIST, json!({})).await;
    assert_eq!(none, "No scheduled tasks. Current time: 2026-01-01 01:00:00 (Europe/Berlin)");
    let scheduled = fixture.text(&ana, SCHEDULE, mail("0 9 * * *")).await;
    insta::assert_snapshot!(scheduled, @"Scheduled task 'Mail' with cron '0 9 * * *'. Next fire: 2026-01-01 09:00:00 (Europe/Berlin). Current time: 2026-01-01 01:00:00.");
    let once =
        json!({"name": "a", "cron": "30 14 3 5 *", "description": "x", "runOnce": true, "timezone": "asia/tokyo"});
    fixture.text(&ana, SCHEDULE, once).await;
    fixture.clock.advance(Duration::from_secs(8 * 60 * 60 + 6));
    insta::assert_snapshot!(fixture.text(&ana, LIST, json!({})).await, @r"
    Current time: 2026-01-01 09:00:06 (Europe/Berlin)

    Scheduled tasks (2):

    | Name | Cron | Next fire | Last fired | Description |
    |---|---|---|---|---|
    | **a** | `30 14 3 5 *`, once | 2026-05-03 14:30:00 (Asia/Tokyo) | never | x |
    | **Mail** | `0 9 * * *` | 2026-01-01 09:00:00 (Europe/Berlin) ⚠️ OVERDUE | never | Look for new \| mail |
    ");
    fixture.text(&ana, SCHEDULE, json!({"name": "MAIL", "cron": "@hourly", "description": "y"})).await;
    assert_eq!(fixture.tasks.read("ana").await.unwrap().len(), 2);
    assert_eq!(fixture.text(&ana, CANCEL, json!({"name": "mail"})).await, "Cancelled scheduled task 'mail'.");
    let again = fixture.text(&ana, CANCEL, json!({"name": "mail"})).await;
    assert_eq!(again, "No scheduled task named 'mail' was found.");
}

#[tokio::test]
async fn what_never_comes_comes_too_often_or_cannot_be_read_is_refused_and_not_stored() {
    let fixture = fixture(ScheduleConfig::default());
    insta::assert_snapshot!(fixture.refused(mail("0 0 30 2 *")).await, @"Argument `cron`: `0 0 30 2 *` never comes; choose another expression.");
    insta::assert_snapshot!(fixture.refused(mail("61 * * * *")).await, @"Argument `cron`: `61 * * * *` is no cron expression: Component error: Number out of bounds.");
    insta::assert_snapshot!(fixture.refused(mail("* * * * * *")).await, @"Argument `cron`: `* * * * * *` comes too often: at least 10s must lie between two times.");
    insta::assert_snapshot!(fixture.refused(named("a\nb")).await, @r"Argument `name`: `a\nb` is no name: expected visible characters on one line.");
    let zone = json!({"name": "a", "cron": "0 9 * * *", "description": "x", "timezone": "Berlin"});
    insta::assert_snapshot!(fixture.refused(zone).await, @"Argument `timezone`: `Berlin` is no time zone; expected an IANA name such as `Europe/Berlin` or `UTC`.");
    let both = json!({"name": "a", "cron": "0 9 * * *", "description": "x", "run_once": true, "runOnce": false});
    insta::assert_snapshot!(fixture.refused(both).await, @"`run_once` and `runOnce` differ; give one of them.");
}

#[tokio::test]
async fn an_agent_sees_and_cancels_its_own_tasks_alone_also_among_those_without_a_section() {
    let fixture = fixture(ScheduleConfig::default());
    let callers = [agent("ana"), agent("bruno"), stranger("eve"), stranger("mallory")];
    for caller in &callers {
        fixture.text(caller, SCHEDULE, mail("0 9 * * *")).await;
    }
    for caller in &callers {
        let listed = fixture.text(caller, LIST, json!({})).await;
        assert!(listed.contains("Scheduled tasks (1)"), "{listed}");
        let cancelled = fixture.text(caller, CANCEL, json!({"name": "Mail"})).await;
        assert_eq!(cancelled, "Cancelled scheduled task 'Mail'.");
        let again = fixture.text(caller, CANCEL, json!({"name": "Mail"})).await;
        assert_eq!(again, "No scheduled task named 'Mail' was found.");
    }
}

#[tokio::test]
async fn an_agent_has_room_for_so_many_tasks_and_those_without_a_section_share_theirs() {
    let fixture = fixture(ScheduleConfig { max_tasks: 2, ..ScheduleConfig::default() });
    for [one, two, three] in [["ana"; 3].map(agent), ["eve", "mallory", "trudy"].map(stranger)] {
        fixture.text(&one, SCHEDULE, named("a")).await;
        fixture.text(&two, SCHEDULE, named("b")).await;
        let output = fixture.run(&three, SCHEDULE, named("c")).await.unwrap();
        let text = "Nothing was scheduled: there is room for 2 tasks. Cancel one of them.";
        assert_eq!((output.is_error, output.content.as_deref()), (true, Some(text)));
        // A task is replaced where there is no room for another one.
        fixture.text(&two, SCHEDULE, named("B")).await;
    }
}

#[tokio::test]
async fn tasks_that_are_too_long_together_are_refused() {
    let fixture = fixture(ScheduleConfig::default());
    let long = |number: usize| json!({"name": number.to_string(), "cron": "0 9 * * *", "description": "語".repeat(MAX_DESCRIPTION)});
    for number in 0..80 {
        fixture.text(&agent("ana"), SCHEDULE, long(number)).await;
    }
    for number in 80.. {
        let output = fixture.run(&agent("ana"), SCHEDULE, long(number)).await.unwrap();
        if output.is_error {
            let text = "Nothing was scheduled: all tasks together are too long. Cancel one of them.";
            assert_eq!(output.content.as_deref(), Some(text));
            assert_eq!(fixture.tasks.read("ana").await.unwrap().len(), number);
            break;
        }
    }
}

#[tokio::test]
async fn a_caller_that_is_no_agent_schedules_nothing() {
    let fixture = fixture(ScheduleConfig::default());
    for (name, arguments) in [(SCHEDULE, named("x")), (LIST, json!({})), (CANCEL, json!({"name": "x"}))] {
        let failure = fixture.run(&Caller::unknown(), name, arguments).await.unwrap_err();
        assert_eq!(failure.cause, Cause::NotAllowed, "{name}");
    }
}

#[test]
fn a_call_that_schedules_is_never_repeated_by_itself() {
    let effects = fixture(ScheduleConfig::default()).tools.into_iter().map(|tool| tool.descriptor.effect);
    assert_eq!(effects.collect::<Vec<_>>(), [Effect::Effectful, Effect::ReadOnly, Effect::Idempotent]);
}
