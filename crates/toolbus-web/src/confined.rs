//! Conversions in a process of their own: of PDF, and of pages that become large in memory.
//!
//! The process is this executable, started again with a hidden argument ([`take_over`]), in the sandbox of
//! `toolbus-sandbox`; where that cannot be, it has limits alone. It reads one page from its standard input, writes the text
//! to its standard output, and ends. It has no files, no network, [`MEMORY`] bytes and [`CPU`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::OnceCell;
use toolbus_core::Clock;
use toolbus_sandbox::{Ending, Job, Layers, Level, Limits, Plan, Sandbox};
use url::Url;

use crate::page::{BrowseMode, PageError, PageText, RawPage};

/// The argument that makes this executable convert a page. A path after it is executed instead, with limits.
const WORD: &str = "__convert";
const MIB: u64 = 1 << 20;
/// Memory that a conversion may allocate, in bytes.
const MEMORY: u64 = 256 * MIB;
/// Memory of the program itself, in bytes.
const PROGRAM: u64 = 64 * MIB;
/// CPU time of a conversion, in seconds.
const CPU: u64 = 5;
/// Most bytes of the output: of a text in JSON.
const MAX_OUTPUT: u64 = 40 * MIB;
/// Time for the output, of that of a conversion.
const SPARE: Duration = Duration::from_millis(300);
/// Time to find out what this system allows.
const PROBE: Duration = Duration::from_secs(10);
/// Folders of the libraries that programs are linked with at their start.
const LIBRARIES: [&str; 5] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"];

/// A page to convert; its body follows after a line feed.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    url: String,
    content_type: String,
    is_cut: bool,
    mode: BrowseMode,
    milliseconds: u64,
}

/// Converts a page if the arguments (with the program's name first) request it; `None` otherwise.
///
/// Must be called in `main`, while the process has one thread.
#[must_use]
pub fn take_over(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if args.nth(1)? != WORD {
        return None;
    }
    let done = match args.next() {
        Some(program) => execute_limited(&program).map(|never| match never {}),
        None => convert(),
    };
    Some(done.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// Executes the program anew, so that it allocates nothing before it is limited.
fn execute_limited(program: &OsString) -> io::Result<Infallible> {
    for (resource, most) in [
        (Resource::Data, MEMORY),
        (Resource::Cpu, CPU),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, 16),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Err(std::process::Command::new(program).arg0("toolbus").arg(WORD).exec())
}

fn convert() -> io::Result<()> {
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input)?;
    let end = input.iter().position(|byte| *byte == b'\n').ok_or(io::ErrorKind::InvalidData)?;
    let body = input.split_off(end + 1);
    let Order { url, content_type, is_cut, mode, milliseconds } = serde_json::from_slice(&input)?;
    let url = Url::parse(&url).map_err(io::Error::other)?;
    let page = RawPage { url, content_type, body, is_cut };
    let text = page.to_text(mode, Duration::from_millis(milliseconds));
    drop(page);
    let mut output = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut output, &text)?;
    output.flush()
}

/// Converts pages in processes of their own.
#[derive(Debug)]
pub(crate) struct Converter {
    program: PathBuf,
    /// `None` inside where this system allows no sandbox.
    confinement: OnceCell<Option<Confinement>>,
}

#[derive(Debug)]
struct Confinement {
    sandbox: Sandbox,
    plan: Plan,
}

/// Reason for which a process has returned nothing.
#[derive(Debug, thiserror::Error)]
enum ProcessError {
    /// The process was ended because it used too much, or crashed.
    #[error("it was ended")]
    Ended,
    #[error("it failed with exit code {0}")]
    Exited(i32),
    #[error("it could not be run: {0}")]
    NotRun(String),
}

impl Converter {
    /// Uses this executable, whose `main` calls [`take_over`] and [`toolbus_sandbox::take_over`].
    pub(crate) fn new() -> Self {
        // The running program, even after its file was replaced by a newer one.
        Self::with("/proc/self/exe".into())
    }

    /// Uses another such executable.
    pub(crate) fn with(program: PathBuf) -> Self {
        Self { program, confinement: OnceCell::new() }
    }

    /// The text of a page, by `until`.
    ///
    /// # Errors
    ///
    /// If it has none, or takes too much to read.
    pub(crate) async fn convert(&self, page: RawPage, mode: BrowseMode, until: Instant) -> Result<PageText, PageError> {
        let time = until.saturating_duration_since(Clock::SYSTEM.now());
        let order = order(&page, mode, time.saturating_sub(SPARE)).map_err(|_| PageError::Failed)?;
        drop(page);
        let confinement = self.confinement.get_or_init(|| Confinement::find(&self.program)).await;
        let output = match confinement {
            Some(confinement) => confinement.run(order, time).await,
            None => limited(&self.program, order, time).await,
        };
        match output {
            Ok(output) => serde_json::from_slice(&output).unwrap_or(Err(PageError::Failed)),
            Err(ProcessError::Ended) => Err(PageError::TooHeavy),
            Err(error) => {
                tracing::warn!(%error, "the process that converts a page failed");
                Err(PageError::Failed)
            }
        }
    }
}

impl Confinement {
    /// The strongest that this system allows.
    async fn find(program: &PathBuf) -> Option<Self> {
        match Self::probe(program).await {
            Ok(confinement) => {
                let level = confinement.sandbox.level();
                tracing::info!(%level, "pages are converted in the sandbox");
                Some(confinement)
            }
            Err(why) => {
                tracing::warn!(%why, "pages are converted without a sandbox, in processes with limits alone");
                None
            }
        }
    }

    async fn probe(program: &PathBuf) -> Result<Self, String> {
        // A file, where the sandbox has no `/proc`.
        let file = std::fs::read_link(program).unwrap_or_else(|_| program.clone());
        let plan = plan(file);
        let sandbox = Sandbox::with_helper(program, Level::Full).map_err(|error| error.to_string())?;
        let url = Url::parse("about:blank").map_err(|error| error.to_string())?;
        let page = RawPage { url, content_type: "text/plain".to_owned(), body: Vec::new(), is_cut: false };
        let stdin = order(&page, BrowseMode::Raw, PROBE).map_err(|error| error.to_string())?;
        let job = |_| Job { stdin: stdin.clone(), time: PROBE, cpu: PROBE, ..Job::default() };
        let probed = sandbox.probe(&plan, job).await;
        let why = || probed.refused.iter().map(|(level, why)| format!("{level}: {why}")).collect::<Vec<_>>().join("; ");
        let layers: Layers = probed.layers.ok_or_else(why)?;
        Ok(Self { sandbox: sandbox.with(layers), plan })
    }

    async fn run(&self, order: Bytes, time: Duration) -> Result<Bytes, ProcessError> {
        let job = Job { stdin: order, time, cpu: Duration::from_secs(CPU), ..Job::default() };
        let not_run = |error: toolbus_sandbox::SandboxError| ProcessError::NotRun(error.to_string());
        let outcome = self.sandbox.start(&self.plan).await.map_err(not_run)?.run(job).await.map_err(not_run)?;
        match outcome.ending {
            Ending::Exited(0) => Ok(outcome.stdout.bytes),
            Ending::Exited(code) => Err(ProcessError::Exited(code)),
            Ending::Signalled(_) | Ending::Stopped(_) => Err(ProcessError::Ended),
        }
    }
}

/// Runs the program with limits alone.
async fn limited(program: &PathBuf, order: Bytes, time: Duration) -> Result<Bytes, ProcessError> {
    let running = async {
        let mut command = Command::new(program);
        command.arg0("toolbus").arg(WORD).arg(program).env_clear().current_dir("/").kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // One that has ended reads no more.
                let _ = stdin.write_all(&order).await;
            }
        };
        let read = async {
            let mut output = Vec::new();
            if let Some(stdout) = stdout {
                stdout.take(MAX_OUTPUT).read_to_end(&mut output).await?;
            }
            Ok::<_, io::Error>(output)
        };
        let ((), output) = tokio::join!(biased; write, read);
        let status = child.wait().await?;
        Ok::<_, io::Error>((output?, status))
    };
    match tokio::time::timeout(time, running).await {
        Err(_) => Err(ProcessError::Ended),
        Ok(Err(error)) => Err(ProcessError::NotRun(error.to_string())),
        Ok(Ok((output, status))) if status.success() => Ok(output.into()),
        Ok(Ok((_, status))) if status.signal().is_some() => Err(ProcessError::Ended),
        Ok(Ok((_, status))) => Err(ProcessError::Exited(status.code().unwrap_or_default())),
    }
}

fn order(page: &RawPage, mode: BrowseMode, time: Duration) -> serde_json::Result<Bytes> {
    let order = Order {
        url: page.url.as_str().to_owned(),
        content_type: page.content_type.clone(),
        is_cut: page.is_cut,
        mode,
        milliseconds: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    };
    let mut bytes = serde_json::to_vec(&order)?;
    bytes.reserve_exact(page.body.len() + 1);
    bytes.push(b'\n');
    bytes.extend_from_slice(&page.body);
    Ok(bytes.into())
}

fn plan(program: PathBuf) -> Plan {
    let read = LIBRARIES.iter().map(PathBuf::from).chain([program.clone()]).collect();
    Plan {
        args: vec![WORD.to_owned(), program.to_string_lossy().into_owned()],
        program,
        env: BTreeMap::new(),
        stdin: Bytes::new(),
        read,
        write: Vec::new(),
        network: false,
        metadata: false,
        waits: false,
        forks: false,
        owner: None,
        limits: Limits {
            memory: MEMORY + PROGRAM,
            disk: MIB,
            files: 16,
            file_size: MIB,
            open_files: 16,
            processes: 1,
            output: MAX_OUTPUT,
            artifacts: 0,
        },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;

    /// So many mebibytes of spaces, deflated: one of them is compressed, and repeated.
    pub(crate) fn spaces(mebibytes: usize) -> Vec<u8> {
        let mut block = Vec::with_capacity(1 << 16);
        let mut compress = Compress::new(Compression::best(), false);
        compress.compress_vec(&[b' '; 1 << 20], &mut block, FlushCompress::Full).unwrap();
        [block.repeat(mebibytes).as_slice(), &[3, 0]].concat()
    }

    /// A PDF whose page becomes 512 MiB.
    pub(crate) fn bomb() -> Vec<u8> {
        pdf(&[&[0x78, 0x01], spaces(512).as_slice()].concat(), "/Filter /FlateDecode", &[])
    }

    /// The executable that converts.
    pub(crate) fn helper() -> PathBuf {
        let tests = std::env::current_exe().unwrap();
        let helper = tests.ancestors().nth(2).unwrap().join("examples/converter");
        assert!(helper.exists(), "build {} first: cargo build -p toolbus-web --examples", helper.display());
        helper
    }

    /// One that uses the sandbox, and one that has limits alone.
    fn converters() -> [Converter; 2] {
        let alone = Converter::with(helper());
        alone.confinement.set(None).unwrap();
        [Converter::with(helper()), alone]
    }

    async fn converted(converter: &Converter, body: Vec<u8>, time: Duration) -> Result<PageText, PageError> {
        let url = Url::parse("https://site.example/").unwrap();
        let page = RawPage { url, content_type: "application/pdf".to_owned(), body, is_cut: false };
        converter.convert(page, BrowseMode::Article, Clock::SYSTEM.now() + time).await
    }

    /// A PDF of one page with this stream, and further objects from number 6.
    pub(crate) fn pdf(stream: &[u8], keys: &str, more: &[String]) -> Vec<u8> {
        let mut pdf = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n2 0 obj\n<< /Type /Pages /Kids [3 0 R] \
            /Count 1 >>\nendobj\n3 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Resources \
            << /Font << /F1 5 0 R >> /XObject << /X 6 0 R >> >> >>\nendobj\n5 0 obj\n<< /Type /Font /Subtype /Type1 \
            /BaseFont /Helvetica >>\nendobj\n"
            .to_vec();
        pdf.extend(format!("4 0 obj\n<< /Length {} {keys} >>\nstream\n", stream.len()).bytes());
        pdf.extend(stream);
        pdf.extend(b"\nendstream\nendobj\n");
        for (number, object) in (6..).zip(more) {
            pdf.extend(format!("{number} 0 obj\n{object}\nendobj\n").bytes());
        }
        pdf.extend(b"trailer << /Root 1 0 R >>\n%%EOF\n");
        pdf
    }

    #[tokio::test]
    async fn a_process_of_its_own_reads_a_page_in_the_sandbox_and_with_limits_alone() {
        for converter in converters() {
            let text = b"BT /F1 12 Tf 72 720 Td (Words) Tj ET";
            let read = converted(&converter, pdf(text, "", &[]), Duration::from_secs(60)).await;
            assert_eq!(read.map(|page| page.text), Ok("Words".to_owned()));
            let damaged = converted(&converter, b"%PDF-1.4".to_vec(), Duration::from_secs(60)).await;
            assert_eq!(damaged, Err(PageError::Pdf("it is damaged".into())));
        }
    }

    #[tokio::test]
    async fn a_process_that_takes_too_much_memory_or_time_is_killed() {
        let bomb = bomb();
        // Each form is drawn 20 times by the one before.
        let forms: Vec<String> = (6..26)
            .map(|number| {
                let draw = "/X Do ".repeat(20);
                format!(
                    "<< /Type /XObject /Subtype /Form /BBox [0 0 600 800] /Resources << /XObject << /X {} 0 R >> >> \
                     /Length {} >>\nstream\n{draw}\nendstream",
                    number + 1,
                    draw.len()
                )
            })
            .collect();
        let endless = pdf(b"/X Do", "", &forms);
        for converter in converters() {
            let ended = converted(&converter, bomb.clone(), Duration::from_secs(60)).await;
            assert_eq!(ended, Err(PageError::TooHeavy));
            let late = converted(&converter, endless.clone(), Duration::from_millis(500)).await;
            assert_eq!(late, Err(PageError::TooHeavy));
        }
    }
}
