//! How much all servers together may offer.

use std::collections::BTreeMap;

use toolbus_core::tool::ToolDescriptor;

use crate::client::size;
use crate::spec::ServerName;

/// Most tools.
const MAX_TOOLS: usize = 20_000;
/// Most bytes of definitions, in MiB.
const MAX_MIB: usize = 64;

/// The quota that there is, and who has which part of it.
#[derive(Default)]
pub(super) struct ToolQuota {
    taken: BTreeMap<ServerName, Usage>,
}

/// What one server offers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    tools: usize,
    bytes: usize,
}

/// There is no quota for what a server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "its {tools} tools are not offered: all servers together may have {MAX_TOOLS} tools and {MAX_MIB} MiB of definitions; \
     offer less, and restart it"
)]
pub(super) struct QuotaExceeded {
    tools: usize,
}

impl Usage {
    pub(super) fn of(tools: &[ToolDescriptor]) -> Self {
        let bytes =
            |tool: &ToolDescriptor| tool.name.len() + tool.description.len() + size(&tool.parameters.as_deref());
        Self { tools: tools.len(), bytes: tools.iter().map(bytes).sum() }
    }
}

impl ToolQuota {
    /// Takes quota for what a server offers now, in the place of what it offered before.
    ///
    /// # Errors
    ///
    /// When there is not enough; the server has none then.
    pub(super) fn reserve(&mut self, server: &ServerName, share: Usage) -> Result<(), QuotaExceeded> {
        self.release(server);
        let all = || self.taken.values().chain([&share]);
        let (tools, bytes) =
            (all().map(|share| share.tools).sum::<usize>(), all().map(|share| share.bytes).sum::<usize>());
        if tools > MAX_TOOLS || bytes > MAX_MIB << 20 {
            return Err(QuotaExceeded { tools: share.tools });
        }
        self.taken.insert(server.clone(), share);
        Ok(())
    }

    /// Gives back what a server has.
    pub(super) fn release(&mut self, server: &ServerName) {
        self.taken.remove(server);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn name(text: &str) -> ServerName {
        ServerName::parse(text).unwrap()
    }

    #[test]
    fn there_is_room_for_so_many_tools_whoever_has_them() {
        let mut quota = ToolQuota::default();
        let half = Usage { tools: MAX_TOOLS / 2, bytes: 1 };
        assert_eq!(quota.reserve(&name("a"), half), Ok(()));
        assert_eq!(quota.reserve(&name("b"), half), Ok(()));
        let one = Usage { tools: 1, bytes: 1 };
        let full = quota.reserve(&name("c"), one).unwrap_err();
        insta::assert_snapshot!(full, @"its 1 tools are not offered: all servers together may have 20000 tools and 64 MiB of definitions; offer less, and restart it");
        assert_eq!(quota.reserve(&name("A"), one), Ok(()), "in the place of what it had");
        assert_eq!(quota.reserve(&name("c"), one), Ok(()));
    }

    #[test]
    fn there_is_room_for_so_many_bytes() {
        let mut quota = ToolQuota::default();
        let most = Usage { tools: 1, bytes: MAX_MIB << 20 };
        assert_eq!(quota.reserve(&name("a"), most), Ok(()));
        assert!(quota.reserve(&name("b"), Usage { tools: 1, bytes: 1 }).is_err());
        quota.release(&name("A"));
        assert_eq!(quota.reserve(&name("b"), most), Ok(()));
        let too_much = Usage { tools: 1, bytes: (MAX_MIB << 20) + 1 };
        assert!(quota.reserve(&name("b"), too_much).is_err());
        assert_eq!(quota.reserve(&name("c"), most), Ok(()), "what found no room has none");
    }

    #[test]
    fn a_tool_takes_the_room_of_its_texts_and_its_schema() {
        let tool = ToolDescriptor {
            description: "123".to_owned(),
            parameters: Some(Arc::new(json!({"a": 1}))),
            ..ToolDescriptor::new("12", "mcp:a", "mcp")
        };
        let Usage { tools, bytes } = Usage::of(&[tool.clone(), tool]);
        assert_eq!((tools, bytes), (2, 2 * (2 + 3 + 7)));
    }
}
