//! The example, with a real WebSocket client: killed, reconnected, and gone when nobody needs it.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{DEADLINE, Scope, count, wait_for};
use tungstenite::{Message, WebSocket};

const GRACE: Duration = Duration::from_millis(1000);

/// The server, for an owner of its own.
struct Server {
    scope: Scope,
    owner: Child,
    child: Child,
    port: u16,
}

impl Server {
    fn start(label: &str) -> Server {
        Server::heard(label, true)
    }

    /// Whether anybody reads what it says, beyond its first line.
    fn heard(label: &str, heard: bool) -> Server {
        let scope = Scope::new(label);
        let owner = scope.command("sleep").arg("1000").spawn().unwrap();
        let mut child = scope
            .command(env!("CARGO_BIN_EXE_ws"))
            .args(["--port", "0", "--grace", &GRACE.as_millis().to_string()])
            .env("WS_OWNER_PID", owner.id().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("listening ").unwrap();
        let port = port.parse().unwrap();
        if heard {
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        }
        Server {
            scope,
            owner,
            child,
            port,
        }
    }

    fn kill_owner(&mut self) {
        self.owner.kill().unwrap();
        self.owner.wait().unwrap();
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let address = format!("ws://127.0.0.1:{}/", self.port);
        let (socket, _) = tungstenite::client(address, stream).unwrap();
        Client(socket)
    }

    #[track_caller]
    fn stays_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            assert_eq!(self.child.try_wait().unwrap(), None, "it is needed");
            kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(10))).unwrap();
        }
    }

    #[track_caller]
    fn ends(&mut self) {
        let status = wait_for("the server to end", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
        self.scope.nothing_left_within("the server ended", DEADLINE);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in [&mut self.owner, &mut self.child] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Client(WebSocket<TcpStream>);

impl Client {
    #[track_caller]
    fn ask(&mut self, text: &str) -> String {
        self.0.send(Message::from(text)).unwrap();
        self.0.read().unwrap().into_text().unwrap().to_string()
    }

    fn close(mut self) {
        self.0.close(None).unwrap();
        // Until the other side has said so, too.
        while self.0.read().is_ok() {}
    }
}

#[test]
fn it_ends_itself_when_its_owner_died_and_its_last_session_closed() {
    for _ in 0..count(20) {
        let mut server = Server::start("ws");
        let mut client = server.connect();
        assert_eq!(client.ask("hello"), "hello");
        server.kill_owner();
        server.stays_for(GRACE + Duration::from_millis(300));
        assert_eq!(client.ask("pid"), server.child.id().to_string());
        let closed = Instant::now();
        client.close();
        server.ends();
        assert!(closed.elapsed() >= GRACE);
    }
}

#[test]
fn a_client_that_comes_back_within_the_grace_finds_the_same_server() {
    let mut server = Server::start("ws-again");
    let mut client = server.connect();
    let pid = client.ask("pid");
    server.kill_owner();
    for _ in 0..5 {
        client.close();
        server.stays_for(GRACE / 4);
        client = server.connect();
        assert_eq!(client.ask("pid"), pid);
    }
    drop(client);
    server.ends();
}

#[test]
fn a_client_killed_with_9_is_a_session_that_closed() {
    let mut server = Server::start("ws-killed");
    // A process of its own with a WebSocket in its hands, of which nothing is left but a number.
    let mut connection = server.connect();
    let pid = connection.ask("pid");
    let request = "GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n";
    let line = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; printf '{request}' >&3; read -r answer <&3; echo \"$answer\"; exec sleep 1000",
        server.port
    );
    let mut client = server.scope.command("bash");
    let mut client = client
        .args(["-c", &line])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answer = String::new();
    BufReader::new(client.stdout.take().unwrap())
        .read_line(&mut answer)
        .unwrap();
    assert!(answer.contains("101"), "{answer}");
    connection.close();
    server.kill_owner();
    server.stays_for(GRACE + Duration::from_millis(300));
    assert_eq!(server.connect().ask("pid"), pid);
    client.kill().unwrap();
    client.wait().unwrap();
    server.ends();
}

#[test]
fn nobody_connected_it_goes_with_its_owner_and_while_that_lives_it_stays() {
    let mut server = Server::start("ws-alone");
    server.stays_for(GRACE * 2);
    server.kill_owner();
    server.ends();
}

#[test]
fn a_signal_ends_it_though_somebody_is_connected() {
    let mut server = Server::start("ws-signal");
    let _client = server.connect();
    let process = ProcessRef::open(server.child.id()).unwrap();
    process.signal(Signal::TERM).unwrap();
    let status = wait_for("the server to end", || server.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn lesson_41_a_port_that_is_taken_is_told_with_who_has_it() {
    let mut server = Server::start("ws-taken");
    let mut second = server.scope.command(env!("CARGO_BIN_EXE_ws"));
    let ended = kennel_testkit::run(second.args(["--port", &server.port.to_string()]));
    assert_eq!(ended.code(), Some(98));
    let named = format!("held by pid {} (", server.child.id());
    assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    server.kill_owner();
    server.ends();
}

#[test]
fn it_ends_well_though_its_owner_took_along_whoever_heard_it() {
    let mut server = Server::heard("ws-unheard", false);
    server.kill_owner();
    server.ends();
}
