//! An HTTP server whose responses are work.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::MIB;

/// The server; it ends when dropped.
///
/// * `/pdf/{size}`: a PDF whose content opens a state of graphics again and again;
/// * `/page/…`: 10 kB of gzip that are 10 MiB of HTML;
/// * `/robots.txt`: 6 000 rules with stars;
/// * `/interim`: interim responses without end;
/// * `/bytes/{size}`: so much text.
pub(super) struct HarmfulHttp {
    pub(super) port: u16,
    _serving: JoinSet<()>,
}

impl HarmfulHttp {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let page = zipped(&"<p>a word and <b>one</b> more</p>\n".repeat(10 * MIB / 34));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, page.clone()));
            }
        });
        Self { port, _serving: serving }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

fn zipped(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Serves one request. Clients that go away are expected.
async fn serve(mut stream: TcpStream, page: Vec<u8>) {
    let mut request = [0; 8192];
    let length = stream.read(&mut request).await.unwrap_or_default();
    let head = String::from_utf8_lossy(&request[..length]).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let size = path.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or_default();
    let (kind, body) = match path.split('/').nth(1).unwrap_or_default() {
        "interim" => {
            let responses = "HTTP/1.1 100 Continue\r\n\r\n".repeat(4096);
            while stream.write_all(responses.as_bytes()).await.is_ok() {}
            return;
        }
        "pdf" => ("application/pdf", pdf(size)),
        "page" => ("text/html\r\ncontent-encoding: gzip", page),
        "robots.txt" => ("text/plain", robots().into_bytes()),
        "bytes" => ("text/plain", vec![b'x'; size]),
        _ => ("text/html", b"<p>short</p>".to_vec()),
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
    if stream.write_all(head.as_bytes()).await.is_ok() {
        let _ = stream.write_all(&body).await;
    }
}

fn robots() -> String {
    let rules = (0..6000).map(|number| format!("Disallow: /*a*b*c*d*{number}*$\n"));
    std::iter::once("User-agent: *\n".to_owned()).chain(rules).collect()
}

fn pdf(size: usize) -> Vec<u8> {
    let content = "q ".repeat(size / 2);
    let objects = [
        "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
        "<</Type/Pages/Kids[3 0 R]/Count 1>>".to_owned(),
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>".to_owned(),
        format!("<</Length {}>>stream\n{content}\nendstream", content.len()),
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned(),
    ];
    let (mut file, mut offsets) = ("%PDF-1.4\n".to_owned(), String::new());
    for (number, object) in (1..).zip(&objects) {
        offsets += &format!("{:010} 00000 n \n", file.len());
        file += &format!("{number} 0 obj{object}endobj\n");
    }
    let start = file.len();
    file +=
        &format!("xref\n0 6\n0000000000 65535 f \n{offsets}trailer<</Size 6/Root 1 0 R>>\nstartxref\n{start}\n%%EOF");
    file.into_bytes()
}
