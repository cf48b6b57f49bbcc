//! Networks and sockets.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use crate::fixture::{LEVELS, assert_printed, printed, printed_unconfined};

#[tokio::test]
async fn no_connection_is_made_over_tcp_or_udp() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    let input = format!("{}\n{}", tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    let source = "
import socket
tcp, udp = int(given[0]), int(given[1])
print(tried(lambda: socket.create_connection(('127.0.0.1', tcp)).close()), tried(lambda: socket.socket(socket.AF_INET6)),
    tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', udp))),
    tried(lambda: socket.create_server(('127.0.0.1', 0))))
";
    assert!(printed_unconfined(&input, source).await.starts_with("done"));
    tcp.accept().unwrap();
    udp.recv(&mut [0]).unwrap();
    for level in LEVELS {
        assert_eq!(printed(level, &input, source).await, "EPERM EPERM EPERM EPERM\n", "{level}");
        assert_eq!(tcp.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{level}");
        assert_eq!(udp.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "{level}");
    }
}

#[tokio::test]
async fn sockets_of_no_family_can_be_made() {
    let source = "
socket = int(given[0])
made = [(family, kind) for family in range(50) for kind in (*range(1, 7), 10) for protocol in (0, 1, 255)
    if call(socket, family, kind, protocol) != 'EPERM']
print(made, call(socket, 1, 1 | 0o2000000, 0))
";
    assert_printed(&libc::SYS_socket.to_string(), source, ["[] EPERM\n"; 2]).await;
}

#[tokio::test]
async fn sockets_in_files_and_abstract_ones_cannot_be_reached() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let in_file = UnixListener::bind(&path).unwrap();
    let name = format!("toolbus-attack-{}", std::process::id());
    let of_name = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let datagrams = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("{name}-2")).unwrap()).unwrap();
    for listener in [&in_file, &of_name] {
        listener.set_nonblocking(true).unwrap();
    }
    datagrams.set_nonblocking(true).unwrap();
    let input = format!("{}\n{name}\n{}", path.display(), libc::SYS_connect);
    // Halves of a pair are the only sockets that there are: they are tried as if they were others.
    let source = "
import socket
path, name, connect = given
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET:
    pair = tried(lambda: socket.socketpair(socket.AF_UNIX, kind))
    if isinstance(pair, str):
        print(pair)
        continue
    for address in path, '\\0' + name, '\\0' + name + '-2':
        print(tried(lambda: pair[0].connect(address)), tried(lambda: pair[0].sendto(b'x', address)), tried(lambda: pair[0].bind('\\0mine')),
            tried(lambda: pair[0].listen()), tried(lambda: pair[0].accept()))
";
    for level in LEVELS {
        let found = printed(level, &input, source).await;
        let expected = format!("{}EPERM\nEPERM\n", "EPERM EISCONN EPERM EPERM EPERM\n".repeat(3));
        assert_eq!(found, expected, "{level}");
        for listener in [&in_file, &of_name] {
            assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{level}");
        }
        assert_eq!(datagrams.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "{level}");
    }
}

#[tokio::test]
async fn names_cannot_be_resolved() {
    let source = "
import socket
for name in 'localhost', 'example.com', '127.0.0.1.nip.io':
    try: print(socket.getaddrinfo(name, 80))
    except OSError as error: print(type(error).__name__)
";
    assert_printed("", source, ["gaierror\ngaierror\ngaierror\n"; 2]).await;
}
