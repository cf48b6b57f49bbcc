//! The thread that writes audit records to their file, so that no call waits for a disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use toolbus_core::audit::AuditRecord;
use toolbus_core::redact::Redactor;
use toolbus_core::throttle::Throttle;

use super::file::LogFile;

/// Records that wait for the file at a time.
const MAX_WAITING: usize = 16_384;
/// Bytes that are written at a time, or a little more.
const BATCH: usize = 64 * 1024;
/// Time between two attempts to write to a file that fails.
const RETRY: Duration = Duration::from_secs(1);
/// Log target of errors of the file: not that of the records, which may be switched off.
const TARGET: &str = "toolbus";

/// Order to the writing thread.
enum WriterOrder {
    Write(Box<AuditRecord>),
    /// Looks whether the file is to be opened anew.
    Look,
    Close(oneshot::Sender<()>),
}

/// Hands records to the thread.
pub(super) struct Writer {
    orders: mpsc::Sender<WriterOrder>,
    reopen: Arc<AtomicBool>,
    thread: Thread,
    dropped: AtomicU64,
    drops: Throttle,
}

impl Writer {
    pub(super) fn start(file: LogFile, redactor: Redactor) -> io::Result<Self> {
        let (orders, waiting) = mpsc::channel(MAX_WAITING);
        let reopen = Arc::new(AtomicBool::new(false));
        let writer = WriterThread {
            file,
            redactor,
            orders: waiting,
            reopen: Arc::clone(&reopen),
            lines: Vec::new(),
            written: 0,
            failures: Throttle::default(),
        };
        let thread = thread::Builder::new().name("toolbus-audit".to_owned()).spawn(|| writer.run())?;
        let thread = thread.thread().clone();
        Ok(Self { orders, reopen, thread, dropped: AtomicU64::new(0), drops: Throttle::default() })
    }

    /// Queues a record; drops and counts it when the queue is full.
    pub(super) fn write(&self, record: AuditRecord) {
        if self.orders.try_send(WriterOrder::Write(Box::new(record))).is_ok() {
            return;
        }
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        if self.drops.due().is_some() {
            tracing::error!(target: TARGET, dropped, "audit records are missing in their file; the log has them");
        }
    }

    pub(super) fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
        // A full queue keeps the thread awake without this.
        let _ = self.orders.try_send(WriterOrder::Look);
        self.thread.unpark();
    }

    /// Waits until all that is queued is written, for as long as that takes.
    pub(super) async fn close(&self) {
        let (closed, done) = oneshot::channel();
        // A thread that has ended has written all.
        if self.orders.send(WriterOrder::Close(closed)).await.is_ok() {
            self.thread.unpark();
            let _ = done.await;
        }
    }
}

/// The thread's own part.
struct WriterThread {
    file: LogFile,
    redactor: Redactor,
    orders: mpsc::Receiver<WriterOrder>,
    reopen: Arc<AtomicBool>,
    /// Lines on their way to the file, and how many of their bytes are there.
    lines: Vec<u8>,
    written: usize,
    failures: Throttle,
}

impl WriterThread {
    fn run(mut self) {
        while let Some(order) = self.orders.blocking_recv() {
            let closing = self.gather(order);
            self.write_out();
            if let Some(closed) = closing {
                if let Err(error) = self.file.sync() {
                    self.log(&error, "the audit file may lack its end after a crash of the machine");
                }
                let _ = closed.send(());
                return;
            }
        }
    }

    /// Makes lines of the queued records, up to a batch or to the end.
    fn gather(&mut self, first: WriterOrder) -> Option<oneshot::Sender<()>> {
        let mut next = Some(first);
        while let Some(order) = next {
            match order {
                WriterOrder::Write(record) => self.line(&record),
                WriterOrder::Look => {}
                WriterOrder::Close(closed) => return Some(closed),
            }
            next = if self.lines.len() < BATCH { self.orders.try_recv().ok() } else { None };
        }
        None
    }

    fn line(&mut self, record: &AuditRecord) {
        let begin = self.lines.len();
        match serde_json::to_writer(&mut self.lines, record) {
            Ok(()) => {
                let written = self.lines.get(begin..).unwrap_or_default();
                if let Some(clean) = self.redactor.json(written) {
                    self.lines.truncate(begin);
                    self.lines.extend(clean);
                }
                self.lines.push(b'\n');
            }
            Err(error) => {
                self.lines.truncate(begin);
                self.log(&error, "an audit record cannot be written");
            }
        }
    }

    /// Writes until everything is written, or until a write fails and no caller waits for it.
    fn write_out(&mut self) {
        loop {
            self.reopen_if_requested();
            let Some(rest) = self.lines.get(self.written..).filter(|rest| !rest.is_empty()) else { break };
            match self.file.append(rest) {
                Ok(bytes) if bytes > 0 => self.written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                failed => {
                    let error = failed.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into());
                    self.log(&error, "audit records cannot be written to their file; trying again");
                    if self.orders.is_closed() {
                        break;
                    }
                    thread::park_timeout(RETRY);
                }
            }
        }
        self.lines.clear();
        self.written = 0;
    }

    fn reopen_if_requested(&mut self) {
        if !self.reopen.swap(false, Ordering::Acquire) {
            return;
        }
        match self.file.reopen() {
            Ok(()) => {
                // A line of which a part is in the old file is in the new one as a whole.
                let there = self.lines.get(..self.written).unwrap_or_default();
                self.written = there.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            }
            Err(error) => {
                self.reopen.store(true, Ordering::Release);
                self.log(&error, "the audit file cannot be opened anew; the old one stays in use");
            }
        }
    }

    fn log(&self, error: &(dyn std::error::Error + 'static), what: &str) {
        if let Some(left_out) = self.failures.due() {
            tracing::error!(target: TARGET, error, left_out, "{what}");
        }
    }
}
