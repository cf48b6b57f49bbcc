//! From HTML to Markdown: parse, find the main content, write.
//!
//! Pages are hostile: the parser, the choice and the writer take time and stack in proportion to the page, within
//! [`HtmlLimits`].

mod article;
mod code;
mod dom;
mod link;
mod markdown;
mod table;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use toolbus_core::Clock;
use url::Url;

use self::article::ArticleChoice;
use self::dom::{Content, Dom, NodeId};
use self::markdown::MarkdownWriter;

/// Deepest nesting that is parsed; browsers have 512.
const MAX_DEPTH: u32 = 512;
/// Most nodes of a page.
const MAX_NODES: usize = 4_000_000;
/// Fewest characters that make a page one that shows something without scripts.
const MIN_TEXT: usize = 200;
/// Longest title, in characters.
const MAX_TITLE: usize = 300;

/// Limits for one page.
#[derive(Debug, Clone, Copy)]
pub struct HtmlLimits {
    /// Deepest nesting of elements.
    depth: u32,
    /// Most nodes.
    nodes: usize,
    /// When to stop.
    until: Instant,
    /// Most bytes of Markdown.
    output: usize,
}

impl HtmlLimits {
    /// Limits for a page that may take this long, and become this much Markdown in bytes.
    #[must_use]
    pub fn new(time: Duration, output: usize) -> Self {
        Self { depth: MAX_DEPTH, nodes: MAX_NODES, until: Clock::SYSTEM.now() + time, output }
    }

    /// When to stop.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Most bytes of text.
    pub(crate) const fn output(&self) -> usize {
        self.output
    }

    #[cfg(test)]
    pub(crate) fn generous() -> Self {
        Self::new(Duration::from_secs(600), usize::MAX)
    }
}

/// How much of a page is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagePart {
    /// The main content.
    Article,
    /// All that a reader sees.
    Full,
}

/// A page as Markdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The title; empty if there is none.
    pub title: String,
    /// The Markdown, without the title.
    pub markdown: String,
    /// Whether the page shows nothing without scripts.
    pub needs_scripts: bool,
    /// Whether a limit has left out the rest of the page.
    pub is_cut: bool,
}

/// Converts a page that was loaded from `url`.
#[must_use]
pub fn convert(html: &str, url: &Url, part: PagePart, limits: &HtmlLimits) -> Converted {
    let dom = Dom::parse(html, limits);
    let choice = ArticleChoice::of(&dom, part, limits);
    let base = base(&dom, url);
    let mut writer = MarkdownWriter::new(&dom, &choice, &base, limits);
    writer.write(choice.top());
    let (markdown, is_short) = writer.finish();
    let title = title(&dom);
    let has_scripts = || dom.ids().any(|id| dom.name(id) == "script");
    let needs_scripts = markdown.chars().filter(|c| !c.is_whitespace()).take(MIN_TEXT).count() < MIN_TEXT
        && has_scripts()
        && !choice.has_much_text()
        && !choice.is_short();
    Converted { title, markdown, needs_scripts, is_cut: dom.is_cut || choice.is_short() || is_short }
}

/// What relative links are relative to. A base that is too long for an address is none: each link would copy it.
fn base(dom: &Dom, url: &Url) -> Url {
    let base = dom.ids().find(|id| dom.name(*id) == "base" && !dom.attribute(*id, "href").is_empty());
    base.and_then(|id| url.join(dom.attribute(id, "href")).ok())
        .filter(|base| matches!(base.scheme(), "http" | "https") && base.as_str().len() <= link::MAX_URL)
        .unwrap_or_else(|| url.clone())
}

fn title(dom: &Dom) -> String {
    let of_head = dom.ids().find(|id| dom.name(*id) == "title" && !is_in_svg(dom, *id)).map(|id| dom.text(id, 4096));
    let of_graph = || {
        let meta = dom.ids().find(|id| dom.attribute(*id, "property") == "og:title");
        meta.map(|id| dom.attribute(id, "content").to_owned())
    };
    let of_heading = || dom.ids().find(|id| dom.name(*id) == "h1").map(|id| dom.text(id, 4096));
    let found = of_head.filter(|title| !title.trim().is_empty()).or_else(of_graph).or_else(of_heading);
    let words: Vec<_> = found.iter().flat_map(|title| title.split_whitespace()).collect();
    toolbus_core::text::shortened(&words.join(" "), MAX_TITLE).into_owned()
}

fn is_in_svg(dom: &Dom, id: NodeId) -> bool {
    dom.parent(id)
        .is_some_and(|parent| dom.name(parent) != "head" && matches!(dom.content(parent), Content::Element(..)))
}
