//! The parts of a result that are no text: images, sounds, files.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use toolbus_protocol::{ContentBlock, ToolInvokeResponse, llm_name};

use crate::commands::one_line;
use crate::terminal::ignore_broken_pipe;

/// Most files of one name and different numbers.
const MAX_FILES: usize = 100_000;
/// Endings of files, by MIME type; another type has `bin`.
const ENDINGS: [(&str, &str); 12] = [
    ("application/json", "json"),
    ("application/pdf", "pdf"),
    ("application/zip", "zip"),
    ("audio/mpeg", "mp3"),
    ("audio/ogg", "ogg"),
    ("audio/wav", "wav"),
    ("image/gif", "gif"),
    ("image/jpeg", "jpg"),
    ("image/png", "png"),
    ("image/svg+xml", "svg"),
    ("image/webp", "webp"),
    ("text/csv", "csv"),
];

/// Saves the binary parts of a result in `folder`, and says on standard error where they are; without one, that there are
/// some.
///
/// # Errors
///
/// If a part cannot be saved.
pub(super) fn keep(result: &ToolInvokeResponse, tool: &str, folder: Option<&Path>) -> io::Result<()> {
    let blocks = result.content_blocks.iter().flatten();
    let binary: Vec<(&ContentBlock, &str)> = blocks.filter_map(|block| Some((block, block.data.as_deref()?))).collect();
    let Some(folder) = folder else {
        let kinds = binary.iter().map(|(block, _)| kind(block)).collect::<Vec<_>>().join(", ");
        return match binary.len() {
            0 => Ok(()),
            count => ignore_broken_pipe(writeln!(
                anstream::stderr(),
                "not shown: {count} files ({kinds}); --save DIR keeps them"
            )),
        };
    };
    for (block, data) in binary {
        let bytes = STANDARD.decode(data).map_err(|_| io::Error::other(format!("the {} is no Base64", kind(block))))?;
        let path = save(folder, tool, ending(block), &bytes)?;
        let told = format!("saved {} ({}, {} bytes)", path.display(), kind(block), bytes.len());
        ignore_broken_pipe(writeln!(anstream::stderr(), "{told}"))?;
    }
    Ok(())
}

/// Writes a new file, with the first number that no other has.
fn save(folder: &Path, tool: &str, ending: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let name = llm_name(tool);
    for number in 1..=MAX_FILES {
        let path = folder.join(format!("{name}-{number}.{ending}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => return file.write_all(bytes).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))),
        }
    }
    Err(io::Error::other(format!("`{}` has {MAX_FILES} files of this name", folder.display())))
}

fn ending(block: &ContentBlock) -> &'static str {
    let mime_type = block.mime_type.as_deref().unwrap_or_default();
    ENDINGS.iter().find(|(known, _)| *known == mime_type).map_or("bin", |(_, ending)| ending)
}

/// What a part is, as it may be shown.
fn kind(block: &ContentBlock) -> String {
    one_line(block.mime_type.as_deref().unwrap_or(&block.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(mime_type: &str, data: &str) -> ToolInvokeResponse {
        let block = ContentBlock {
            kind: "image".to_owned(),
            data: Some(data.to_owned()),
            mime_type: Some(mime_type.to_owned()),
            ..ContentBlock::default()
        };
        ToolInvokeResponse {
            tool_call_id: "1".to_owned(),
            tool_name: "shot".to_owned(),
            content: None,
            content_blocks: Some(vec![block]),
            is_error: false,
        }
    }

    #[test]
    fn images_are_saved_under_names_of_the_callers_own_and_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("new");
        for text in ["b25l", "dHdv"] {
            keep(&result("image/png", text), "../shot/it", Some(&into)).unwrap();
        }
        keep(&result("../../x", "b25l"), "shot", Some(&into)).unwrap();
        let name = llm_name("../shot/it");
        let read = |name: &str| fs::read(into.join(name)).unwrap();
        assert_eq!(
            (read(&format!("{name}-1.png")), read(&format!("{name}-2.png"))),
            (b"one".to_vec(), b"two".to_vec())
        );
        assert_eq!(read("shot-1.bin"), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(keep(&result("image/png", "%"), "shot", Some(&into)).is_err());
        keep(&result("image/png", "%"), "shot", None).unwrap();
    }
}
