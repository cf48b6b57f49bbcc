//! Facts of YAML that the library `config` does not report, and texts that it must not be given: positions, keys given
//! twice, tags, and aliases that stand for more than memory holds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use yaml_rust2::parser::{Event, Parser, Tag};
use yaml_rust2::scanner::{Marker, ScanError, TScalarStyle};
use yaml_rust2::yaml::Yaml;

use crate::problem::{Position, Problem, Span};
use crate::tree::{KeyPath, push_key};

/// Most tables and lists within each other, aliases included.
const MAX_DEPTH: usize = 128;
/// Most bytes that are held for anchors and aliases.
const MAX_EXPANDED: usize = 16 * 1024 * 1024;
/// Bytes that are held for a value beside its text, about.
const VALUE: usize = 64;
/// Start of the tags that YAML itself defines.
const OWN_TAGS: &str = "tag:yaml.org,2002:";

/// Looks through a YAML text before it is read. Gives the position of every key and value; `None` if there is none.
///
/// # Errors
///
/// If it is not one YAML document of keys and values, if a key is given twice, has a tag or is no text, if a value has a
/// tag of its own, if its tables and lists are too deep, or if its aliases stand for too much.
pub(crate) fn scan(file: &str, text: &str) -> Result<Option<BTreeMap<KeyPath, Span>>, Problem> {
    let mut scan = Scan { file, keeps_positions: true, ..Scan::default() };
    scan.whole(text)?;
    Ok(scan.has_root.then_some(scan.spans))
}

/// Variant for a large text whose positions are not needed. Returns whether there is a document.
///
/// # Errors
///
/// As for [`scan`].
pub(crate) fn scan_without_positions(file: &str, text: &str) -> Result<bool, Problem> {
    let mut scan = Scan { file, ..Scan::default() };
    scan.whole(text)?;
    Ok(scan.has_root)
}

#[derive(Default)]
struct Scan<'a> {
    file: &'a str,
    keeps_positions: bool,
    spans: BTreeMap<KeyPath, Span>,
    /// Path of the next value, also as TOML writes it.
    path: KeyPath,
    written: String,
    /// The tables and lists around it.
    open: Vec<OpenNode>,
    anchors: HashMap<usize, Extent>,
    expanded: usize,
    documents: usize,
    has_root: bool,
}

/// Size of a value.
#[derive(Clone, Copy, Default)]
struct Extent {
    bytes: usize,
    /// Tables and lists within each other.
    height: usize,
}

/// A table or list that has not ended.
struct OpenNode {
    anchor: usize,
    extent: Extent,
    /// Length of the written path around it.
    around: usize,
    kind: OpenKind,
}

enum OpenKind {
    /// The keys that it has, and the one whose value is next.
    Table(BTreeSet<String>, Option<(String, Position)>),
    /// Number of elements that the list has.
    List(usize),
}

impl Scan<'_> {
    fn whole(&mut self, text: &str) -> Result<(), Problem> {
        let mut parser = Parser::new_from_str(text);
        loop {
            let (event, mark) = parser.next_token().map_err(|error| self.syntax(&error))?;
            if event == Event::StreamEnd {
                return Ok(());
            }
            self.event(event, position(mark))?;
        }
    }

    fn event(&mut self, event: Event, position: Position) -> Result<(), Problem> {
        match event {
            Event::DocumentStart => {
                self.documents += 1;
                if self.documents > 1 { Err(self.problem(position, "a second document; expected one")) } else { Ok(()) }
            }
            Event::Scalar(text, style, anchor, tag) => {
                if let Some(OpenNode { kind: OpenKind::Table(_, None), .. }) = self.open.last() {
                    return self.key(text, style, tag.as_ref(), position);
                }
                if self.open.is_empty() {
                    let is_empty = style == TScalarStyle::Plain && matches!(Yaml::from_str(&text), Yaml::Null);
                    return if is_empty { Ok(()) } else { Err(self.problem(position, "expected keys with values")) };
                }
                let around = self.begin(position, tag.as_ref())?;
                // `.inf` and `.nan`, at which the library fails.
                if style == TScalarStyle::Plain && is_not_finite(&text) {
                    return Err(self.problem(position, "not a finite number"));
                }
                self.end(around, anchor, Extent { bytes: VALUE + text.len(), height: 0 }, position)
            }
            Event::Alias(anchor) => {
                if matches!(self.open.last(), Some(OpenNode { kind: OpenKind::Table(_, None), .. })) {
                    return Err(self.problem(position, "a key cannot be an alias; expected a text"));
                }
                let around = self.begin(position, None)?;
                let Some(extent) = self.anchors.get(&anchor).copied() else {
                    return Err(self.problem(position, "an alias within what it stands for"));
                };
                self.depth(extent.height, position)?;
                self.expand(extent, position)?;
                self.end(around, 0, extent, position)
            }
            Event::SequenceStart(anchor, tag) => self.open(OpenKind::List(0), anchor, tag.as_ref(), position),
            Event::MappingStart(anchor, tag) => {
                self.open(OpenKind::Table(BTreeSet::new(), None), anchor, tag.as_ref(), position)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenNode { anchor, extent, around, .. }) => self.end(around, anchor, extent, position),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Notes the key whose value is next.
    fn key(&mut self, text: String, style: TScalarStyle, tag: Option<&Tag>, position: Position) -> Result<(), Problem> {
        let name = match (style, Yaml::from_str(&text)) {
            (TScalarStyle::Plain, Yaml::Null | Yaml::BadValue) => None,
            // As the library writes them.
            (TScalarStyle::Plain, Yaml::Integer(number)) => Some(number.to_string()),
            (TScalarStyle::Plain, Yaml::Boolean(flag)) => Some(flag.to_string()),
            _ => Some(text),
        };
        let Some(name) = name.filter(|_| tag.is_none()) else {
            return Err(self.problem(position, "not a key; expected a text without a tag"));
        };
        let Some(OpenNode { kind: OpenKind::Table(names, next), .. }) = self.open.last_mut() else { return Ok(()) };
        if !names.insert(name.clone()) {
            push_key(&mut self.written, &name, false);
            return Err(self.problem(position, "given twice; expected it once"));
        }
        *next = Some((name, position));
        Ok(())
    }

    /// Goes to the value that begins here. Gives the length of the written path around it.
    fn begin(&mut self, position: Position, tag: Option<&Tag>) -> Result<usize, Problem> {
        let around = self.written.len();
        let (key, at, is_element) = match self.open.last_mut().map(|open| &mut open.kind) {
            None => return Ok(around),
            Some(OpenKind::Table(_, next)) => match next.take() {
                Some((key, at)) => (key, at, false),
                None => return Err(self.problem(position, "not a key; expected a text")),
            },
            Some(OpenKind::List(count)) => {
                *count += 1;
                ((*count - 1).to_string(), position, true)
            }
        };
        push_key(&mut self.written, &key, is_element);
        self.path.push(key);
        if self.keeps_positions {
            self.spans.insert(self.path.clone(), Span { key: at, value: position });
        }
        if tag.is_some_and(|tag| tag.handle != OWN_TAGS) {
            return Err(self.problem(position, "has a tag, which means nothing here; expected the value alone"));
        }
        Ok(around)
    }

    fn open(&mut self, kind: OpenKind, anchor: usize, tag: Option<&Tag>, position: Position) -> Result<(), Problem> {
        if self.open.is_empty() {
            if matches!(kind, OpenKind::List(_)) {
                return Err(self.problem(position, "expected keys with values, found a list"));
            }
            self.has_root = true;
        }
        let around = self.begin(position, tag)?;
        self.open.push(OpenNode { anchor, extent: Extent { bytes: VALUE, height: 0 }, around, kind });
        self.depth(0, position)
    }

    /// Leaves the value that ends here.
    fn end(&mut self, around: usize, anchor: usize, extent: Extent, position: Position) -> Result<(), Problem> {
        if anchor > 0 {
            // The library holds what an anchor names once more.
            self.expand(extent, position)?;
            self.anchors.insert(anchor, extent);
        }
        if let Some(OpenNode { extent: outer, .. }) = self.open.last_mut() {
            outer.bytes = outer.bytes.saturating_add(extent.bytes);
            outer.height = outer.height.max(extent.height + 1);
        }
        self.path.pop();
        self.written.truncate(around);
        Ok(())
    }

    fn depth(&self, height: usize, position: Position) -> Result<(), Problem> {
        let what = "tables and lists are more than 128 deep";
        if self.open.len() + height > MAX_DEPTH { Err(self.problem(position, what)) } else { Ok(()) }
    }

    fn expand(&mut self, extent: Extent, position: Position) -> Result<(), Problem> {
        self.expanded = self.expanded.saturating_add(extent.bytes);
        let what = "anchors and aliases stand for more than 16 MiB";
        if self.expanded > MAX_EXPANDED { Err(self.problem(position, what)) } else { Ok(()) }
    }

    fn syntax(&self, error: &ScanError) -> Problem {
        let Position { line, column } = position(*error.marker());
        let what = format!("not YAML, as its extension says: {}", error.info());
        Problem { location: format!("{}:{line}:{column}", self.file), key: String::new(), what }
    }

    fn problem(&self, position: Position, what: &str) -> Problem {
        let Position { line, column } = position;
        Problem { location: format!("{}:{line}:{column}", self.file), key: self.written.clone(), what: what.to_owned() }
    }
}

fn is_not_finite(text: &str) -> bool {
    matches!(Yaml::from_str(text), Yaml::Real(number) if !number.parse::<f64>().is_ok_and(f64::is_finite))
}

/// The position of a mark, whose columns count from zero.
fn position(mark: Marker) -> Position {
    Position { line: mark.line(), column: mark.col() + 1 }
}
