//! A private Redis server: own port, own folder, ended with the test process.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::tls;

/// Longest start on a busy machine.
const START_TIME: Duration = Duration::from_secs(30);
/// A port that was free can be taken by another process before the server binds it.
const START_ATTEMPTS: usize = 3;
/// The password that clients have to give.
pub const PASSWORD: &str = "a-password-of-tests";

/// Runs the server, and ends it when its standard input closes: because a test wants it, or because the test process has
/// ended in whatever way.
const GUARD: &str = r#"
trap '' INT TERM HUP
redis-server "$1/redis.conf" </dev/null >"$1/console.log" 2>&1 &
read -r _
kill -KILL "$!"
wait
"#;

/// A running server with a password. It keeps its data in a file, written before it responds, so that it is there after
/// [`RedisServer::restart`]. It ends when dropped.
pub struct RedisServer {
    folder: TempDir,
    ports: [u16; 2],
    guard: Mutex<Option<Child>>,
}

impl RedisServer {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[expect(clippy::panic, reason = "a test that needs the server fails without it")]
    pub async fn start() -> Self {
        let mut attempts = START_ATTEMPTS;
        loop {
            attempts -= 1;
            match Self::try_start().await {
                Ok(server) => return server,
                Err(error) if attempts == 0 => panic!("redis-server did not start: {error}"),
                Err(_) => {}
            }
        }
    }

    async fn try_start() -> io::Result<Self> {
        let held = [TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?];
        let [plain, tls] = held.each_ref().map(|listener| listener.local_addr().map(|address| address.port()));
        let ports = [plain?, tls?];
        drop(held);
        let folder = TempDir::with_prefix("toolbus-redis-")?;
        tls::write_authority(folder.path())?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let text = format!(
            "bind 127.0.0.1\nport {}\ntls-port {}\ntls-auth-clients no\ntls-ca-cert-file {}\ntls-cert-file {}\n\
             tls-key-file {}\nrequirepass {PASSWORD}\ndir {}\nsave \"\"\nappendonly yes\nappendfsync always\n",
            ports[0],
            ports[1],
            path(tls::AUTHORITY),
            path(tls::CERTIFICATE),
            path(tls::KEY),
            folder.path().display(),
        );
        fs::write(folder.path().join("redis.conf"), text)?;
        let server = Self { folder, ports, guard: Mutex::default() };
        server.run().await?;
        Ok(server)
    }

    /// Address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[0]).into()
    }

    /// Returns the URL of the server, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        url_at(self.address())
    }

    /// Returns the URL of the server for TLS, with the password.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://:{PASSWORD}@localhost:{}/0", self.ports[1])
    }

    /// The file of the authority that has signed its certificate.
    #[must_use]
    pub fn authority(&self) -> std::path::PathBuf {
        self.folder.path().join(tls::AUTHORITY)
    }

    /// Ends the server at once, as SIGKILL does.
    pub fn kill(&self) {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut guard) = guard {
            drop(guard.stdin.take());
            // Its exit status does not matter.
            drop(guard.wait());
        }
    }

    /// Starts the server again on its data and port, ending it before if it still runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[expect(clippy::panic, reason = "a test that needs the server fails without it")]
    pub async fn restart(&self) {
        self.kill();
        if let Err(error) = self.run().await {
            panic!("redis-server did not start again: {error}");
        }
    }

    /// Runs a command of Redis, words without spaces, and returns the first line of the response.
    ///
    /// # Panics
    ///
    /// When the server does not respond.
    #[expect(clippy::panic, reason = "a test whose server does not obey fails")]
    pub async fn command(&self, words: &str) -> String {
        match self.talk(words).await {
            Ok(line) => line,
            Err(error) => panic!("redis-server did not run {words:?}: {error}"),
        }
    }

    async fn talk(&self, words: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address()).await?;
        stream.write_all(format!("AUTH {PASSWORD}\r\n{words}\r\n").as_bytes()).await?;
        let mut text = String::new();
        let mut bytes = [0; 4096];
        while text.matches("\r\n").count() < 2 {
            let length = stream.read(&mut bytes).await?;
            if length == 0 {
                return Err(io::Error::other(format!("it closed the connection after {text:?}")));
            }
            text.push_str(&String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()));
        }
        Ok(text.lines().nth(1).unwrap_or_default().to_owned())
    }

    async fn run(&self) -> io::Result<()> {
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
        let started = Instant::now();
        // It takes connections before it has read its data.
        while !self.talk("PING").await.is_ok_and(|line| line == "+PONG") {
            let log = fs::read_to_string(self.folder.path().join("console.log")).unwrap_or_default();
            let is_missing = log.contains("not found");
            if is_missing || log.contains("Failed listening") || started.elapsed() > START_TIME {
                self.kill();
                let hint = if is_missing { "install it with `apt-get install redis-server`\n" } else { "" };
                return Err(io::Error::other(format!("{hint}{log}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// The URL of a server that is reached at another address, with the password.
#[must_use]
pub fn url_at(address: SocketAddr) -> String {
    format!("redis://:{PASSWORD}@{address}/0")
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
