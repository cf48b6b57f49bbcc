//! The section of a page that the fragment of its address names.

use super::dom::{Content, Dom, NodeId};

/// Nodes after an anchor without text in which its heading is looked for.
const NEAR: usize = 16;

/// The first node of a section, and the number after that of its last.
pub(super) fn find(dom: &Dom, fragment: &str) -> Option<(NodeId, usize)> {
    let is_named = |id: &NodeId| {
        dom.attribute(*id, "id") == fragment || (dom.name(*id) == "a" && dom.attribute(*id, "name") == fragment)
    };
    let named = dom.ids().find(is_named)?;
    // A heading, the one around its anchor, or the one after an anchor without text.
    let heading = std::iter::successors(Some(named), |id| dom.parent(*id)).take(3).find(|id| level(dom, *id).is_some());
    let next = || {
        let is_empty = dom.text(named, 16).trim().is_empty();
        let after = dom.ids().skip(named.index() + 1).take(NEAR);
        let is_shown = |id: &NodeId| matches!(dom.content(*id), Content::Text(text) if !text.trim().is_empty());
        let mut after = after.take_while(|id| !is_shown(id));
        if is_empty { after.find(|id| level(dom, *id).is_some()) } else { None }
    };
    if let Some((heading, level_of_heading)) = heading.or_else(next).and_then(|id| Some((id, level(dom, id)?))) {
        let is_end = |id: &NodeId| level(dom, *id).is_some_and(|level| level <= level_of_heading);
        let end = dom.ids().skip(heading.index() + 1).find(is_end).map_or(dom.len(), NodeId::index);
        return Some((heading, end));
    }
    let last = dom.below(named, |_| false).last().unwrap_or(named);
    if dom.name(named) == "dt" {
        // With what defines it.
        let end =
            dom.ids().skip(last.index() + 1).find(|id| dom.name(*id) == "dt" && dom.parent(*id) == dom.parent(named));
        let list = dom.parent(named).and_then(|list| dom.below(list, |_| false).last());
        return Some((named, end.map(NodeId::index).or(list.map(|last| last.index() + 1))?));
    }
    Some((named, last.index() + 1))
}

fn level(dom: &Dom, id: NodeId) -> Option<u8> {
    match dom.name(id).as_bytes() {
        [b'h', level @ b'1'..=b'6'] => Some(*level),
        _ => None,
    }
}
