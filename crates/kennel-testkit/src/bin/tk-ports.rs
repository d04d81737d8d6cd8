//! A server with ports that does as it is told.
//!
//! `tk-ports [say=WORD] [late=MS] [workers=N] [stubborn] [launcher] ADDRESS:PORT…` listens there (port 0: any), tells
//! `listening PORT` for each, and obeys the lines of its connections, one answer each:
//!
//! | line | what it does |
//! |---|---|
//! | `pid`, `say` | tells its pid, its word |
//! | `env NAME` | tells the variable, or `unset` |
//! | `move` | closes all its listeners, listens elsewhere, and tells that port |
//! | `call` | connects to itself, for good |
//! | `child` | starts a process that connects to it, for good |
//! | `exit CODE` | ends |
//!
//! Connections outlive a move. `workers` are processes of their own on the same port (`SO_REUSEPORT`); a
//! `launcher` starts the server and is done.
#![expect(
    clippy::print_stdout,
    reason = "what happens to it is for the test that started it"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kennel_sys::{Signal, events, signals::Signals};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Its settings from the command line.
#[derive(Debug, Default)]
struct Orders {
    say: String,
    late: u64,
    workers: usize,
    stubborn: bool,
    launcher: bool,
    addresses: Vec<SocketAddr>,
}

fn main() {
    kennel_sys::limits::raise_descriptors();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let orders = Orders::of(&arguments);
    if orders.launcher {
        let rest: Vec<&String> = arguments.iter().filter(|it| *it != "launcher").collect();
        start(rest);
        return;
    }
    let _deaf = orders
        .stubborn
        .then(|| Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]).expect("deafness"));
    let late = Duration::from_millis(orders.late);
    events::sleep(&[], &[], Some(late)).expect("a sleep");
    for _ in 0..orders.workers {
        let rest = arguments.iter().filter(|it| !it.starts_with("workers="));
        start(rest);
    }
    // A process with workers does not listen itself, because it would take their connections.
    let house = Arc::new(House {
        say: orders.say,
        open: Mutex::default(),
    });
    if orders.workers == 0 {
        orders.addresses.iter().for_each(|&at| {
            println!("listening {}", house.listen(at));
        });
    }
    loop {
        let _ = events::sleep(&[], &[], None);
    }
}

impl Orders {
    fn of(arguments: &[String]) -> Orders {
        let mut orders = Orders::default();
        for argument in arguments {
            match argument.split_once('=').unwrap_or((argument, "")) {
                ("say", word) => orders.say = word.to_owned(),
                ("late", millis) => orders.late = millis.parse().expect("milliseconds"),
                ("workers", n) => orders.workers = n.parse().expect("a number"),
                ("stubborn", _) => orders.stubborn = true,
                ("launcher", _) => orders.launcher = true,
                (address, _) => orders.addresses.push(address.parse().expect("an address")),
            }
        }
        orders
    }
}

#[expect(
    clippy::zombie_processes,
    reason = "a server that does not look after its children is what this is"
)]
fn start<'a>(words: impl IntoIterator<Item = &'a String>) {
    let program = std::env::current_exe().expect("a program has a path");
    let started = Command::new(program).args(words).spawn();
    started.expect("one more of us starts");
}

struct House {
    say: String,
    /// Where it listens, and how to stop listening: by a connection that is refused.
    open: Mutex<Vec<Arc<Open>>>,
}

struct Open {
    at: SocketAddr,
    closed: AtomicBool,
}

impl House {
    fn listen(self: &Arc<House>, at: SocketAddr) -> u16 {
        let listener = bind(at);
        let at = listener.local_addr().expect("bound");
        let open = Arc::new(Open {
            at,
            closed: AtomicBool::new(false),
        });
        self.open
            .lock()
            .expect("no panic while locked")
            .push(open.clone());
        let house = self.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if open.closed.load(Ordering::SeqCst) {
                    return;
                }
                let house = house.clone();
                let connection = connection.expect("an accepted connection");
                std::thread::spawn(move || house.serve(connection));
            }
        });
        at.port()
    }

    fn serve(self: Arc<House>, connection: TcpStream) {
        let mut answers = connection.try_clone().expect("a second handle");
        for line in BufReader::new(connection).lines() {
            let Ok(line) = line else { return };
            let words: Vec<&str> = line.split(' ').collect();
            let answer = match words[..] {
                ["pid"] => std::process::id().to_string(),
                ["say"] => self.say.clone(),
                ["env", name] => std::env::var(name).unwrap_or_else(|_| "unset".to_owned()),
                ["move"] => self.move_on().to_string(),
                ["call"] => self.call(),
                ["child"] => self.child(),
                ["exit", code] => std::process::exit(code.parse().expect("a code")),
                _ => format!("what is {line:?}?"),
            };
            if writeln!(answers, "{answer}").is_err() {
                return;
            }
        }
    }

    /// Connects to itself, and keeps the connection.
    fn call(&self) -> String {
        let at = self.open.lock().expect("no panic while locked")[0].at;
        let connection = TcpStream::connect(at).expect("it listens");
        std::mem::forget(connection);
        "called".to_owned()
    }

    /// Starts a process that connects to it and keeps the connection.
    #[expect(
        clippy::zombie_processes,
        reason = "a server that does not look after its children is what this is"
    )]
    fn child(&self) -> String {
        let at = self.open.lock().expect("no panic while locked")[0].at;
        let line = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; echo x >&3; exec sleep 1000",
            at.port()
        );
        let mut bash = Command::new("bash");
        let child = bash.args(["-c", &line]).spawn().expect("bash starts");
        child.id().to_string()
    }

    fn move_on(self: &Arc<House>) -> u16 {
        let before = std::mem::take(&mut *self.open.lock().expect("no panic while locked"));
        let at = before.first().expect("it listens").at;
        let port = self.listen(SocketAddr::new(at.ip(), 0));
        for open in before {
            open.closed.store(true, Ordering::SeqCst);
            // Ends its accept, which closes the socket.
            let _ = TcpStream::connect(open.at);
        }
        port
    }
}

/// A listener that shares its port with others.
fn bind(at: SocketAddr) -> TcpListener {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("an option");
    sockopt::set_socket_reuseport(&socket, true).expect("an option");
    rustix::net::bind(&socket, &at).expect("a free port");
    rustix::net::listen(&socket, 1024).expect("a listener");
    TcpListener::from(socket)
}
