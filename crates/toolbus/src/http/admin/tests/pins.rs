#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use toolbus_core::Clock;
use toolbus_core::tool::ToolDescriptor;
use toolbus_trust::pins::{Level, Levels, Pins, ToolState};

use super::super::view::{Approval, Approved, Changes, PinnedTools};
use super::*;

/// A daemon with a tool that is pinned, and that can be changed.
struct Pinned {
    policy: PolicyHandle,
    folder: TempDir,
    stop: CancellationToken,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Pinned {
    async fn new() -> Self {
        let (policy, folder, stop) = (policy(), tempfile::tempdir().unwrap(), CancellationToken::new());
        let levels = Levels::new([("mcp:files".to_owned(), Level::Hold)], []);
        let pins = Pins::open(Some(folder.path().join("pins.json")), levels, Clock::SYSTEM).unwrap();
        let admin = Admin { pins: Some(pins.clone()), ..admin(&policy) };
        let socket = AdminSocket::bind(&folder.path().join("s")).await.unwrap();
        tokio::spawn(socket.run(open(Arc::new(admin)), stop.clone()));
        let this = Self { policy, folder, stop };
        this.describe("Reads.");
        this.policy.set_definition_check(Arc::new(pins));
        this
    }

    /// Gives the tool `read` of source `mcp:files` this description.
    fn describe(&self, description: &str) {
        let descriptor =
            ToolDescriptor { description: description.to_owned(), ..ToolDescriptor::new("read", "mcp:files", "local") };
        let registry = self.policy.registry();
        registry.unregister("read");
        registry.register(Tool::new(descriptor, ToolOutput::default())).unwrap();
        self.policy.refresh();
    }

    fn is_listed(&self) -> bool {
        self.policy.effective(&Caller::unknown()).get("read").is_some()
    }

    fn client(&self) -> AdminClient {
        AdminClient::Socket(self.folder.path().join("s"))
    }

    async fn changes(&self, name: &str) -> Changes {
        self.client().send(Method::GET, &format!("/v1/pins/{name}")).await.unwrap()
    }

    async fn approve(&self, name: &str, approval: &Approval) -> Result<Approved, AdminClientError> {
        self.client().post(&format!("/v1/pins/{name}/approve"), approval).await
    }
}

#[tokio::test]
async fn a_quarantined_tool_is_listed_shown_and_approved_at_once() {
    let fixture = Pinned::new().await;
    assert!(fixture.is_listed());
    fixture.describe("Reads all.");
    assert!(!fixture.is_listed());
    let all: PinnedTools = fixture.client().send(Method::GET, "/v1/pins?source=files").await.unwrap();
    let [read] = &all.tools[..] else { panic!("{all:?}") };
    assert_eq!((read.state, read.held, all.problem), (ToolState::Changed, true, None));
    let changes = fixture.changes("read").await;
    let [change] = &changes.changes[..] else { panic!("{changes:?}") };
    assert!(change.before.as_ref().unwrap().get().contains("\"Reads.\""));
    assert!(change.after.as_ref().unwrap().get().contains("\"Reads all.\""));
    let version = *fixture.policy.changes().borrow();
    let approved = fixture.approve("read", &Approval { source: None, digest: changes.digest }).await.unwrap();
    assert_eq!(approved.approved.len(), 1);
    assert!(fixture.is_listed());
    assert!(*fixture.policy.changes().borrow() > version, "a change is announced");
}

#[tokio::test]
async fn an_approval_of_an_outdated_digest_is_refused() {
    let fixture = Pinned::new().await;
    fixture.describe("Reads all.");
    let approval = Approval { source: None, digest: fixture.changes("read").await.digest };
    fixture.describe("Reads all, and sends it.");
    for (name, approval, expected) in [
        (
            "read",
            approval.clone(),
            "`read` changed again since it was shown; look at `toolbus pins diff read` once more",
        ),
        ("reed", approval.clone(), "no tool and no source is called `reed`; `toolbus pins` lists them"),
        ("echo", approval, "there is nothing to approve: `echo` is as it was pinned"),
    ] {
        let is_unknown = name == "reed";
        match fixture.approve(name, &approval).await {
            Err(AdminClientError::Refused(text)) if is_unknown => assert_eq!(text, expected),
            Err(AdminClientError::Failed(text)) if !is_unknown => assert_eq!(text, expected),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(!fixture.is_listed());
}

#[tokio::test]
async fn an_approval_that_cannot_be_stored_is_refused() {
    let fixture = Pinned::new().await;
    fixture.describe("Reads all.");
    let approval = Approval { source: None, digest: fixture.changes("files").await.digest };
    std::fs::write(fixture.folder.path().join("pins.json"), "{").unwrap();
    match fixture.approve("files", &approval).await {
        Err(AdminClientError::Failed(text)) => {
            assert!(text.starts_with("nothing was approved: the pin file"), "{text}")
        }
        other => panic!("{other:?}"),
    }
    assert!(!fixture.is_listed());
}

#[tokio::test]
async fn a_daemon_without_pins_refuses_with_the_reason() {
    let fixture = Fixture::new().await;
    match fixture.socket().send::<Value>(Method::GET, "/v1/pins").await {
        Err(AdminClientError::Refused(text)) => assert_eq!(text, "nothing is pinned in this process"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_source_can_be_named_by_its_server_and_an_unknown_one_is_refused_with_the_nearest() {
    let fixture = Pinned::new().await;
    fixture.describe("Reads all.");
    for source in ["files", "mcp:files"] {
        let all: PinnedTools = fixture.client().send(Method::GET, &format!("/v1/pins?source={source}")).await.unwrap();
        assert_eq!(all.tools.len(), 1, "{source}");
        assert_eq!(fixture.changes(&format!("read?source={source}")).await.changes.len(), 1, "{source}");
    }
    let refused = async |path: &str| match fixture.client().send::<Value>(Method::GET, path).await {
        Err(AdminClientError::Refused(text)) => text,
        other => panic!("{path}: {other:?}"),
    };
    insta::assert_snapshot!(refused("/v1/pins?source=mcp:file").await, @"nothing is known of a source `mcp:file`: did you mean `mcp:files`? expected one of `mcp:files`, `subagent`, `test`, `web`");
    insta::assert_snapshot!(refused("/v1/pins/read?source=fils").await, @"nothing is known of a source `fils`: did you mean `files`? expected one of `mcp:files`, `subagent`, `test`, `web`, `files`");
    let approval = Approval { source: Some("files".to_owned()), digest: fixture.changes("read").await.digest };
    assert_eq!(fixture.approve("read", &approval).await.unwrap().approved.len(), 1);
}
