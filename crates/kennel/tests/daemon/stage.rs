//! What the tests stand on: a daemon that was started by hand, and connections to it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kennel_core::hello::{
    ClientHello, Control, DaemonHello, KeyFields, Lost, PROTOCOL, Shares, Spec, Text,
};
use kennel_sys::Signal;
use kennel_sys::detach;
use kennel_sys::lock::{Lock, Mode};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::{DEADLINE, Scope, bin, wait_for};
use serde_json::{Value, json};

/// The version of keys that this build has.
const KEY_VERSION: u32 = 3;

pub(crate) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#;

/// How a daemon is to be started.
pub(crate) struct Cast {
    pub(crate) linger: Duration,
    pub(crate) max_idle: Duration,
    pub(crate) owner: Option<Identity>,
    /// What `ulimit` is told before it is started.
    pub(crate) ulimit: Option<&'static str>,
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// The command that becomes the daemon.
    pub(crate) before: &'static [&'static str],
}

impl Default for Cast {
    fn default() -> Cast {
        Cast {
            linger: Duration::from_secs(600),
            max_idle: Duration::from_secs(600),
            owner: None,
            ulimit: None,
            env: Vec::new(),
            before: &[],
        }
    }
}

pub(crate) struct Daemon {
    pub(crate) scope: Scope,
    pub(crate) process: ProcessRef,
    pub(crate) generation: String,
    key: String,
    /// What its clients say.
    hello: ClientHello,
}

impl Daemon {
    pub(crate) fn start(label: &str) -> Daemon {
        Daemon::cast(label, Cast::default())
    }

    pub(crate) fn cast(label: &str, cast: Cast) -> Daemon {
        Daemon::with_first(label, cast).0
    }

    /// A daemon for sessions of this command.
    pub(crate) fn of(label: &str, command: &[&[u8]]) -> Daemon {
        Daemon::for_hello(label, Cast::default(), |scope| hello(scope, command)).0
    }

    /// A daemon whose usual clients have the usual server, and whose [odd ones](Self::odd) one that runs this script.
    pub(crate) fn of_two(label: &str, script: &str) -> Daemon {
        let program = bin("tk-server");
        let script = format!(r#"if [ "$TESTKIT_ODD" ]; then {script}; else exec "$0"; fi"#);
        let program = program.as_os_str().as_bytes();
        Daemon::of(label, &[b"sh", b"-c", script.as_bytes(), program])
    }

    /// A client of the other kind.
    pub(crate) fn odd(&self) -> Connection {
        let text = |bytes: &[u8]| Text::from(bytes);
        let mut hello = self.hello();
        Arc::make_mut(&mut hello.env).push((text(b"TESTKIT_ODD"), text(b"1")));
        let mut connection = self.connect();
        connection.greet(&hello);
        connection
    }

    /// A daemon that serves clients without a hello: no credential is in its clients' environment.
    pub(crate) fn for_bare(label: &str) -> Daemon {
        let hello = |scope: &Scope| {
            let mut hello = usual_hello(scope);
            Arc::make_mut(&mut hello.env).retain(|(name, _)| !name.as_bytes().ends_with(b"TOKEN"));
            hello
        };
        Daemon::for_hello(label, Cast::default(), hello).0
    }

    /// The daemon, and the connection of the one who started it.
    pub(crate) fn with_first(label: &str, cast: Cast) -> (Daemon, Connection) {
        Daemon::for_hello(label, cast, usual_hello)
    }

    /// A daemon with the key of whoever says this hello, and the connection of the one who started it.
    pub(crate) fn for_hello(
        label: &str,
        cast: Cast,
        hello: impl FnOnce(&Scope) -> ClientHello,
    ) -> (Daemon, Connection) {
        Daemon::at_key(label, cast, hello, key_of)
    }

    /// The same, with a key that is computed like this.
    pub(crate) fn at_key(
        label: &str,
        cast: Cast,
        hello: impl FnOnce(&Scope) -> ClientHello,
        key_of: fn(&ClientHello) -> String,
    ) -> (Daemon, Connection) {
        let scope = Scope::new(label);
        let hello = hello(&scope);
        let key = key_of(&hello);
        let (report, first) = spawn_at(&scope, &cast, &key);
        let generation = report
            .strip_prefix("ready ")
            .unwrap_or_else(|| panic!("not ready: {report}"))
            .trim_end()
            .to_owned();
        let record: Value = read_json(&key_dir(&scope, &key).join("daemon.json"));
        let identity: Identity = record["identity"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .expect("an identity");
        let process = ProcessRef::find(&identity)
            .ok()
            .flatten()
            .expect("it lives");
        let daemon = Daemon {
            scope,
            process,
            generation,
            key,
            hello,
        };
        (daemon, Connection::of(first))
    }

    pub(crate) fn dir(&self) -> PathBuf {
        key_dir(&self.scope, &self.key)
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        self.dir().join(format!("{}.sock", self.generation))
    }

    /// A connection that has said nothing yet.
    pub(crate) fn connect(&self) -> Connection {
        Connection::of(UnixStream::connect(self.socket_path()).expect("it accepts"))
    }

    /// A client that has said hello. What it asks without a handshake goes to a server of its own.
    pub(crate) fn client(&self) -> Connection {
        let mut connection = self.connect();
        connection.greet(&self.hello());
        connection
    }

    /// The hello of another session.
    pub(crate) fn hello(&self) -> ClientHello {
        ClientHello {
            session: new_session(),
            ..self.hello.clone()
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn logs(&self, words: &str) {
        wait_for(&format!("the log says {words:?}"), || {
            self.log().contains(words).then_some(())
        });
    }

    /// What it says of itself once `is` holds.
    #[track_caller]
    pub(crate) fn state_when(&self, label: &str, is: impl Fn(&Value) -> bool) -> Value {
        wait_for(label, || {
            let text = std::fs::read(self.dir().join("state.json")).ok()?;
            let state: Value = serde_json::from_slice(&text).expect("whole, or not there");
            is(&state).then_some(state)
        })
    }

    #[track_caller]
    pub(crate) fn is_gone(&self) {
        assert!(
            self.process.wait(Some(DEADLINE)).expect("an exit"),
            "{}",
            self.log()
        );
    }

    /// Ends it, and shows that nothing is left.
    #[track_caller]
    pub(crate) fn stop(self) {
        self.process.signal(Signal::TERM).expect("a signal");
        self.is_gone();
        self.scope
            .nothing_left_within("after SIGTERM", Duration::from_secs(5));
    }
}

/// The key of whoever says this hello and is confined as this process is, as the program itself computes it.
pub(crate) fn key_of(hello: &ClientHello) -> String {
    keys_behind(&[], hello).swap_remove(0)
}

/// The same, of version 2.
pub(crate) fn key_of_version_2(hello: &ClientHello) -> String {
    keys_behind(&[], hello).swap_remove(1)
}

/// The same, of version 1.
pub(crate) fn key_of_version_1(hello: &ClientHello) -> String {
    keys_behind(&[], hello).swap_remove(2)
}

/// The keys of whoever is confined as what these commands become, the newest version first.
pub(crate) fn keys_behind(before: &[&str], hello: &ClientHello) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_kennel");
    let words: Vec<&str> = before.iter().copied().chain([program]).collect();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .args(["daemon", "--keys"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("kennel");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(&hello.line()).expect("it listens");
    drop(stdin);
    let output = child.wait_with_output().expect("an end");
    let text = String::from_utf8(output.stdout).expect("text");
    text.split_whitespace().map(str::to_owned).collect()
}

/// Plays the election's part for the usual sessions; returns the daemon's report and the first connection.
pub(crate) fn spawn(scope: &Scope, cast: &Cast) -> (String, UnixStream) {
    spawn_at(scope, cast, &key_of(&usual_hello(scope)))
}

fn spawn_at(scope: &Scope, cast: &Cast, key: &str) -> (String, UnixStream) {
    let dir = RuntimeDir::ensure(scope.runtime_dir()).expect("a runtime dir");
    let dir = dir
        .subdir("daemons")
        .and_then(|dir| dir.subdir(key))
        .expect("the key's place");
    let lock = Lock::acquire(&dir, "spawn.lock", Mode::Exclusive).expect("spawn.lock");
    let lock = lock.into_handed_over().expect("a lock to hand over");
    let (report, ready) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let (ours, first) = UnixStream::pair().expect("a pair");
    let owner = cast.owner.map_or("-".to_owned(), |owner| owner.to_string());
    let orders = format!(
        "key={key},spawn={},ready={},first={},linger={},grace=100,max-idle={},owner={owner}",
        lock.as_raw_fd(),
        ready.as_raw_fd(),
        first.as_raw_fd(),
        cast.linger.as_millis(),
        cast.max_idle.as_millis(),
    );
    let program = env!("CARGO_BIN_EXE_kennel");
    let mut command = match cast.ulimit {
        None => {
            let words: Vec<&str> = cast.before.iter().copied().chain([program]).collect();
            let mut command = scope.command(words[0]);
            command.args(&words[1..]);
            command
        }
        Some(limit) => {
            let mut shell = scope.command("sh");
            let script = format!("ulimit {limit}; exec \"$@\"");
            shell.args(["-c", &script, "sh", program]);
            shell
        }
    };
    command
        .args(["daemon", &orders])
        .envs(cast.env.iter().copied());
    silent(&mut command);
    detach::spawn(command, &[&lock, &ready, &first]).expect("a daemon");
    drop((ready, first));
    let mut line = String::new();
    BufReader::new(File::from(report))
        .read_line(&mut line)
        .expect("a report");
    (line, ours)
}

fn silent(command: &mut Command) {
    use std::process::Stdio;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
}

fn key_dir(scope: &Scope, key: &str) -> PathBuf {
    scope.runtime_dir().join("daemons").join(key)
}

pub(crate) fn read_json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("JSON")
}

fn new_session() -> String {
    let nonce = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    format!("{nonce:016x}")
}

/// The hello of most tests.
fn usual_hello(scope: &Scope) -> ClientHello {
    hello(scope, &[bin("tk-server").as_os_str().as_bytes()])
}

/// The hello of this process, for a server of this scope. Of the environment only credentials count.
pub(crate) fn hello(scope: &Scope, command: &[&[u8]]) -> ClientHello {
    let text = |bytes: &[u8]| Text::from(bytes);
    let marked = scope.command("any");
    let mut env: Vec<(Text, Text)> = marked
        .get_envs()
        .filter_map(|(name, value)| Some((text(name.as_bytes()), text(value?.as_bytes()))))
        .collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    env.push((text(b"PATH"), text(path.as_bytes())));
    env.push((
        text(b"TESTKIT_ROLL"),
        text(scope.roll().as_os_str().as_bytes()),
    ));
    let me = ProcessRef::me().expect("we are here");
    ClientHello {
        version: "0.1.0".into(),
        protocol: PROTOCOL,
        pid: me.pid(),
        identity: me.identity().to_string(),
        app: None,
        session: new_session(),
        spec: Spec {
            command: command.iter().copied().map(text).collect(),
            cwd: text(b"/"),
            ladder: (200, 200),
            cache: true,
            in_turn: false,
            hibernate: None,
            replace: true,
            detached: None,
        },
        env: Arc::new(env),
        shares: Shares::default(),
        build: String::new(),
        program: Text::from(&b""[..]),
        pipes: false,
        key: Some(KeyFields {
            version: KEY_VERSION,
            names: Vec::new(),
            env_key: Some(Vec::new()),
            no_cache: false,
        }),
    }
}

/// One connection, read line by line, every read with a deadline (lesson 42).
pub(crate) struct Connection {
    pub(crate) reader: BufReader<UnixStream>,
}

impl Connection {
    pub(crate) fn of(stream: UnixStream) -> Connection {
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        Connection {
            reader: BufReader::new(stream),
        }
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        self.reader.get_ref()
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        self.stream().write_all(bytes).expect("it listens");
    }

    pub(crate) fn say(&self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    /// Says hello, and hears the daemon's.
    #[track_caller]
    pub(crate) fn greet(&mut self, hello: &ClientHello) -> DaemonHello {
        self.write(&[&hello.line()[..], b"\n"].concat());
        self.daemon_hello()
    }

    #[track_caller]
    pub(crate) fn daemon_hello(&mut self) -> DaemonHello {
        let line = self.line().expect("a hello");
        DaemonHello::parse(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The next line; `None` at the end.
    #[track_caller]
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end_matches('\n').to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no line: {error}"),
        }
    }

    /// The next line that is not the server's stderr.
    #[track_caller]
    pub(crate) fn said(&mut self) -> Option<String> {
        loop {
            let line = self.line()?;
            if !line.starts_with("!stderr ") {
                return Some(line);
            }
        }
    }

    #[track_caller]
    pub(crate) fn word(&mut self) -> Control {
        let line = self.said().expect("a word");
        Control::parse_from_daemon(line.as_bytes())
            .unwrap_or_else(|| panic!("no word of Kennel's: {line}"))
    }

    /// Begins again, with the next server.
    pub(crate) fn begin_again(&self) {
        self.say("!again");
        self.say(INITIALIZE);
    }

    #[track_caller]
    pub(crate) fn lost(&mut self) -> Lost {
        match self.word() {
            Control::Lost(lost) => lost,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        // Params are a list or an object.
        if !params.is_object() && !params.is_array() {
            return self.ask(method, json!([params]))[0].clone();
        }
        let id = format!("{method}!");
        self.say(
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string(),
        );
        loop {
            let line = self.said().expect("an answer");
            let answer: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            if answer["id"] == id.as_str() {
                return answer["result"].clone();
            }
        }
    }

    /// Its server.
    #[track_caller]
    pub(crate) fn server(&mut self) -> ProcessRef {
        let pid = self.ask("pid", json!({})).as_u64().expect("a pid");
        ProcessRef::open(pid as u32).expect("it lives")
    }

    /// Reads to the end.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).expect("an end");
        rest
    }

    #[track_caller]
    pub(crate) fn is_closed(&mut self) {
        while let Some(line) = self.line() {
            assert!(line.starts_with('!'), "{line}");
        }
    }
}
