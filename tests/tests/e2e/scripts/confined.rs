//! Commands that are kept in, over the bus.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::namespace::BrokerNamespace;

use super::setup::{WITHOUT_NAMESPACES, start_by};

#[tokio::test]
async fn a_command_reads_what_is_listed_and_nothing_else_and_takes_no_options() {
    let (site, folder) = (BrokerNamespace::shared().await, tempfile::tempdir().unwrap());
    let (open, closed) = (folder.path().join("open"), folder.path().join("closed"));
    for (folder, text) in [(&open, "for all"), (&closed, "for the daemon")] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("notes"), text).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let more = format!(
        "[[commands]]\nname = \"show\"\ndescription = \"Shows a file\"\ncommand = [\"cat\", \"{{path}}\"]\nread = [{open:?}]\n\
         parameters = '{{\"type\":\"object\",\"properties\":{{\"path\":{{\"type\":\"string\"}}}},\"required\":[\"path\"]}}'\n"
    );
    for (launcher, refusal) in [(&[][..], "No such file"), (&WITHOUT_NAMESPACES, "Permission denied")] {
        let daemon = start_by(launcher, &site, &more, &[]).await;
        let client = Client::connect(&site).await;
        let show = async |path: &str| client.call("show", &json!({"path": path})).await;
        assert_eq!(show(open.join("notes").to_str().unwrap()).await.content(), "for all");
        for path in
            [closed.join("notes").to_str().unwrap(), "/etc/passwd", daemon.folder().join("site.toml").to_str().unwrap()]
        {
            let refused = show(path).await;
            assert_eq!(refused.body()["isError"], true, "{path}: {}", refused.body());
            assert!(refused.content().starts_with("Command failed (exit 1):"), "{}", refused.content());
            assert!(refused.content().contains(refusal), "{path}: {}", refused.content());
        }
        let option = show("-n").await;
        assert_eq!(option.code(), "invalid_arguments", "{}", option.body());
        assert_eq!(show("/dev/null; echo x").await.body()["isError"], true, "there is no shell");
        daemon.stop(&site).await;
    }
}
