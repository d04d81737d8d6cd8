//! A client's first line: who it is, and what it wants.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{FirstLine, InputLine, Introduction};
use kennel_core::hello::{ClientHello, Control, DaemonHello, LONGEST_HELLO, PROTOCOL, Solo};
use kennel_core::message::{Line, Message, error_reply};
use kennel_sys::memory::give_back_free;
use kennel_sys::process::{Identity, ProcessRef};

use super::ClientTask;
use super::admission::{self, Refusal};
use crate::daemon::accept;
use crate::daemon::daemon_state::DaemonState;
use crate::daemon::memory::SMALL;
use crate::daemon::socket::Socket;
use crate::daemon::tasks::{first_of, moments};
use crate::daemon::watch;
use crate::random_word::random_word;
use crate::shim::lines::{CHUNK, Inbox};
use crate::this_build;

/// How long a connection may take to say its first line. Until then it keeps the daemon alive, as a client does.
const FIRST_LINE: Duration = Duration::from_secs(10);
/// How long a client that is not served may take to hang up.
const GOODBYE: Duration = Duration::from_secs(1);
/// Why a client is sent away whose environment would be too much beside those of the others.
const TOO_MUCH_IS_KEPT: &str = "the environments of this daemon's clients take up too much memory";
/// The JSON-RPC error code for a client without a hello that is not served.
const REFUSED: i32 = -32600;

/// Hears who it is; says why it ended, if it did.
pub(super) async fn welcome(task: ClientTask<'_>, socket: &Rc<Socket>) -> Option<String> {
    let ClientTask { daemon, id, link } = task;
    let processes = link.processes();
    let when_it_came = admission::at_first_sight(link);
    let first = first_of! {
        first = first_line(task, socket) => first,
        () = watch::end_of_any(&processes, daemon.sweep) => return Some("its process ended".into()),
        () = link.left.up() => return Some("dismissed".into()),
        () = moments::after(FIRST_LINE) => {
            let seconds = FIRST_LINE.as_secs();
            return Some(format!("it said no whole line within {seconds}s"));
        },
        () = link.to_client.has_news() => {
            let going = [&Control::Going.line()[..], b"\n"].concat();
            let _ = socket.try_write(&going);
            return Some("it came too late".into());
        },
    };
    let First { line, ended } = match first {
        Ok(first) => first,
        Err(why) => return Some(why),
    };
    let kind = FirstLine::of(&line);
    if let FirstLine::Ping = kind {
        let pong = [&Control::Pong.line()[..], b"\n"].concat();
        let _ = socket.try_write(&pong);
        return Some("it only asked whether we are here".into());
    }
    link.to_client.goes_straight_to(Rc::downgrade(socket));
    match kind {
        FirstLine::Hello(hello) => {
            // Before anything is waited for: a long hello is kept for nobody who is not served.
            let is_long = line.len() > CHUNK;
            drop(line);
            let served = hear_hello(task, *hello, when_it_came);
            if served.is_err() {
                link.inbox.take();
            }
            if is_long {
                give_back_free();
            }
            match served {
                Ok(()) => {}
                Err(NotServed::Refused(Refusal::Apart(why))) => {
                    return Some(turn_away(daemon, socket, why).await);
                }
                Err(NotServed::Refused(Refusal::Shortage(error))) => {
                    accept::say_shortage(daemon, socket, &error);
                    return Some(format!("it cannot be looked at for now: {error}"));
                }
                Err(NotServed::Ends(why)) => return Some(why),
            }
        }
        FirstLine::Bare | FirstLine::Ping => {
            let wish = match borrowed_wish(daemon) {
                Ok(Some(wish)) => wish,
                Ok(None) => {
                    return Some("it said no hello, and nobody before it said what to run".into());
                }
                Err(error) => return Some(format!("it gets no name for its session: {error}")),
            };
            if !daemon.has_room_for_wish(&wish) {
                return Some(refuse_bare(socket, &line, TOO_MUCH_IS_KEPT.into()));
            }
            if let Err(why) = admission::of_bare(daemon, link, when_it_came) {
                return Some(refuse_bare(socket, &line, why));
            }
            let introduction = Introduction::of_bare(&wish);
            link.set_wish(Rc::new(wish));
            daemon.tell_engine(|engine| engine.client_introduced(id, introduction));
            task.take(InputLine::from(&line[..]), Instant::now());
        }
    }
    daemon.log.line(format_args!(
        "client {} (process {}){} attached",
        id.0,
        link.pid,
        if link.is_bare() { ", bare," } else { "" }
    ));
    daemon.stir();
    if ended {
        task.half_close();
    }
    None
}

/// Why a client is not served that said a hello.
enum NotServed {
    Refused(Refusal),
    /// It hears nothing of it.
    Ends(String),
}

/// Serves a client that said this hello, if it may be served. What confines it comes first: nothing else is looked at for one
/// that is confined otherwise.
fn hear_hello(
    task: ClientTask<'_>,
    hello: Result<ClientHello, impl std::fmt::Display>,
    when_it_came: admission::Early,
) -> Result<(), NotServed> {
    let ClientTask { daemon, id, link } = task;
    let hello = hello.map_err(|error| NotServed::Ends(error.to_string()))?;
    admission::of_hello(daemon, link, &hello, when_it_came).map_err(NotServed::Refused)?;
    if !daemon.has_room_for_wish(&hello) {
        return Err(NotServed::Refused(Refusal::Apart(TOO_MUCH_IS_KEPT.into())));
    }
    // Rule 6: where the connection's process is another one, its word is checked.
    match announced(&hello, &link.processes()) {
        Announced::Known => {}
        Announced::Dead => {
            let pid = hello.pid;
            let why = format!("it announced process {pid}, which is gone");
            return Err(NotServed::Ends(why));
        }
        Announced::Another(process) => drop(link.announced.set(process)),
    }
    daemon.is_watched(id, link);
    greet(task, hello);
    Ok(())
}

/// The first line, which tells what kind of client it is.
struct First {
    line: Vec<u8>,
    /// Nothing came after it, not even a newline.
    ended: bool,
}

async fn first_line(task: ClientTask<'_>, socket: &Socket) -> Result<First, String> {
    let ClientTask { daemon, id, link } = task;
    let inbox: &RefCell<Inbox> = &link.inbox;
    let speaks_kennel = || inbox.borrow().first() == Some(b'!');
    loop {
        // Asked first: a line that is skipped is gone.
        let is_hello = speaks_kennel();
        if let Some(line) = inbox.borrow_mut().next_line() {
            let line = line.to_vec();
            return Ok(First { line, ended: false });
        }
        if let Some(line) = inbox.borrow_mut().next_too_long(false) {
            let refusal = [&line.refusal()[..], b"\n"].concat();
            let _ = socket.try_write(&refusal);
            return Err("its first line is too long".into());
        }
        let is_small = inbox.borrow().len() <= SMALL;
        if !is_small && !daemon.makes_room(Some(id)) {
            link.turn_away(daemon);
            return Err("its first line is long, and too much is held for others".into());
        }
        // Nobody fills our memory before we know who it is.
        let is_long = inbox.borrow().len() > LONGEST_HELLO;
        if is_hello && (is_long || inbox.borrow().is_skipping()) {
            return Err(format!("its hello is longer than {LONGEST_HELLO} bytes"));
        }
        if is_long {
            let why = format!("its first line is longer than {LONGEST_HELLO} bytes");
            let words = format!("kennel: a client without a hello is not served here: {why}");
            let data = format!(r#"{{"reason":"line_too_long","limit":{LONGEST_HELLO}}}"#);
            let mut answer = error_reply(b"null", REFUSED, &words, Some(&data));
            answer.push(b'\n');
            let _ = socket.try_write(&answer);
            return Err(why);
        }
        match socket.read(inbox, || false).await {
            Ok(0) => break,
            Ok(_) => link.heard_at.set(Instant::now()),
            Err(error) => return Err(format!("it cannot be heard: {error}")),
        }
    }
    let bare = !speaks_kennel();
    match inbox.borrow_mut().rest() {
        Some(line) if bare => Ok(First { line, ended: true }),
        _ => Err("it said nothing".into()),
    }
}

/// A client without hello gets what the first one with a hello wanted, in a session of its own. The name of the session is
/// random: no other client can take it in advance.
fn borrowed_wish(daemon: &DaemonState) -> io::Result<Option<ClientHello>> {
    let first = daemon.first_hello.borrow();
    let Some(first) = first.as_deref() else {
        return Ok(None);
    };
    Ok(Some(ClientHello {
        session: random_word()?,
        ..first.clone()
    }))
}

/// Tells a client that it is not served here, and to have a server of its own; nothing it said was taken. Waits a moment
/// for it to hang up, so that it reads this before it finds the connection closed. Returns why it ended.
async fn turn_away(daemon: &DaemonState, socket: &Rc<Socket>, why: String) -> String {
    let solo = Solo {
        why: why.clone(),
        unsent: Vec::new(),
        heard: Some(0),
    };
    let hello = answer(daemon).line();
    let words = [&hello[..], b"\n", &Control::Solo(solo).line(), b"\n"].concat();
    let _ = socket.try_write(&words);
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
    moments::within(GOODBYE, socket.hung_up()).await;
    format!("it is not served here, and goes dedicated: {why}")
}

/// Tells a client without a hello that it is not served here, if it asked something. Returns why it ended.
fn refuse_bare(socket: &Socket, line: &[u8], why: String) -> String {
    if let Ok(Message::Request(request)) = Message::parse(Line::from(line)) {
        let words = format!("kennel: a client without a hello is not served here: {why}");
        let mut answer = error_reply(request.id.raw(), REFUSED, &words, None);
        answer.push(b'\n');
        let _ = socket.try_write(&answer);
    }
    format!("a client without a hello is not served here: {why}")
}

fn answer(daemon: &DaemonState) -> DaemonHello {
    DaemonHello {
        version: this_build::version(),
        protocol: PROTOCOL,
        generation: daemon.generation.clone(),
        build: this_build::text(),
        checks_keys: true,
        key_version: crate::key::VERSION,
    }
}

/// What a hello says of the process behind it.
enum Announced {
    /// The one whose connection it is.
    Known,
    /// One we did not know of.
    Another(ProcessRef),
    Dead,
}

fn announced(hello: &ClientHello, known: &[&ProcessRef]) -> Announced {
    let Ok(identity) = hello.identity.parse::<Identity>() else {
        // A later version's: nothing can be said of it.
        return Announced::Known;
    };
    let is_it = |process: &&&ProcessRef| process.identity().same_process(&identity);
    if known.iter().filter(is_it).any(|it| it.is_alive()) {
        return Announced::Known;
    }
    match ProcessRef::find(&identity) {
        Ok(Some(process)) => Announced::Another(process),
        Ok(None) => Announced::Dead,
        // Ambiguous means alive.
        Err(_) => Announced::Known,
    }
}

fn greet(task: ClientTask<'_>, hello: ClientHello) {
    let ClientTask { daemon, id, link } = task;
    let hello = Rc::new(daemon.with_one_environment(hello));
    link.to_client.push(&answer(daemon).line());
    link.set_wish(Rc::clone(&hello));
    let _ = link.hello.set(Rc::clone(&hello));
    // An older connection of its session is of the same process: that was checked.
    let introduction = Introduction::of_hello(&hello);
    daemon.tell_engine(|engine| engine.client_introduced(id, introduction));
    let may_lend = || admission::may_lend_its_program(daemon, link);
    daemon.upgrade.consider(&hello, may_lend);
    let is_first = daemon.first_hello.borrow().is_none();
    if is_first {
        *daemon.first_hello.borrow_mut() = Some(Rc::clone(&hello));
        introduce(daemon, &hello);
    }
}

/// Now the daemon knows what it is there for.
fn introduce(daemon: &DaemonState, hello: &ClientHello) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let command: Vec<String> = hello
        .spec
        .command
        .iter()
        .map(|word| text(word.as_bytes()))
        .collect();
    let Some(mut record) = daemon.meeting.record() else {
        return;
    };
    record.name = crate::sharing::launcher::name_of(&command);
    // The record goes with the daemon; by this line it is known by its name afterwards.
    daemon.log.line(format_args!("serves {}", record.name));
    record.command = command;
    record.cwd = text(hello.spec.cwd.as_bytes());
    if daemon.has_place()
        && let Err(error) = daemon.meeting.write_record(&record)
    {
        daemon.log.line(error);
    }
}
