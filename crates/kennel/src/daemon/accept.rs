//! Whoever connects: let in if it is our own user's, and counted from that moment on (lesson 30).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use kennel_core::hello::{Control, DaemonHello, Lost, PROTOCOL};
use kennel_core::session::SERVER_UNAVAILABLE;
use kennel_sys::peer::Peer;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};

use super::client::{self, ClientConn};
use super::daemon_state::DaemonState;
use super::socket::Socket;
use super::stream::ClientStream;
use super::tasks::{self, moments, others_first};
use crate::this_build;

/// How long to wait for descriptors that others than us have used up.
const PAUSE: Duration = Duration::from_millis(100);
/// How many are let in, or told why not, before others have their turn.
const AT_ONCE: usize = 64;

/// Lets in whoever connects. Once the daemon is closed, they are told so: silence would be taken for a stuck
/// daemon, and be the end of it.
pub(super) async fn all(daemon: Rc<DaemonState>) {
    let mut out_of_descriptors = false;
    let spare = || File::open("/dev/null").ok();
    let mut kept_free = spare();
    for number in 1.. {
        // However many come: whoever is here is served meanwhile.
        if number % AT_ONCE == 0 {
            others_first().await;
        }
        match next(&daemon).await {
            Ok(stream) if daemon.engine.borrow().is_closed() => say_going(&stream),
            Ok(stream) => {
                out_of_descriptors = false;
                daemon.look_after_place();
                admit(&daemon, stream);
            }
            Err(error) => {
                if !std::mem::replace(&mut out_of_descriptors, true) {
                    daemon
                        .log
                        .line(format_args!("nobody is let in for now: {error}"));
                }
                // Whoever waits in the queue is told why at once: unanswered, they would take us for stuck.
                drop(kept_free.take());
                for stream in waiting(&daemon) {
                    say_shortage(&daemon, &stream, &error);
                }
                kept_free = spare();
                moments::within(PAUSE, daemon.freed.notified()).await;
            }
        }
    }
}

/// Whoever is at the door next.
async fn next(daemon: &DaemonState) -> io::Result<ClientStream> {
    loop {
        daemon.listener.readable().await;
        match accepted(daemon) {
            Err(Errno::AGAIN) => daemon.listener.was_read(),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            accepted => return Ok(accepted?),
        }
    }
}

/// Lets in who waits now; returns how many that were.
pub(super) fn those_waiting(daemon: &DaemonState) -> usize {
    waiting(daemon).map(|stream| admit(daemon, stream)).count()
}

/// Those who wait now, but no more than can be answered in one turn: others may come without end.
fn waiting(daemon: &DaemonState) -> impl Iterator<Item = ClientStream> {
    std::iter::from_fn(|| next_waiting(daemon)).take(AT_ONCE)
}

/// Tells those who came too late to elect anew.
pub(super) fn turn_away(daemon: &DaemonState) {
    while let Some(stream) = next_waiting(daemon) {
        say_going(&stream);
    }
}

fn say_going(stream: &ClientStream) {
    let line = [&Control::Going.line()[..], b"\n"].concat();
    let _ = rustix::net::send(stream, &line, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Tells one of our own user's, for which something is lacking here, to have a server of its own.
pub(super) fn say_shortage(daemon: &DaemonState, stream: impl AsFd, error: &io::Error) {
    let stream = stream.as_fd();
    let ours = rustix::process::geteuid();
    if rustix::net::sockopt::socket_peercred(stream).map(|peer| peer.uid) != Ok(ours) {
        return;
    }
    let hello = DaemonHello {
        version: this_build::version(),
        protocol: PROTOCOL,
        generation: daemon.generation.clone(),
        build: this_build::text(),
        checks_keys: true,
        key_version: crate::key::VERSION,
    };
    let lost = Control::Lost(Lost {
        reason: SERVER_UNAVAILABLE.into(),
        detail: format!(
            "it cannot take another client: {error} (pid {}, {} clients)",
            std::process::id(),
            daemon.clients.borrow().len()
        ),
        final_word: false,
        exit: None,
        unsent: Vec::new(),
        heard: Some(0),
        shortage: true,
        ended: None,
        retry_after: None,
    });
    let words = [&hello.line()[..], b"\n", &lost.line()[..], b"\n"].concat();
    let _ = rustix::net::send(stream, &words, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

fn next_waiting(daemon: &DaemonState) -> Option<ClientStream> {
    accepted(daemon).ok()
}

fn accepted(daemon: &DaemonState) -> Result<ClientStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let accepted = rustix::net::accept_with(&daemon.listener, flags);
    accepted.map(|socket| ClientStream::new(socket.into()))
}

/// Lets a connection in.
pub(super) fn admit(daemon: &DaemonState, stream: ClientStream) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => {
            daemon
                .log
                .line(format_args!("a connection of nobody: {error}"));
            say_shortage(daemon, &stream, &error);
            return;
        }
    };
    // Rule 9.
    if peer.uid != rustix::process::geteuid().as_raw() {
        daemon.log.line(format_args!(
            "refused process {} of uid {}: not our user",
            peer.pid, peer.uid
        ));
        return;
    }
    let socket = match Socket::new(stream) {
        Ok(socket) => socket,
        Err(error) => {
            daemon
                .log
                .line(format_args!("cannot hear process {}: {error}", peer.pid));
            return;
        }
    };
    let link = Rc::new(ClientConn::new(socket, peer));
    let id = daemon.arrived(&link);
    daemon.bound_unadmitted();
    if let Some(daemon) = daemon.this() {
        tasks::spawn(client::serve(daemon, id, link));
    }
}
