//! A process that is confined, or lies, and speaks to the daemon of an unconfined session: nothing is done for it.

mod descriptors;
mod needs_root;

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_core::hello::{ClientHello, Control, DaemonHello, Text};
use kennel_sys::process::ProcessRef;
use kennel_testkit::{DEADLINE, Scope, bin, skipped, tool};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;

use crate::stage::{Cast, Daemon, INITIALIZE, hello, keys_behind};

/// What a visitor heard.
struct Heard(Vec<String>);

impl Heard {
    /// It was greeted, and sent away with this reason; and that is all.
    #[track_caller]
    fn is_sent_away(&self, why: &str) {
        let [hello, solo] = &self.0[..] else {
            panic!("{:?}", self.0);
        };
        DaemonHello::parse(hello.as_bytes()).expect("a hello");
        match Control::parse_from_daemon(solo.as_bytes()) {
            Some(Control::Solo(solo)) => {
                assert!(solo.why.contains(why), "{solo:?}");
                assert_eq!(solo.received, Some(0));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// `tk-visitor`, behind other commands.
fn visitor(daemon: &Daemon, before: &[&str], confined: &[&str]) -> Command {
    let (socket, program) = (daemon.socket_path(), bin("tk-visitor"));
    let mut words: Vec<&std::ffi::OsStr> = before.iter().map(|word| word.as_ref()).collect();
    words.extend([program.as_os_str(), socket.as_os_str()]);
    let mut command = daemon.scope.command(words[0]);
    command.args(&words[1..]).args(confined);
    command
}

/// Says this, and no more; returns what is heard until the daemon hangs up.
#[track_caller]
fn heard(command: Command, words: &[u8]) -> String {
    heard_after(command, words, |_| {})
}

/// The same, where `first` reads what the visitor prints before it is told what to say.
#[track_caller]
fn heard_after(
    mut command: Command,
    words: &[u8],
    first: impl FnOnce(&mut BufReader<ChildStdout>),
) -> String {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().expect("a visitor");
    // Before it is told anything: it ends soon after that.
    let process = ProcessRef::open(child.id()).expect("our child");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    first(&mut stdout);
    stdin.write_all(words).expect("it listens");
    drop(stdin);
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let ended = process.wait(Some(DEADLINE)).expect("an exit");
    if !ended {
        child.kill().expect("our child");
    }
    child.wait().expect("our child");
    let text = reading.join().expect("a thread").expect("text");
    assert!(
        ended,
        "the daemon did not hang up within {DEADLINE:?}: {text}"
    );
    text
}

/// Says a hello and a first request; returns what is heard until the daemon hangs up.
#[track_caller]
fn visit(command: Command, hello: &ClientHello) -> Heard {
    let text = heard(command, &first_words(hello));
    Heard(text.lines().map(str::to_owned).collect())
}

/// A hello and a first request.
fn first_words(hello: &ClientHello) -> Vec<u8> {
    [&hello.line()[..], b"\n", INITIALIZE.as_bytes(), b"\n"].concat()
}

/// What runs only where it must not, and what shows that it did.
fn trap(daemon: &Daemon) -> (PathBuf, PathBuf) {
    let (program, mark) = (daemon.scope.path("trap"), daemon.scope.path("sprung"));
    let script = format!("#!/bin/sh\ncat /proc/self/status > '{}'\n", mark.display());
    std::fs::write(&program, script).expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("a program");
    (program, mark)
}

fn text(path: &Path) -> Text {
    Text::from(path.as_os_str().as_bytes())
}

/// All that a peer can try: a command of its own, the daemon's own command, a newer build, and no hello at all.
#[track_caller]
fn gets_nothing(daemon: &Daemon, command: impl Fn() -> Command, why: &str) {
    let mut honest = daemon.client();
    let server = honest.server();
    let (program, mark) = trap(daemon);
    let mut own = daemon.hello();
    own.spec.command = vec![text(&program)];
    visit(command(), &own).is_sent_away(why);
    visit(command(), &daemon.hello()).is_sent_away(why);
    let newer = ClientHello {
        build: "99.0.0".into(),
        program: text(&program),
        ..daemon.hello()
    };
    visit(command(), &newer).is_sent_away(why);
    let heard = bare(command());
    assert!(heard.contains("not served here"), "{heard}");
    assert_eq!(honest.server().pid(), server.pid());
    let is_one = |list: &serde_json::Value| list.as_array().is_some_and(|all| all.len() == 1);
    daemon.state_when("only the honest one and its server are here", |state| {
        is_one(&state["clients"]) && is_one(&state["servers"])
    });
    assert!(!mark.exists(), "{}", daemon.log());
    assert!(!daemon.log().contains("stays "), "{}", daemon.log());
}

#[track_caller]
fn bare(command: Command) -> String {
    heard(command, format!("{INITIALIZE}\n").as_bytes())
}

#[test]
fn a_peer_under_no_new_privs_gets_nothing_done() {
    let daemon = Daemon::start("no-new-privs");
    let why = "seccomp or NoNewPrivs";
    gets_nothing(&daemon, || visitor(&daemon, &[], &["no-new-privs"]), why);
    daemon.stop();
}

#[test]
fn a_peer_under_seccomp_gets_nothing_done() {
    let daemon = Daemon::start("seccomp");
    let why = "seccomp or NoNewPrivs";
    gets_nothing(&daemon, || visitor(&daemon, &[], &["seccomp"]), why);
    let both = || visitor(&daemon, &[], &["no-new-privs", "seccomp"]);
    gets_nothing(&daemon, both, why);
    daemon.stop();
}

/// As in a sandbox: `NoNewPrivs`, and a filter under which nothing can be executed.
#[test]
fn a_peer_that_may_not_execute_anything_has_nothing_executed() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    const FILTERED: &str = r#"
import ctypes, platform, socket, struct, sys
said = sys.stdin.buffer.read()
execve = {"x86_64": 59, "aarch64": 221}[platform.machine()]
def step(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
steps = step(0x20, 0, 0, 0) + step(0x15, 0, 1, execve) + step(0x06, 0, 0, 0x50001) + step(0x06, 0, 0, 0x7fff0000)
held = ctypes.create_string_buffer(steps)
program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(said)
while heard := peer.recv(4096):
    sys.stdout.buffer.write(heard)
"#;

    let daemon = Daemon::start("filter");
    let command = || {
        let mut command = daemon.scope.command("python3");
        command.args(["-c", FILTERED]).arg(daemon.socket_path());
        command
    };
    gets_nothing(&daemon, command, "seccomp or NoNewPrivs");
    daemon.stop();
}

/// Says all but its last line, confines itself, and says that one.
const CONFINED_LATER: &str = r#"
import ctypes, socket, sys
said = sys.stdin.buffer.read()
at = said.rstrip(b"\n").rindex(b"\n") + 1
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(said[:at])
heard = peer.recv(4096)
while not heard.endswith(b"\n"):
    heard += peer.recv(4096)
sys.stdout.buffer.write(heard)
assert ctypes.CDLL(None, use_errno=True).prctl(38, 1, 0, 0, 0) == 0
peer.sendall(said[at:])
while heard := peer.recv(4096):
    sys.stdout.buffer.write(heard)
"#;

#[test]
fn a_client_that_confined_itself_since_it_was_let_in_gets_no_new_server() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let daemon = Daemon::start("confined-later");
    let mut command = daemon.scope.command("python3");
    command
        .args(["-c", CONFINED_LATER])
        .arg(daemon.socket_path());
    let heard = visit(command, &daemon.hello());
    match heard
        .0
        .get(1)
        .and_then(|line| Control::parse_from_daemon(line.as_bytes()))
    {
        Some(Control::Solo(solo)) => {
            assert!(solo.why.contains("seccomp or NoNewPrivs"), "{solo:?}");
            assert_eq!(solo.unsent.len(), 1, "its request: {solo:?}");
        }
        other => panic!("{other:?}: {:?}", heard.0),
    }
    assert_eq!(heard.0.len(), 2, "{:?}", heard.0);
    // Nothing was started for it; for another one it is.
    let roll = std::fs::read_to_string(daemon.scope.roll()).unwrap_or_default();
    assert_eq!(roll, "");
    daemon.client().server();
    daemon.stop();
}

/// A client that confines itself between its connection and its hello, after the daemon looked at it.
#[test]
fn a_client_that_confines_itself_before_its_hello_gets_nothing_done() {
    let daemon = Daemon::start("confined-before-hello");
    // Without a further look, the others would join this server.
    let mut honest = daemon.client();
    honest.say(INITIALIZE);
    honest.said().expect("an answer");
    for confined in ["no-new-privs", "seccomp"] {
        let command = visitor(&daemon, &[], &["announce", confined]);
        let text = heard_after(command, &first_words(&daemon.hello()), |stdout| {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("a line");
            assert_eq!(line, "connected\n");
            // Clients are accepted, and looked at, in the order in which they connected. So when a later one is answered,
            // this one has been looked at.
            daemon.client().server();
        });
        let heard = Heard(text.lines().map(str::to_owned).collect());
        heard.is_sent_away("seccomp or NoNewPrivs");
    }
    assert_eq!(honest.ask("echo", json!(1)), 1);
    daemon.stop();
}

/// Enters namespaces between its connection and its hello, and drops the capabilities that it got by that: `status` says the
/// same as before. Ends without a word where it may not.
const ELSEWHERE: &str = r#"
import ctypes, socket, struct, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
print("connected", flush=True)
said = sys.stdin.buffer.read()
libc = ctypes.CDLL(None, use_errno=True)
def status():
    lines = open("/proc/self/status").read().splitlines()
    return {line.split(":")[0]: line.split(":")[1].strip() for line in lines}
def sets(): return [int(status()[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd")]
*before, bounding = sets()
if libc.unshare(int(sys.argv[2], 16)) != 0:
    sys.exit(0)
for bit in range(64):
    if sets()[3] & ~bounding & 1 << bit:
        assert libc.prctl(24, bit, 0, 0, 0) == 0
halves = [one >> shift & 0xffffffff for shift in (0, 32) for one in before]
assert libc.capset(struct.pack("II", 0x20080522, 0), struct.pack("6I", *halves)) == 0
assert [*before, bounding] == sets()
peer.sendall(said)
while heard := peer.recv(4096):
    sys.stdout.buffer.write(heard)
"#;

/// Whether it could enter these namespaces, which the daemon then saw.
#[track_caller]
fn is_sent_away_from_elsewhere(daemon: &Daemon, flags: &str) -> bool {
    let mut command = daemon.scope.command("python3");
    let socket = daemon.socket_path();
    command.args(["-c", ELSEWHERE]).arg(socket).arg(flags);
    let text = heard_after(command, &first_words(&daemon.hello()), |stdout| {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        assert_eq!(line, "connected\n");
        // As above: it has been looked at when a later one is answered.
        daemon.client().server();
    });
    if text.is_empty() {
        return false;
    }
    Heard(text.lines().map(str::to_owned).collect()).is_sent_away("");
    true
}

#[test]
fn a_client_that_enters_namespaces_before_its_hello_gets_nothing_done() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let daemon = Daemon::start("elsewhere");
    // Without a further look, the other would join this server.
    let mut honest = daemon.client();
    honest.say(INITIALIZE);
    honest.said().expect("an answer");
    // User alone; with mnt, net, ipc and uts. Where that is not allowed, root's test does it.
    for flags in ["0x10000000", "0x5c020000"] {
        is_sent_away_from_elsewhere(&daemon, flags);
    }
    assert_eq!(honest.ask("echo", json!(1)), 1);
    daemon.stop();
}

/// A key would have the daemon look at paths of the peer's choice: its confinement alone sends it away.
#[test]
fn a_peer_with_another_umask_gets_nothing_done_and_no_key_computed() {
    let daemon = Daemon::start("umask");
    let before = ["sh", "-c", r#"umask 0137; exec "$@""#, "sh"];
    let why = "its confinement differs from this daemon's";
    gets_nothing(&daemon, || visitor(&daemon, &before, &[]), why);
    let mut older = daemon.hello();
    older.key = None;
    visit(visitor(&daemon, &before, &[]), &older).is_sent_away(why);
    daemon.stop();
}

#[test]
fn a_hello_that_no_server_can_be_started_with_is_refused_and_others_are_served() {
    let daemon = Daemon::start("nul");
    let mut hello = daemon.hello();
    let pair = (Text::from(&b"TERM"[..]), Text::from(&b"a\0b"[..]));
    Arc::make_mut(&mut hello.env).push(pair.clone());
    visit(visitor(&daemon, &[], &[]), &hello).is_sent_away("contains a NUL");
    hello.env = Arc::new(vec![pair; 10_001]);
    visit(visitor(&daemon, &[], &[]), &hello).is_sent_away("more than 10,000 variables");
    daemon.client().server();
    daemon.stop();
}

#[test]
fn half_a_hello_keeps_no_daemon_alive() {
    let cast = Cast {
        linger: Duration::from_millis(100),
        ..Cast::default()
    };
    let (daemon, first) = Daemon::with_first("half-a-hello", cast);
    let half = daemon.connect();
    let line = daemon.hello().line();
    half.write(&line[..line.len() / 2]);
    let silent = daemon.connect();
    drop(first);
    // Both are still connected.
    daemon.is_gone();
    assert!(
        daemon.log().contains("no complete line"),
        "{}",
        daemon.log()
    );
    drop((half, silent));
}

#[test]
fn a_peer_in_namespaces_of_its_own_gets_nothing_done() {
    let unshare = [
        "unshare",
        "--user",
        "--map-current-user",
        "--mount",
        "--net",
        "--ipc",
    ];
    let probe = Command::new(unshare[0])
        .args(&unshare[1..])
        .arg("true")
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        return; // Not allowed here: root's test does it.
    }
    let daemon = Daemon::start("namespaces");
    for more in [&[][..], &["--pid", "--fork", "--kill-child"]] {
        let before = [&unshare[..], more].concat();
        gets_nothing(&daemon, || visitor(&daemon, &before, &[]), "");
    }
    daemon.stop();
}

#[test]
fn a_peer_with_another_command_or_credential_is_sent_away() {
    let daemon = Daemon::start("another-key");
    let _honest = daemon.client();
    let (program, mark) = trap(&daemon);
    let command = || visitor(&daemon, &[], &[]);
    let other = hello(&daemon.scope, &[program.as_os_str().as_bytes()]);
    visit(command(), &other).is_sent_away("its key differs from this daemon's");
    let mut other = daemon.hello();
    Arc::make_mut(&mut other.env).push((Text::from(&b"TOKEN"[..]), Text::from(&b"x"[..])));
    visit(command(), &other).is_sent_away("its key differs from this daemon's");
    let mut older = daemon.hello();
    older.key = None;
    visit(command(), &older).is_sent_away("another version");
    let newer = ClientHello {
        build: "99.0.0".into(),
        program: text(&program),
        ..other
    };
    visit(command(), &newer).is_sent_away("its key differs from this daemon's");
    assert!(!mark.exists());
    daemon.stop();
}

#[test]
fn a_peer_that_names_another_processs_session_neither_ends_nor_joins_it() {
    let daemon = Daemon::start("session");
    let mut honest = daemon.connect();
    let hello = daemon.hello();
    honest.greet(&hello);
    let server = honest.server();
    visit(visitor(&daemon, &[], &[]), &hello)
        .is_sent_away("its session belongs to another process");
    assert_eq!(honest.server().pid(), server.pid());
    assert_eq!(honest.ask("echo", json!(1)), 1);
    daemon.stop();
}

/// Says what it is told, and prints the first two lines that it hears.
const TWO_LINES: &str = "\
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(sys.stdin.buffer.read())
lines = peer.makefile()
print(lines.readline(), lines.readline())
";

#[test]
fn the_session_of_a_bare_client_has_no_name_that_can_be_guessed() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let daemon = Daemon::for_bare("bare-session");
    let _first = daemon.client();
    let mut bare = daemon.connect();
    bare.say(r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}"#);
    assert!(bare.line().expect("an answer").contains("result"));
    // Whoever names a session of another process is sent away.
    for number in 0..5 {
        let mut hello = daemon.hello();
        hello.session = format!("bare {number}");
        let mut visitor = daemon.scope.command("python3");
        visitor.args(["-c", TWO_LINES]).arg(daemon.socket_path());
        let heard = heard(visitor, &first_words(&hello));
        assert!(heard.contains("\"result\""), "{number}: {heard}");
    }
    daemon.stop();
}

#[test]
fn what_a_peer_says_of_its_pid_is_not_shown_as_its_pid() {
    let daemon = Daemon::start("pid");
    let mut hello = daemon.hello();
    (hello.pid, hello.identity) = (1, String::new());
    let mut client = daemon.connect();
    client.greet(&hello);
    client.server();
    let state = daemon.state_when("it is here", |state| state["clients"][0]["pid"].is_u64());
    assert_eq!(state["clients"][0]["pid"], std::process::id());
    daemon.stop();
}
