//! Opens a PDF, with bounds for the objects that are in its streams.
//!
//! The library bounds what one stream becomes, but neither all of them together nor the objects in one: those that begin at
//! the same place, or within each other, are each read to their end, so that some kilobytes become more than the memory.
//! Streams of objects are hidden from it here, and read one by one.

use lopdf::xref::XrefEntry;
use lopdf::{DecompressError, Document, Error, LoadOptions, Object, ObjectId, ObjectStream, Stream};

use super::PageError;

/// Most bytes that all streams of objects of a document may decompress to; in memory they are many times as much.
const MAX_OBJECTS: usize = 16 << 20;
/// Most bytes that one table of the places of objects may decompress to: each entry takes three or more.
const MAX_TABLE: usize = 8 << 20;
/// Most objects of one stream.
const MAX_COUNT: usize = 1 << 20;
/// The type that a stream of objects has while it is hidden.
const HIDDEN: &str = "ToolbusObjStm";

/// The document of a body.
pub(super) fn document(bytes: &[u8]) -> Result<Document, PageError> {
    // Such a document is decrypted while it is opened, beside what is bounded here.
    if has_name(bytes, b"Encrypt") {
        return Err(PageError::Pdf("it is encrypted"));
    }
    let document = opened(bytes, false)?;
    if !document.get_pages().is_empty() {
        return Ok(document);
    }
    // The table of the objects may be wrong.
    Ok(opened(bytes, true).ok().filter(|rebuilt| !rebuilt.get_pages().is_empty()).unwrap_or(document))
}

fn opened(bytes: &[u8], force_reconstruct: bool) -> Result<Document, PageError> {
    let bounded = LoadOptions::with_max_decompressed_size(MAX_TABLE);
    let options = LoadOptions { filter: Some(hide), force_reconstruct, ..bounded };
    let mut document = Document::load_mem_with_options(bytes, options).map_err(|_| PageError::Pdf("it is damaged"))?;
    let is_hidden = |object: &Object| object.as_stream().is_ok_and(|stream| stream.dict.has_type(HIDDEN.as_bytes()));
    let hidden: Vec<ObjectId> =
        document.objects.iter().filter(|(_, object)| is_hidden(object)).map(|(id, _)| *id).collect();
    let mut left = MAX_OBJECTS;
    for id in hidden {
        let Some(Object::Stream(mut stream)) = document.objects.remove(&id) else { continue };
        let content = match stream.get_plain_content_with_limit(left) {
            Ok(content) => content,
            Err(Error::Decompress(DecompressError::MemoryLimitExceeded { .. })) => {
                return Err(PageError::Pdf("its objects are too large"));
            }
            Err(_) => continue,
        };
        left = left.saturating_sub(content.len());
        if !is_apart(&stream, &content) {
            return Err(PageError::Pdf("it is damaged"));
        }
        stream.set_plain_content(content);
        let Ok(read) = ObjectStream::new_with_limit(&stream, Some(MAX_OBJECTS)) else { continue };
        for (of_stream, object) in read.objects {
            // An older object of the same number may be in another stream.
            let is_current = match document.reference_table.entries.get(&of_stream.0) {
                Some(XrefEntry::Compressed { container, .. }) => *container == id.0,
                Some(_) => false,
                None => true,
            };
            if is_current {
                document.objects.insert(of_stream, object);
            }
        }
    }
    Ok(document)
}

/// Gives a stream of objects another type, so that the library does not read it.
fn hide(id: ObjectId, object: &mut Object) -> Option<(ObjectId, Object)> {
    if let Ok(stream) = object.as_stream_mut()
        && stream.dict.has_type(b"ObjStm")
    {
        stream.dict.set("Type", Object::Name(HIDDEN.into()));
    }
    Some((id, Object::Null))
}

/// Whether no object of a stream begins within another.
fn is_apart(stream: &Stream, content: &[u8]) -> bool {
    let first = stream.dict.get(b"First").and_then(Object::as_i64).ok().and_then(|first| usize::try_from(first).ok());
    let Some((numbers, objects)) = first.and_then(|first| content.split_at_checked(first)) else { return true };
    let numbers = String::from_utf8_lossy(numbers);
    let lines = numbers.split(['\r', '\n']).map(|line| line.split('%').next().unwrap_or_default());
    let numbers = lines.flat_map(str::split_whitespace).skip(1).step_by(2).take(MAX_COUNT + 1);
    let mut places: Vec<usize> = numbers.filter_map(|place| place.parse().ok()).collect();
    places.sort_unstable();
    places.len() <= MAX_COUNT
        && places.windows(2).all(|pair| match pair {
            [here, next] => here < next && objects.get(*here..*next).is_none_or(is_whole),
            _ => true,
        })
}

/// Whether an object ends within these bytes, which are those up to the next. Nothing is none: a place before white space
/// is that of the object after it.
fn is_whole(bytes: &[u8]) -> bool {
    let (mut at, mut depth) = (0, 0_usize);
    let byte = |at: usize| bytes.get(at).copied();
    while let Some(found) = byte(at) {
        let pair = byte(at + 1);
        at = match found {
            b'%' => after(bytes, at, |byte| matches!(byte, b'\r' | b'\n')),
            b'(' => match after_string(bytes, at) {
                Some(end) => end,
                None => return false,
            },
            b'<' | b'>' if pair == Some(found) => {
                depth = if found == b'<' { depth + 1 } else { depth.saturating_sub(1) };
                at + 2
            }
            b'<' => match bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'>')) {
                Some(length) => at + length + 1,
                None => return false,
            },
            b'[' | b']' => {
                depth = if found == b'[' { depth + 1 } else { depth.saturating_sub(1) };
                at + 1
            }
            found if found.is_ascii_whitespace() || found == 0 => {
                at += 1;
                continue;
            }
            _ => after(bytes, at + 1, |byte| byte.is_ascii_whitespace() || byte == 0 || b"()<>[]{}/%".contains(&byte)),
        };
        if depth == 0 && found != b'%' {
            return true;
        }
    }
    false
}

/// The first place from `at` whose byte `ends`.
fn after(bytes: &[u8], at: usize, ends: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| ends(*byte)).unwrap_or(rest.len())
}

/// The place after a string in parentheses; `None` if it has no end.
fn after_string(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 1,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Whether a body has a name, in any spelling: `/Encrypt`, `/#45ncrypt`.
fn has_name(bytes: &[u8], name: &[u8]) -> bool {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
    starts.into_iter().any(|start| {
        let mut at = start;
        let is_same = name.iter().all(|wanted| {
            let spelled = match (bytes.get(at), digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
                (Some(b'#'), Some(high), Some(low)) => {
                    at += 2;
                    u8::try_from(high * 16 + low).ok()
                }
                (plain, ..) => plain.copied(),
            };
            at += 1;
            spelled == Some(*wanted)
        });
        is_same && bytes.get(at).is_none_or(|next| !next.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document of one page whose catalog and pages are in a stream, with more objects there at these places.
    fn with_stream(objects: &str, more: &[(usize, usize)]) -> Vec<u8> {
        let own = "<</Type/Catalog/Pages 2 0 R>> <</Type/Pages/Kids[3 0 R]/Count 1>> <</Type/Page/Parent 2 0 R>> ";
        let mut numbers = "1 0 2 30 3 67 ".to_owned();
        for (number, place) in more {
            numbers.push_str(&format!("{number} {} ", place + own.len()));
        }
        let content = format!("{numbers}{own}{objects}");
        let mut pdf = b"%PDF-1.5\n".to_vec();
        let at = pdf.len();
        let count = more.len() + 3;
        let dictionary = format!("<</Type/ObjStm/N {count}/First {}/Length {}>>", numbers.len(), content.len());
        pdf.extend(format!("10 0 obj\n{dictionary}stream\n{content}\nendstream endobj\n").bytes());
        let table = pdf.len();
        let mut entries: Vec<u8> = Vec::new();
        let index: String = (1..=3).chain(more.iter().map(|(number, _)| *number)).map(|n| format!("{n} 1 ")).collect();
        for place in 0..count {
            entries.extend([2, 0, 0, 10]);
            entries.push(u8::try_from(place % 256).unwrap());
        }
        entries.push(1);
        entries.extend(&u32::try_from(at).unwrap().to_be_bytes()[1..]);
        entries.push(0);
        let dictionary =
            format!("<</Type/XRef/Size 100000/W[1 3 1]/Index[{index}10 1]/Root 1 0 R/Length {}>>", entries.len());
        pdf.extend(format!("11 0 obj\n{dictionary}stream\n").bytes());
        pdf.extend(&entries);
        pdf.extend(format!("\nendstream endobj\nstartxref\n{table}\n%%EOF\n").bytes());
        pdf
    }

    #[test]
    fn objects_of_a_stream_are_read() {
        let document = document(&with_stream("(a(b)\\)c) [1 <2F> /N] 7", &[(20, 0), (21, 10), (22, 22)])).unwrap();
        assert_eq!(document.get_pages().len(), 1);
        assert_eq!(document.get_object((22, 0)).unwrap().as_i64().unwrap(), 7);
    }

    #[test]
    fn objects_that_begin_within_each_other_are_refused() {
        let long = format!("({})", "a".repeat(100_000));
        let nested = format!("{}{}", "(".repeat(1000), ")".repeat(1000));
        let same: Vec<_> = (0..100).map(|nth| (20 + nth, 0)).collect();
        let within: Vec<_> = (0..100).map(|nth| (20 + nth, nth)).collect();
        let blank = format!("{}(a)", " ".repeat(100));
        for (objects, places) in [(long, same), (nested, within.clone()), (blank, within)] {
            let refused = document(&with_stream(&objects, &places)).err().unwrap();
            assert_eq!(refused.to_string(), "its PDF cannot be read: it is damaged");
        }
    }

    #[test]
    fn objects_that_become_too_much_are_refused() {
        let refused = document(&with_stream(&"1 ".repeat(MAX_OBJECTS / 2), &[(20, 0)])).err().unwrap();
        assert_eq!(refused.to_string(), "its PDF cannot be read: its objects are too large");
    }

    #[test]
    fn an_encrypted_document_is_refused_in_any_spelling_before_it_is_opened() {
        for name in ["/Encrypt 5 0 R", "/#45ncr#79pt<<>>"] {
            let refused = document(format!("%PDF-1.4\ntrailer <<{name}>>").as_bytes()).err().unwrap();
            assert_eq!(refused.to_string(), "its PDF cannot be read: it is encrypted");
        }
        assert!(!has_name(b"/Encryption /EncryptMetadata /#4", b"Encrypt"));
    }

    #[test]
    fn an_object_is_whole_where_it_ends() {
        let whole = ["12", "/N", "(a)", "(\\()", "<</A[1 2]>>", "[<<>>]", "<AB>", "% c\n1", "null "];
        let open = ["", " ", "% c", "(", "(a(b)", "<<", "[1", "<A", "<</A[>>", "(\\)"];
        for text in whole {
            assert!(is_whole(text.as_bytes()), "{text}");
        }
        for text in open {
            assert!(!is_whole(text.as_bytes()), "{text}");
        }
    }
}
