use toolbus_agents::schedule::TaskStore;
use toolbus_core::failure::Status;
use toolbus_core::store::Store as _;
use toolbus_protocol::Random;
use toolbus_store::MemoryStore;

use super::*;

#[tokio::test]
async fn a_cancelled_schedule_and_an_action_on_missing_letters_are_recorded() {
    let (store, audit) = (Arc::new(MemoryStore::default()), Arc::new(Kept::default()));
    let tasks = r#"{"version":1,"value":[{"id":"1","agent":"ana","name":"Mail","description":"Look","cron":"0 9 * * *",
        "zone":"UTC","runOnce":false,"created":1,"next":2}]}"#;
    store.put("schedules", "ana", tasks.into()).await.unwrap();
    let families = FamilyViews { schedules: Some(TaskStore::new(store, Random::SYSTEM)), ..FamilyViews::default() };
    let (_config, in_force) = watch::channel(Arc::new(Config::default()));
    let admin = Admin {
        gates: Arc::new(Gates::new(policy())),
        switches: Arc::new(SwitchStore::unkept()),
        pins: None,
        servers: Arc::new(NoServers),
        recent: RecentCalls::default(),
        metrics: None,
        families,
        dead_letters: Some(DeadLetterAdmin::new(in_force)),
        audit: Arc::clone(&audit) as Arc<dyn Audit>,
        daemon: None,
    };
    let operator = admin.by(Actor::SOCKET);
    operator.cancel_schedule("ana", "1").await.unwrap();
    let error = operator.cancel_schedule("ana", "1").await.unwrap_err();
    insta::assert_snapshot!(error, @"there is no such scheduled task: it has ended, or was replaced or cancelled");
    let error = operator.act_on_letters(LetterAction::Drop, "", vec!["a".to_owned()]).await.unwrap_err();
    insta::assert_snapshot!(error, @"the embedded bus keeps no dead letters: they are on a broker, which bus.url names");
    let actions: Vec<_> = audit.0.lock().iter().map(|record| (record.action.clone(), record.status)).collect();
    let action = |text: &str, status| (Some(text.to_owned()), status);
    let expected = [
        action("cancel scheduled task Mail of ana", Status::Ok),
        action("cancel scheduled task 1 of ana", Status::Error),
        action("drop 1 dead letters of all queues", Status::Error),
    ];
    assert_eq!(actions, expected);
}
