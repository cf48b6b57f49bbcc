//! Secrets in what leaves as a log or as spans.

use std::borrow::Cow;
use std::io::{self, Write};

use opentelemetry::trace::Status;
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SpanData;
use toolbus_core::redact::Redactor;
use tracing_subscriber::fmt::MakeWriter;

use crate::settings::LogFormat;

/// Longest description of a span's failure, in bytes.
const MAX_DESCRIPTION: usize = 255;

/// Writes lines without secrets: each event is written at once, with the end of its line.
#[derive(Debug, Clone)]
pub(crate) struct RedactedLines<W> {
    pub(crate) inner: W,
    pub(crate) redactor: Redactor,
    pub(crate) format: LogFormat,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for RedactedLines<W> {
    type Writer = RedactedLines<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        RedactedLines { inner: self.inner.make_writer(), redactor: self.redactor.clone(), format: self.format }
    }
}

impl<W: Write> Write for RedactedLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let clean = match self.format {
            LogFormat::Text => self.redactor.bytes(line),
            LogFormat::Json => self.redactor.json(line),
        };
        // The writer sees a line as written whole or not at all: redaction changes its length.
        self.inner.write_all(clean.as_deref().unwrap_or(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Removes secrets from all texts of a span.
pub(crate) fn clean_span(redactor: &Redactor, span: &mut SpanData) {
    clean_name(redactor, &mut span.name);
    clean_all(redactor, &mut span.attributes);
    for event in &mut span.events.events {
        clean_name(redactor, &mut event.name);
        clean_all(redactor, &mut event.attributes);
    }
    span.links.links.iter_mut().for_each(|link| clean_all(redactor, &mut link.attributes));
    if let Status::Error { description } = &mut span.status {
        *description = Cow::Owned(redactor.beginning(description, MAX_DESCRIPTION).into_owned());
    }
}

fn clean_name(redactor: &Redactor, name: &mut Cow<'static, str>) {
    if let Cow::Owned(clean) = redactor.text(name) {
        *name = Cow::Owned(clean);
    }
}

fn clean_all(redactor: &Redactor, attributes: &mut [KeyValue]) {
    for attribute in attributes {
        match &mut attribute.value {
            Value::String(text) => clean_text(redactor, text),
            Value::Array(Array::String(texts)) => texts.iter_mut().for_each(|text| clean_text(redactor, text)),
            _ => {}
        }
    }
}

fn clean_text(redactor: &Redactor, text: &mut StringValue) {
    if let Cow::Owned(clean) = redactor.text(text.as_str()) {
        *text = clean.into();
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::secret::Secret;

    use super::*;

    #[test]
    fn an_attribute_loses_its_secrets_and_keeps_its_type() {
        let redactor = Redactor::default();
        redactor.configure([Secret::new("s3cr3t-t0ken")]);
        let texts = Value::Array(Array::String(vec!["a".into(), "s3cr3t-t0ken".into()]));
        let mut attributes = [
            KeyValue::new("url", "http://x/?key=s3cr3t-t0ken"),
            KeyValue::new("count", 7),
            KeyValue::new("all", texts),
        ];
        clean_all(&redactor, &mut attributes);
        let expected = Value::Array(Array::String(vec!["a".into(), "[redacted]".into()]));
        assert_eq!(
            attributes.map(|attribute| attribute.value),
            ["http://x/?key=[redacted]".into(), 7.into(), expected]
        );
    }
}
