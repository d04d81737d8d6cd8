//! Whoever talks is handed pipes beside its socket.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use kennel_core::hello::{ClientHello, Control};
use kennel_testkit::wait_for;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::json;

use crate::stage::{Connection, Daemon};

/// As often is a client heard before it is handed pipes.
const AFTER: usize = 16;

/// A client that knows what to do with them.
fn talker(daemon: &Daemon) -> Connection {
    let mut client = daemon.connect();
    client.greet(&ClientHello {
        pipes: true,
        ..daemon.hello()
    });
    client
}

/// The client's ends.
struct Pipes {
    from: BufReader<File>,
    to: File,
}

impl Pipes {
    /// Talks until they are offered, and reads the offer.
    #[track_caller]
    fn of(client: &mut Connection) -> Pipes {
        for call in 1..AFTER {
            assert_eq!(
                client.ask("echo", json!({"call": call})),
                json!({"call": call})
            );
        }
        client.say(&call("last"));
        let mut ends = Vec::new();
        let word = receive(client, &mut ends);
        assert_eq!(word, "!pipes\n");
        let ends = <[OwnedFd; 2]>::try_from(ends).expect("two ends");
        // Before what is asked from now on.
        assert_eq!(client.said().as_deref(), Some(&*answer("last")));
        let [from, to] = ends.map(|end| {
            rustix::io::ioctl_fionbio(&end, false).expect("a pipe");
            File::from(end)
        });
        let from = BufReader::new(from);
        Pipes { from, to }
    }

    fn say(&mut self, line: &str) {
        let line = format!("{line}\n");
        self.to.write_all(line.as_bytes()).expect("it listens");
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.from.read_line(&mut line).expect("a line or the end");
        (count > 0).then(|| line.trim_end().to_owned())
    }
}

fn call(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"echo","params":[]}}"#)
}

fn answer(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":[]}}"#)
}

/// What the socket says next, with what comes along.
fn receive(client: &Connection, along: &mut Vec<OwnedFd>) -> String {
    assert!(client.reader.buffer().is_empty());
    let mut bytes = [0; 7];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut came = RecvAncillaryBuffer::new(&mut space);
    let mut room = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(
        client.stream(),
        &mut room,
        &mut came,
        RecvFlags::CMSG_CLOEXEC,
    );
    let received = received.expect("a word");
    for message in came.drain() {
        if let RecvAncillaryMessage::ScmRights(ends) = message {
            along.extend(ends);
        }
    }
    String::from_utf8_lossy(&bytes[..received.bytes]).into_owned()
}

#[test]
fn both_turn_to_their_pipes_and_nothing_overtakes_anything() {
    let daemon = Daemon::start("pipes");
    let mut client = talker(&daemon);
    let mut pipes = Pipes::of(&mut client);
    // Until it says so, all goes on as before.
    client.say(&call("on the socket"));
    assert_eq!(client.said().unwrap(), answer("on the socket"));
    // What was asked on the socket is heard before what is said in the pipe.
    pipes.say(&call("after"));
    client.write(format!("{}\n!pipes\n", call("before")).as_bytes());
    assert_eq!(client.word(), Control::Pipes);
    assert_eq!(pipes.line().unwrap(), answer("before"));
    assert_eq!(pipes.line().unwrap(), answer("after"));
    for _ in 0..3 * AFTER {
        pipes.say(&call("more"));
        assert_eq!(pipes.line().unwrap(), answer("more"));
    }
    pipes.say("!ping");
    assert_eq!(pipes.line().unwrap(), "!pong");
    // A line that no pipe holds at once.
    let long = format!("\"{}\"", "x".repeat(3 << 20));
    pipes.say(&call("long").replace("[]", &format!("[{long}]")));
    assert_eq!(
        pipes.line().unwrap(),
        answer("long").replace("[]", &format!("[{long}]"))
    );
    daemon.stop();
}

#[test]
fn who_has_said_all_in_the_pipe_gets_the_answers_and_then_the_end() {
    let daemon = Daemon::start("pipes-eof");
    let mut client = talker(&daemon);
    let mut pipes = Pipes::of(&mut client);
    client.say("!pipes");
    pipes.say(r#"{"jsonrpc":"2.0","id":"slow","method":"slow","params":{"ms":300}}"#);
    let Pipes { from, to } = pipes;
    drop(to);
    assert_eq!(client.word(), Control::Pipes);
    let lines: Vec<String> = from.lines().map(Result::unwrap).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(r#""id":"slow""#), "{lines:?}");
    client.is_closed();
    daemon.stop();
}

/// A long line before the word keeps the daemon from reading it for a while.
#[test]
fn a_client_that_closes_its_pipe_before_its_word_is_read_keeps_its_pipes() {
    let daemon = Daemon::start("pipes-early-eof");
    let mut client = talker(&daemon);
    let Pipes { from, to } = Pipes::of(&mut client);
    drop(to);
    assert_eq!(talk(&mut client, 3 * AFTER), 0, "others were offered");
    client.say(r#"{"jsonrpc":"2.0","id":"slow","method":"slow","params":{"ms":300}}"#);
    client.say("!pipes");
    assert_eq!(client.word(), Control::Pipes);
    let lines: Vec<String> = from.lines().map(Result::unwrap).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(r#""id":"slow""#), "{lines:?}");
    client.is_closed();
    daemon.stop();
}

#[test]
fn whose_socket_closes_is_gone_though_its_pipes_are_open() {
    let daemon = Daemon::start("pipes-end");
    let mut client = talker(&daemon);
    let mut pipes = Pipes::of(&mut client);
    client.say("!pipes");
    pipes.say(&call("x"));
    assert_eq!(client.word(), Control::Pipes);
    assert_eq!(pipes.line().unwrap(), answer("x"));
    // It is heard no more, so only the connection can tell.
    pipes.to.flush().unwrap();
    client.stream().shutdown(Shutdown::Both).unwrap();
    daemon.logs("closed its connection");
    assert_eq!(pipes.line(), None);
    daemon.stop();
}

/// Talks, and counts how often pipes are offered meanwhile.
fn talk(client: &mut Connection, calls: usize) -> usize {
    let mut offers = 0;
    for call in 0..calls {
        client.say(&format!(
            r#"{{"jsonrpc":"2.0","id":{call},"method":"echo","params":[{call}]}}"#
        ));
        let mut line = client.said();
        if line.as_deref() == Some("!pipes") {
            offers += 1;
            line = client.said();
        }
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{call},"result":[{call}]}}"#);
        assert_eq!(line, Some(expected));
    }
    offers
}

#[test]
fn who_lets_the_offer_lie_stays_on_the_socket_and_is_not_asked_again() {
    let daemon = Daemon::start("pipes-unused");
    let mut client = talker(&daemon);
    let _unused = Pipes::of(&mut client);
    assert_eq!(talk(&mut client, 10 * AFTER), 0);
    daemon.stop();
}

#[test]
fn who_loses_the_ends_is_offered_others() {
    let daemon = Daemon::start("pipes-lost");
    let mut client = talker(&daemon);
    // Read without what comes along, which is closed then.
    assert_eq!(talk(&mut client, 3 * AFTER), 3);
    let mut pipes = Pipes::of(&mut client);
    client.say("!pipes");
    pipes.say(&call("x"));
    assert_eq!(pipes.line().unwrap(), answer("x"));
    daemon.stop();
}

#[test]
fn who_does_not_know_the_word_never_hears_it() {
    let daemon = Daemon::for_bare("pipes-unknown");
    let client = daemon.client();
    let bare = daemon.connect();
    for mut client in [client, bare] {
        for _ in 0..3 * AFTER {
            client.say(&call("x"));
            assert_eq!(client.said().unwrap(), answer("x"));
        }
    }
    daemon.stop();
}

#[test]
fn no_more_than_some_have_them_and_all_are_given_back() {
    let daemon = Daemon::start("pipes-many");
    let count = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.process.pid())).unwrap();
        open.count()
    };
    let mut clients: Vec<Connection> = Vec::new();
    let mut offered = 0;
    // More than are handed pipes at once.
    for _ in 0..70 {
        let mut client = talker(&daemon);
        for call in 0..AFTER {
            client.say(&format!(
                r#"{{"jsonrpc":"2.0","id":{call},"method":"ping"}}"#
            ));
            if client.said().unwrap() == "!pipes" {
                offered += 1;
                client.said().unwrap();
            }
        }
        clients.push(client);
    }
    assert_eq!(offered, 64);
    let before = count();
    clients.clear();
    wait_for("their descriptors are closed", || {
        (count() < before.saturating_sub(3 * offered)).then_some(())
    });
    daemon.stop();
}
