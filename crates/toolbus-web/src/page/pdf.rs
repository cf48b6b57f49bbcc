//! The text of a PDF, page by page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hayro_interpret::font::GlyphRun;
use hayro_interpret::hayro_syntax::page::Page;
use hayro_interpret::hayro_syntax::{LoadPdfError, Pdf};
use hayro_interpret::kurbo::{BezPath, Rect};
use hayro_interpret::{
    BlendMode, ClipPath, Context, Device, DrawMode, DrawProps, Image, ImageDrawProps, InterpreterCache,
    InterpreterSettings, InterpreterWarning, SoftMask, TransformExt as _, interpret_page,
};
use toolbus_core::Clock;

use super::pdf_layout::TextLayout;
use super::{PageError, PageText};
use crate::html::HtmlLimits;

/// Most pages that are read.
const MAX_PAGES: usize = 2000;
/// Most pages that a note names.
const NAMED: usize = 10;

/// Extracts the text. What has none, such as a scan, and what cannot be read is named in a note.
pub(super) fn text(bytes: &[u8], limits: &HtmlLimits) -> Result<PageText, PageError> {
    let pdf = Pdf::new(bytes.to_vec()).map_err(|error| match error {
        LoadPdfError::Decryption(_) => PageError::Pdf("it is encrypted".into()),
        LoadPdfError::Invalid => PageError::Pdf("it is damaged".into()),
    })?;
    let pages = pdf.pages();
    let has_unknown_font = Arc::new(AtomicBool::new(false));
    let settings = settings(&has_unknown_font);
    let cache = InterpreterCache::new();
    let mut read = PageText { title: title(&pdf).unwrap_or_default(), ..PageText::default() };
    let (mut empty, mut unread, mut unreadable) = (Vec::new(), Vec::new(), Unreadable::default());
    for (number, page) in (1..).zip(pages.iter().take(MAX_PAGES)) {
        if Clock::SYSTEM.now() > limits.until() || read.text.len() > limits.output() {
            read.notes.push(format!("Only the pages before page {number} of {} were read.", pages.len()));
            break;
        }
        let mut device = TextDevice::new(page, limits.output());
        let mut context =
            Context::new(page.initial_transform(false).to_kurbo(), device.bounds, &cache, pdf.xref(), settings.clone());
        interpret_page(page, &mut context, &mut device);
        if has_unknown_font.swap(false, Ordering::Relaxed) {
            unread.push(number);
        }
        unreadable.add(number, &device.layout);
        let text = device.layout.finish();
        match text.is_empty() {
            true => empty.push(number),
            false => {
                if pages.len() > 1 {
                    read.text.push_str(&format!("## Page {number}\n\n"));
                }
                read.text.push_str(&text);
                read.text.push_str("\n\n");
            }
        }
    }
    read.text.truncate(read.text.trim_end().len());
    if pages.len() > MAX_PAGES {
        read.notes.push(format!("Only the first {MAX_PAGES} of {} pages were read.", pages.len()));
    }
    if read.text.is_empty() && read.notes.is_empty() && unread.is_empty() {
        read.notes.push(format!("The PDF has {} pages and no text: it may consist of images.", pages.len()));
    } else if !empty.is_empty() && !read.text.is_empty() {
        read.notes.push(format!("No text was found on {}: it may be images.", named(&empty)));
    }
    if !unread.is_empty() {
        read.notes.push(format!("Text in a font that cannot be read is left out on {}.", named(&unread)));
    }
    read.notes.extend(unreadable.note());
    Ok(read)
}

/// Characters whose fonts do not map them to Unicode.
#[derive(Debug, Default)]
struct Unreadable {
    count: usize,
    pages: Vec<usize>,
}

impl Unreadable {
    fn add(&mut self, page: usize, layout: &TextLayout) {
        self.count += layout.unreadable();
        if layout.unreadable() > 0 {
            self.pages.push(page);
        }
    }

    fn note(&self) -> Option<String> {
        let Self { count, pages } = self;
        (*count > 0).then(|| {
            format!(
                "{count} characters on {} could not be read, because their font does not say what they are. Each run of \
                 them is shown as \u{fffd}.",
                named(pages)
            )
        })
    }
}

fn named(pages: &[usize]) -> String {
    let shown: Vec<String> = pages.iter().take(NAMED).map(usize::to_string).collect();
    let more = pages.len().saturating_sub(NAMED);
    let kind = if pages.len() == 1 { "page" } else { "pages" };
    match more {
        0 => format!("{kind} {}", shown.join(", ")),
        more => format!("{kind} {} and {more} more", shown.join(", ")),
    }
}

fn settings(has_unknown_font: &Arc<AtomicBool>) -> InterpreterSettings {
    let has_unknown_font = Arc::clone(has_unknown_font);
    let warning_sink = Arc::new(move |warning| {
        if matches!(warning, InterpreterWarning::UnsupportedFont) {
            has_unknown_font.store(true, Ordering::Relaxed);
        }
    });
    InterpreterSettings { warning_sink, ..InterpreterSettings::default() }
}

fn title(pdf: &Pdf) -> Option<String> {
    let bytes = pdf.metadata().title.as_deref()?;
    // Without a byte order mark it is nearly Latin-1.
    let (encoding, bytes) = encoding_rs::Encoding::for_bom(bytes)
        .map_or((encoding_rs::WINDOWS_1252, bytes), |(encoding, mark)| {
            (encoding, bytes.get(mark..).unwrap_or_default())
        });
    let title = encoding.decode_without_bom_handling(bytes).0;
    Some(title.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Takes the text that a page draws, and draws nothing.
struct TextDevice {
    layout: TextLayout,
    bounds: Rect,
}

impl TextDevice {
    fn new(page: &Page<'_>, limit: usize) -> Self {
        let (width, height) = page.render_dimensions();
        let bounds = Rect::new(0.0, 0.0, width.into(), height.into());
        Self { layout: TextLayout::new(bounds, limit), bounds }
    }
}

impl<'a> Device<'a> for TextDevice {
    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, 'a>, props: DrawProps<'a>, _: &DrawMode) {
        self.layout.add(run, props.transform);
    }

    fn draw_path(&mut self, _: &BezPath, _: DrawProps<'a>, _: &DrawMode) {}
    fn push_clip_path(&mut self, _: &ClipPath) {}
    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'a>>, _: BlendMode) {}
    fn draw_image(&mut self, _: Image<'a, '_>, _: ImageDrawProps<'a>) {}
    fn pop_clip(&mut self) {}
    fn pop_transparency_group(&mut self) {}
}
