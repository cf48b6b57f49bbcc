use std::time::Duration;

use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed, BindingPolicy};
use toolbus_core::registry::Registry;
use toolbus_store::MemoryStore;

use super::*;
use crate::testing::{UnusedExecutor, agent, policy, run};

struct Fixture {
    tools: Vec<Tool>,
    tasks: TaskStore,
    clock: Clock,
}

fn fixture(config: ScheduleConfig) -> Fixture {
    let (clock, random) = (Clock::manual(), Random::seeded(1));
    let config = ScheduleConfig { timezone: Some("Europe/Berlin".to_owned()), ..config };
    let tasks = TaskStore::new(Arc::new(MemoryStore::default()), random);
    let registry = Registry::new();
    let only = |names: &[&str]| Allowed::Only(names.iter().map(|name| Pattern::parse(name).unwrap()).collect());
    let bound = BindingPolicy {
        channel: "mail".into(),
        account: "1".into(),
        tools: only(&["*_task*", "ask"]),
        ..Default::default()
    };
    let ana = AgentPolicy { bindings: vec![bound], ..AgentPolicy::default() };
    let bruno = AgentPolicy { tools: only(&["schedule_task", "list_*"]), ..AgentPolicy::default() };
    let policy = policy(registry.clone(), [("ana", ana), ("bruno", bruno), ("carol", AgentPolicy::default())]);
    let gates = Arc::new(Gates::new(policy.clone()));
    let tools = ScheduleTools::new(&config, tasks.clone(), gates, clock, random).tools();
    let schema = json!({
        "type": "object", "properties": { "to": { "type": "string" }, "data": {} }, "required": ["to"],
        "additionalProperties": false,
    });
    let other = |name: &str, source: &str| {
        let parameters = Some(Arc::new(schema.clone()));
        Tool::new(ToolDescriptor { parameters, ..ToolDescriptor::new(name, source, "local") }, UnusedExecutor)
    };
    registry
        .register_all(vec![other("send", "rest"), other("spawn_subagent", "subagent"), other("ask", "a2a")])
        .unwrap();
    registry
        .register_all(tools.iter().map(|tool| Tool::new((*tool.descriptor).clone(), UnusedExecutor)).collect())
        .unwrap();
    policy.refresh();
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
async fn an_expression_that_never_or_too_often_comes_or_is_unreadable_is_refused_and_not_stored() {
    let fixture = fixture(ScheduleConfig::default());
    insta::assert_snapshot!(fixture.refused(mail("0 0 30 2 *")).await, @"Argument `cron`: `0 0 30 2 *` never comes; choose another expression.");
    insta::assert_snapshot!(fixture.refused(mail("61 * * * *")).await, @"Argument `cron`: `61 * * * *` is no cron expression: the minute `61` is not 0 to 59, a list, a range or a step.");
    insta::assert_snapshot!(fixture.refused(mail("* * * * * *")).await, @"Argument `cron`: `* * * * * *` comes too often: at least 10s must lie between two times.");
    insta::assert_snapshot!(fixture.refused(named("a\nb")).await, @r"Argument `name`: `a\nb` is no name: expected visible characters on one line.");
    let zone = json!({"name": "a", "cron": "0 9 * * *", "description": "x", "timezone": "Berlin"});
    insta::assert_snapshot!(fixture.refused(zone).await, @"Argument `timezone`: `Berlin` is no time zone; expected an IANA name such as `Europe/Berlin` or `UTC`.");
    let both = json!({"name": "a", "cron": "0 9 * * *", "description": "x", "run_once": true, "runOnce": false});
    insta::assert_snapshot!(fixture.refused(both).await, @"`run_once` and `runOnce` differ; give one of them.");
}

#[tokio::test]
async fn a_moment_that_has_passed_is_refused_instead_of_coming_in_a_year() {
    let fixture = fixture(ScheduleConfig::default());
    let once = |cron: &str| json!({"name": "a", "cron": cron, "description": "x", "run_once": true});
    insta::assert_snapshot!(fixture.refused(once("30 14 20 12 *")).await, @"Argument `cron`: `30 14 20 12 *` is in the past: it was 2025-12-20 14:30:00, and is next 2026-12-20 14:30:00. The present time is 2026-01-01 01:00:00.");
    // That of every year is not meant for the past one, nor is one that is nearer ahead.
    let ana = agent("ana");
    fixture.text(&ana, SCHEDULE, mail("30 14 20 12 *")).await;
    fixture.text(&ana, SCHEDULE, once("30 14 20 6 *")).await;
}

#[tokio::test]
async fn an_agent_sees_and_cancels_only_its_own_tasks_even_without_a_section() {
    let fixture = fixture(ScheduleConfig::default());
    let callers = [agent("ana"), agent("carol"), stranger("eve"), stranger("mallory")];
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
async fn tasks_of_an_agent_are_limited_and_agents_without_a_section_share_one_limit() {
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

/// A task with a call.
fn calling(name: &str, arguments: Value) -> Value {
    json!({"name": "Mail", "cron": "0 9 * * *", "description": "x", "tool": {"name": name, "arguments": arguments}})
}

#[tokio::test]
async fn a_call_of_a_tool_is_scheduled_and_listed() {
    let (fixture, ana) = (fixture(ScheduleConfig::default()), agent("ana"));
    let scheduled = fixture.text(&ana, SCHEDULE, calling("send", json!({"to": "bob", "data": ["a|b"]}))).await;
    insta::assert_snapshot!(scheduled, @"Scheduled task 'Mail' with cron '0 9 * * *'. Next fire: 2026-01-01 09:00:00 (Europe/Berlin). Current time: 2026-01-01 01:00:00. `send` is called then.");
    let long = json!({"name": "long", "cron": "@daily", "description": "y", "tool": {"name": "send", "arguments": {"to": "b".repeat(300)}}});
    fixture.text(&ana, SCHEDULE, long).await;
    insta::assert_snapshot!(fixture.text(&ana, LIST, json!({})).await, @r#"
    Current time: 2026-01-01 01:00:00 (Europe/Berlin)

    Scheduled tasks (2):

    | Name | Cron | Next fire | Last fired | Description |
    |---|---|---|---|---|
    | **long** | `@daily` | 2026-01-02 00:00:00 (Europe/Berlin) | never | Calls `send` with `{"to":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb…`: y |
    | **Mail** | `0 9 * * *` | 2026-01-01 09:00:00 (Europe/Berlin) | never | Calls `send` with `{"data":["a\|b"],"to":"bob"}`: x |
    "#);
    fixture.text(&ana, SCHEDULE, named("mail")).await;
    let task = fixture.tasks.read("ana").await.unwrap().remove(1);
    assert_eq!((task.name.as_str(), task.tool), ("mail", None), "a task without a call replaces it");
}

#[tokio::test]
async fn a_call_that_would_be_refused_now_or_then_is_refused_and_not_stored() {
    let fixture = fixture(ScheduleConfig::default());
    let mut texts = Vec::new();
    for (name, arguments) in [
        ("sned", json!({"to": "bob"})),
        ("send", json!({"to": 1})),
        ("send", json!({})),
        ("send", json!({"to": "bob", "cc": "eve"})),
        (SCHEDULE, mail("0 9 * * *")),
        (LIST, json!({})),
        (CANCEL, json!({"name": "Mail"})),
        // The profile of scheduled calls denies it.
        ("spawn_subagent", json!({"to": "bob"})),
        ("send", json!({"to": "x".repeat(MAX_ARGUMENTS)})),
    ] {
        texts.push(fixture.refused(calling(name, arguments)).await);
    }
    insta::assert_snapshot!(texts.join("\n"), @r#"
    Argument `tool`: Tool 'sned' is not registered. Did you mean 'send'?
    Argument `tool`: The arguments do not fit the tool's parameters: /to: value is not of type "string"
    Argument `tool`: The arguments do not fit the tool's parameters: /: "to" is a required property
    Argument `tool`: The arguments do not fit the tool's parameters: /: Additional properties are not allowed ('cc' was unexpected)
    Argument `tool`: `schedule_task` cannot be scheduled: a schedule makes no schedules.
    Argument `tool`: `list_scheduled_tasks` cannot be scheduled: a schedule makes no schedules.
    Argument `tool`: `cancel_scheduled_task` cannot be scheduled: a schedule makes no schedules.
    Argument `tool`: Tool 'spawn_subagent' is not registered.
    Argument `tool`: the arguments have 65545 bytes; at most 65536.
    "#);
}

#[tokio::test]
async fn a_scheduled_call_is_limited_by_the_callers_list_binding_and_profile() {
    let fixture = fixture(ScheduleConfig::default());
    let bound = Caller { binding: Some("mail:1".into()), ..agent("ana") };
    let synthesis = Caller { profile: Some("a2a-synthesis".into()), ..agent("ana") };
    for (caller, tool) in [(agent("bruno"), "send"), (bound, "send"), (synthesis, "ask")] {
        let failure = fixture.run(&caller, SCHEDULE, calling(tool, json!({"to": "x"}))).await.unwrap_err();
        let expected = format!("Argument `tool`: Tool '{tool}' is not registered.");
        assert_eq!((failure.cause, &failure.message[..expected.len()]), (Cause::InvalidArguments, expected.as_str()));
    }
    assert_eq!(fixture.tasks.read("ana").await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_scheduled_call_keeps_the_binding_of_its_caller() {
    let fixture = fixture(ScheduleConfig::default());
    for (binding, name) in [(Some("mail:1"), "bound"), (None, "free")] {
        let caller = Caller { binding: binding.map(Into::into), ..agent("ana") };
        let task = json!({"name": name, "cron": "@daily", "description": "x", "tool": {"name": "ask", "arguments": {"to": "x"}}});
        fixture.text(&caller, SCHEDULE, task).await;
        let task = fixture.tasks.read("ana").await.unwrap().pop().unwrap();
        assert_eq!((task.name.as_str(), task.tool.unwrap().binding.as_deref()), (name, binding));
    }
}

#[tokio::test]
async fn a_caller_that_may_not_cancel_tasks_may_not_replace_them_and_may_make_others() {
    let fixture = fixture(ScheduleConfig::default());
    fixture.text(&agent("ana"), SCHEDULE, named("Mail")).await;
    fixture.text(&agent("bruno"), SCHEDULE, named("Mail")).await;
    for caller in [Caller { profile: Some("subagent".into()), ..agent("ana") }, agent("bruno")] {
        let before = fixture.tasks.read(&caller.share()).await;
        let failure =
            fixture.run(&caller, SCHEDULE, json!({"name": "MAIL", "cron": "@hourly", "description": "y"})).await;
        let failure = failure.unwrap_err();
        assert_eq!(failure.cause, Cause::NotAllowed);
        insta::allow_duplicates! {
            insta::assert_snapshot!(failure.message, @"There is a task named 'MAIL', and you may not cancel tasks, which replacing it would do. Choose another name.");
        }
        assert_eq!(fixture.tasks.read(&caller.share()).await, before);
        fixture.text(&caller, SCHEDULE, named("another")).await;
    }
}

#[tokio::test]
async fn names_that_differ_in_case_alone_are_one_task() {
    let (fixture, ana) = (fixture(ScheduleConfig::default()), agent("ana"));
    for (number, (one, other)) in
        [("mail", "MAIL"), ("Ärger", "äRGER"), ("ПОЧТА", "почта"), ("ΣΊΣΥΦΟΣ", "σίσυφος")].into_iter().enumerate()
    {
        fixture.text(&ana, SCHEDULE, named(one)).await;
        fixture.text(&ana, SCHEDULE, named(other)).await;
        assert_eq!(fixture.tasks.read("ana").await.unwrap().len(), number + 1, "{one}");
    }
    let cancelled = fixture.text(&ana, CANCEL, json!({"name": "ärger"})).await;
    assert_eq!(cancelled, "Cancelled scheduled task 'ärger'.");
}

#[tokio::test]
async fn hostile_arguments_are_refused_or_shown_as_one_row() {
    let (fixture, ana) = (fixture(ScheduleConfig::default()), agent("ana"));
    for name in ["", "   ", "a\0b", "a\r\nb", "\u{1b}[2J", "\u{7f}", "\u{85}"] {
        fixture.refused(named(name)).await;
    }
    let cron = |cron: &str| json!({"name": "a", "cron": cron, "description": "x"});
    let lists = ["1,".repeat(90), "*/".repeat(90), "0 ".repeat(90), "L#W".repeat(60), "９ * * * *".to_owned()];
    for text in lists.iter().map(String::as_str).chain(["-1 * * * *", "0 0 0 0 0", "* * * * * * * * *", "\0 * * * *"]) {
        fixture.refused(cron(text)).await;
    }
    for zone in ["", "../../etc/passwd", "/etc/localtime", "Europe/Berlin\0", "UTC+99"] {
        fixture.refused(json!({"name": "a", "cron": "@daily", "description": "x", "timezone": zone})).await;
    }
    let row = "a | b\n| c |\n\n# Title\0";
    let task = json!({"name": "x|y", "cron": "@daily", "description": row, "tool": {"name": "send", "arguments": {"to": row}}});
    fixture.text(&ana, SCHEDULE, task).await;
    let listed = fixture.text(&ana, LIST, json!({})).await;
    assert_eq!(listed.lines().filter(|line| line.starts_with('|')).count(), 3, "{listed}");
    assert_eq!(listed.replace(r"\|", "").lines().last().unwrap().matches('|').count(), 6, "{listed}");
}
