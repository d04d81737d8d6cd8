//! What the tests stand on: two builds of one program, and sessions of either.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_core::hello::{ClientHello, KeyFields, PROTOCOL, Shares, Spec, Text};
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, run, wait_for};
use serde_json::{Value, json};

/// How the program's file tells which build it is, and how long that may be.
const MARKER: &[u8] = b"kennel build: ";
const WIDTH: usize = 80;

/// The version of keys that these builds have.
const KEY_VERSION: u32 = 3;

/// The build that is tested.
pub(crate) fn this() -> PathBuf {
    env!("CARGO_BIN_EXE_kennel").into()
}

/// A copy of the program that is another build of it.
pub(crate) fn build(scope: &Scope, build: &str) -> PathBuf {
    let mut program = std::fs::read(this()).unwrap();
    let places: Vec<usize> = program
        .windows(MARKER.len())
        .enumerate()
        .filter(|(_, window)| *window == MARKER)
        .map(|(place, _)| place + MARKER.len())
        .filter(|&place| program[place..].starts_with(env!("CARGO_PKG_VERSION").as_bytes()))
        .collect();
    assert_eq!(places.len(), 1, "one marker");
    let room = &mut program[places[0]..places[0] + WIDTH - MARKER.len()];
    room.fill(b' ');
    room[..build.len()].copy_from_slice(build.as_bytes());
    let path = scope.path(build).join("kennel");
    std::fs::create_dir(scope.path(build)).unwrap();
    write_program(&path, &program);
    path
}

/// What is no newer build, though its clients would say so.
pub(crate) fn impostor(scope: &Scope, name: &str) -> PathBuf {
    let path = scope.path(name);
    write_program(&path, &std::fs::read(bin("tk-newer")).unwrap());
    path
}

fn write_program(path: &Path, content: &[u8]) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// `kennel run --share always` of this build, before the server for many.
pub(crate) fn shared(scope: &Scope, kennel: &Path) -> Command {
    shared_with(scope, kennel, &[])
}

pub(crate) fn shared_with(scope: &Scope, kennel: &Path, options: &[&str]) -> Command {
    let mut command = scope.command(kennel);
    command
        .args(["run", "--share", "always", "--stop-after", "1s,50ms"])
        .args(["--env-key", "HOME"])
        .args(options)
        .arg("--")
        .arg(bin("tk-shared"))
        .env("TESTKIT_ROLL", scope.roll());
    command
}

pub(crate) fn session(scope: &Scope, kennel: &Path) -> Client {
    Client::begin(&mut shared(scope, kennel))
}

/// A call that takes so long. Returns its id.
pub(crate) fn works(client: &mut Client, tag: &str, ms: u64) -> u64 {
    let work = json!({"name": "work", "arguments": {"ms": ms, "tag": tag}});
    client.send("tools/call", work)
}

/// The text a tool answers with.
#[track_caller]
pub(crate) fn text(answer: &Value) -> String {
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// What the server has been told so far.
#[track_caller]
pub(crate) fn seen(client: &mut Client) -> Value {
    let seen = client.request("tools/call", json!({"name": "seen", "arguments": {}}));
    let seen: Value = serde_json::from_str(&text(&seen)).unwrap();
    assert_eq!(seen["odd"], json!([]), "nothing odd was said to it");
    seen
}

#[track_caller]
pub(crate) fn server_of(client: &mut Client) -> u64 {
    seen(client)["pid"].as_u64().unwrap()
}

/// The only daemon, as `kennel ps` shows it.
#[track_caller]
pub(crate) fn daemon(scope: &Scope) -> Value {
    let ended = run(scope.command(this()).args(["ps", "--json"]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let mut all: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Waits until the daemon is of this version; returns it.
#[track_caller]
pub(crate) fn daemon_when(scope: &Scope, version: &str) -> Value {
    wait_for(&format!("the daemon is {version}"), || {
        let daemon = daemon(scope);
        (daemon["version"] == version).then_some(daemon)
    })
}

pub(crate) fn log(scope: &Scope) -> String {
    let keys = std::fs::read_dir(scope.runtime_dir().join("daemons"));
    let logs = keys.into_iter().flatten().flatten();
    logs.map(|key| std::fs::read_to_string(key.path().join("log")).unwrap_or_default())
        .collect()
}

#[track_caller]
pub(crate) fn logs(scope: &Scope, words: &str) {
    wait_for(&format!("the log says {words:?}"), || {
        log(scope).contains(words).then_some(())
    });
}

/// The environment that a command gives to what it starts.
fn environment(command: &Command) -> Vec<(Text, Text)> {
    let mut env: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => env.insert(name.into(), value.into()),
            None => env.remove(name),
        };
    }
    let text = |word: OsString| Text::from(word.as_bytes());
    env.into_iter()
        .map(|(name, value)| (text(name), text(value)))
        .collect()
}

/// A client that says hello, and that it is of a newer build whose program is this.
#[track_caller]
pub(crate) fn visit(scope: &Scope, program: &Path) -> UnixStream {
    visit_as(scope, "99.9.9", program)
}

/// A client of this build, by hand.
#[track_caller]
pub(crate) fn visit_as(scope: &Scope, build: &str, program: &Path) -> UnixStream {
    visit_like(scope, &shared(scope, &this()), build, program)
}

/// A client by hand, that wants what this `kennel run` wants.
#[track_caller]
pub(crate) fn visit_like(scope: &Scope, run: &Command, build: &str, program: &Path) -> UnixStream {
    let mut connection = UnixStream::connect(socket(scope)).unwrap();
    let hello = hello_like(run, build, program);
    connection.write_all(&hello.line()).unwrap();
    connection.write_all(b"\n").unwrap();
    connection
}

/// The socket of the only daemon.
#[track_caller]
pub(crate) fn socket(scope: &Scope) -> PathBuf {
    let keys = std::fs::read_dir(scope.runtime_dir().join("daemons")).unwrap();
    let files = keys.flat_map(|key| std::fs::read_dir(key.unwrap().path()).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    let sockets = paths.filter(|path| path.extension().is_some_and(|it| it == "sock"));
    let mut sockets: Vec<PathBuf> = sockets.collect();
    assert_eq!(sockets.len(), 1, "one daemon");
    sockets.remove(0)
}

/// The hello of a client that wants what this `kennel run` wants.
pub(crate) fn hello_like(run: &Command, build: &str, program: &Path) -> ClientHello {
    let words: Vec<&OsStr> = run.get_args().collect();
    let behind = |word: &str| words.iter().position(|it| *it == word).map(|at| at + 1);
    let cwd = behind("--cwd").map(|at| PathBuf::from(words[at]));
    let cwd = cwd.unwrap_or_else(|| std::env::current_dir().unwrap());
    let command = &words[behind("--").unwrap()..];
    let session = std::time::Instant::now();
    let env = environment(run);
    ClientHello {
        version: "99.9.9".into(),
        protocol: PROTOCOL,
        pid: std::process::id(),
        identity: ProcessRef::me().unwrap().identity().to_string(),
        app: None,
        session: format!("{session:?}"),
        spec: Spec {
            command: command.iter().map(|it| Text::from(it.as_bytes())).collect(),
            cwd: Text::from(cwd.as_os_str().as_bytes()),
            ladder: (100, 100),
            cache: true,
            in_turn: false,
            hibernate: None,
            replace: true,
            detached: None,
        },
        env: env.into(),
        shares: Shares::default(),
        build: build.into(),
        program: Text::from(program.as_os_str().as_bytes()),
        pipes: false,
        key: Some(KeyFields {
            version: KEY_VERSION,
            names: vec![Text::from(&b"HOME"[..])],
            env_key: Some(vec![Text::from(&b"HOME"[..])]),
            no_cache: false,
        }),
    }
}
