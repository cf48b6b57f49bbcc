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
fn a_body_is_read_by_its_type_or_content() {
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
fn xml_has_the_charset_that_it_names() {
    let feed = "<?xml version='1.0' encoding='iso-8859-1'?><t>gr\u{fc}n</t>";
    let bytes: Vec<u8> = feed.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    for kind in ["application/xml", "application/rss+xml", "text/xml", ""] {
        assert_eq!(text(kind, &bytes), feed, "{kind}");
    }
}

#[test]
fn pages_that_refer_to_others_or_are_empty_have_a_note() {
    let notes = |html: &str| read("text/html", html.as_bytes(), BrowseMode::Article).unwrap().notes.join("|");
    let sent_on = "This page sends its readers on to https://site.example/b . Read that.";
    for html in [
        "<meta http-equiv=Refresh content='0; URL=/b'>",
        "<meta http-equiv='refresh' content=\"5;url='/b'\"><p>Moved",
        "<meta http-equiv=refresh content='0;/b'>",
    ] {
        assert_eq!(notes(html), sent_on, "{html}");
    }
    assert_eq!(
        notes("<frameset><frame src=a.html><frame src=b.html></frameset>"),
        "The content of this page is in frames. Read them: https://site.example/a/a.html , https://site.example/a/b.html ."
    );
    assert!(notes("<iframe src=/embedded></iframe>").contains("https://site.example/embedded"));
    assert_eq!(notes("<meta http-equiv=refresh content=30><p>x"), "");
    assert_eq!(notes("<body></body>"), "The page shows no text.");
}

#[test]
fn the_section_that_an_address_names_is_shown_alone() {
    let html = "<nav><a href=/>Home</a></nav><main><h1>Guide</h1><p>Begin</p><section><h2 id=install>Install</h2><p>How</p>\
        <h3>Linux</h3><p>apt</p></section><h2><a name=use></a>Use</h2><p>So</p><a id=more></a><h2>More</h2><p>Rest</p>\
        <dl><dt id=f>f(x)</dt><dd>Does f</dd><dt id=g>g(x)</dt><dd>Does g</dd></dl><p id=note>A note</p></main>";
    let at = |fragment: &str| {
        let url = Url::parse(&format!("https://site.example/a/#{fragment}")).unwrap();
        RawPage { url, ..page("text/html", html.as_bytes()) }
            .to_text(BrowseMode::Article, Duration::from_secs(600))
            .unwrap()
    };
    let table = [
        ("install", "## Install\n\nHow\n\n### Linux\n\napt"),
        ("use", "## Use\n\nSo"),
        ("f", "f(x)\n: Does f"),
        ("g", "g(x)\n: Does g"),
        ("note", "A note"),
    ];
    for (fragment, expected) in table {
        let found = at(fragment);
        assert_eq!(found.text, expected, "{fragment}");
        assert!(found.notes[0].starts_with("This is the section"), "{:?}", found.notes);
    }
    assert!(at("more").text.starts_with("## More\n\nRest"));
    let all = at("absent");
    assert!(all.text.contains("Begin") && all.text.contains("Rest"));
    assert!(all.notes[0].contains("has no section"), "{:?}", all.notes);
    assert!(at("").notes.is_empty());
}

#[test]
fn the_source_is_shown_as_it_is() {
    assert_eq!(read("text/html", b"<p>a", BrowseMode::Raw).unwrap().text, "<p>a");
    assert_eq!(read("application/json", b"{\"a\":1}", BrowseMode::Raw).unwrap().text, "{\"a\":1}");
}

#[test]
fn a_page_that_is_no_text_is_named_with_its_size() {
    let error = |content_type, body| read(content_type, body, BrowseMode::Article).unwrap_err().to_string();
    assert_eq!(error("image/png; q=1", b"\x89PNG"), "it is `image/png` of 4 bytes, which is not text");
    assert_eq!(error("", b"\0\x01\x02"), "it is data of 3 bytes, which is not text");
    assert_eq!(error("application/zip", b"PK"), "it is `application/zip` of 2 bytes, which is not text");
}

#[test]
fn a_heading_that_repeats_the_title_is_shown_once_and_a_cut_is_noted() {
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
        // A text alone, or operators.
        let stream = match text.starts_with("BT ") {
            true => (*text).to_owned(),
            false => format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET"),
        };
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
fn words_columns_lines_and_paragraphs_of_a_pdf_are_those_that_a_reader_sees() {
    let at = |x: f64, y: f64, size: u8, text: &str| format!("/F1 {size} Tf 1 0 0 1 {x} {y} Tm ({text}) Tj ");
    let shown = |operators: &str| text("application/pdf", &pdf(&[&format!("BT /F1 12 Tf {operators} ET")]));
    let table = [
        // Words by gaps: within one operator, by absolute positions, letter by letter.
        ("72 720 Td [(di)20(f)-15(ferent)-280(w)40(ere)] TJ".to_owned(), "different were"),
        (at(72.0, 720.0, 12, "The") + &at(96.7, 720.0, 12, "quick"), "The quick"),
        ("72 720 Td (M) Tj 10 0 Td (a) Tj 6.7 0 Td (r) Tj 9.4 0 Td (o) Tj".to_owned(), "Mar o"),
        // Letters that are set apart are no words.
        ("2 Tc 72 720 Td (Spaced text) Tj".to_owned(), "Spaced text"),
        (at(72.0, 720.0, 12, "Name") + &at(200.0, 720.0, 12, "12") + &at(240.0, 720.0, 12, "345"), "Name\t12\t345"),
        (at(72.0, 700.0, 12, "one") + &at(72.0, 686.0, 12, "two") + &at(72.0, 640.0, 12, "three"), "one\ntwo\n\nthree"),
        (at(72.0, 600.0, 12, "below") + &at(72.0, 700.0, 12, "above"), "below\n\nabove"),
        // Superscripts and subscripts.
        (at(72.0, 700.0, 12, "10") + &at(85.5, 705.0, 7, "23") + &at(97.0, 700.0, 12, "kg"), "10²³ kg"),
        (at(72.0, 700.0, 12, "H") + &at(80.7, 697.0, 7, "2") + &at(84.8, 700.0, 12, "O"), "H₂O"),
        (at(72.0, 705.0, 7, "1") + &at(76.5, 700.0, 12, "A note"), "1A note"),
        // Drawn twice, to be bold; outside of the page.
        (at(72.0, 700.0, 12, "bold") + &at(72.3, 700.0, 12, "bold"), "bold"),
        (at(72.0, 700.0, 12, "seen") + &at(-500.0, 700.0, 12, "unseen"), "seen"),
    ];
    for (operators, expected) in table {
        assert_eq!(shown(&operators), expected, "{operators}");
    }
}

/// A PDF of one page with a font, further objects from number 6, and one string in hexadecimal.
fn pdf_with_font(font: &str, objects: &[String], string: &str) -> Vec<u8> {
    let stream = format!("BT /F1 12 Tf 72 720 Td <{string}> Tj ET");
    let mut all = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 5 0 R >> >> /MediaBox [0 0 612 792] /Contents 4 0 R >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()),
        format!("<< /Type /Font {font} >>"),
    ];
    all.extend_from_slice(objects);
    all.push("<< >>".to_owned());
    pdf_of(&all)
}

#[test]
fn ligatures_of_a_pdf_are_letters() {
    let map = "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def \
               1 begincodespacerange <00> <FF> endcodespacerange 2 beginbfchar <01> <FB01> <02> <00660066> endbfchar \
               1 beginbfrange <20> <7E> <0020> endbfrange endcmap CMapName currentdict /CMap defineresource pop end end";
    let map = format!("<< /Length {} >>\nstream\n{map}\nendstream", map.len());
    let mapped = "/Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R";
    assert_eq!(text("application/pdf", &pdf_with_font(mapped, &[map], "01766520 6f02")), "five off");
    let named = "/Subtype /Type1 /BaseFont /Helvetica /Encoding << /Differences [1 /fi /fl /ff] >>";
    assert_eq!(text("application/pdf", &pdf_with_font(named, &[], "017665 20 6f03")), "five off");
}

#[test]
fn japanese_without_an_embedded_font_is_read_and_unreadable_characters_are_reported() {
    let font = |encoding: &str, ordering: &str| {
        let below = format!(
            "<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Ryumin-Light /CIDSystemInfo << /Registry (Adobe) \
             /Ordering ({ordering}) /Supplement 2 >> >>"
        );
        let font = format!("/Subtype /Type0 /BaseFont /Ryumin-Light /Encoding /{encoding} /DescendantFonts [6 0 R]");
        (font, [below])
    };
    let (named, below) = font("90ms-RKSJ-H", "Japan1");
    assert_eq!(text("application/pdf", &pdf_with_font(&named, &below, "93fa967b8cea")), "日本語");
    let (named, below) = font("Identity-H", "Identity");
    let unread = read("application/pdf", &pdf_with_font(&named, &below, "00050006"), BrowseMode::Article).unwrap();
    assert_eq!(unread.text, "\u{fffd}");
    assert!(unread.notes[0].starts_with("2 characters on page 1 could not be read"), "{:?}", unread.notes);
    let unknown = "/Subtype /Type0 /BaseFont /X /Encoding /Nonsense-H";
    let left_out = read("application/pdf", &pdf_with_font(unknown, &[], "00050006"), BrowseMode::Article).unwrap();
    assert_eq!(left_out.notes[0], "Text in a font that cannot be read is left out on page 1.");
}

#[test]
fn a_damaged_pdf_is_refused_and_one_without_text_has_a_note() {
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
