//! File descriptors, and what the kernel keeps behind them.

use crate::fixture::{assert_printed, both, has_cgroups, script};

#[tokio::test]
async fn descriptors_end_at_the_limit() {
    let source = "
import os
count = 0
try:
    while True:
        os.dup(0)
        count += 1
except OSError as error:
    print(error.strerror, 58 <= count <= 61)
";
    assert_printed(&both(script(source)).await, ["Too many open files True"; 2]);
}

#[tokio::test]
async fn the_limit_of_descriptors_cannot_be_raised() {
    let source = "
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE))
for limit in ((64, 64), (128, 128), (32, 64)):
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    except (OSError, ValueError) as error:
        print(error)
";
    let refused = "(64, 64)\nnot allowed to raise maximum limit\nnot allowed to raise maximum limit\nnot allowed to raise maximum limit";
    assert_printed(&both(script(source)).await, [refused; 2]);
}

#[tokio::test]
async fn pipes_hold_little_and_cannot_be_made_larger() {
    let source = "
import fcntl, os
pipes, total = [], 0
try:
    while True:
        pipes.append(os.pipe())
except OSError:
    pass
for _, end in pipes:
    os.set_blocking(end, False)
    try:
        while True:
            total += os.write(end, bytes(4096))
    except BlockingIOError:
        pass
try:
    fcntl.fcntl(pipes[0][1], 1031, 1 << 20)
except OSError as error:
    print(error.strerror, len(pipes), total <= 30 * 65536)
";
    assert_printed(&both(script(source)).await, ["Operation not permitted 30 True"; 2]);
}

#[tokio::test]
async fn streams_to_itself_hold_little() {
    let source = "
import socket
pairs, total = [], 0
try:
    while True:
        pairs.append(socket.socketpair())
except OSError:
    pass
for one, other in pairs:
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    except PermissionError:
        pass
    one.setblocking(False)
    try:
        while True:
            total += one.send(bytes(65536))
    except BlockingIOError:
        pass
print(len(pairs), total < 64 << 20)
";
    assert_printed(&both(script(source)).await, ["30 True"; 2]);
}

#[tokio::test]
async fn descriptors_that_travel_end_at_the_limit() {
    let source = "
import array, os, socket
sent = 0
try:
    one, other = socket.socketpair()
    for _ in range(500):
        descriptor = os.open('/dev/null', os.O_RDONLY)
        one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [descriptor]))])
        os.close(descriptor)
        sent += 1
except OSError as error:
    print(error.strerror, sent < 200)
";
    let counted = "Too many references: cannot splice True";
    // Sockets travel so, too, whose memory nothing counts where there are neither cgroups nor namespaces.
    let less = if has_cgroups() { counted } else { "Operation not permitted True" };
    assert_printed(&both(script(source)).await, [counted, less]);
}
