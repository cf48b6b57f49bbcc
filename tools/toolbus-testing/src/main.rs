//! Starts the RabbitMQ node that the tests of a run share, as soon as one of them requests it, and ends it when
//! standard input closes: `toolbus-testing SOCKET`. A client of the socket is sent the node's folder.

use std::io;
use std::os::unix::ffi::OsStrExt as _;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use toolbus_testing::rabbit::RabbitNode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let socket = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: toolbus-testing SOCKET"))?;
    let listener = UnixListener::bind(socket)?;
    let serve = async {
        let mut node = None;
        loop {
            let (mut client, _) = listener.accept().await?;
            if node.is_none() {
                node = Some(RabbitNode::start().await);
            }
            let folder = node.as_ref().map(RabbitNode::folder);
            // A test that has ended meanwhile needs no response.
            drop(client.write_all(folder.map_or(&[], |folder| folder.as_os_str().as_bytes())).await);
        }
    };
    let (closed, end) = oneshot::channel();
    std::thread::spawn(move || closed.send(io::copy(&mut io::stdin(), &mut io::sink())));
    tokio::select! {
        served = serve => served,
        _ = end => Ok(()),
    }
}
