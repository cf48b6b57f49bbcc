//! From the body of a response to text that a model reads.

mod charset;
mod json;
mod pdf;
mod pdf_objects;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use url::Url;

use crate::html::{self, HtmlLimits, PagePart};

/// Most text of a page, in bytes: Markdown may be longer than its HTML, where links are long.
const MAX_TEXT: usize = 32 << 20;

/// How a page is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BrowseMode {
    /// Its main content as Markdown.
    #[default]
    Article,
    /// All of it as Markdown.
    Full,
    /// Its source.
    Raw,
}

/// A page as it was received.
#[derive(Debug, Clone)]
pub struct RawPage {
    /// Where it came from, after redirects.
    pub url: Url,
    /// The header `Content-Type`; empty if there was none.
    pub content_type: String,
    /// The body, without compression.
    pub body: Vec<u8>,
    /// Whether the body is longer.
    pub is_cut: bool,
}

/// A page as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageText {
    /// The title; empty if there is none.
    pub title: String,
    /// The text, without the title.
    pub text: String,
    /// What a reader must know of it.
    pub notes: Vec<String>,
}

/// Why a page has no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Another type.
    #[error("it is {kind} of {size} bytes, which is not text")]
    NotText {
        /// Its type.
        kind: String,
        /// Bytes; at least, if it was cut.
        size: usize,
    },
    /// A PDF that cannot be read.
    #[error("its PDF cannot be read: {0}")]
    Pdf(&'static str),
    /// The conversion failed.
    #[error("it could not be converted")]
    Failed,
}

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageKind {
    Html,
    Json,
    Text,
    Pdf,
    Other,
}

impl RawPage {
    /// Converts the page, within `time`. A page that makes a library panic has no text.
    ///
    /// # Errors
    ///
    /// If it is not text, or cannot be converted.
    pub fn to_text(&self, mode: BrowseMode, time: Duration) -> Result<PageText, PageError> {
        // The libraries share nothing with other pages.
        catch_unwind(AssertUnwindSafe(|| self.converted(mode, time))).unwrap_or(Err(PageError::Failed))
    }

    /// Whether it is a PDF, whose library knows no limit of time.
    pub(crate) fn is_pdf(&self) -> bool {
        self.kind() == PageKind::Pdf
    }

    fn converted(&self, mode: BrowseMode, time: Duration) -> Result<PageText, PageError> {
        let limits = HtmlLimits::new(time, MAX_TEXT);
        let mut page = match (self.kind(), mode) {
            (PageKind::Html, BrowseMode::Article | BrowseMode::Full) => {
                let part = if mode == BrowseMode::Full { PagePart::Full } else { PagePart::Article };
                let html = charset::decode(&self.body, &self.content_type, true);
                of_html(html::convert(&html, &self.url, part, &limits))
            }
            (PageKind::Pdf, _) => {
                if self.is_cut {
                    return Err(PageError::Pdf("it is too large"));
                }
                pdf::text(&self.body, &limits)?
            }
            (PageKind::Json, BrowseMode::Article | BrowseMode::Full) => {
                let text = charset::decode(&self.body, &self.content_type, false);
                PageText {
                    text: json::pretty(&text, limits.output()).unwrap_or_else(|| text.into_owned()),
                    ..PageText::default()
                }
            }
            (PageKind::Html | PageKind::Json | PageKind::Text, _) => {
                let is_html = self.kind() == PageKind::Html;
                let text = charset::decode(&self.body, &self.content_type, is_html).into_owned();
                PageText { text, ..PageText::default() }
            }
            (PageKind::Other, _) => return Err(PageError::NotText { kind: self.shown_type(), size: self.body.len() }),
        };
        if self.is_cut {
            page.notes.push(format!("Only the first {} bytes of the page were read.", self.body.len()));
        }
        Ok(page)
    }

    fn kind(&self) -> PageKind {
        let essence = self.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "text/html" | "application/xhtml+xml" => PageKind::Html,
            "application/pdf" | "application/x-pdf" => PageKind::Pdf,
            "" | "application/octet-stream" | "binary/octet-stream" | "application/x-download" => self.sniffed(),
            "text/plain" if self.body.starts_with(b"%PDF-") => PageKind::Pdf,
            "application/xml"
            | "application/javascript"
            | "application/ecmascript"
            | "application/x-javascript"
            | "application/yaml"
            | "application/x-yaml"
            | "application/toml"
            | "application/x-sh"
            | "application/x-httpd-php"
            | "application/sql"
            | "application/rtf"
            | "application/x-tex"
            | "application/graphql"
            | "image/svg+xml"
            | "message/rfc822" => PageKind::Text,
            "application/x-ndjson" | "application/jsonl" | "application/json-seq" => PageKind::Text,
            "application/json" | "text/json" => PageKind::Json,
            other if other.ends_with("+json") => PageKind::Json,
            other if other.ends_with("+xml") || other.starts_with("text/") => PageKind::Text,
            _ => PageKind::Other,
        }
    }

    /// The kind of a body without a type, from its first bytes.
    fn sniffed(&self) -> PageKind {
        let start = self.body.get(..1024.min(self.body.len())).unwrap_or_default();
        let lower = start.trim_ascii_start().to_ascii_lowercase();
        if start.starts_with(b"%PDF-") {
            PageKind::Pdf
        } else if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") {
            PageKind::Html
        } else if start.contains(&0) || std::str::from_utf8(start).is_err_and(|error| error.error_len().is_some()) {
            PageKind::Other
        } else {
            PageKind::Text
        }
    }

    fn shown_type(&self) -> String {
        let essence = self.content_type.split(';').next().unwrap_or_default().trim();
        if essence.is_empty() { "data".to_owned() } else { format!("`{}`", toolbus_core::text::shown(essence)) }
    }
}

fn of_html(converted: html::Converted) -> PageText {
    let html::Converted { title, mut markdown, needs_scripts, is_cut } = converted;
    // The heading of many pages repeats their title.
    if let Some(heading) = markdown.strip_prefix("# ") {
        let (heading, rest) = heading.split_once('\n').unwrap_or((heading, ""));
        if !heading.is_empty() && (title.contains(heading) || title.is_empty()) {
            markdown = rest.trim_start().to_owned();
        }
    }
    let mut notes = Vec::new();
    if needs_scripts {
        notes.push(
            "This page shows its content only with scripts, which are not run here. Look for another source, such as \
             an API or a feed."
                .to_owned(),
        );
    }
    if is_cut {
        notes.push("The page is nested too deep, or too large: its end is left out.".to_owned());
    }
    PageText { title, text: markdown, notes }
}

#[cfg(test)]
mod tests;
