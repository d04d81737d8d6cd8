//! A client's first line: who it is, and what it wants.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use kennel_core::hello::{ClientHello, Control, DaemonHello, LONGEST_HELLO, PROTOCOL};
use kennel_core::lifetime::{ClientId, Sight};
use kennel_sys::process::{Identity, ProcessRef};

use super::{Link, MODEST, Visit};
use crate::daemon::house::House;
use crate::daemon::socket::Socket;
use crate::daemon::tasks::first_of;
use crate::daemon::watch;
use crate::shim::lines::{Inbox, Spoken};
use crate::this_build;

/// Hears who it is; says why it ended, if it did.
pub(super) async fn welcome(visit: Visit<'_>, socket: &Rc<Socket>) -> Option<String> {
    let Visit { house, id, link } = visit;
    let processes = link.processes();
    let first = first_of! {
        first = first_line(house, socket, &link.inbox) => first,
        () = watch::end_of_any(&processes, house.sweep) => return Some("its process ended".into()),
        () = link.left.up() => return Some("dismissed".into()),
        () = link.to_client.has_news() => {
            let going = [&Control::Going.line()[..], b"\n"].concat();
            let _ = socket.try_write(&going);
            return Some("it came too late".into());
        },
    };
    let first = match first {
        Ok(first) => first,
        Err(why) => return Some(why),
    };
    if Control::parse(&first.line) == Some(Control::Ping) {
        let pong = [&Control::Pong.line()[..], b"\n"].concat();
        let _ = socket.try_write(&pong);
        return Some("it only asked whether we are here".into());
    }
    link.to_client.goes_straight_to(Rc::downgrade(socket));
    match ClientHello::parse(&first.line) {
        Some(Ok(hello)) => {
            // Rule 6: where the connection's process is another one, or unknown, its word is checked.
            match announced(&hello, &link.processes()) {
                Announced::Known => {}
                // One that counts otherwise than we do is seen by its connection alone.
                _ if link.peer.is_some() && counts_otherwise(link.pid) => {}
                Announced::Dead => {
                    let pid = hello.pid;
                    return Some(format!("it announced process {pid}, which is gone"));
                }
                Announced::Another(process) => drop(link.announced.set(process)),
            }
            if link.sight() == Sight::Seen {
                house.life.borrow_mut().seen(id);
            }
            greet(house, link, Rc::new(hello));
        }
        Some(Err(error)) => return Some(error.to_string()),
        None => {
            let Some(wish) = borrowed_wish(house, id) else {
                return Some("it said no hello, and nobody before it said what to run".into());
            };
            let _ = link.wish.set(Rc::new(wish));
            visit.take(Spoken::from(&first.line[..]), Instant::now());
        }
    }
    house.log.line(format_args!(
        "client {} (process {}){} attached",
        id.0,
        link.pid,
        if link.is_bare() { ", bare," } else { "" }
    ));
    house.stir();
    if first.ended {
        visit.half_close();
    }
    None
}

/// The first line, which tells what kind of client it is.
struct First {
    line: Vec<u8>,
    /// Nothing came after it, not even a newline.
    ended: bool,
}

async fn first_line(
    house: &House,
    socket: &Socket,
    inbox: &RefCell<Inbox>,
) -> Result<First, String> {
    let speaks_kennel = || inbox.borrow().first() == Some(b'!');
    loop {
        if let Some(line) = inbox.borrow_mut().next_line() {
            let line = line.to_vec();
            return Ok(First { line, ended: false });
        }
        if let Some(line) = inbox.borrow_mut().next_too_long(false) {
            let refusal = [&line.refusal()[..], b"\n"].concat();
            let _ = socket.try_write(&refusal);
            return Err("its first line is too long".into());
        }
        if inbox.borrow().len() > MODEST && house.holds_too_much() {
            return Err("its first line is long, and too much is held for others".into());
        }
        // Nobody fills our memory before we know who it is.
        if speaks_kennel() && inbox.borrow().len() > LONGEST_HELLO {
            return Err(format!("its hello is longer than {LONGEST_HELLO} bytes"));
        }
        match socket.read(inbox).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(format!("it cannot be heard: {error}")),
        }
    }
    let bare = !speaks_kennel();
    match inbox.borrow_mut().rest() {
        Some(line) if bare => Ok(First { line, ended: true }),
        _ => Err("it said nothing".into()),
    }
}

/// A client without hello gets what the first one with a hello wanted, in a session of its own.
fn borrowed_wish(house: &House, id: ClientId) -> Option<ClientHello> {
    let first = house.first_hello.borrow();
    let mut wish = ClientHello::clone(first.as_ref()?);
    wish.session = format!("bare {}", id.0);
    Some(wish)
}

/// Whether a process has other pids than we have: then what it says of its own cannot be checked.
fn counts_otherwise(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid"));
    match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(theirs), Ok(ours)) => theirs != ours,
        _ => pid == 0,
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

fn greet(house: &House, link: &Link, hello: Rc<ClientHello>) {
    let answer = DaemonHello {
        version: this_build::version(),
        protocol: PROTOCOL,
        generation: house.generation.clone(),
        build: this_build::text(),
    };
    link.to_client.push(&answer.line());
    for older in house.clients.borrow().values() {
        // A session that attaches again has given its former connection up.
        if older
            .hello
            .get()
            .is_some_and(|older| older.session == hello.session)
        {
            older.left.raise();
        }
    }
    let _ = link.wish.set(Rc::clone(&hello));
    let _ = link.hello.set(Rc::clone(&hello));
    link.heard.set(Some(0));
    house.upgrade.consider(&hello);
    if house.moved.get() {
        link.tell(&Control::Moved);
    }
    let is_first = house.first_hello.borrow().is_none();
    if is_first {
        *house.first_hello.borrow_mut() = Some(Rc::clone(&hello));
        introduce(house, &hello);
    }
}

/// Now the daemon knows what it is there for.
fn introduce(house: &House, hello: &ClientHello) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let command: Vec<String> = hello
        .spec
        .command
        .iter()
        .map(|word| text(word.as_bytes()))
        .collect();
    let Some(mut record) = house.meeting.record() else {
        return;
    };
    record.name = crate::sharing::launcher::name_of(&command);
    // The record goes with the daemon; by this line it is known by its name afterwards.
    house.log.line(format_args!("serves {}", record.name));
    record.command = command;
    record.cwd = text(hello.spec.cwd.as_bytes());
    if house.has_place()
        && let Err(error) = house.meeting.write_record(&record)
    {
        house.log.line(error);
    }
}
