//! Servers that come and go at run time.

use std::time::Instant;

use futures_util::future::BoxFuture;

use super::{Bridge, PlacedServer};
use crate::model_tools::Fleet;
use crate::spec::{Origin, ServerName, ServerSpec};

impl Fleet for Bridge {
    fn add<'a>(&'a self, spec: ServerSpec, latest: Instant) -> BoxFuture<'a, Result<Vec<String>, String>> {
        Box::pin(async move {
            let member = {
                let _one_at_a_time = self.changing();
                if self.get(spec.name.as_str()) == Some(Origin::Configuration) {
                    return Err("a server of this name is configured".to_owned());
                }
                self.shared.add(PlacedServer { spec, set: None })
            };
            let _ = tokio::time::timeout_at(latest.into(), member.arrival(false)).await;
            if member.is_known() {
                return Ok(member.tool_names());
            }
            Err(member.last_error().unwrap_or_else(|| "the server did not get ready in time".to_owned()))
        })
    }

    fn remove<'a>(&'a self, name: &'a ServerName) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let _one_at_a_time = self.changing();
            let member =
                self.shared.member(name.as_str()).filter(|member| member.spec().origin == Origin::Registration);
            member.iter().for_each(|member| self.shared.forget(member));
            member.is_some()
        })
    }

    fn get(&self, name: &str) -> Option<Origin> {
        self.shared.member(name).map(|member| member.spec().origin)
    }
}
