//! Secrets in what a tool gave back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use toolbus_protocol::ContentBlock;

use super::matcher::Matcher;
use super::{REDACTED, Redactor, json};
use crate::failure::ToolFailure;
use crate::tool::{Program, ToolOutput};

impl Redactor {
    /// Removes secrets from the result of a tool. Data that holds one is replaced as a whole, so that it can be decoded.
    pub fn clean_output(&self, output: &mut ToolOutput) {
        let Some(matcher) = self.matcher() else { return };
        let ToolOutput { content, blocks, structured, is_error: _, program } = output;
        clean(&matcher, content);
        structured.iter_mut().for_each(|value| json::clean(&matcher, value));
        blocks.iter_mut().for_each(|block| clean_block(&matcher, block));
        if let Some(program) = program {
            let Program { stdout, stderr, exit_code: _, elapsed: _ } = &mut **program;
            clean(&matcher, stdout);
            clean(&matcher, stderr);
        }
    }

    /// Removes secrets from both texts of a failure.
    pub fn clean_failure(&self, failure: &mut ToolFailure) {
        if let Some(matcher) = self.matcher() {
            matcher.clean(&mut failure.message);
            clean(&matcher, &mut failure.detail);
        }
    }
}

fn clean(matcher: &Matcher, text: &mut Option<String>) {
    if let Some(text) = text {
        matcher.clean(text);
    }
}

fn clean_block(matcher: &Matcher, block: &mut ContentBlock) {
    let ContentBlock { kind, text, data, mime_type, uri } = block;
    matcher.clean(kind);
    [text, mime_type, uri].into_iter().for_each(|text| clean(matcher, text));
    if let Some(data) = data
        && matcher.finds(data.as_bytes())
    {
        *data = STANDARD.encode(REDACTED);
    }
}
