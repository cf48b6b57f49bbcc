//! Superscripts, subscripts and fractions, which become plain text in the tree: all that reads it sees `10²³`, not `1023`.

use html5ever::tendril::StrTendril;

use super::dom::{Content, Dom, NodeId};
use crate::superscript::Script;

/// Most nodes below a superscript or a part of a formula.
const MAX_NODES: usize = 256;

/// Longest of its texts that is kept, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// Brackets around a part of a formula.
enum Part {
    Script(Script),
    Numerator,
    Denominator,
    Root,
}

/// Rewrites the texts of a tree.
pub(super) fn flatten(dom: &mut Dom) {
    // The inner ones first.
    for id in dom.ids().rev() {
        let Some(part) = part(dom, id) else { continue };
        let texts = texts(dom, id);
        let (Some(first), Some(last)) = (texts.first().copied(), texts.last().copied()) else { continue };
        match part {
            Part::Script(script) if texts.len() == 1 => rewrite(dom, first, |text| script.plain(text)),
            Part::Script(script) if !dom.below(id, |_| false).any(|below| matches!(dom.name(below), "a" | "img")) => {
                let whole: String = texts.iter().map(|id| dom.own_text(*id, MAX_TEXT)).collect();
                for id in &texts {
                    rewrite(dom, *id, |_| String::new());
                }
                rewrite(dom, first, |_| script.plain(&whole));
            }
            Part::Script(script) => surround(dom, first, last, &format!("{}(", script.sign()), ")"),
            Part::Numerator if texts.len() > 1 => surround(dom, first, last, "(", ")"),
            Part::Numerator => {}
            Part::Denominator if texts.len() > 1 => surround(dom, first, last, "/(", ")"),
            Part::Denominator => surround(dom, first, last, "/", ""),
            Part::Root if texts.len() > 1 => surround(dom, first, last, "√(", ")"),
            Part::Root => surround(dom, first, last, "√", ""),
        }
    }
}

fn part(dom: &Dom, id: NodeId) -> Option<Part> {
    match dom.name(id) {
        "" => return None,
        "sup" => return Some(Part::Script(Script::Super)),
        "sub" => return Some(Part::Script(Script::Sub)),
        "msqrt" => return Some(Part::Root),
        _ => {}
    }
    let parent = dom.parent(id).map(|parent| dom.name(parent)).unwrap_or_default();
    if matches!(parent, "msup" | "msub" | "msubsup" | "mfrac") {
        let before = std::iter::successors(dom.previous(id), |id| dom.previous(*id)).take(MAX_NODES);
        let nth = before.filter(|id| !dom.name(*id).is_empty()).count();
        return match (parent, nth) {
            ("msup", 1) | ("msubsup", 2) => Some(Part::Script(Script::Super)),
            ("msub" | "msubsup", 1) => Some(Part::Script(Script::Sub)),
            ("mfrac", 0) => Some(Part::Numerator),
            ("mfrac", 1) => Some(Part::Denominator),
            _ => None,
        };
    }
    let style = dom.attribute(id, "style");
    let style = style.get(..style.len().min(MAX_NODES)).unwrap_or_default().replace(' ', "");
    match style.split_once("vertical-align:")?.1 {
        align if align.starts_with("super") => Some(Part::Script(Script::Super)),
        align if align.starts_with("sub") => Some(Part::Script(Script::Sub)),
        _ => None,
    }
}

/// The texts below a node; none if there are too many nodes.
fn texts(dom: &Dom, id: NodeId) -> Vec<NodeId> {
    let below: Vec<NodeId> = dom.below(id, |_| false).take(MAX_NODES + 1).collect();
    let is_text = |id: &NodeId| matches!(dom.content(*id), Content::Text(text) if !text.trim().is_empty());
    if below.len() > MAX_NODES { Vec::new() } else { below.into_iter().filter(is_text).collect() }
}

fn surround(dom: &mut Dom, first: NodeId, last: NodeId, before: &str, after: &str) {
    rewrite(dom, first, |text| format!("{before}{}", text.trim_start()));
    rewrite(dom, last, |text| format!("{}{after}", text.trim_end()));
}

fn rewrite(dom: &mut Dom, id: NodeId, write: impl FnOnce(&str) -> String) {
    if let Some(Content::Text(text)) = dom.content_mut(id) {
        *text = StrTendril::from(write(text));
    }
}
