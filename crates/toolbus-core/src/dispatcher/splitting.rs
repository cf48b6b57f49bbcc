//! Step 11 of a result that is too long for a model: its parts are kept, and its caller gets the table of them.

use std::sync::Arc;

use toolbus_protocol::{ContentBlock, header};

use super::call::Call;
use super::{Dispatcher, beside, is_large};
use crate::gates::find;
use crate::policy::EffectiveTools;
use crate::request::ToolRef;
use crate::results::{LongResult, MEMORY_TOOLS, READER, READER_SOURCE, SplitResult};
use crate::text::{shown, truncated};
use crate::tool::{ToolDescriptor, ToolOutput};

impl Call {
    /// Notes whether the caller could read the parts of a result that may be too long.
    pub(super) fn note_length(&mut self, output: &ToolOutput, effective: &EffectiveTools) {
        if self.splits_above(output).is_some_and(|max| may_be_long(output, max)) {
            let reader = find(effective, ToolRef::named(READER));
            self.reads_parts = reader.is_some_and(|reader| &*reader.tool.descriptor.source == READER_SOURCE);
        }
    }

    /// Length above which this result is split, in characters; `None` if it never is.
    fn splits_above(&self, output: &ToolOutput) -> Option<usize> {
        output.split.as_ref().filter(|_| !self.gets_whole).map(|rule| rule.threshold).or(self.split_above)
    }

    /// Whether the caller gets the structured part of this result by itself.
    fn gets_structured(&self, output: &ToolOutput) -> bool {
        (output.structured.is_some() || output.blocks.iter().any(ContentBlock::is_structured))
            && self.gets(header::STRUCTURED_CONTENT)
    }

    /// Whether the caller asks for this by a header. The responses of MCP have all of it.
    fn gets(&self, name: &str) -> bool {
        self.cancelled.is_some() || self.request.envelope.header(name).is_some_and(|value| value.trim() == "1")
    }
}

impl Dispatcher {
    /// Puts the table of its parts in the place of a text that is too long, or the beginning of it if its caller cannot
    /// read parts.
    pub(super) async fn split(&self, call: &Call, output: &mut ToolOutput) {
        let Some(above) = call.splits_above(output) else { return };
        let Some(tool) = call.tool.as_ref().filter(|tool| !is_of_memory(tool)) else { return };
        if !may_be_long(output, above) || call.gets_structured(output) {
            return;
        }
        let takes_long = is_large(output);
        let text = text_of(output);
        if text.chars().nth(above).is_none() {
            return;
        }
        let text: Arc<str> = text.into();
        let rule = output.split.take();
        let results = self.parts.settings.results.as_ref().filter(|_| call.reads_parts);
        let splitting = results.map(|results| {
            let mut run = self.random().id();
            run.truncate(8);
            let (caller, tool) = (Arc::clone(&call.request.caller), Arc::clone(&tool.name));
            let max = rule.as_ref().map_or(above, |rule| rule.max);
            let result = LongResult { caller, tool, run, text: Arc::clone(&text), max, rule };
            beside(takes_long, || results.splitter.split(result))
        });
        let split = match splitting {
            Some(splitting) => splitting.await.map_err(Some),
            None => Err(None),
        };
        let split = split.unwrap_or_else(|reason| {
            if let Some(reason) = reason
                && let Some(left_out) = self.parts.log.not_split.due()
            {
                tracing::warn!(
                    tool = %shown(&tool.name),
                    trace_id = call.span.trace_id(),
                    reason,
                    left_out,
                    "a long result was cut: its parts cannot be kept"
                );
            }
            SplitResult { text: beside(takes_long, || truncated(&text, above)), parts: Vec::new() }
        });
        replace_text(output, split, call.gets(header::RESOURCE_LINKS));
    }
}

/// Whether a tool is one of working memory, here or at another daemon: it gives long texts page by page itself.
fn is_of_memory(tool: &ToolDescriptor) -> bool {
    &*tool.source == READER_SOURCE || tool.source.starts_with("remote:") && tool.bare_name().ends_with(MEMORY_TOOLS)
}

/// Whether the texts of a result have more bytes than it may have characters.
fn may_be_long(output: &ToolOutput, max: usize) -> bool {
    output.content.as_ref().is_some_and(|text| text.len() > max) || texts(output).map(str::len).sum::<usize>() > max
}

fn is_text(block: &ContentBlock) -> bool {
    block.kind == "text"
}

fn texts(output: &ToolOutput) -> impl Iterator<Item = &str> {
    output.blocks.iter().filter(|block| is_text(block)).filter_map(|block| block.text.as_deref())
}

/// The text of a result: that of its blocks, or its content if no block has text.
fn text_of(output: &ToolOutput) -> String {
    let texts: Vec<&str> = texts(output).collect();
    if texts.is_empty() { output.content.clone().unwrap_or_default() } else { texts.join("\n") }
}

/// Puts another text in the place of that of a result. Other blocks stay; for an MCP client, there is a link to each part.
fn replace_text(output: &mut ToolOutput, split: SplitResult, is_linked: bool) {
    let links: Vec<ContentBlock> = match is_linked {
        true => split.linked().map(|part| ContentBlock::memory_link(&part.key, &part.heading)).collect(),
        false => Vec::new(),
    };
    output.content = Some(split.text.clone());
    if output.blocks.is_empty() && links.is_empty() {
        return;
    }
    let at = output.blocks.iter().position(is_text).unwrap_or(0);
    output.blocks.retain(|block| !is_text(block));
    let text = ContentBlock::text(split.text);
    output.blocks.splice(at..at, std::iter::once(text).chain(links));
}
