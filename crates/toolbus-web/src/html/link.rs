//! Links and images.

use super::dom::{Content, NodeId};
use super::markdown::MarkdownWriter;

/// Longest URL that is written, in bytes.
pub(super) const MAX_URL: usize = 2048;
/// Signs that links to a heading from itself show.
const ANCHOR_SIGNS: [&str; 5] = ["", "#", "¶", "§", "🔗"];

impl MarkdownWriter<'_> {
    pub(super) fn link(&mut self, id: NodeId) {
        let href = self.dom.attribute(id, "href").trim();
        let shows = |text: &str| ANCHOR_SIGNS.contains(&text);
        let is_anchor = href.starts_with('#');
        if is_anchor && shows(self.dom.text(id, 16).trim()) {
            return;
        }
        let Some(url) = self.address(href).filter(|_| !is_anchor && !self.is_in_link) else {
            return self.children(id);
        };
        let shown = self.dom.text(id, MAX_URL);
        if href.contains("://") && [href, url.as_str()].contains(&shown.trim()) {
            self.begin();
            for part in ["<", &url, ">"] {
                self.out.push_str(part);
            }
            self.is_fresh = false;
            return;
        }
        let opens = self.opens.len();
        self.opens.push("[");
        self.is_in_link = true;
        self.inline += 1;
        // The text of a link is one line, but it may be the first of its paragraph.
        if self.inline == 1 && (self.breaks > 0 || !self.markers.is_empty() || self.out.is_empty()) && self.has_text(id)
        {
            self.line_start();
        }
        self.children(id);
        self.inline -= 1;
        self.is_in_link = false;
        if self.opens.len() > opens {
            self.opens.truncate(opens);
        } else {
            for part in ["](", &url, ")"] {
                self.out.push_str(part);
            }
        }
    }

    /// Whether anything is written of a node.
    fn has_text(&self, id: NodeId) -> bool {
        let (dom, choice) = (self.dom, self.choice);
        dom.below(id, |id| choice.leaves_out(id)).any(|below| match dom.content(below) {
            Content::Text(text) => !text.trim().is_empty(),
            Content::Element(name, _) => &*name.local == "img" && self.shown_image(below).is_some(),
            Content::Other => false,
        })
    }

    pub(super) fn image(&mut self, id: NodeId) {
        let Some((alt, url)) = self.shown_image(id) else { return };
        self.begin();
        self.is_fresh = false;
        for part in ["![", &alt, "](", &url, ")"] {
            self.out.push_str(part);
        }
    }

    /// The description and address of an image that has both.
    fn shown_image(&self, id: NodeId) -> Option<(String, String)> {
        let alt = self.dom.attribute(id, "alt").split_whitespace().collect::<Vec<_>>().join(" ");
        let source = ["src", "data-src"].map(|name| self.dom.attribute(id, name).trim());
        let url = source.into_iter().find_map(|source| self.address(source))?;
        (!alt.is_empty()).then(|| (alt.replace(['[', ']'], ""), url))
    }

    /// The absolute address of a link, if it is one that can be read or written to.
    fn address(&self, href: &str) -> Option<String> {
        let url = self.base.join(Some(href).filter(|href| !href.is_empty())?).ok()?;
        let is_known = matches!(url.scheme(), "http" | "https" | "ftp" | "mailto" | "tel");
        let is_written = is_known && url.as_str().len() <= MAX_URL;
        is_written.then(|| url.as_str().replace('(', "%28").replace(')', "%29").replace('|', "%7C"))
    }
}
