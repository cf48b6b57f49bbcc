//! Step 11: secrets are removed from a result; of one that is too long for a model the parts are kept, and its caller
//! gets the table of them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use toolbus_protocol::{ContentBlock, Random, header};

use super::call::Call;
use crate::caller::Caller;
use crate::failure::ToolFailure;
use crate::gates::find;
use crate::policy::EffectiveTools;
use crate::redact::Redactor;
use crate::request::ToolRef;
use crate::results::{LongResult, MEMORY_TOOLS, READER, READER_SOURCE, ResultSettings, ResultSplitter, SplitResult};
use crate::text::{shown, truncated};
use crate::throttle::Throttle;
use crate::tool::{ToolDescriptor, ToolOutput};
use crate::turns::{Turns, is_small};

impl Call {
    /// Notes whether the caller could read the parts of a result that may be too long.
    pub(super) fn note_length(&mut self, output: &ToolOutput, effective: &EffectiveTools) {
        if self.splits_above(output).is_some_and(|max| may_be_long(output, max)) {
            let reader = find(effective, ToolRef::named(READER));
            self.execution.reads_parts = reader.is_some_and(|reader| &*reader.tool.descriptor.source == READER_SOURCE);
        }
    }

    /// Length above which this result is split, in characters; `None` if it never is.
    fn splits_above(&self, output: &ToolOutput) -> Option<usize> {
        output
            .split
            .as_ref()
            .filter(|_| !self.execution.gets_whole)
            .map(|rule| rule.threshold)
            .or(self.execution.split_above)
    }

    /// Drops the structured part of a result whose caller does not get it by itself: it takes several times the memory
    /// of its text, which a large result would hold until its turn.
    pub(super) fn drop_unwanted(&self, output: &mut ToolOutput) {
        if !self.gets(header::STRUCTURED_CONTENT)
            && let Some(value) = output.structured.take()
            && !is_small(&value)
        {
            // A large one takes long to free.
            drop(tokio::task::spawn_blocking(move || drop(value)));
        }
    }

    /// Whether the caller gets the structured part of this result by itself.
    fn gets_structured(&self, output: &ToolOutput) -> bool {
        (output.structured.is_some() || output.blocks.iter().any(ContentBlock::is_structured))
            && self.gets(header::STRUCTURED_CONTENT)
    }

    /// Whether the caller requests this by a header. The responses of MCP have all of it.
    fn gets(&self, name: &str) -> bool {
        self.execution.cancelled.is_some()
            || self.request.envelope.header(name).is_some_and(|value| value.trim() == "1")
    }
}

/// Rule by which a result that is too long is split.
struct SplitPlan {
    /// Length above which it is.
    above: usize,
    caller: Arc<Caller>,
    tool: Arc<str>,
    run: String,
    /// Splitter of the result; `None` for a caller that cannot read parts.
    splitter: Option<Arc<dyn ResultSplitter>>,
}

/// A result without secrets.
struct ShapedResult {
    output: ToolOutput,
    /// Replacement of the result's text, which is too long.
    long: Option<Shortened>,
}

/// Replacement of a text that is too long.
struct Shortened {
    /// Beginning of the text, for a caller that cannot read parts, or whose parts cannot be kept.
    beginning: String,
    /// Keeps the parts.
    saving: Option<BoxFuture<'static, Result<SplitResult, String>>>,
}

/// Removes secrets from results, and splits long ones.
pub(super) struct Shaper {
    pub(super) redactor: Redactor,
    /// Splitting of results that are too long for a model; `None`: none is split.
    pub(super) results: Option<ResultSettings>,
    pub(super) random: Random,
    pub(super) turns: Turns,
    /// Lines about results whose parts cannot be kept.
    pub(super) not_split: Throttle,
}

impl Shaper {
    /// Removes secrets from a result, and replaces a text that is too long by the table of its parts, or by its
    /// beginning if the caller cannot read parts.
    pub(super) async fn shape(&self, call: &Call, output: &mut ToolOutput) -> Result<(), ToolFailure> {
        let redactor = &self.redactor;
        let plan = self.split_plan(call, output);
        let shaped = match output.is_large() {
            false if plan.is_none() => {
                output.redact(redactor);
                return Ok(());
            }
            false => ShapedResult::new(std::mem::take(output), redactor, plan),
            true => {
                let (output, redactor) = (std::mem::take(output), redactor.clone());
                call.finish_in_turn(&self.turns, move || ShapedResult::new(output, &redactor, plan)).await?
            }
        };
        *output = shaped.output;
        let Some(Shortened { beginning, saving }) = shaped.long else { return Ok(()) };
        let split = match saving {
            Some(saving) => saving.await.map_err(Some),
            None => Err(None),
        };
        let split = split.unwrap_or_else(|reason| {
            if let Some(reason) = reason
                && let Some(left_out) = self.not_split.due()
            {
                tracing::warn!(
                    tool = call.execution.tool.as_deref().map(|tool| tracing::field::display(shown(&tool.name))),
                    trace_id = call.span.trace_id(),
                    reason,
                    left_out,
                    "a long result was cut: its parts cannot be kept"
                );
            }
            SplitResult { text: beginning, parts: Vec::new() }
        });
        replace_text(output, split, call.gets(header::RESOURCE_LINKS));
        Ok(())
    }

    /// Returns the rule by which a result is split; `None` if it is not too long, or never split.
    fn split_plan(&self, call: &Call, output: &ToolOutput) -> Option<SplitPlan> {
        let above = call.splits_above(output)?;
        let tool = call.execution.tool.as_ref().filter(|tool| !is_of_memory(tool))?;
        if !may_be_long(output, above) || call.gets_structured(output) {
            return None;
        }
        let results = self.results.as_ref().filter(|_| call.execution.reads_parts);
        let mut run = self.random.id();
        run.truncate(8);
        Some(SplitPlan {
            above,
            caller: Arc::clone(&call.request.caller),
            tool: Arc::clone(&tool.name),
            run,
            splitter: results.map(|results| Arc::clone(&results.splitter)),
        })
    }
}

impl ShapedResult {
    /// Does what takes long.
    fn new(mut output: ToolOutput, redactor: &Redactor, plan: Option<SplitPlan>) -> Self {
        output.redact(redactor);
        let long = plan.and_then(|plan| plan.shortened(&mut output));
        Self { output, long }
    }
}

impl SplitPlan {
    /// Takes the text out of a result, if it is too long.
    fn shortened(self, output: &mut ToolOutput) -> Option<Shortened> {
        let Self { above, caller, tool, run, splitter } = self;
        let joined = joined_texts(output);
        // Not copied: it may be large.
        let text = joined.as_ref().or(output.content.as_ref())?;
        text.chars().nth(above)?;
        let beginning = truncated(text, above);
        let rule = output.split.take();
        let content = output.content.take();
        output.blocks.iter_mut().filter(|block| is_text(block)).for_each(|block| block.text = None);
        let text = joined.or(content)?;
        let max = rule.as_ref().map_or(above, |rule| rule.max);
        let saving = splitter.map(|splitter| splitter.split(LongResult { caller, tool, run, text, max, rule }));
        Some(Shortened { beginning, saving })
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

/// The texts of a result's blocks; `None` if no block has one, so that its content is its text.
fn joined_texts(output: &ToolOutput) -> Option<String> {
    let texts: Vec<&str> = texts(output).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Replaces the text of a result. Other blocks stay; for an MCP client, there is a link to each part.
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
