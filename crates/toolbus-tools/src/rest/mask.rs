//! Keeps the daemon's credentials out of what a service echoes.

use crate::Secret;

/// Shortest credential that is looked for, in bytes: a shorter one would match by chance.
const MIN_CONFIDENTIAL: usize = 8;

/// What stands in an answer where a credential stood.
const REDACTED: &str = "[redacted]";

/// The first half of media types: a header's value that begins so is no credential.
const MEDIA: [&str; 8] = ["application", "audio", "font", "image", "multipart", "text", "video", "*"];

/// The texts that must not come back in an answer, the longest first: one may be part of another.
#[derive(Debug, Default)]
pub(super) struct Mask(Vec<Secret>);

impl Mask {
    /// Hides `credentials`, and the values of `headers` except media types: nothing tells which of them are secret.
    pub(super) fn new(credentials: Vec<Secret>, headers: &[(String, Secret)]) -> Self {
        let mut hidden = credentials;
        for (_, value) in headers {
            let text = value.expose().trim();
            if is_media(text) {
                continue;
            }
            // `Token abc…`: the service may show the credential without its scheme.
            let credential = text.split_once(' ').map(|(_, credential)| Secret::new(credential.trim()));
            hidden.extend(credential);
            hidden.push(Secret::new(text));
        }
        hidden.retain(|secret| secret.expose().len() >= MIN_CONFIDENTIAL);
        hidden.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Self(hidden)
    }

    /// Hides them in a text that is all there is.
    pub(super) fn whole(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.expose()) { text.replace(secret.expose(), REDACTED) } else { text }
        })
    }

    /// Hides them in the beginning of a longer text; a credential that its end has cut goes as well.
    pub(super) fn start(&self, text: String) -> String {
        let mut text = self.whole(text);
        let cut = self.0.iter().filter_map(|secret| beginning_at_end(&text, secret.expose())).max();
        text.truncate(text.len() - cut.unwrap_or_default());
        text
    }
}

/// Bytes at the end of `text` that are the beginning of `secret`.
fn beginning_at_end(text: &str, secret: &str) -> Option<usize> {
    let lengths = secret.char_indices().map(|(length, _)| length).skip(1);
    lengths.filter(|length| secret.get(..*length).is_some_and(|start| text.ends_with(start))).last()
}

fn is_media(value: &str) -> bool {
    value.split_once('/').is_some_and(|(kind, _)| MEDIA.iter().any(|known| kind.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use super::Mask;
    use crate::Secret;

    fn mask(headers: &[&str]) -> Mask {
        let headers: Vec<_> = headers.iter().map(|value| ("x".to_owned(), Secret::from(*value))).collect();
        Mask::new(vec!["hunter2-hunter2".into()], &headers)
    }

    #[test]
    fn credentials_and_the_values_of_headers_are_hidden() {
        let mask = mask(&["Token s3cr3t-s3cr3t", "application/json", "text/html;q=0.9", "short"]);
        let table = [
            ("a hunter2-hunter2 b", "a [redacted] b"),
            ("Token s3cr3t-s3cr3t", "[redacted]"),
            ("token=s3cr3t-s3cr3t", "token=[redacted]"),
            ("application/json text/html;q=0.9 short", "application/json text/html;q=0.9 short"),
        ];
        for (text, expected) in table {
            assert_eq!(mask.whole(text.to_owned()), expected);
        }
    }

    #[test]
    fn the_longer_of_two_credentials_is_hidden_whole() {
        let mask = mask(&["hunter2-hunter2-longer"]);
        assert_eq!(mask.whole("hunter2-hunter2-longer hunter2-hunter2".to_owned()), "[redacted] [redacted]");
    }

    #[test]
    fn a_credential_that_the_end_cuts_goes_as_well() {
        let mask = mask(&["geheim-größe-größe"]);
        let table = [
            ("a hunter2-hunt", "a "),
            ("a h", "a "),
            ("a hunter2-hunter2", "a [redacted]"),
            ("a geheim-gr", "a "),
            ("a geheim-grö", "a "),
            ("nothing of it", "nothing of it"),
        ];
        for (text, expected) in table {
            assert_eq!(mask.start(text.to_owned()), expected);
        }
    }
}
