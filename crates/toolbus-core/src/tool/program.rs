use std::time::Duration;

use super::ToolOutput;

/// What a program wrote, and how it ended, where a tool ran one. Callers of `script.invoke` are told of it; to all others
/// the content says what they need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it wrote to its standard output.
    pub stdout: Option<String>,
    /// What it wrote to its standard error.
    pub stderr: Option<String>,
    /// Its exit code.
    pub exit_code: i32,
    /// How long it ran.
    pub elapsed: Duration,
}

impl ToolOutput {
    /// Adds what the program wrote that the tool ran.
    #[must_use]
    pub fn of_program(mut self, program: Program) -> Self {
        self.program = Some(Box::new(program));
        self
    }
}
