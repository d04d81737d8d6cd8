//! Whoever connects: let in if it is our own user's, and counted from that moment on (lesson 30).

use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use kennel_core::hello::Control;
use kennel_core::lifetime::Sight;
use kennel_sys::peer::Peer;
use rustix::net::{SendFlags, SocketFlags};

use super::client::{self, Link};
use super::house::House;

/// How long to wait for descriptors that others than us have used up.
const PAUSE: Duration = Duration::from_millis(100);

/// Lets in whoever connects, until the house is closed.
pub(super) async fn all(house: Rc<House>) {
    let mut out_of_descriptors = false;
    loop {
        let accepted = tokio::select! {
            accepted = house.listener.accept() => accepted,
            () = house.closed.up() => return,
        };
        match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => {
                out_of_descriptors = false;
                house.look_after_place();
                admit(&house, stream);
            }
            Err(error) => {
                if !std::mem::replace(&mut out_of_descriptors, true) {
                    house
                        .log
                        .line(format_args!("nobody is let in for now: {error}"));
                }
                // The connection waits in the queue, and so would we, at full speed.
                let _ = tokio::time::timeout(PAUSE, house.freed.notified()).await;
            }
        }
    }
}

/// Lets in who waits now; returns how many that were.
pub(super) fn those_waiting(house: &Rc<House>) -> usize {
    std::iter::from_fn(|| next_waiting(house))
        .map(|stream| admit(house, stream))
        .count()
}

/// Tells those who came too late to elect anew.
pub(super) fn turn_away(house: &House) {
    while let Some(stream) = next_waiting(house) {
        let line = [&Control::Going.line()[..], b"\n"].concat();
        let _ = rustix::net::send(&stream, &line, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

fn next_waiting(house: &House) -> Option<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let accepted = rustix::net::accept_with(&house.listener, flags);
    accepted.ok().map(UnixStream::from)
}

/// Lets a connection in.
pub(super) fn admit(house: &Rc<House>, stream: UnixStream) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => {
            house
                .log
                .line(format_args!("a connection of nobody: {error}"));
            return;
        }
    };
    // Rule 9.
    if peer.uid != rustix::process::geteuid().as_raw() {
        house.log.line(format_args!(
            "refused process {} of uid {}: not our user",
            peer.pid, peer.uid
        ));
        return;
    }
    let stream = stream
        .set_nonblocking(true)
        .and_then(|()| tokio::net::UnixStream::from_std(stream));
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            house
                .log
                .line(format_args!("cannot hear process {}: {error}", peer.pid));
            return;
        }
    };
    let sight = match &peer.process {
        Some(_) => Sight::Seen,
        None => Sight::Unseen,
    };
    let link = Rc::new(Link::new(peer.pid));
    let id = house.arrived(&link, sight);
    tokio::task::spawn_local(client::serve(Rc::clone(house), id, link, stream, peer));
}
