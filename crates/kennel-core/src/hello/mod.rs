//! The protocol between a shim and a daemon: the hellos, and Kennel's own lines among the MCP lines.
//!
//! A client sends one line `!hello {…}` and waits for the daemon's hello. From then on, lines that begin with `!` are
//! Kennel's, and all others are MCP. A first line that is no hello is the first MCP line of a client without hello.
//!
//! A client that supports it is offered two [pipes](Control::Pipes). Both sides switch to them: from then on all lines
//! go through the pipes, and the socket only reports the end of the connection.
//!
//! The beginning of a long MCP line may be sent before it is decided. A line that ends with [`ABORT_BYTE`] is withdrawn.
//!
//! Versions are compatible if new fields are optional: an unknown field or control message is no error.

mod bounded;
mod build;
mod control;
mod ids;
mod text;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use build::{Build, InvalidBuild};
pub use control::{Control, Lost, Solo};
pub use text::{Text, text_of_bytes};

/// The version of this protocol. Both sides send their version; a different version alone is no reason to refuse.
pub const PROTOCOL: u32 = 1;
/// The version of the formula that computes keys. Earlier versions distinguish fewer sessions.
pub const KEY_VERSION: u32 = 3;

/// Maximum bytes of a hello: unknown processes must not use up memory.
pub const MAX_HELLO: usize = 4 << 20;

/// Maximum bytes of a name in a hello: of the session, the app, the build. They are stored and shown to people.
const MAX_NAME: usize = 1024;
/// Maximum bytes of a path in a hello, as in the kernel.
const MAX_PATH: usize = 4096;
/// Maximum number of variables, names of variables, and arguments of a client: the daemon processes each of them while
/// other clients wait.
pub const MAX_VARIABLES: usize = 10_000;

/// The last byte of a line that is withdrawn. No message contains it, so a reader that does not know it finds no
/// message either.
pub const ABORT_BYTE: u8 = 0x18;

/// The first line of a client. It contains the environment: never log it (its `Debug` shows no values).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// The program's version.
    pub version: String,
    /// Its [`PROTOCOL`].
    pub protocol: u32,
    /// The pid of the shim.
    pub pid: u32,
    /// The identity of the shim, in the text format of `kennel_sys::process::Identity`.
    pub identity: String,
    /// The app of the session, if known.
    #[serde(default)]
    pub app: Option<App>,
    /// The random id of the session, which identifies it across connections.
    pub session: String,
    /// The server to run.
    pub spec: Spec,
    /// The environment of the server. Most sessions of a daemon have the same, and share one copy.
    #[serde(deserialize_with = "bounded::shared")]
    pub env: Arc<Vec<(Text, Text)>>,
    /// The sessions that it may share a server with.
    #[serde(default)]
    pub shares: Shares,
    /// Its [`Build`], as text.
    #[serde(default)]
    pub build: String,
    /// The path of that build: an older daemon may exec it.
    #[serde(default = "empty_text")]
    pub program: Text,
    /// Whether it supports [pipes](Control::Pipes).
    #[serde(default)]
    pub pipes: bool,
    /// The other inputs of its key, from which the daemon computes the key again. `None`: a build that did not send it,
    /// which is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyFields>,
}

/// Inputs of the key that are nowhere else in the hello.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyFields {
    /// The version of the formula.
    pub version: u32,
    /// The names of the variables that count. Those of credentials and registries count anyway.
    #[serde(default, deserialize_with = "bounded::list")]
    pub names: Vec<Text>,
    /// The names given with `--env-key`. The former version of the formula had no others.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "bounded::deserialize_optional"
    )]
    pub env_key: Option<Vec<Text>>,
    /// Whether lists are never cached (`--no-cache`).
    #[serde(default)]
    pub no_cache: bool,
}

fn empty_text() -> Text {
    Text::from(&b""[..])
}

/// The sessions that may share a server, by era.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shares {
    /// Sessions that begin with `initialize`.
    pub legacy: bool,
    /// Sessions without a handshake.
    pub modern: bool,
}

impl Default for Shares {
    /// All sessions.
    fn default() -> Shares {
        Shares {
            legacy: true,
            modern: true,
        }
    }
}

/// The app of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct App {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// The server to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Program and arguments.
    #[serde(deserialize_with = "bounded::list")]
    pub command: Vec<Text>,
    /// Its working directory.
    pub cwd: Text,
    /// The delays of the stop ladder in milliseconds: after the end of input, after SIGTERM.
    pub ladder: (u64, u64),
    /// Whether list responses may be cached.
    #[serde(default = "default_true")]
    pub cache: bool,
    /// Whether the server gets one tool call at a time.
    #[serde(default)]
    pub in_turn: bool,
    /// Milliseconds without a request before it hibernates.
    #[serde(default)]
    pub hibernate: Option<u64>,
    /// Whether it is replaced when its files change on disk and no request is pending.
    #[serde(default = "default_true")]
    pub replace: bool,
    /// The detached services that outlive the server: `auto`, `keep` or `end`. `None`: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached: Option<String>,
}

fn default_true() -> bool {
    true
}

/// The first line of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonHello {
    /// The program's version.
    pub version: String,
    /// Its [`PROTOCOL`].
    pub protocol: u32,
    /// The random id of this daemon.
    pub generation: String,
    /// Its [`Build`], as text.
    #[serde(default)]
    pub build: String,
    /// Whether it computes the key of each client itself, from the hello and the kernel's data. Builds with version 1
    /// of the key did not, and accepted every client.
    #[serde(default)]
    pub checks_keys: bool,
    /// The [version](KEY_VERSION) of the keys that it computes. 0: a build before version 3.
    #[serde(default)]
    pub key_version: u32,
}

impl ClientHello {
    /// The line, without its newline.
    pub fn line(&self) -> Vec<u8> {
        to_line("!hello ", self)
    }

    /// Reads a first line. `None`: it is the first MCP line of a client without hello.
    pub fn parse(line: &[u8]) -> Option<Result<ClientHello, BadHello>> {
        let json = line.strip_prefix(b"!hello ")?;
        Some(serde_json::from_slice(json).map_err(BadHello::of))
    }

    /// Checks that a process can be started from it without delaying other clients; `Err`: why not, for people.
    pub fn check(&self) -> Result<(), &'static str> {
        let (names, env_key) = match &self.key {
            Some(key) => (key.names.len(), key.env_key.as_ref().map_or(0, Vec::len)),
            None => (0, 0),
        };
        let command = self.spec.command.len();
        let lists = [self.env.len(), names, env_key, command];
        if lists.iter().any(|length| *length > MAX_VARIABLES) {
            return Err("more than 10,000 variables, variable names or arguments");
        }
        let app = self.app.as_ref().map_or("", |app| &app.name);
        let detached = self.spec.detached.as_deref().unwrap_or_default();
        let short = [
            detached,
            &self.session,
            &self.version,
            &self.build,
            &self.identity,
            app,
        ];
        if short.iter().any(|text| text.len() > MAX_NAME) {
            return Err("a name is longer than 1,024 bytes");
        }
        if [&self.program, &self.spec.cwd]
            .iter()
            .any(|path| path.as_bytes().len() > MAX_PATH)
        {
            return Err("a path is longer than 4,096 bytes");
        }
        let words = self.spec.command.iter().chain([&self.spec.cwd]);
        let variables = self.env.iter().flat_map(|(name, value)| [name, value]);
        match words
            .chain(variables)
            .any(|text| text.as_bytes().contains(&0))
        {
            true => Err("an argument, a variable or the working directory contains a NUL"),
            false => Ok(()),
        }
    }
}

impl std::fmt::Debug for ClientHello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHello")
            .field("version", &self.version)
            .field("pid", &self.pid)
            .field("session", &self.session)
            .field("spec", &self.spec)
            .field("env", &format_args!("{} variables", self.env.len()))
            .finish_non_exhaustive()
    }
}

impl DaemonHello {
    /// The line, without its newline.
    pub fn line(&self) -> Vec<u8> {
        to_line("!hello ", self)
    }

    /// Reads a daemon's first line.
    pub fn parse(line: &[u8]) -> Result<DaemonHello, BadHello> {
        let json = line.strip_prefix(b"!hello ").ok_or(BadHello::Missing)?;
        serde_json::from_slice(json).map_err(BadHello::of)
    }
}

/// The error of a first line that is not a valid hello. It does not quote the line, which may contain secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadHello {
    /// The line is no hello.
    Missing,
    /// The JSON is not valid.
    At {
        /// The position of the error, in bytes behind `!hello `.
        column: usize,
    },
}

impl BadHello {
    fn of(error: serde_json::Error) -> BadHello {
        BadHello::At {
            column: error.column(),
        }
    }
}

impl std::fmt::Display for BadHello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadHello::Missing => f.write_str("not a hello"),
            BadHello::At { column } => write!(f, "invalid hello at byte {column}"),
        }
    }
}

impl std::error::Error for BadHello {}

fn to_line(word: &str, what: &impl Serialize) -> Vec<u8> {
    let mut line = word.as_bytes().to_vec();
    // Strings, numbers and lists of them cannot fail.
    serde_json::to_writer(&mut line, what).expect("plain values can be serialized");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> ClientHello {
        ClientHello {
            version: "0.1.0".into(),
            protocol: PROTOCOL,
            pid: 7,
            identity: "7:8:0f:9".into(),
            app: None,
            session: "cafe".into(),
            spec: Spec {
                command: vec![Text::from(&b"npx"[..]), Text::from(&b"\xff\xfe"[..])],
                cwd: Text::from(&b"/tmp"[..]),
                ladder: (2000, 2000),
                cache: true,
                in_turn: false,
                hibernate: None,
                replace: true,
                detached: None,
            },
            env: vec![(Text::from(&b"TOKEN"[..]), Text::from(&b"s3cret\n"[..]))].into(),
            shares: Shares::default(),
            build: "0.1.0+7".into(),
            program: Text::from(&b"/usr/bin/kennel"[..]),
            pipes: true,
            key: Some(KeyFields {
                version: 2,
                names: vec![Text::from(&b"TOKEN"[..])],
                env_key: Some(Vec::new()),
                no_cache: false,
            }),
        }
    }

    #[test]
    fn a_hello_from_before_keys_were_told_has_none() {
        let mut old = hello();
        old.key = None;
        let line = String::from_utf8(old.line()).unwrap();
        assert!(!line.contains("names"), "{line}");
        assert_eq!(ClientHello::parse(line.as_bytes()), Some(Ok(old)));
    }

    #[test]
    fn a_hello_from_before_builds_were_told_is_understood() {
        let mut old = hello();
        (old.build, old.program) = (String::new(), Text::from(&b""[..]));
        let line = String::from_utf8(old.line()).unwrap();
        let line = line.replacen(r#","build":"","program":"""#, "", 1);
        assert!(!line.contains("build"), "{line}");
        assert_eq!(ClientHello::parse(line.as_bytes()), Some(Ok(old)));
        let daemon = br#"!hello {"version":"0.1.0","protocol":1,"generation":"g"}"#;
        assert_eq!(DaemonHello::parse(daemon).unwrap().build, "");
    }

    #[test]
    fn a_hello_is_one_line_and_reads_back_whatever_bytes_are_in_it() {
        let line = hello().line();
        assert!(!line.contains(&b'\n'));
        assert_eq!(ClientHello::parse(&line), Some(Ok(hello())));
    }

    #[test]
    fn a_hello_with_too_many_variables_or_a_nul_is_not_good() {
        let text = |bytes: &[u8]| Text::from(bytes);
        let bad = |change: fn(&mut ClientHello, &Text, usize), what: &[u8], count| {
            let mut hello = hello();
            change(&mut hello, &text(what), count);
            hello.check().is_err()
        };
        type Change = fn(&mut ClientHello, &Text, usize);
        let lists: [Change; 4] = [
            |hello, it, count| hello.spec.command = vec![it.clone(); count],
            |hello, it, count| hello.env = vec![(it.clone(), it.clone()); count].into(),
            |hello, it, count| hello.key.as_mut().unwrap().names = vec![it.clone(); count],
            |hello, it, count| hello.key.as_mut().unwrap().env_key = Some(vec![it.clone(); count]),
        ];
        for (at, change) in lists.into_iter().enumerate() {
            assert!(!bad(change, b"A", MAX_VARIABLES), "{at}");
            assert!(bad(change, b"A", MAX_VARIABLES + 1), "{at}");
        }
        let texts: [Change; 4] = [
            |hello, it, _| hello.spec.command.push(it.clone()),
            |hello, it, _| hello.spec.cwd = it.clone(),
            |hello, it, _| Arc::make_mut(&mut hello.env)[0].0 = it.clone(),
            |hello, it, _| Arc::make_mut(&mut hello.env)[0].1 = it.clone(),
        ];
        for (at, change) in texts.into_iter().enumerate() {
            assert!(!bad(change, b"A", 1), "{at}");
            assert!(bad(change, b"A\0B", 1), "{at}");
        }
    }

    #[test]
    fn a_long_text_that_nothing_needs_is_not_good() {
        let mut long = hello();
        long.spec.detached = Some("x".repeat(MAX_NAME + 1));
        assert!(long.check().is_err());
    }

    #[test]
    fn a_first_line_that_is_no_hello_is_a_bare_clients() {
        assert_eq!(ClientHello::parse(br#"{"jsonrpc":"2.0"}"#), None);
        assert!(matches!(
            ClientHello::parse(b"!hello {"),
            Some(Err(BadHello::At { .. }))
        ));
    }

    #[test]
    fn a_later_versions_field_is_ignored_and_a_missing_app_is_none() {
        let line = String::from_utf8(hello().line()).unwrap();
        let line = line.replacen('{', r#"{"later":[1,{"x":2}],"#, 1);
        assert_eq!(ClientHello::parse(line.as_bytes()), Some(Ok(hello())));
    }

    #[test]
    fn no_secret_shows_in_what_is_printed_of_a_hello_good_or_bad() {
        assert!(!format!("{:?}", hello()).contains("s3cret"));
        let mut line = hello().line();
        line.truncate(line.len() - 3);
        let error = ClientHello::parse(&line).unwrap().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
}
