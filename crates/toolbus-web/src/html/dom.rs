//! The tree of a page: nodes in one list, which refer to each other by their numbers.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};

use html5ever::interface::{ElemName, ElementFlags, NodeOrText, QuirksMode, TreeSink};
use html5ever::tendril::{StrTendril, TendrilSink as _};
use html5ever::tree_builder::TreeBuilderOpts;
use html5ever::{Attribute, LocalName, Namespace, ParseOpts, QualName, parse_document};
use toolbus_core::Clock;

use super::HtmlLimits;

/// Bytes that are parsed between two looks at the limits.
const PIECE: usize = 4096;
/// Most bytes of attributes, with those that the parser copies from one element to others.
const MAX_ATTRIBUTES: usize = 128 << 20;
/// Nodes below one in which its text is looked for.
const TEXT_NODES: usize = 4096;
/// A node that there is not.
const NONE: NodeId = NodeId(u32::MAX);

/// The number of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

impl NodeId {
    /// The document itself.
    pub(super) const ROOT: Self = Self(0);

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Content of a node.
#[derive(Debug)]
pub(super) enum Content {
    /// The document, a comment, or anything else without a text of its own.
    Other,
    Text(StrTendril),
    Element(QualName, Vec<Attribute>),
}

/// A node and its neighbours.
#[derive(Debug)]
pub(super) struct DomNode {
    pub(super) content: Content,
    parent: NodeId,
    first: NodeId,
    last: NodeId,
    before: NodeId,
    after: NodeId,
    depth: u32,
}

/// The tree of a page.
#[derive(Debug, Default)]
pub(super) struct Dom {
    nodes: Vec<DomNode>,
    /// Whether the limits ended the parser before the page ended.
    pub(super) is_cut: bool,
}

impl Dom {
    /// Parses a page as browsers do, until a limit is reached.
    pub(super) fn parse(html: &str, limits: &HtmlLimits) -> Self {
        let options = ParseOpts {
            tree_builder: TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() },
            ..ParseOpts::default()
        };
        let mut parser = parse_document(Builder::default(), options);
        let (mut rest, mut is_cut) = (html, false);
        while !rest.is_empty() && !is_cut {
            let (piece, left) = rest.split_at(rest.floor_char_boundary(PIECE));
            parser.process(StrTendril::from_slice(piece));
            rest = left;
            let builder = &parser.tokenizer.sink.sink;
            // The parser takes time in proportion to the depth for each tag, and may make nodes without end.
            is_cut = builder.deepest.get() > limits.depth
                || builder.is_full()
                || builder.nodes.borrow().len() > limits.nodes
                || Clock::SYSTEM.now() > limits.until;
        }
        let nodes = parser.finish();
        Self { nodes, is_cut }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)).map(NodeId)
    }

    pub(super) fn content(&self, id: NodeId) -> &Content {
        self.nodes.get(id.index()).map_or(&Content::Other, |node| &node.content)
    }

    pub(super) fn content_mut(&mut self, id: NodeId) -> Option<&mut Content> {
        self.nodes.get_mut(id.index()).map(|node| &mut node.content)
    }

    pub(super) fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.nodes.get(id.index()).map(|node| node.parent).filter(|parent| *parent != NONE)
    }

    pub(super) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        let first = self.nodes.get(id.index()).map_or(NONE, |node| node.first);
        std::iter::successors(Some(first).filter(|id| *id != NONE), |id| {
            self.nodes.get(id.index()).map(|node| node.after).filter(|next| *next != NONE)
        })
    }

    /// The node before one, with the same parent.
    pub(super) fn previous(&self, id: NodeId) -> Option<NodeId> {
        self.nodes.get(id.index()).map(|node| node.before).filter(|before| *before != NONE)
    }

    /// The nodes below one, in the order of the page, but for those below a node that `is_left_out`.
    pub(super) fn below(&self, top: NodeId, is_left_out: impl Fn(NodeId) -> bool) -> impl Iterator<Item = NodeId> {
        let mut next = self.nodes.get(top.index()).map_or(NONE, |node| node.first);
        std::iter::from_fn(move || {
            loop {
                let id = next;
                let node = self.nodes.get(id.index())?;
                let leaves = is_left_out(id);
                next = if node.first != NONE && !leaves { node.first } else { self.following(id, top) };
                if !leaves {
                    return Some(id);
                }
            }
        })
    }

    /// The first node after all that is below this one, but within `top`.
    fn following(&self, mut id: NodeId, top: NodeId) -> NodeId {
        while id != top {
            let Some(node) = self.nodes.get(id.index()) else { return NONE };
            if node.after != NONE {
                return node.after;
            }
            id = node.parent;
        }
        NONE
    }

    /// The name of an HTML element; of any other node it is empty.
    pub(super) fn name(&self, id: NodeId) -> &str {
        match self.content(id) {
            Content::Element(name, _) => &name.local,
            _ => "",
        }
    }

    /// The value of an attribute; empty if there is none.
    pub(super) fn attribute(&self, id: NodeId, name: &str) -> &str {
        self.attribute_if_set(id, name).unwrap_or_default()
    }

    pub(super) fn attribute_if_set(&self, id: NodeId, name: &str) -> Option<&str> {
        match self.content(id) {
            Content::Element(_, attributes) => {
                attributes.iter().find(|attribute| &*attribute.name.local == name).map(|attribute| &*attribute.value)
            }
            _ => None,
        }
    }

    /// The text that a node is, or that is below it.
    pub(super) fn own_text(&self, id: NodeId, limit: usize) -> String {
        match self.content(id) {
            Content::Text(text) => text.to_string(),
            _ => self.text(id, limit),
        }
    }

    /// The text below a node, as the source has it, of its first nodes: those without text may be the whole page.
    pub(super) fn text(&self, top: NodeId, limit: usize) -> String {
        let mut all = String::new();
        for id in self.below(top, |_| false).take(TEXT_NODES) {
            match self.content(id) {
                Content::Text(text) => all.push_str(text),
                Content::Element(name, _) if &*name.local == "br" => all.push('\n'),
                _ => {}
            }
            if all.len() > limit {
                all.truncate(all.floor_char_boundary(limit));
                break;
            }
        }
        all
    }
}

/// State with which the parser builds the tree.
struct Builder {
    nodes: RefCell<Vec<DomNode>>,
    deepest: Cell<u32>,
    /// Bytes of attributes, also of those that share them.
    attributes: Cell<usize>,
}

impl Default for Builder {
    fn default() -> Self {
        let builder = Self { nodes: RefCell::default(), deepest: Cell::default(), attributes: Cell::default() };
        builder.add(Content::Other);
        builder
    }
}

impl Builder {
    fn add(&self, content: Content) -> NodeId {
        let mut nodes = self.nodes.borrow_mut();
        // The limit of nodes is far below; a tree with more has lost its end, and is otherwise in order.
        let id = u32::try_from(nodes.len()).map_or(NONE, NodeId);
        nodes.push(DomNode { content, parent: NONE, first: NONE, last: NONE, before: NONE, after: NONE, depth: 0 });
        id
    }

    /// Whether the attributes are too many. A formatting element is copied into each paragraph after it.
    fn is_full(&self) -> bool {
        self.attributes.get() > MAX_ATTRIBUTES
    }

    fn change<T>(&self, id: NodeId, change: impl FnOnce(&mut DomNode) -> T) -> Option<T> {
        self.nodes.borrow_mut().get_mut(id.index()).map(change)
    }

    fn get(&self, id: NodeId, of: impl FnOnce(&DomNode) -> NodeId) -> NodeId {
        self.nodes.borrow().get(id.index()).map_or(NONE, of)
    }

    fn detach(&self, id: NodeId) {
        let Some((parent, before, after)) = self.change(id, |node| {
            let neighbours = (node.parent, node.before, node.after);
            (node.parent, node.before, node.after) = (NONE, NONE, NONE);
            neighbours
        }) else {
            return;
        };
        self.change(before, |node| node.after = after);
        self.change(after, |node| node.before = before);
        self.change(parent, |node| {
            if node.first == id {
                node.first = after;
            }
            if node.last == id {
                node.last = before;
            }
        });
    }

    /// Puts a node under `parent`, before the node `after`, or at the end.
    fn place(&self, id: NodeId, parent: NodeId, after: NodeId) {
        self.detach(id);
        let before =
            if after == NONE { self.get(parent, |node| node.last) } else { self.get(after, |node| node.before) };
        let depth = self.change(parent, |node| {
            if before == NONE {
                node.first = id;
            }
            if after == NONE {
                node.last = id;
            }
            node.depth + 1
        });
        let depth = depth.unwrap_or_default();
        self.deepest.set(self.deepest.get().max(depth));
        self.change(before, |node| node.after = id);
        self.change(after, |node| node.before = id);
        self.change(id, |node| (node.parent, node.before, node.after, node.depth) = (parent, before, after, depth));
    }

    /// Adds to the text of a node, if it is one.
    fn extends(&self, id: NodeId, more: &StrTendril) -> bool {
        let extended = self.change(id, |node| match &mut node.content {
            Content::Text(text) => {
                text.push_tendril(more);
                true
            }
            _ => false,
        });
        extended == Some(true)
    }

    fn insert(&self, child: NodeOrText<NodeId>, parent: NodeId, after: NodeId) {
        let id = match child {
            NodeOrText::AppendNode(id) => id,
            // It may be that of an element that its attributes hide.
            NodeOrText::AppendText(_) if self.is_full() => return,
            NodeOrText::AppendText(text) => {
                let before = if after == NONE {
                    self.get(parent, |node| node.last)
                } else {
                    self.get(after, |node| node.before)
                };
                if self.extends(before, &text) {
                    return;
                }
                self.add(Content::Text(text))
            }
        };
        self.place(id, parent, after);
    }
}

/// The name of an element, for the parser.
#[derive(Debug)]
struct Named(QualName);

impl ElemName for Named {
    fn ns(&self) -> &Namespace {
        &self.0.ns
    }

    fn local_name(&self) -> &LocalName {
        &self.0.local
    }
}

impl TreeSink for Builder {
    type Handle = NodeId;
    type Output = Vec<DomNode>;
    type ElemName<'a> = Named;

    fn finish(self) -> Vec<DomNode> {
        self.nodes.into_inner()
    }

    fn parse_error(&self, _: Cow<'static, str>) {}

    fn get_document(&self) -> NodeId {
        NodeId::ROOT
    }

    fn elem_name<'a>(&'a self, target: &'a NodeId) -> Named {
        let nodes = self.nodes.borrow();
        Named(match nodes.get(target.index()).map(|node| &node.content) {
            Some(Content::Element(name, _)) => name.clone(),
            _ => QualName::new(None, Namespace::default(), LocalName::default()),
        })
    }

    fn create_element(&self, name: QualName, mut attributes: Vec<Attribute>, _: ElementFlags) -> NodeId {
        let size = |attribute: &Attribute| attribute.value.len() + size_of::<Attribute>();
        self.attributes.set(attributes.iter().map(size).fold(self.attributes.get(), usize::saturating_add));
        // The piece that is parsed may make many more.
        if self.is_full() {
            attributes = Vec::new();
        }
        self.add(Content::Element(name, attributes))
    }

    fn create_comment(&self, _: StrTendril) -> NodeId {
        self.add(Content::Other)
    }

    fn create_pi(&self, _: StrTendril, _: StrTendril) -> NodeId {
        self.add(Content::Other)
    }

    fn append(&self, parent: &NodeId, child: NodeOrText<NodeId>) {
        self.insert(child, *parent, NONE);
    }

    fn append_based_on_parent_node(&self, element: &NodeId, previous: &NodeId, child: NodeOrText<NodeId>) {
        let parent = self.get(*element, |node| node.parent);
        if parent == NONE { self.insert(child, *previous, NONE) } else { self.insert(child, parent, *element) }
    }

    fn append_doctype_to_document(&self, _: StrTendril, _: StrTendril, _: StrTendril) {}

    /// The contents of a template are not shown; they are children of it here.
    fn get_template_contents(&self, target: &NodeId) -> NodeId {
        *target
    }

    fn same_node(&self, one: &NodeId, other: &NodeId) -> bool {
        one == other
    }

    fn set_quirks_mode(&self, _: QuirksMode) {}

    fn append_before_sibling(&self, sibling: &NodeId, child: NodeOrText<NodeId>) {
        let parent = self.get(*sibling, |node| node.parent);
        self.insert(child, parent, *sibling);
    }

    fn add_attrs_if_missing(&self, target: &NodeId, missing: Vec<Attribute>) {
        self.change(*target, |node| {
            if let Content::Element(_, attributes) = &mut node.content {
                for attribute in missing {
                    if !attributes.iter().any(|present| present.name == attribute.name) {
                        attributes.push(attribute);
                    }
                }
            }
        });
    }

    fn remove_from_parent(&self, target: &NodeId) {
        self.detach(*target);
    }

    fn reparent_children(&self, node: &NodeId, new_parent: &NodeId) {
        loop {
            let child = self.get(*node, |node| node.first);
            if child == NONE {
                return;
            }
            self.place(child, *new_parent, NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dom: &Dom, id: NodeId) -> String {
        match dom.content(id) {
            Content::Text(text) => text.trim().to_owned(),
            _ => {
                let inner: Vec<_> = dom.children(id).map(|child| shape(dom, child)).filter(|s| !s.is_empty()).collect();
                format!("{}({})", dom.name(id), inner.join(" "))
            }
        }
    }

    fn parsed(html: &str) -> String {
        let dom = Dom::parse(html, &HtmlLimits::generous());
        assert!(!dom.is_cut);
        shape(&dom, NodeId::ROOT)
    }

    #[test]
    fn a_page_is_parsed_as_browsers_do() {
        let table = [
            ("<p>a<p>b", "(html(head() body(p(a) p(b))))"),
            // Foster parenting: nodes that are not allowed in a table come before it.
            ("<table><b>x</b><tr><td>y", "(html(head() body(b(x) table(tbody(tr(td(y)))))))"),
            // The adoption agency.
            ("<b>1<p>2</b>3</p>", "(html(head() body(b(1) p(b(2) 3))))"),
            ("<body a=1><html b=2><body c=3>x", "(html(head() body(x)))"),
            ("<noscript><p>x</noscript>", "(html(head(noscript()) body(p(x))))"),
            ("<div><template><p>t</template>x", "(html(head() body(div(template(p(t)) x))))"),
            ("a<!-- c -->b", "(html(head() body(a () b)))"),
            ("", "(html(head() body()))"),
        ];
        for (html, expected) in table {
            assert_eq!(parsed(html), expected, "{html}");
        }
    }

    #[test]
    fn descendants_of_a_node_are_found_in_order() {
        let dom = Dom::parse("<div><p>a<b>b</b></p><i>c</i></div><p>d", &HtmlLimits::generous());
        let div = dom.ids().find(|id| dom.name(*id) == "div").unwrap();
        assert_eq!(dom.text(div, 100), "abc");
        assert_eq!(dom.text(NodeId::ROOT, 100), "abcd");
        assert_eq!(dom.text(NodeId::ROOT, 2), "ab");
        let without = |name: &'static str| {
            dom.below(div, |id| dom.name(id) == name).filter(|id| matches!(dom.content(*id), Content::Text(_))).count()
        };
        assert_eq!((without("p"), without("b"), without("x")), (1, 2, 3));
    }

    #[test]
    fn nesting_without_end_is_cut() {
        let dom = Dom::parse(&"<div>".repeat(100_000), &HtmlLimits::generous());
        assert!(dom.is_cut && dom.len() < 10_000, "{}", dom.len());
        // Each paragraph opens all formatting elements again.
        let html: String = (0..50_000).map(|n| format!("<p><font size={n}>x</p>")).collect();
        assert!(Dom::parse(&html, &HtmlLimits::generous()).is_cut);
    }
}
