//! Peers that pass descriptors: closing them delays no other client.

use super::*;

/// A socket whose last close takes this many seconds, and its other end.
fn lingering(seconds: u64) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut full = TcpStream::connect(address).expect("it listens");
    let (other, _) = listener.accept().expect("it connected");
    full.set_nonblocking(true).expect("a socket");
    while full.write(&[0; 65536]).is_ok() {}
    full.set_nonblocking(false).expect("a socket");
    let time = Some(Duration::from_secs(seconds));
    rustix::net::sockopt::set_socket_linger(&full, time).expect("a socket");
    (full, other)
}

/// Says this, and passes these descriptors.
fn pass(
    to: &UnixStream,
    words: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    assert!(along.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(to, &[IoSlice::new(words)], &mut along, SendFlags::NOSIGNAL)
}

/// Passes sockets that take a minute to be closed, and closes its own: the daemon would be the one who waits.
#[track_caller]
fn holds_nobody_up(daemon: &Daemon, is_refused: bool) {
    let mut honest = daemon.client();
    let server = honest.server();
    let begin = Instant::now();
    for (words, count, stays) in [
        (&b"!hel"[..], 1, true),
        (b"!hel", 1, false),
        (b"\n", 100, true),
    ] {
        let connection = daemon.connect();
        let (full, _other) = lingering(60);
        let passed = pass(connection.stream(), words, &vec![full.as_fd(); count]);
        match is_refused {
            true => {
                assert_eq!(passed, Err(rustix::io::Errno::PERM));
                // It is closed here.
                rustix::net::sockopt::set_socket_linger(&full, None).expect("a socket");
            }
            false => assert_eq!(passed, Ok(words.len())),
        }
        // Whoever closes it last waits: if that is this process, not here.
        std::thread::spawn(move || drop(full));
        let connection = stays.then_some(connection);
        assert_eq!(honest.server().pid(), server.pid());
        drop(connection);
        assert_eq!(honest.server().pid(), server.pid());
    }
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "{:?}: {}",
        begin.elapsed(),
        daemon.log()
    );
}

#[test]
fn a_peer_that_passes_a_descriptor_that_lingers_holds_nobody_up() {
    let daemon = Daemon::start("passes");
    holds_nobody_up(&daemon, kennel_sys::passing::can_be_refused());
    daemon.stop();
}

#[test]
fn a_peer_that_passes_a_descriptor_holds_nobody_up_where_the_kernel_cannot_refuse_it() {
    let cast = Cast {
        env: vec![("KENNEL_FEATURES_OFF", "pass-rights")],
        ..Cast::default()
    };
    let daemon = Daemon::cast("passes-before", cast);
    holds_nobody_up(&daemon, false);
    daemon.stop();
}
