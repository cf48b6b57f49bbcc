//! Selection of the part of a page that is its content, and of the elements that are left out of it.

use toolbus_core::Clock;

use super::dom::{Content, Dom, NodeId};
use super::{HtmlLimits, PagePart};

/// Elements that show nothing.
const UNSEEN: [&str; 20] = [
    "script", "style", "template", "head", "svg", "iframe", "object", "embed", "canvas", "audio", "video", "input",
    "button", "select", "textarea", "datalist", "map", "noscript", "dialog", "frameset",
];
/// Elements of a page that are not of its content.
const FRAME: [&str; 2] = ["nav", "aside"];
/// The same by role.
const FRAME_ROLES: [&str; 9] =
    ["navigation", "banner", "contentinfo", "complementary", "search", "menu", "menubar", "dialog", "alertdialog"];
/// Words in a class or id of elements beside the content.
const FRAME_WORDS: [&str; 26] = [
    "advert",
    "ads",
    "banner",
    "breadcrumb",
    "breadcrumbs",
    "cookie",
    "cookies",
    "consent",
    "headerlink",
    "menu",
    "navbar",
    "navigation",
    "newsletter",
    "pagination",
    "popup",
    "promo",
    "related",
    "sidebar",
    "share",
    "sharing",
    "skip",
    "social",
    "sphinxsidebar",
    "sponsor",
    "toolbar",
    "toc",
];
/// Elements whose text counts for the choice.
const PROSE: [&str; 10] = ["p", "pre", "li", "td", "th", "blockquote", "dd", "dt", "h2", "h3"];
/// Elements that are parts of a line.
const INLINE: [&str; 32] = [
    "a", "abbr", "b", "bdi", "big", "br", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img", "ins", "kbd",
    "mark", "nobr", "q", "ruby", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var",
];
/// Smallest share of a page's text that the marked main content must have, in percent.
const MARKED_SHARE: usize = 25;
/// Text beside the main text that is no label or menu, in bytes.
const LONG_TEXT: usize = 100;
/// Text of a page, in bytes, from which it shows something without scripts.
const MUCH_TEXT: usize = 1000;
/// Bytes of a class in which words are looked for: many elements may look at that of one.
const CLASS_START: usize = 1024;
/// Nodes that are looked at between two looks at the clock.
const NODES_PER_CHECK: usize = 4096;

/// Choice of the parts of a page that are written.
pub(super) struct ArticleChoice {
    top: NodeId,
    /// By node: whether it is left out, with all below.
    is_left_out: Vec<bool>,
    has_much_text: bool,
    is_short: bool,
}

impl ArticleChoice {
    pub(super) fn of(dom: &Dom, part: PagePart, limits: &HtmlLimits) -> Self {
        let mut is_late = false;
        let leaves_out = |id: NodeId| {
            is_late |= id.index().is_multiple_of(NODES_PER_CHECK) && Clock::SYSTEM.now() > limits.until;
            is_late || is_unseen(dom, id) || (part == PagePart::Article && is_frame(dom, id))
        };
        let is_left_out = dom.ids().map(leaves_out).collect();
        let mut choice = Self { top: NodeId::ROOT, is_left_out, has_much_text: false, is_short: is_late };
        let texts = choice.texts(dom);
        choice.has_much_text = texts.first().is_some_and(|text| text.all > MUCH_TEXT);
        if part == PagePart::Article {
            choice.leave_out_footers(dom, &texts);
            match choice.marked(dom, &texts) {
                Some(marked) => choice.top = marked,
                None => choice.choose(dom, &texts),
            }
        }
        choice
    }

    /// Leaves out all that is before `first`, or from the number `end` on.
    pub(super) fn narrow(&mut self, dom: &Dom, first: NodeId, end: usize) {
        let around: Vec<NodeId> = std::iter::successors(dom.parent(first), |id| dom.parent(*id)).collect();
        if first != self.top && !around.contains(&self.top) {
            self.top = NodeId::ROOT;
        }
        for (number, left_out) in self.is_left_out.iter_mut().enumerate() {
            *left_out |= number >= end || number < first.index();
        }
        for id in around {
            if let Some(left_out) = self.is_left_out.get_mut(id.index()) {
                *left_out = false;
            }
        }
    }

    /// The node that has the content.
    pub(super) const fn top(&self) -> NodeId {
        self.top
    }

    /// Whether the page has so much text that scripts matter little.
    pub(super) const fn has_much_text(&self) -> bool {
        self.has_much_text
    }

    /// Whether the time was over before all of the page was looked at; the rest is left out.
    pub(super) const fn is_short(&self) -> bool {
        self.is_short
    }

    pub(super) fn leaves_out(&self, id: NodeId) -> bool {
        self.is_left_out.get(id.index()).is_some_and(|left_out| *left_out)
    }

    /// Leaves out the footers of articles that are little but links: to other articles, to share this one, or to edit it.
    /// The others name the author, or hold the comments of readers.
    fn leave_out_footers(&mut self, dom: &Dom, texts: &[TextSize]) {
        for id in dom.ids().filter(|id| dom.name(*id) == "footer") {
            let TextSize { all, links } = size_of(texts, id);
            if links * 3 > all * 2
                && let Some(left_out) = self.is_left_out.get_mut(id.index())
            {
                *left_out = true;
            }
        }
    }

    /// The texts below each node. Children nearly always have higher numbers than their parents, so one pass is enough;
    /// the few that the parser has moved count for nothing.
    fn texts(&self, dom: &Dom) -> Vec<TextSize> {
        let mut texts = vec![TextSize::default(); dom.len()];
        for id in dom.ids().rev() {
            if self.leaves_out(id) {
                continue;
            }
            let own = match dom.content(id) {
                Content::Text(text) => TextSize { all: solid(text), links: 0 },
                Content::Element(name, _) => {
                    let below = texts.get(id.index()).copied().unwrap_or_default();
                    if &*name.local == "a" { TextSize { links: below.all, ..below } } else { below }
                }
                Content::Other => texts.get(id.index()).copied().unwrap_or_default(),
            };
            if let Some(size) = texts.get_mut(id.index()) {
                *size = own;
            }
            if let Some(size) = dom.parent(id).and_then(|parent| texts.get_mut(parent.index())) {
                size.all += own.all;
                size.links += own.links;
            }
        }
        texts
    }

    /// Returns the element that the page marks as its main content, if that has enough of the page's text.
    fn marked(&self, dom: &Dom, texts: &[TextSize]) -> Option<NodeId> {
        let whole = size_of(texts, NodeId::ROOT).all;
        let mut marked: Option<NodeId> = None;
        let mut articles = Vec::new();
        for id in dom.ids() {
            let is_main = dom.name(id) == "main" || dom.attribute(id, "role") == "main";
            if is_main && marked.is_none_or(|other| size_of(texts, id).all > size_of(texts, other).all) {
                marked = Some(id);
            }
            if dom.name(id) == "article" {
                articles.push(id);
            }
        }
        // Several articles are a list of them, such as the posts of a thread.
        let marked = marked.or(match articles.as_slice() {
            [only] => Some(*only),
            _ => None,
        });
        marked.filter(|id| size_of(texts, *id).all * 100 >= whole * MARKED_SHARE)
    }

    /// Chooses the element that holds most prose, with surrounding elements that seem to be of the same text.
    fn choose(&mut self, dom: &Dom, texts: &[TextSize]) {
        let mut scores = vec![0_usize; dom.len()];
        for id in dom.ids().filter(|id| !self.leaves_out(*id) && PROSE.contains(&dom.name(*id))) {
            let size = size_of(texts, id);
            let worth = size.all.saturating_sub(size.links);
            let parent = dom.parent(id);
            for (ancestor, part) in [(parent, 2), (parent.and_then(|parent| dom.parent(parent)), 1)] {
                if let Some(score) = ancestor.and_then(|ancestor| scores.get_mut(ancestor.index())) {
                    *score += worth * part;
                }
            }
        }
        let best = dom.ids().max_by_key(|id| scores.get(id.index()).copied().unwrap_or_default());
        let mut inner = best.unwrap_or(NodeId::ROOT);
        // Up to where most of the text is: sections of one text are next to each other.
        let whole = size_of(texts, NodeId::ROOT).all;
        while size_of(texts, inner).all * 2 < whole
            && let Some(parent) = dom.parent(inner)
        {
            inner = parent;
        }
        // Headings and first paragraphs are often beside the element with the rest.
        while let Some(parent) = dom.parent(inner) {
            self.leave_out_beside(dom, texts, parent, inner);
            inner = parent;
        }
        self.top = inner;
    }

    /// Leaves out the children of `parent` beside `inner` that are no text, such as lists of links. What is in lines
    /// between blocks stays or goes as a whole.
    fn leave_out_beside(&mut self, dom: &Dom, texts: &[TextSize], parent: NodeId, inner: NodeId) {
        let mut line = Vec::new();
        let ends = dom.children(parent).map(Some).chain(std::iter::once(None));
        for child in ends {
            if let Some(id) = child.filter(|id| *id != inner && is_inline(dom, *id)) {
                line.push(id);
                continue;
            }
            let of_line = std::mem::take(&mut line);
            let of_block = child.filter(|id| *id != inner).map(|id| vec![id]);
            for group in [Some(of_line), of_block].into_iter().flatten() {
                if !is_text(dom, texts, &group) {
                    for id in group {
                        if let Some(left_out) = self.is_left_out.get_mut(id.index()) {
                            *left_out = true;
                        }
                    }
                }
            }
        }
    }
}

fn size_of(texts: &[TextSize], id: NodeId) -> TextSize {
    texts.get(id.index()).copied().unwrap_or_default()
}

fn is_inline(dom: &Dom, id: NodeId) -> bool {
    !matches!(dom.content(id), Content::Element(..)) || INLINE.contains(&dom.name(id))
}

/// Whether nodes beside the main text seem to belong to it: they hold few links, and are headings, paragraphs, long, or end
/// as sentences do.
fn is_text(dom: &Dom, texts: &[TextSize], nodes: &[NodeId]) -> bool {
    let (mut all, mut links) = (0, 0);
    for size in nodes.iter().map(|id| size_of(texts, *id)) {
        (all, links) = (all + size.all, links + size.links);
    }
    if links * 3 > all {
        return false;
    }
    let is_prose = |id: &NodeId| dom.name(*id) == "h1" || PROSE.contains(&dom.name(*id));
    all >= LONG_TEXT || nodes.iter().any(is_prose) || {
        let text: String = nodes.iter().map(|id| dom.own_text(*id, 4 * LONG_TEXT)).collect();
        text.trim_end().ends_with(['.', '!', '?', ':', '…', '。', '！', '？', '：'])
    }
}

/// Bytes of text below a node.
#[derive(Debug, Clone, Copy, Default)]
struct TextSize {
    all: usize,
    /// Of it, that of links.
    links: usize,
}

/// Bytes that are not white space.
fn solid(text: &str) -> usize {
    text.bytes().filter(|byte| *byte > b' ').count()
}

pub(super) fn is_unseen(dom: &Dom, id: NodeId) -> bool {
    let Content::Element(name, attributes) = dom.content(id) else { return false };
    UNSEEN.contains(&&*name.local)
        || attributes.iter().any(|attribute| match &*attribute.name.local {
            "hidden" => !attribute.value.eq_ignore_ascii_case("until-found"),
            "aria-hidden" => attribute.value.eq_ignore_ascii_case("true") && &*name.local != "math",
            "style" => hides(&attribute.value),
            _ => false,
        })
}

/// Whether a style makes its element invisible: text that a reader does not see may be there for the model alone.
fn hides(style: &str) -> bool {
    style.split(';').filter_map(|rule| rule.split_once(':')).any(|(name, value)| {
        let (name, value) = (name.trim(), value.trim().trim_end_matches("!important").trim());
        let is = |wanted: &str, hidden: &[&str]| {
            name.eq_ignore_ascii_case(wanted) && hidden.iter().any(|hidden| value.eq_ignore_ascii_case(hidden))
        };
        is("display", &["none"])
            || is("visibility", &["hidden", "collapse"])
            || is("opacity", &["0", "0.0", "0%"])
            || is("font-size", &["0", "0px", "0em", "0rem", "0%", "0pt"])
    })
}

fn is_frame(dom: &Dom, id: NodeId) -> bool {
    let Content::Element(name, attributes) = dom.content(id) else { return false };
    let name = &*name.local;
    if matches!(name, "html" | "body" | "main" | "article") {
        return false;
    }
    let is_frame = match name {
        "header" => !is_within(dom, id, &["article", "main", "section"]),
        "footer" => !is_within(dom, id, &["article"]),
        "form" => is_small(dom, id),
        _ => FRAME.contains(&name),
    };
    if is_frame {
        return true;
    }
    attributes.iter().any(|attribute| match &*attribute.name.local {
        "role" => FRAME_ROLES.iter().any(|role| attribute.value.eq_ignore_ascii_case(role)),
        "class" | "id" => {
            let words = class_start(&attribute.value).split(|c: char| !c.is_ascii_alphanumeric());
            words
                .filter(|word| !word.is_empty())
                .any(|word| FRAME_WORDS.iter().any(|frame| word.eq_ignore_ascii_case(frame)) && !is_heading(name))
        }
        _ => false,
    })
}

/// The part of a class in which words are looked for.
pub(super) fn class_start(class: &str) -> &str {
    class.get(..class.floor_char_boundary(CLASS_START)).unwrap_or(class)
}

fn is_heading(name: &str) -> bool {
    matches!(name, "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "p" | "pre" | "code" | "td" | "th")
}

/// Whether a header or footer is that of an element with one of these names, and not that of the page.
fn is_within(dom: &Dom, id: NodeId, names: &[&str]) -> bool {
    let ancestors = std::iter::successors(dom.parent(id), |id| dom.parent(*id));
    ancestors.take(16).any(|ancestor| names.contains(&dom.name(ancestor)))
}

/// Whether a form has nothing but fields: some pages are one form.
fn is_small(dom: &Dom, id: NodeId) -> bool {
    dom.text(id, MUCH_TEXT).len() < MUCH_TEXT
}
