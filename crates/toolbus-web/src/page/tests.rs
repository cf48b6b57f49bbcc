//! Bodies of every type become text.

use super::*;

fn page(content_type: &str, body: &[u8]) -> RawPage {
    let url = Url::parse("https://site.example/a/").unwrap();
    RawPage { url, content_type: content_type.to_owned(), body: body.to_vec(), is_cut: false }
}

fn read(content_type: &str, body: &[u8], mode: BrowseMode) -> Result<PageText, PageError> {
    page(content_type, body).to_text(mode, Duration::from_secs(600))
}

fn text(content_type: &str, body: &[u8]) -> String {
    read(content_type, body, BrowseMode::Article).unwrap().text
}

#[test]
fn a_body_is_read_by_its_type_or_by_its_looks() {
    let table: [(&str, &[u8], &str); 12] = [
        ("text/html", b"<p>a<p>b", "a\n\nb"),
        ("application/xhtml+xml; charset=utf-8", b"<p>a</p>", "a"),
        ("text/plain", b"<p>a", "<p>a"),
        ("text/markdown", b"# a\n\n* b", "# a\n\n* b"),
        ("application/json", br#"{"b":1,"a":[]}"#, "{\n  \"b\": 1,\n  \"a\": []\n}"),
        ("application/problem+json", b"[1]", "[\n  1\n]"),
        ("application/json", b"{broken", "{broken"),
        ("application/atom+xml", b"<feed/>", "<feed/>"),
        ("", b" <!DOCTYPE html><p>a", "a"),
        ("application/octet-stream", b"plain", "plain"),
        ("application/octet-stream", b"<html><body>a", "a"),
        ("application/yaml", b"a: 1", "a: 1"),
    ];
    for (content_type, body, expected) in table {
        assert_eq!(text(content_type, body), expected, "{content_type}");
    }
}

#[test]
fn the_source_is_shown_as_it_is() {
    assert_eq!(read("text/html", b"<p>a", BrowseMode::Raw).unwrap().text, "<p>a");
    assert_eq!(read("application/json", b"{\"a\":1}", BrowseMode::Raw).unwrap().text, "{\"a\":1}");
}

#[test]
fn what_is_not_text_is_named_with_its_size() {
    let error = |content_type, body| read(content_type, body, BrowseMode::Article).unwrap_err().to_string();
    assert_eq!(error("image/png; q=1", b"\x89PNG"), "it is `image/png` of 4 bytes, which is not text");
    assert_eq!(error("", b"\0\x01\x02"), "it is data of 3 bytes, which is not text");
    assert_eq!(error("application/zip", b"PK"), "it is `application/zip` of 2 bytes, which is not text");
}

#[test]
fn a_heading_that_repeats_the_title_is_shown_once_and_what_is_cut_is_said() {
    let html = b"<title>Guide - Site</title><h1>Guide</h1><p>Text";
    let read = read("text/html", html, BrowseMode::Full).unwrap();
    assert_eq!((read.title.as_str(), read.text.as_str()), ("Guide - Site", "Text"));
    let cut = RawPage { is_cut: true, ..page("text/plain", b"abc") };
    let notes = cut.to_text(BrowseMode::Article, Duration::from_secs(60)).unwrap().notes;
    assert_eq!(notes, ["Only the first 3 bytes of the page were read."]);
}

/// A PDF whose pages show these texts.
fn pdf(pages: &[&str]) -> Vec<u8> {
    let mut objects = vec!["<< /Type /Catalog /Pages 2 0 R >>".to_owned()];
    let kids: Vec<_> = (0..pages.len()).map(|n| format!("{} 0 R", 4 + 2 * n)).collect();
    objects.push(format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), pages.len()));
    objects.push("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned());
    for (n, text) in pages.iter().enumerate() {
        let stream = format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET");
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >> /MediaBox [0 0 612 792] /Contents {} 0 R >>",
            5 + 2 * n
        ));
        objects.push(format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()));
    }
    objects.push("<< /Title (The Report) >>".to_owned());
    pdf_of(&objects)
}

/// A PDF of these objects: the first is its catalog, the last has its title.
fn pdf_of(objects: &[String]) -> Vec<u8> {
    let mut file = "%PDF-1.4\n".to_owned();
    let mut offsets = Vec::new();
    for (n, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", n + 1));
    }
    let start = file.len();
    file.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1));
    for offset in offsets {
        file.push_str(&format!("{offset:010} 00000 n \n"));
    }
    let (size, info) = (objects.len() + 1, objects.len());
    file.push_str(&format!("trailer\n<< /Size {size} /Root 1 0 R /Info {info} 0 R >>\nstartxref\n{start}\n%%EOF\n"));
    file.into_bytes()
}

#[test]
fn a_pdf_becomes_its_text_page_by_page() {
    let read = read("application/pdf", &pdf(&["First words", "Second words"]), BrowseMode::Article).unwrap();
    assert_eq!(read.title, "The Report");
    assert_eq!(read.text, "## Page 1\n\nFirst words\n\n## Page 2\n\nSecond words");
    let alone = text("application/octet-stream", &pdf(&["Alone"]));
    assert_eq!(alone, "Alone");
}

#[test]
fn fonts_that_share_a_large_map_of_characters_are_not_read() {
    // Each name of a font would be a map of its own in memory.
    let with = |names: usize| {
        let entry = |code: usize| format!("<{code:04x}> <{}>\n", "0042".repeat(50));
        let map: String = (0..30)
            .map(|block| {
                let entries: String = (0..100).map(|nth| entry(block * 100 + nth)).collect();
                format!("100 beginbfchar\n{entries}endbfchar\n")
            })
            .collect();
        let map = format!(
            "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n/CIDSystemInfo\n<< /Registry (Adobe)\n\
             /Ordering (UCS)\n/Supplement 0\n>> def\n/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n\
             1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange\n{map}endcmap\n\
             CMapName currentdict /CMap defineresource pop\nend\nend"
        );
        let fonts: String = (0..names).map(|nth| format!("/F{nth} 4 0 R ")).collect();
        let text = "BT /F0 12 Tf <0041> Tj ET";
        pdf_of(&[
            "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
            format!("<< /Type /Page /Parent 2 0 R /Resources << /Font << {fonts} >> >> /Contents 6 0 R >>"),
            "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 5 0 R >>".to_owned(),
            format!("<< /Length {} >>\nstream\n{map}\nendstream", map.len()),
            format!("<< /Length {} >>\nstream\n{text}\nendstream", text.len()),
            "<< >>".to_owned(),
        ])
    };
    let few = read("application/pdf", &with(2), BrowseMode::Article).unwrap();
    assert!(few.text.starts_with("BB") && few.notes.is_empty(), "{few:?}");
    let many = read("application/pdf", &with(40), BrowseMode::Article).unwrap();
    assert!(many.text.is_empty(), "{}", many.text);
    assert_eq!(many.notes, ["The fonts of page 1 are too large, so that 1 of 1 pages were not read."]);
}

#[test]
fn a_damaged_pdf_is_refused_and_one_without_text_says_so() {
    let damaged = read("application/pdf", b"%PDF-1.4\nnothing", BrowseMode::Article).unwrap_err();
    assert_eq!(damaged.to_string(), "its PDF cannot be read: it is damaged");
    let empty = read("application/pdf", &pdf(&[""]), BrowseMode::Article).unwrap();
    assert!(empty.text.is_empty() && empty.notes.iter().any(|note| note.contains("no text")), "{empty:?}");
    let cut = RawPage { is_cut: true, ..page("application/pdf", &pdf(&["x"])) };
    assert!(cut.to_text(BrowseMode::Article, Duration::from_secs(60)).is_err());
}

#[test]
fn no_damage_of_a_pdf_makes_the_conversion_panic() {
    let whole = pdf(&["Words of the first page", "And of the second"]);
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] = damaged[at].wrapping_add(1 + (at % 250) as u8);
        let outcome = read("application/pdf", &damaged, BrowseMode::Article);
        assert_ne!(outcome, Err(PageError::Failed), "byte {at}");
        let outcome = read("application/pdf", &whole[..at.max(5)], BrowseMode::Article);
        assert_ne!(outcome, Err(PageError::Failed), "cut at {at}");
    }
}
