//! Accepts connections of the daemon's own user, and counts each client from then on (lesson 30).

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::Replies;
use kennel_sys::io::{Interest, Stream};
use kennel_sys::peer::Peer;
use kennel_sys::user::UserId;

use super::client::ClientConn;
use super::daemon_state::DaemonState;
use super::run_queue::Runnable;
use super::socket::Socket;
use super::timers::Timer;

/// How long to stop accepting after a shortage of descriptors that other processes may cause.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum connections accepted or refused before other work is run.
const ACCEPTS_PER_RUN: usize = 64;

/// Whether connections are accepted.
#[derive(Debug, Default)]
pub(super) struct Accepting {
    /// Descriptors are short: no connection is accepted until some are free, or until [`SHORTAGE_PAUSE`] is over.
    pub(super) is_paused: Cell<bool>,
    /// The shortage was logged, and no connection was accepted since.
    is_logged: Cell<bool>,
    /// A reserved descriptor, used to tell waiting connections about the shortage.
    reserve: RefCell<Option<File>>,
}

impl Accepting {
    /// Reserves a descriptor.
    pub(super) fn keep_reserve(&self) {
        self.reserve.replace(File::open("/dev/null").ok());
    }
}

/// Accepts connections. A closing daemon rejects them with a message: shims would take silence for a stuck daemon, and
/// kill it.
pub(super) fn on_readable(daemon: &DaemonState) {
    // Bounded: the clients that are here are served in between.
    for _ in 0..ACCEPTS_PER_RUN {
        match daemon.listener.accept() {
            Ok(stream) if daemon.engine.borrow().is_closed() => {
                drop(stream.send(&Replies::leaving_reply()))
            }
            Ok(stream) => {
                daemon.accepting.is_logged.set(false);
                daemon.check_runtime_dir();
                admit(daemon, stream);
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => return pause(daemon, &error),
            },
        }
    }
}

/// Stops accepting for a moment, and tells the waiting connections why: their shims would take silence for a stuck daemon.
fn pause(daemon: &DaemonState, error: &io::Error) {
    let accepting = &daemon.accepting;
    if !accepting.is_logged.replace(true) {
        daemon
            .log
            .line(format_args!("no connections are accepted for now: {error}"));
    }
    drop(accepting.reserve.take());
    for stream in waiting_connections(daemon) {
        refuse_for_shortage(daemon, &stream, error);
    }
    accepting.keep_reserve();
    accepting.is_paused.set(true);
    let _ = daemon.listener.set_interest(Interest::NONE);
    daemon.set_timer(Timer::Accept, Some(Instant::now() + SHORTAGE_PAUSE));
}

/// Accepts again: descriptors may be free.
pub(super) fn unpause(daemon: &DaemonState) {
    if !daemon.accepting.is_paused.replace(false) {
        return;
    }
    match daemon.listener.set_interest(Interest::READ) {
        Ok(()) => {
            daemon.set_timer(Timer::Accept, None);
            on_readable(daemon);
        }
        Err(error) => pause(daemon, &error),
    }
}

/// Accepts the waiting connections; returns how many.
pub(super) fn accept_all(daemon: &DaemonState) -> usize {
    waiting_connections(daemon)
        .map(|stream| admit(daemon, stream))
        .count()
}

/// The waiting connections, at most [`ACCEPTS_PER_RUN`]: others may keep coming.
fn waiting_connections(daemon: &DaemonState) -> impl Iterator<Item = Stream> {
    std::iter::from_fn(|| next_waiting(daemon)).take(ACCEPTS_PER_RUN)
}

/// Tells connections that came too late to elect again.
pub(super) fn refuse(daemon: &DaemonState) {
    while let Some(stream) = next_waiting(daemon) {
        drop(stream.send(&Replies::leaving_reply()));
    }
}

/// Tells a process of this user, for which the daemon lacks something, to go dedicated.
pub(super) fn refuse_for_shortage(daemon: &DaemonState, stream: &Stream, error: &io::Error) {
    if stream.is_of_our_user() {
        let clients = daemon.clients.borrow().len();
        let reply = daemon.replies.shortage(error, std::process::id(), clients);
        let _ = stream.send(&reply);
    }
}

fn next_waiting(daemon: &DaemonState) -> Option<Stream> {
    daemon.listener.accept().ok()
}

/// Adds a connection as a client, if it is of the daemon's user.
pub(super) fn admit(daemon: &DaemonState, stream: Stream) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => {
            daemon.log.line(format_args!(
                "cannot identify the process of a connection: {error}"
            ));
            refuse_for_shortage(daemon, &stream, &error);
            return;
        }
    };
    // Rule 9.
    if peer.uid != UserId::current().number() {
        daemon.log.line(format_args!(
            "refused process {} of uid {}: not our user",
            peer.pid, peer.uid
        ));
        return;
    }
    let id = daemon.client_arrived(&peer);
    let socket = Socket::new(&daemon.reactor, id, stream);
    let conn = Rc::new(ClientConn::new(id, &daemon.run_queue, socket, peer));
    daemon.client_added(&conn);
    daemon.limit_unadmitted();
    daemon.run_queue.push(Runnable::Client(id));
}
