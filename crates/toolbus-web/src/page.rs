//! From the body of a response to text that a model reads.

mod charset;
mod json;
mod pdf;
mod pdf_layout;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::html::{self, HtmlLimits, PagePart};

/// Most text of a page, in bytes: Markdown may be longer than its HTML, where links are long.
const MAX_TEXT: usize = 16 << 20;
/// Bytes of HTML above which a page is converted in a process of its own: its tree takes many times as much memory.
const LARGE_HTML: usize = 1 << 20;

/// Form in which a page is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum BrowseMode {
    /// Main content of the page as Markdown.
    #[default]
    Article,
    /// All of it as Markdown.
    Full,
    /// Source of the page.
    Raw,
}

/// A page as it was received.
#[derive(Debug, Clone)]
pub struct RawPage {
    /// Address that it came from, after redirects.
    pub url: Url,
    /// The header `Content-Type`; empty if there was none.
    pub content_type: String,
    /// The body, without compression.
    pub body: Vec<u8>,
    /// Whether the body is longer.
    pub is_cut: bool,
}

/// A page as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageText {
    /// The title; empty if there is none.
    pub title: String,
    /// The text, without the title.
    pub text: String,
    /// Facts that a reader must know of the page.
    pub notes: Vec<String>,
}

/// Reason why a page has no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PageError {
    /// Another type.
    #[error("it is {kind} of {size} bytes, which is not text")]
    NotText {
        /// Type of the page.
        kind: String,
        /// Bytes; at least, if it was cut.
        size: usize,
    },
    /// A PDF that cannot be read.
    #[error("its PDF cannot be read: {0}")]
    Pdf(Cow<'static, str>),
    /// The process was ended.
    #[error("reading it takes more memory or time than one page may take")]
    TooHeavy,
    /// The conversion failed.
    #[error("it could not be converted")]
    Failed,
}

/// Kind of a body.
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

    /// Whether the document is converted in a process of its own.
    pub(crate) fn is_heavy(&self, mode: BrowseMode) -> bool {
        match self.kind() {
            PageKind::Pdf => true,
            PageKind::Html => mode != BrowseMode::Raw && self.body.len() > LARGE_HTML,
            PageKind::Json | PageKind::Text | PageKind::Other => false,
        }
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
                    return Err(PageError::Pdf("it is too large".into()));
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
                let names_charset = self.kind() == PageKind::Html || self.body.trim_ascii_start().starts_with(b"<?xml");
                let text = charset::decode(&self.body, &self.content_type, names_charset).into_owned();
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
        } else if lower.starts_with(b"<?xml") {
            PageKind::Text
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
    let html::Converted { title, mut markdown, needs_scripts, is_cut, mut notes } = converted;
    // The heading of many pages repeats their title.
    if let Some(heading) = markdown.strip_prefix("# ") {
        let (heading, rest) = heading.split_once('\n').unwrap_or((heading, ""));
        if !heading.is_empty() && (title.contains(heading) || title.is_empty()) {
            markdown = rest.trim_start().to_owned();
        }
    }
    if needs_scripts && notes.is_empty() {
        notes.push(
            "This page shows its content only with scripts, which are not run here. Look for another source, such as \
             an API or a feed."
                .to_owned(),
        );
    }
    if is_cut {
        notes.push("The page is nested too deep, or too large: its end is left out.".to_owned());
    }
    if markdown.is_empty() && notes.is_empty() {
        notes.push("The page shows no text.".to_owned());
    }
    PageText { title, text: markdown, notes }
}

#[cfg(test)]
mod tests;
