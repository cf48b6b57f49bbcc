//! `toolbus completions` and `toolbus man`: made from the definition of the command line.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::terminal::ignore_broken_pipe;

/// Name of the program, as shells know it.
const PROGRAM: &str = "toolbus";

/// Prints completions for a shell.
///
/// For bash: `toolbus completions bash > ~/.local/share/bash-completion/completions/toolbus`. For zsh: the same as
/// `_toolbus` in a folder of `$fpath`. For fish: `~/.config/fish/completions/toolbus.fish`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the manual page, or writes one page for each command.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder to write a page for each command into, such as `/usr/local/share/man/man1`; files of these names are replaced.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completions for the commands of `definition`.
///
/// # Errors
///
/// If nothing can be printed.
pub fn completions(args: &CompletionsArgs, mut definition: clap::Command) -> io::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut definition, PROGRAM, &mut text);
    ignore_broken_pipe(io::stdout().write_all(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints or writes the manual of the commands of `definition`.
///
/// # Errors
///
/// If nothing can be printed or written.
pub fn man(args: &ManArgs, definition: clap::Command) -> io::Result<ExitCode> {
    match &args.dir {
        Some(folder) => {
            let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(definition, folder));
            written.map_err(|error| {
                io::Error::new(error.kind(), format!("no pages can be written into `{}`: {error}", folder.display()))
            })?;
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(definition).render(&mut text)?;
            ignore_broken_pipe(io::stdout().write_all(&text))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
