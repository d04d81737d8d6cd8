//! A process that is confined, or lies, and speaks to the daemon of an unconfined session: nothing is done for it.

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
use kennel_testkit::{DEADLINE, Scope, bin, skipped};
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
        match Control::parse(solo.as_bytes()) {
            Some(Control::Solo(solo)) => {
                assert!(solo.why.contains(why), "{solo:?}");
                assert_eq!(solo.heard, Some(0));
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
    let daemon = Daemon::start("confined-later");
    let mut command = daemon.scope.command("python3");
    command
        .args(["-c", CONFINED_LATER])
        .arg(daemon.socket_path());
    let heard = visit(command, &daemon.hello());
    match heard
        .0
        .get(1)
        .and_then(|line| Control::parse(line.as_bytes()))
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
    let why = "not confined as this daemon is";
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
    visit(visitor(&daemon, &[], &[]), &hello).is_sent_away("holds a NUL");
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
    assert!(daemon.log().contains("no whole line"), "{}", daemon.log());
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

/// A socket whose last close takes this many seconds, and its other end.
fn lingering(seconds: u64) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut full = TcpStream::connect(address).expect("it listens");
    let (other, _) = listener.accept().expect("it connected");
    full.set_nonblocking(true).expect("a socket");
    while full.write(&[0; 65536]).is_ok() {}
    full.set_nonblocking(false).expect("a socket");
    let time = Some(Duration::from_secs(seconds));
    rustix::net::sockopt::set_socket_linger(&full, time).expect("a socket");
    (full, other)
}

/// Says this, and passes these descriptors.
fn pass(
    to: &UnixStream,
    words: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    assert!(along.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(to, &[IoSlice::new(words)], &mut along, SendFlags::NOSIGNAL)
}

/// Passes sockets that take a minute to be closed, and closes its own: the daemon would be the one who waits.
#[track_caller]
fn holds_nobody_up(daemon: &Daemon, is_refused: bool) {
    let mut honest = daemon.client();
    let server = honest.server();
    let begin = Instant::now();
    for (words, count, stays) in [
        (&b"!hel"[..], 1, true),
        (b"!hel", 1, false),
        (b"\n", 100, true),
    ] {
        let connection = daemon.connect();
        let (full, _other) = lingering(60);
        let passed = pass(connection.stream(), words, &vec![full.as_fd(); count]);
        match is_refused {
            true => {
                assert_eq!(passed, Err(rustix::io::Errno::PERM));
                // It is closed here.
                rustix::net::sockopt::set_socket_linger(&full, None).expect("a socket");
            }
            false => assert_eq!(passed, Ok(words.len())),
        }
        // Whoever closes it last waits: if that is this process, not here.
        std::thread::spawn(move || drop(full));
        let connection = stays.then_some(connection);
        assert_eq!(honest.server().pid(), server.pid());
        drop(connection);
        assert_eq!(honest.server().pid(), server.pid());
    }
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "{:?}: {}",
        begin.elapsed(),
        daemon.log()
    );
}

#[test]
fn a_peer_that_passes_a_descriptor_that_lingers_holds_nobody_up() {
    let daemon = Daemon::start("passes");
    holds_nobody_up(&daemon, kennel_sys::passing::can_be_refused());
    daemon.stop();
}

#[test]
fn a_peer_that_passes_a_descriptor_holds_nobody_up_where_the_kernel_cannot_refuse_it() {
    let cast = Cast {
        env: vec![("KENNEL_FEATURES_OFF", "pass-rights")],
        ..Cast::default()
    };
    let daemon = Daemon::cast("passes-before", cast);
    holds_nobody_up(&daemon, false);
    daemon.stop();
}

mod needs_root {
    use super::*;

    /// Its root is on a file system that does not answer: who asked it would wait for ever.
    #[test]
    fn a_peer_whose_root_does_not_answer_is_sent_away_and_the_others_are_served() {
        let daemon = Daemon::start("hung-root");
        let mut honest = daemon.client();
        let server = honest.server();
        let mountpoint = daemon.scope.path("hung");
        std::fs::create_dir(&mountpoint).expect("a directory");
        let mut command = daemon.scope.command("unshare");
        command.arg("--mount").arg(bin("tk-hung")).arg("visit");
        command.arg(&mountpoint).arg(daemon.socket_path());
        let said = heard(command, &first_words(&daemon.hello()));
        if said.starts_with("no FUSE") {
            return skipped(&said);
        }
        let heard = Heard(said.lines().map(str::to_owned).collect());
        heard.is_sent_away("not confined as this daemon is");
        assert_eq!(honest.server().pid(), server.pid());
        daemon.stop();
    }

    /// Each kind of namespace alone, a capability less, and other groups.
    #[test]
    fn a_peer_that_is_confined_in_any_one_way_gets_nothing_done() {
        let daemon = Daemon::start("each-way");
        let kinds = ["--mount", "--net", "--ipc", "--uts", "--cgroup", "--user"];
        for kind in kinds {
            let command = || visitor(&daemon, &["unshare", kind], &[]);
            gets_nothing(&daemon, command, "");
        }
        // Only what it starts is elsewhere.
        for kind in ["--pid", "--time"] {
            let command = || visitor(&daemon, &["unshare", kind], &[]);
            gets_nothing(&daemon, command, "");
        }
        for more in ["--pid", "--time"] {
            let before = ["unshare", more, "--fork", "--kill-child"];
            gets_nothing(&daemon, || visitor(&daemon, &before, &[]), "");
        }
        for less in [
            ["setpriv", "--bounding-set", "-sys_ptrace"],
            ["setpriv", "--groups", "4242"],
        ] {
            let why = "not confined as this daemon is";
            gets_nothing(&daemon, || visitor(&daemon, &less, &[]), why);
        }
        daemon.stop();
    }

    /// With capabilities, each kind can be entered alone: mnt, net, ipc, uts, cgroup, user, and pid for its children.
    #[test]
    fn a_client_that_enters_any_one_namespace_before_its_hello_gets_nothing_done() {
        let daemon = Daemon::start("each-elsewhere");
        for flags in [
            "0x20000",
            "0x40000000",
            "0x8000000",
            "0x4000000",
            "0x2000000",
            "0x10000000",
            "0x20000000",
        ] {
            assert!(is_sent_away_from_elsewhere(&daemon, flags), "{flags}");
        }
        daemon.stop();
    }

    /// Without capabilities, though it is root: as the processes of other users are.
    const WITHOUT: &[&str] = &[
        "setpriv",
        "--securebits",
        "+noroot",
        "--inh-caps",
        "-all",
        "--ambient-caps",
        "-all",
    ];

    /// Connects, and executes what follows the socket's path, with the connection as its descriptor 9.
    const CONNECTED: &str = r#"
import os, select, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
os.dup2(peer.fileno(), 9, inheritable=True)
print("connected", flush=True)
select.select([0], [], [])
os.execvp(sys.argv[2], sys.argv[2:])
"#;

    /// Says what it is told on descriptor 9.
    const SPEAKS: &str = r#"
import socket, sys
said = sys.stdin.buffer.read()
peer = socket.socket(fileno=9)
peer.sendall(said)
while heard := peer.recv(4096):
    sys.stdout.buffer.write(heard)
"#;

    /// Connects behind `before`, and says its hello once it has executed `then` after the daemon looked at it.
    #[track_caller]
    fn is_sent_away_after_an_exec(daemon: &Daemon, before: &[&str], then: &[&str]) {
        let socket = daemon.socket_path();
        let words = [before, &["/usr/bin/env", "python3", "-c", CONNECTED]].concat();
        let mut command = daemon.scope.command(words[0]);
        command.args(&words[1..]).arg(socket).args(then);
        command.args(["python3", "-c", SPEAKS]);
        let text = heard_after(command, &first_words(&daemon.hello()), |stdout| {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("a line");
            assert_eq!(line, "connected\n");
            // As above: it has been looked at when a later one is answered.
            daemon.connect().greet(&daemon.hello());
        });
        Heard(text.lines().map(str::to_owned).collect())
            .is_sent_away("not confined as this daemon is");
    }

    /// By a program with more rights, here by file capabilities, a process can enter a namespace and be without
    /// capabilities again: its `status` and its user namespace are as before.
    #[test]
    fn a_client_that_a_privileged_program_confined_before_its_hello_gets_nothing_done() {
        let cast = Cast {
            before: WITHOUT,
            ..Cast::default()
        };
        let key_of = |hello: &ClientHello| keys_behind(WITHOUT, hello).swap_remove(0);
        let usual = |scope: &Scope| hello(scope, &[bin("tk-server").as_os_str().as_bytes()]);
        let (daemon, _first) = Daemon::at_key("privileged-program", cast, usual, key_of);
        let unshare = daemon.scope.path("unshare");
        std::fs::copy("/usr/bin/unshare", &unshare).expect("a program");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&unshare, mode).expect("a program");
        // Version 2, effective; CAP_SYS_ADMIN is number 21.
        let fields = [0x0200_0001_u32, 1 << 21, 0, 0, 0];
        let value: Vec<u8> = fields.iter().flat_map(|it| it.to_le_bytes()).collect();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&unshare, "security.capability", &value, flags).expect("root may");
        let unshare = unshare.to_str().expect("text");
        for kind in ["--mount", "--net", "--ipc"] {
            is_sent_away_after_an_exec(&daemon, WITHOUT, &[unshare, kind, "--"]);
        }
        daemon.stop();
    }

    /// What was confined when it came may have left its connection to another process before it executed a program that is
    /// not: here by the rule that root has all capabilities after an exec.
    #[test]
    fn a_client_that_became_less_confined_before_its_hello_gets_nothing_done() {
        const DROPS: &str = r#"
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.capset(struct.pack("II", 0x20080522, 0), struct.pack("6I", 0, 0, 0, 0, 0, 0)) == 0
code = sys.argv[4]
sys.argv[1:5] = []
exec(code)
"#;
        let daemon = Daemon::start("less-confined");
        let before = ["python3", "-c", DROPS];
        is_sent_away_after_an_exec(&daemon, &before, &[]);
        daemon.client().server();
        daemon.stop();
    }
}

#[test]
fn a_peer_with_another_command_or_credential_is_sent_away() {
    let daemon = Daemon::start("another-key");
    let _honest = daemon.client();
    let (program, mark) = trap(&daemon);
    let command = || visitor(&daemon, &[], &[]);
    let other = hello(&daemon.scope, &[program.as_os_str().as_bytes()]);
    visit(command(), &other).is_sent_away("its key is not this daemon's");
    let mut other = daemon.hello();
    Arc::make_mut(&mut other.env).push((Text::from(&b"TOKEN"[..]), Text::from(&b"x"[..])));
    visit(command(), &other).is_sent_away("its key is not this daemon's");
    let mut older = daemon.hello();
    older.key = None;
    visit(command(), &older).is_sent_away("another version");
    let newer = ClientHello {
        build: "99.0.0".into(),
        program: text(&program),
        ..other
    };
    visit(command(), &newer).is_sent_away("its key is not this daemon's");
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
    visit(visitor(&daemon, &[], &[]), &hello).is_sent_away("its session is another process's");
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
