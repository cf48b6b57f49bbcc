//! From the positions of characters to text: words, lines, paragraphs, superscripts.

use hayro_interpret::font::{Glyph, GlyphRun, PositionedGlyph};
use hayro_interpret::hayro_cmap::{BfString, WritingMode};
use hayro_interpret::kurbo::{Affine, Point, Rect, Vec2};
use unicode_normalization::UnicodeNormalization as _;

use crate::superscript::Script;

/// Units of a glyph to its font size.
const UNITS: f64 = 1000.0;
/// Gap between two words, in font sizes.
const WORD_GAP: f64 = 0.15;
/// Gap between two columns, in font sizes.
const COLUMN_GAP: f64 = 1.5;
/// Distance from which two lines are two paragraphs, in font sizes.
const PARAGRAPH: f64 = 1.75;
/// Size of the text beside it below which a character may be a superscript or subscript.
const SMALL: f64 = 0.85;
/// Fewest glyphs of a run whose letters may be set wide.
const TRACKED: usize = 5;

/// Collects the text of a page in the order in which it is drawn.
pub(super) struct TextLayout {
    /// Visible area of the page; text outside is left out.
    bounds: Rect,
    /// Most bytes.
    limit: usize,
    text: String,
    line: Option<Line>,
    /// Text above or below the line, until text on it follows.
    script: Option<(Script, String)>,
    has_space: bool,
    /// The run before, which some programs draw twice to make it bold.
    before: Option<(String, Point)>,
    unreadable: usize,
}

/// The line that is being written.
struct Line {
    /// Start of its last character that is on the line.
    base: Point,
    /// End of its last character.
    end: Point,
    start: Point,
    /// In which it is written; of length 1.
    direction: Vec2,
    size: f64,
}

/// A character, or several that are one glyph.
struct Placed {
    /// `None` if the font does not define it.
    text: Option<String>,
    start: Point,
    end: Point,
    direction: Vec2,
    size: f64,
}

/// Position of a character relative to the line.
enum Step {
    On { gap: f64 },
    Script(Script),
    Line { is_paragraph: bool },
}

impl TextLayout {
    pub(super) fn new(bounds: Rect, limit: usize) -> Self {
        Self {
            bounds,
            limit,
            text: String::new(),
            line: None,
            script: None,
            has_space: false,
            before: None,
            unreadable: 0,
        }
    }

    /// Characters that could not be read.
    pub(super) const fn unreadable(&self) -> usize {
        self.unreadable
    }

    /// The text.
    pub(super) fn finish(mut self) -> String {
        self.end_script();
        self.text.trim().nfc().collect()
    }

    /// Adds what one operator draws.
    pub(super) fn add(&mut self, run: &GlyphRun<'_, '_>, transform: Affine) {
        if self.text.len() > self.limit {
            return;
        }
        let placed: Vec<Placed> =
            run.glyphs().iter().filter_map(|glyph| Placed::of(glyph, transform, run.writing_mode())).collect();
        let Some(first) = placed.first() else { return };
        let whole: String = placed.iter().filter_map(|glyph| glyph.text.as_deref()).collect();
        let is_again = self.before.as_ref().is_some_and(|(text, at)| {
            *text == whole && at.distance(first.start) < first.size / 10.0 && !whole.trim().is_empty()
        });
        if is_again {
            return;
        }
        self.before = Some((whole, first.start));
        let tracking = tracking(&placed);
        for glyph in &placed {
            if self.bounds.inflate(glyph.size, glyph.size).contains(glyph.start) {
                self.place(glyph, tracking);
            }
        }
    }

    fn place(&mut self, glyph: &Placed, tracking: f64) {
        let text = match &glyph.text {
            Some(text) if text.trim().is_empty() => {
                self.has_space = true;
                return;
            }
            Some(text) => folded(text),
            None => {
                self.unreadable += 1;
                '\u{fffd}'.to_string()
            }
        };
        let step = self.line.as_ref().map_or(Step::Line { is_paragraph: false }, |line| line.step(glyph));
        if let Step::Script(script) = step {
            match &mut self.script {
                Some((of, written)) if *of == script => {
                    if self.has_space {
                        written.push(' ');
                    }
                    written.push_str(&text);
                }
                _ => {
                    self.end_script();
                    self.script = Some((script, text));
                }
            }
            self.has_space = false;
            if let Some(line) = &mut self.line {
                line.end = glyph.end;
            }
            return;
        }
        self.end_script();
        let is_joined = match step {
            Step::On { gap } if gap - tracking > COLUMN_GAP => Some("\t"),
            Step::On { gap } if self.has_space || gap - tracking > WORD_GAP => Some(" "),
            Step::On { .. } | Step::Script(_) => None,
            Step::Line { is_paragraph: true } => Some("\n\n"),
            Step::Line { is_paragraph: false } => Some("\n"),
        };
        self.has_space = false;
        if let Some(between) = is_joined.filter(|_| !self.text.is_empty()) {
            self.text.push_str(between);
        }
        if glyph.text.is_some() || !self.text.ends_with('\u{fffd}') {
            self.text.push_str(&text);
        }
        self.line = Some(Line {
            base: glyph.start,
            start: glyph.start,
            end: glyph.end,
            direction: glyph.direction,
            size: glyph.size,
        });
    }

    fn end_script(&mut self) {
        if let Some((script, text)) = self.script.take() {
            self.text.push_str(&script.plain(&text));
        }
    }
}

impl Line {
    fn step(&self, glyph: &Placed) -> Step {
        let (direction, size) = (self.direction, self.size.max(f64::MIN_POSITIVE));
        if direction.dot(glyph.direction) < 0.98 {
            return Step::Line { is_paragraph: true };
        }
        // Of Arabic and Hebrew, the next character may be to the left.
        let is_leftward = glyph.text.as_deref().is_some_and(is_leftward);
        let forward = (glyph.start - self.end).dot(direction) / size;
        let gap = if is_leftward { forward.max((self.start - glyph.end).dot(direction) / size) } else { forward };
        let above = direction.cross(glyph.start - self.base);
        let is_near = (-0.4..0.7).contains(&gap);
        if is_near && glyph.size < SMALL * size {
            match above / size {
                0.18..0.9 => return Step::Script(Script::Super),
                -0.6..-0.08 => return Step::Script(Script::Sub),
                _ => {}
            }
        }
        // After a number that is raised at the start of a line, such as that of a footnote.
        let is_after_small = is_near && size < SMALL * glyph.size && (-0.9..0.0).contains(&(above / glyph.size));
        let larger = size.max(glyph.size);
        if above.abs() < 0.3 * larger || is_after_small {
            return if gap < -1.0 { Step::Line { is_paragraph: false } } else { Step::On { gap } };
        }
        Step::Line { is_paragraph: above > 0.0 || -above > PARAGRAPH * larger }
    }
}

impl Placed {
    /// `None` if it has no size.
    fn of(glyph: &PositionedGlyph<'_>, transform: Affine, mode: WritingMode) -> Option<Self> {
        let transform = transform * glyph.transform();
        let width = match &**glyph {
            Glyph::Outline(outline) => outline.advance_width(),
            Glyph::Type3(drawn) => drawn.advance_width(),
        };
        let start = transform * Point::ZERO;
        let size = (transform * Point::new(0.0, UNITS)).distance(start);
        let along = match mode {
            WritingMode::Horizontal => Vec2::new(UNITS, 0.0),
            WritingMode::Vertical => Vec2::new(0.0, -UNITS),
        };
        let along = transform * along.to_point() - start;
        let width = if mode == WritingMode::Vertical { 1.0 } else { f64::from(width.unwrap_or(0.0)) / UNITS };
        let is_sound = size.is_finite() && size > 0.0 && along.hypot() > 0.0 && start.is_finite();
        let text = glyph.as_unicode().map(|text| match text {
            BfString::Char(c) => c.to_string(),
            BfString::String(text) => text,
        });
        is_sound.then(|| Self {
            text: text.filter(|text| is_readable(text)),
            start,
            end: start + along * width,
            direction: along / along.hypot(),
            size,
        })
    }
}

/// The gap, in font sizes, by which the letters of a run are set apart; none if it is that of words.
fn tracking(placed: &[Placed]) -> f64 {
    let gaps = placed.windows(2).filter_map(|pair| match pair {
        [one, next] => Some((next.start - one.end).dot(one.direction) / one.size),
        _ => None,
    });
    let least = gaps.fold(f64::INFINITY, f64::min);
    if placed.len() < TRACKED || !least.is_finite() { 0.0 } else { least.max(0.0) }
}

/// Whether a font maps a glyph to a character: it may give it a number of its own instead.
fn is_readable(text: &str) -> bool {
    let is_private = |c: char| matches!(u32::from(c), 0xe000..=0xf8ff | 0xfffd | 0xf_0000..);
    !text.is_empty() && text.chars().all(|c| !is_private(c) && (!c.is_control() || c.is_whitespace()))
}

fn is_leftward(text: &str) -> bool {
    text.chars().any(|c| matches!(u32::from(c), 0x590..=0x8ff | 0xfb1d..=0xfdff | 0xfe70..=0xfeff))
}

/// A text in its usual characters: ligatures, and forms by position or width (NFKC). Not what has another value then,
/// such as `²` and `½`.
fn folded(text: &str) -> String {
    let is_form = |c: char| {
        matches!(u32::from(c),
            0x2e80..=0x2fdf | 0xf900..=0xfdff | 0xfe30..=0xfe4f | 0xfe70..=0xffef | 0x1_d400..=0x1_d7ff)
    };
    let fold = |c: char| {
        let form = is_form(c).then(|| std::iter::once(c).nfkc());
        form.map_or_else(|| c.to_string(), Iterator::collect)
    };
    text.chars().map(fold).collect()
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn forms_are_folded_and_values_stay() {
        assert_eq!(folded("ﬁve ﬄ ３５ ｶ ⼀"), "five ffl 35 カ 一");
        assert_eq!(folded("10² ½ H₂O x™"), "10² ½ H₂O x™");
    }
}
