//! A server that starts one detached backend for all its sessions, as codegraph and godot-ai do.
//!
//! `tk-backend serve PLACE ROLL [ONCE]`: an MCP server on stdio. Starts the backend of PLACE if nobody listens there,
//! stays connected to it, and answers a call of the tool `ask` with what the backend says: its pid. With a third word
//! `alone` it starts the backend, and connects to nobody.
//! `tk-backend back PLACE ROLL`: the backend: leaves the session, signs ROLL, listens, and ignores SIGTERM.
//! `tk-backend use PLACE`: connects, prints the backend's pid, and stays until its stdin closes.
//!
//! PLACE is a port of 127.0.0.1 (`tcp:PORT`) or the path of a Unix socket.
#![expect(
    clippy::print_stdout,
    reason = "what it says is for the test that started it"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::signals::Signals;
use kennel_testkit::sign_roll;
use serde_json::{Value, json};

/// Maximum time for a backend to listen on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", place, roll] => serve(Some(attached(place, roll))),
        ["serve", place, roll, "alone"] => {
            attached(place, roll);
            serve(None);
        }
        ["back", place, roll] => back(place, roll),
        ["use", place] => {
            let mut backend = connect(place).expect("the backend listens");
            println!("{}", ask(&mut backend));
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        _ => panic!("tk-backend does not know {words:?}"),
    }
}

trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

fn connect(place: &str) -> std::io::Result<Box<dyn Connection>> {
    Ok(match place.strip_prefix("tcp:") {
        Some(port) => Box::new(TcpStream::connect(("127.0.0.1", number(port)))?),
        None => Box::new(UnixStream::connect(place)?),
    })
}

/// A connection to the backend, which is started if it does not run.
#[expect(
    clippy::zombie_processes,
    reason = "the backend outlives whoever starts it"
)]
fn attached(place: &str, roll: &str) -> Box<dyn Connection> {
    if let Ok(connection) = connect(place) {
        return connection;
    }
    Command::new("/proc/self/exe")
        .args(["back", place, roll])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the backend starts");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect(place) {
            Ok(connection) => return connection,
            Err(error) if Instant::now() > deadline => panic!("no backend: {error}"),
            Err(_) => {
                let nap = Some(Duration::from_millis(5));
                kennel_sys::events::sleep(&[], &[], nap).expect("a sleep");
            }
        }
    }
}

/// The answer of the backend: its pid.
fn ask(backend: &mut Box<dyn Connection>) -> String {
    backend.write_all(b"who\n").expect("the backend hears");
    let mut answer = Vec::new();
    let mut byte = [0];
    while backend.read(&mut byte).expect("the backend answers") == 1 && byte != *b"\n" {
        answer.push(byte[0]);
    }
    assert!(!answer.is_empty(), "the backend hung up");
    String::from_utf8(answer).expect("a number")
}

fn back(place: &str, roll: &str) {
    rustix::process::setsid().expect("a fresh child leads no group");
    let _deaf = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]);
    // A second backend finds the first one listening, and exits.
    match place.strip_prefix("tcp:") {
        Some(port) => {
            let Ok(listener) = TcpListener::bind(("127.0.0.1", number(port))) else {
                return;
            };
            sign_roll(Path::new(roll));
            listener.incoming().for_each(|it| answer_in_thread(it.ok()));
        }
        None => {
            let Ok(listener) = UnixListener::bind(place) else {
                return;
            };
            sign_roll(Path::new(roll));
            listener.incoming().for_each(|it| answer_in_thread(it.ok()));
        }
    }
}

fn answer_in_thread(connection: Option<impl Connection + Send + 'static>) {
    let Some(mut connection) = connection else {
        return;
    };
    std::thread::spawn(move || {
        let mut byte = [0];
        while connection.read(&mut byte).is_ok_and(|length| length == 1) {
            if byte == *b"\n" {
                let _ = writeln!(connection, "{}", std::process::id());
            }
        }
    });
}

fn serve(mut backend: Option<Box<dyn Connection>>) {
    for line in BufReader::new(std::io::stdin()).lines() {
        let Ok(line) = line else { return };
        let request: Value = serde_json::from_str(&line).expect("a message");
        let Some(id) = request.get("id") else {
            continue;
        };
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tk-backend", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                let text = backend.as_mut().map(ask).unwrap_or_default();
                json!({"content": [{"type": "text", "text": text}]})
            }
            _ => json!({}),
        };
        println!("{}", json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }
}

fn number(text: &str) -> u16 {
    text.parse().expect("a port")
}
