//! The kept pages become the Markdown that is kept beside them.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its pages should fail")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use toolbus_web::html::{HtmlLimits, PagePart, convert};
use toolbus_web::page::{BrowseMode, RawPage};
use url::Url;

/// The variable with which the Markdown is written anew.
const UPDATE: &str = "TOOLBUS_UPDATE_PAGES";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages")
}

fn kept(extension: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// A page as a server sends it that declares no charset.
fn text_of(body: Vec<u8>) -> String {
    let url = Url::parse("https://site.example/docs/page.html").unwrap();
    let page = RawPage { url, content_type: "text/html".to_owned(), body, is_cut: false };
    let text = page.to_text(BrowseMode::Article, Duration::from_secs(600)).unwrap();
    let notes: String = text.notes.iter().map(|note| format!("> {note}\n")).collect();
    format!("# {}\n\n{notes}\n{}\n", text.title, text.text)
}

#[test]
fn each_kept_page_becomes_its_markdown() {
    let pages = kept("html");
    assert!(pages.len() >= 15);
    for page in pages {
        let (found, kept) = (text_of(std::fs::read(&page).unwrap()), page.with_extension("md"));
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&kept, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&kept).unwrap();
        assert!(found == expected, "{} differs from its conversion:\n{found}", kept.display());
    }
}

#[test]
fn the_same_page_in_two_charsets_becomes_the_same_markdown() {
    let read = |name: &str| text_of(std::fs::read(folder().join(name)).unwrap());
    assert_eq!(read("japanese.html"), read("japanese-sjis.html"));
}

#[test]
fn a_page_of_ten_megabytes_is_converted_as_a_whole() {
    let row = "<tr><td><a href='/item'>An <b>item</b></a><td>with a text &amp; more<td>1234</tr>";
    let section = format!("<h2>Section</h2><p>{}</p><table>{}</table>", "Words of a text. ".repeat(40), row.repeat(20));
    let count = 10 * 1024 * 1024 / section.len();
    let html = format!("<main>{}</main>", section.repeat(count));
    let url = Url::parse("https://site.example/").unwrap();
    let found = convert(&html, &url, PagePart::Article, &HtmlLimits::new(Duration::from_secs(600), usize::MAX));
    assert!(!found.is_cut);
    assert_eq!(found.markdown.matches("## Section").count(), count);
    assert_eq!(
        found.markdown.matches("| [An **item**](https://site.example/item) | with a text & more | 1234 |").count(),
        count * 20
    );
}
