//! Blocks of code: their text and their language.

use super::article::{class_start, is_unseen};
use super::dom::{Content, Dom, NodeId};

/// Longest block of code, in bytes.
const MAX_CODE: usize = 1 << 20;

/// The text of code, without buttons to copy it and the like. Classes in it are those of a highlighter, and mean nothing.
pub(super) fn source_text(dom: &Dom, id: NodeId) -> String {
    let mut all = String::new();
    for below in dom.below(id, |below| is_unseen(dom, below)) {
        let is_line = match dom.content(below) {
            Content::Text(text) => {
                all.push_str(text);
                false
            }
            Content::Element(..) => match dom.name(below) {
                "br" => {
                    all.push('\n');
                    false
                }
                "div" | "p" | "li" | "tr" => true,
                // Variants of an example, of which a site shows one.
                "code" => dom.previous(below).is_some_and(|previous| dom.name(previous) == "code"),
                _ => false,
            },
            Content::Other => false,
        };
        if is_line && !all.is_empty() && !all.ends_with('\n') {
            all.push('\n');
        }
        if all.len() > MAX_CODE {
            all.truncate(all.floor_char_boundary(MAX_CODE));
            break;
        }
    }
    all
}

/// The language of a block of code, from the classes of its element, of the first in it, or of those around it.
pub(super) fn language(dom: &Dom, id: NodeId) -> String {
    let inner = dom.children(id).find(|child| matches!(dom.content(*child), Content::Element(..)));
    let around = std::iter::successors(dom.parent(id), |id| dom.parent(*id)).take(2);
    let candidates = [Some(id), inner].into_iter().flatten().chain(around);
    let classes = candidates.flat_map(|id| class_start(dom.attribute(id, "class")).split_ascii_whitespace());
    let languages = classes.filter_map(|class| {
        ["language-", "lang-", "highlight-source-", "highlight-", "brush:"].iter().find_map(|p| class.strip_prefix(p))
    });
    let is_name =
        |name: &&str| name.len() <= 20 && name.chars().all(|c| c.is_ascii_alphanumeric() || "+#-_".contains(c));
    let found = languages.filter(|name| !matches!(*name, "default" | "none" | "plain" | "notranslate"));
    found.filter(is_name).find(|name| !name.is_empty()).unwrap_or_default().to_owned()
}
