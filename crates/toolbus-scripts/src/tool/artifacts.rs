//! Files that a script left, as pieces of its result.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use toolbus_protocol::ContentBlock;
use toolbus_sandbox::Artifact;

/// Prefix of the addresses of files; their names follow.
const ADDRESS: &str = "toolbus:output/";
/// Characters that are encoded in an address: all but those that need no encoding in any part of one.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters of a file that is shown as text may be these controls, and no others.
const WHITESPACE: [char; 4] = ['\t', '\n', '\r', '\u{c}'];

/// Media types of files, by how their names end.
const TYPES: [(&str, &str); 33] = [
    ("aac", "audio/aac"),
    ("bmp", "image/bmp"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("md", "text/markdown"),
    ("mp3", "audio/mpeg"),
    ("ogg", "audio/ogg"),
    ("parquet", "application/vnd.apache.parquet"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("py", "text/x-python"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tsv", "text/tab-separated-values"),
    ("wav", "audio/wav"),
    ("webp", "image/webp"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
];

/// A file: its text, if it is text, and its bytes otherwise.
pub(super) fn block(artifact: &Artifact) -> ContentBlock {
    let known = known_type(&artifact.name);
    let uri = Some(format!("{ADDRESS}{}", utf8_percent_encode(&artifact.name, ENCODED)));
    if let Some(text) = as_text(&artifact.bytes) {
        let mime_type = Some(known.unwrap_or("text/plain").to_owned());
        return ContentBlock {
            kind: "resource".to_owned(),
            text: Some(text.to_owned()),
            mime_type,
            uri,
            ..ContentBlock::default()
        };
    }
    let mime_type = known.unwrap_or("application/octet-stream");
    let kind = match mime_type.split_once('/') {
        Some((kind @ ("image" | "audio"), _)) => kind,
        _ => "resource",
    };
    ContentBlock {
        kind: kind.to_owned(),
        data: Some(STANDARD.encode(&artifact.bytes)),
        mime_type: Some(mime_type.to_owned()),
        uri,
        ..ContentBlock::default()
    }
}

fn known_type(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(ending)).map(|(_, mime_type)| *mime_type)
}

fn as_text(bytes: &[u8]) -> Option<&str> {
    let is_plain = |text: &&str| text.chars().all(|c| !c.is_control() || WHITESPACE.contains(&c));
    std::str::from_utf8(bytes).ok().filter(is_plain)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use bytes::Bytes;

    use super::*;

    fn shown(name: &str, bytes: &'static [u8]) -> String {
        let block = block(&Artifact { name: name.to_owned(), bytes: Bytes::from_static(bytes) });
        let [text, data, mime_type, uri] =
            [block.text, block.data, block.mime_type, block.uri].map(Option::unwrap_or_default);
        format!("{:<8} {mime_type} {uri} text={text:?} data={data}", block.kind)
    }

    #[test]
    fn what_is_text_comes_as_text_and_all_else_in_base64() {
        let mut table = String::new();
        for (name, bytes) in [
            ("table.csv", &b"a,b\r\n1,2\n"[..]),
            ("notes", b"plain"),
            ("picture.svg", b"<svg/>"),
            ("empty", b""),
            ("bär 1%.txt", "ä".as_bytes()),
            ("chart.PNG", b"\x89PNG\r\n\x1a\n"),
            ("sound.wav", b"RIFF\x01\x02"),
            ("report.pdf", b"%PDF\xff"),
            ("latin.txt", b"\xe4"),
            ("escape.txt", b"\x1b[31m"),
            ("model.bin", b"\0"),
        ] {
            writeln!(table, "{}", shown(name, bytes)).unwrap();
        }
        insta::assert_snapshot!(table, @r#"
        resource text/csv toolbus:output/table.csv text="a,b\r\n1,2\n" data=
        resource text/plain toolbus:output/notes text="plain" data=
        resource image/svg+xml toolbus:output/picture.svg text="<svg/>" data=
        resource text/plain toolbus:output/empty text="" data=
        resource text/plain toolbus:output/b%C3%A4r%201%25.txt text="ä" data=
        image    image/png toolbus:output/chart.PNG text="" data=iVBORw0KGgo=
        audio    audio/wav toolbus:output/sound.wav text="" data=UklGRgEC
        resource application/pdf toolbus:output/report.pdf text="" data=JVBERv8=
        resource application/octet-stream toolbus:output/latin.txt text="" data=5A==
        resource application/octet-stream toolbus:output/escape.txt text="" data=G1szMW0=
        resource application/octet-stream toolbus:output/model.bin text="" data=AA==
        "#);
    }

    #[test]
    fn every_ending_is_listed_once() {
        assert!(TYPES.is_sorted_by(|(one, _), (other, _)| one < other));
    }
}
