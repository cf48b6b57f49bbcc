//! From HTML to Markdown: parse, find the main content, write.
//!
//! Pages are hostile: the parser, the choice and the writer take time and stack in proportion to the page, within
//! [`HtmlLimits`].

mod article;
mod code;
mod dom;
mod formula;
mod link;
mod markdown;
mod section;
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
/// Most frames that are named.
const MAX_FRAMES: usize = 5;
/// Longest title, in characters.
const MAX_TITLE: usize = 300;

/// Limits for one page.
#[derive(Debug, Clone, Copy)]
pub struct HtmlLimits {
    /// Deepest nesting of elements.
    depth: u32,
    /// Most nodes.
    nodes: usize,
    /// Time to stop.
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

    /// Time to stop.
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

/// Part of a page that is wanted.
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
    /// Sections, frames and other pages that a reader must know of.
    pub notes: Vec<String>,
}

/// Converts a page that was loaded from `url`.
#[must_use]
pub fn convert(html: &str, url: &Url, part: PagePart, limits: &HtmlLimits) -> Converted {
    let mut dom = Dom::parse(html, limits);
    formula::flatten(&mut dom);
    let mut choice = ArticleChoice::of(&dom, part, limits);
    let base = base(&dom, url);
    let mut notes = Vec::new();
    notes.extend(narrowed(&dom, url, &mut choice));
    let mut writer = MarkdownWriter::new(&dom, &choice, &base, limits);
    writer.write(choice.top());
    let (markdown, is_short) = writer.finish();
    let title = title(&dom);
    let has_scripts = || dom.ids().any(|id| dom.name(id) == "script");
    let needs_scripts = markdown.chars().filter(|c| !c.is_whitespace()).take(MIN_TEXT).count() < MIN_TEXT
        && has_scripts()
        && !choice.has_much_text()
        && !choice.is_short();
    let is_little = markdown.len() < MIN_TEXT;
    notes.extend(refresh(&dom, &base));
    notes.extend(frames(&dom, &base, is_little));
    Converted { title, markdown, needs_scripts, is_cut: dom.is_cut || choice.is_short() || is_short, notes }
}

/// Narrows the text to the section that the address names.
fn narrowed(dom: &Dom, url: &Url, choice: &mut ArticleChoice) -> Option<String> {
    let fragment = url.fragment().filter(|fragment| !fragment.is_empty() && !fragment.starts_with(":~:"))?;
    let fragment = percent_encoding::percent_decode_str(fragment).decode_utf8_lossy();
    let name = toolbus_core::text::shown(&fragment);
    Some(match section::find(dom, &fragment) {
        Some((first, end)) => {
            choice.narrow(dom, first, end);
            format!(
                "This is the section `{name}` alone. For the whole page, leave out what follows `#` in its address."
            )
        }
        None => format!("The page has no section `{name}`, so all of it is shown."),
    })
}

/// The page to which this one sends its readers on.
fn refresh(dom: &Dom, base: &Url) -> Option<String> {
    let is_refresh = |id: &NodeId| dom.attribute(*id, "http-equiv").eq_ignore_ascii_case("refresh");
    let content =
        dom.ids().filter(|id| dom.name(*id) == "meta").find(is_refresh).map(|id| dom.attribute(id, "content"))?;
    let target = content.split_once([';', ',']).map(|(_, target)| target.trim())?;
    let is_key = target.get(..3).is_some_and(|key| key.eq_ignore_ascii_case("url"));
    let target = if is_key { target.get(3..)?.trim_start().strip_prefix('=')? } else { target };
    let url = address(base, target.trim().trim_matches(['"', '\'']))?;
    Some(format!("This page sends its readers on to {url} . Read that."))
}

/// The frames of which a page consists.
fn frames(dom: &Dom, base: &Url, is_little: bool) -> Option<String> {
    let is_frame = |id: &NodeId| dom.name(*id) == "frame" || (is_little && dom.name(*id) == "iframe");
    let sources = dom.ids().filter(is_frame).filter_map(|id| address(base, dom.attribute(id, "src").trim()));
    let urls: Vec<String> = sources.take(MAX_FRAMES).collect();
    (!urls.is_empty()).then(|| format!("The content of this page is in frames. Read them: {} .", urls.join(" , ")))
}

fn address(base: &Url, text: &str) -> Option<String> {
    let url = base.join(Some(text).filter(|text| !text.is_empty())?).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.as_str().len() <= link::MAX_URL).then(|| url.into())
}

/// Returns the address that relative links are relative to. A base that is too long for an address is none: each link
/// would copy it.
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
