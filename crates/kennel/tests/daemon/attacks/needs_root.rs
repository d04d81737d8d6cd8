//! The same as root: other users, and namespaces.

use super::*;

/// Its root is on a file system that does not answer: who asked it would wait for ever.
#[test]
#[ignore = "needs root: cargo xtask test"]
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
    heard.is_sent_away("its confinement differs from this daemon's");
    assert_eq!(honest.server().pid(), server.pid());
    daemon.stop();
}

/// Each kind of namespace alone, a capability less, and other groups.
#[test]
#[ignore = "needs root: cargo xtask test"]
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
        let why = "its confinement differs from this daemon's";
        gets_nothing(&daemon, || visitor(&daemon, &less, &[]), why);
    }
    daemon.stop();
}

/// With capabilities, each kind can be entered alone: mnt, net, ipc, uts, cgroup, user, and pid for its children.
#[test]
#[ignore = "needs root: cargo xtask test"]
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
        .is_sent_away("its confinement differs from this daemon's");
}

/// By a program with more rights, here by file capabilities, a process can enter a namespace and be without
/// capabilities again: its `status` and its user namespace are as before.
#[test]
#[ignore = "needs root: cargo xtask test"]
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
#[ignore = "needs root: cargo xtask test"]
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
