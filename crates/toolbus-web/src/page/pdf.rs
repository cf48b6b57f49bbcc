//! The text of a PDF, page by page.

use lopdf::{DecompressError, Document, Error, Object, ObjectId};
use toolbus_core::Clock;

use super::{PageError, PageText, pdf_objects};
use crate::html::HtmlLimits;

/// Most bytes that one stream of a document may decompress to.
const MAX_STREAM: usize = 32 << 20;
/// Most bytes that the maps of characters of a page's fonts may decompress to. The library reads that of each font
/// before the text, also where many fonts have one map, and knows no limit for all together.
const MAX_MAPS: usize = 16 << 20;
/// Most pages that are read.
const MAX_PAGES: usize = 2000;

/// Extracts the text. What has no text, such as a scan, says so.
pub(super) fn text(bytes: &[u8], limits: &HtmlLimits) -> Result<PageText, PageError> {
    let document = pdf_objects::document(bytes)?;
    let pages = document.get_pages();
    let mut page = PageText { title: title(&document).unwrap_or_default(), ..PageText::default() };
    let mut too_large = Vec::new();
    for (number, id) in pages.iter().take(MAX_PAGES) {
        if Clock::SYSTEM.now() > limits.until() || page.text.len() > limits.output() {
            page.notes.push(format!("Only the pages before page {number} of {} were read.", pages.len()));
            break;
        }
        if !has_small_maps(&document, *id) {
            too_large.push(number);
            continue;
        }
        let parts = document.extract_text_chunks_with_limit(&[*number], MAX_STREAM);
        let text: String = parts.into_iter().flatten().collect();
        let text = text.trim();
        if !text.is_empty() {
            if pages.len() > 1 {
                page.text.push_str(&format!("## Page {number}\n\n"));
            }
            page.text.push_str(text);
            page.text.push_str("\n\n");
        }
    }
    if let [first, ..] = too_large.as_slice() {
        let (count, all) = (too_large.len(), pages.len());
        page.notes
            .push(format!("The fonts of page {first} are too large, so that {count} of {all} pages were not read."));
    }
    page.text.truncate(page.text.trim_end().len());
    if page.text.is_empty() && page.notes.is_empty() {
        page.notes.push(format!("The PDF has {} pages and no text: it may consist of images.", pages.len()));
    }
    Ok(page)
}

/// Whether the maps of characters of a page's fonts are within the limit.
fn has_small_maps(document: &Document, page: ObjectId) -> bool {
    let mut left = MAX_MAPS;
    document.get_page_fonts(page).unwrap_or_default().values().all(|font| {
        let Ok(map) = font.get_deref(b"ToUnicode", document).and_then(Object::as_stream) else { return true };
        match map.get_plain_content_with_limit(left) {
            Ok(content) => left = left.saturating_sub(content.len()),
            Err(Error::Decompress(DecompressError::MemoryLimitExceeded { .. })) => return false,
            Err(_) => {}
        }
        left > 0
    })
}

fn title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?;
    let (_, info) = document.dereference(info).ok()?;
    let title = info.as_dict().ok()?.get(b"Title").ok()?;
    let title = lopdf::decode_text_string(title).ok()?;
    Some(title.split_whitespace().collect::<Vec<_>>().join(" "))
}
