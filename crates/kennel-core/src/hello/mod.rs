//! The wire between a shim and a daemon: the first words, and Kennel's own lines among the MCP ones.
//!
//! A client speaks first: one line `!hello {…}`, and waits for the daemon's. From then on a line that
//! starts with `!` is Kennel's, and every other line is MCP. A first line that is no hello is the first
//! MCP line of a bare client.
//!
//! A client that talks, and knows what to do with them, is handed two [pipes](Control::Pipes), and both sides turn to them:
//! from then on all lines go there, and the socket only tells of the end.
//!
//! A long MCP line may be begun before it is known whether it is to be said at all. One that ends with [`VOID`] is not.
//!
//! What crosses versions is a field that can be left out or ignored: an unknown field, and an unknown
//! word behind the `!`, is no error.

mod bounded;
mod build;
mod ids;
mod text;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::message::Key;
use crate::session::Ending;

pub use build::{Build, NoBuild};
pub use text::{Text, text_of_bytes};

/// The version of this wire. Both sides say theirs; neither is refused for it alone.
pub const PROTOCOL: u32 = 1;
/// The version of the formula by which keys are made. An earlier one tells fewer sessions apart.
pub const KEY_VERSION: u32 = 3;

/// A hello longer than this is none: nobody fills our memory before we know who it is.
pub const LONGEST_HELLO: usize = 4 << 20;

/// Maximum bytes of a name in a hello: of the session, the app, the build. Each is kept, and shown to people.
const LONGEST_NAME: usize = 1024;
/// Maximum bytes of a path in a hello: the kernel takes no longer ones.
const LONGEST_PATH: usize = 4096;
/// A client with more variables, names of variables that count, or words of a command is not served: what a daemon does for one
/// of them, it does for each, while the others wait.
pub const MOST_VARIABLES: usize = 10_000;

/// The last byte of a line that is not said after all. No message holds it, so whoever does not know of it finds no
/// message there either.
pub const VOID: u8 = 0x18;

/// What a client says first. It holds its environment: never log it (its `Debug` shows no values).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// The program's version.
    pub version: String,
    /// Its [`PROTOCOL`].
    pub protocol: u32,
    /// The shim's pid, for people and for where the kernel cannot tell.
    pub pid: u32,
    /// The shim's identity, in the text of `kennel_sys::process::Identity`.
    pub identity: String,
    /// The app behind it, if it is known.
    #[serde(default)]
    pub app: Option<App>,
    /// Random, and the same for the whole life of the session: a client is known by it.
    pub session: String,
    /// What to run.
    pub spec: Spec,
    /// The environment to run it in. Sessions of one daemon mostly have the same, and then one copy of it.
    #[serde(deserialize_with = "bounded::shared")]
    pub env: Arc<Vec<(Text, Text)>>,
    /// With whom it may share its server.
    #[serde(default)]
    pub shares: Shares,
    /// Which build it is: the text of a [`Build`].
    #[serde(default)]
    pub build: String,
    /// Where that build is: an older daemon may become it.
    #[serde(default = "nowhere")]
    pub program: Text,
    /// Whether it knows what to do with [pipes](Control::Pipes).
    #[serde(default)]
    pub pipes: bool,
    /// What its key was made of, beside what to run and the environment: the daemon computes the key again. `None` from a
    /// build that did not say it; such a client is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyFields>,
}

/// What a key is made of that stands nowhere else in a hello.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyFields {
    /// The version of the formula.
    pub version: u32,
    /// The names of the variables that count; those of credentials and registries count anyway.
    #[serde(default, deserialize_with = "bounded::list")]
    pub names: Vec<Text>,
    /// The names that somebody named (`--env-key`): the former version of the formula knew no others.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "bounded::maybe"
    )]
    pub env_key: Option<Vec<Text>>,
    /// Whether lists are asked for anew each time (`--no-cache`).
    #[serde(default)]
    pub no_cache: bool,
}

fn nowhere() -> Text {
    Text::from(&b""[..])
}

/// Which sessions may share a server: those of an era, as far as anybody knows what it keeps per session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shares {
    /// Those that begin with a handshake.
    pub legacy: bool,
    /// Those whose every request says all.
    pub modern: bool,
}

impl Default for Shares {
    /// Whoever comes to a daemon comes to share.
    fn default() -> Shares {
        Shares {
            legacy: true,
            modern: true,
        }
    }
}

/// The app behind a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct App {
    /// Its pid.
    pub pid: u32,
    /// What it calls itself.
    pub name: String,
}

/// What to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Program and arguments.
    #[serde(deserialize_with = "bounded::list")]
    pub command: Vec<Text>,
    /// Where.
    pub cwd: Text,
    /// The rungs of the stop ladder, in milliseconds: after EOF, after SIGTERM.
    pub ladder: (u64, u64),
    /// Whether lists may be answered from memory.
    #[serde(default = "yes")]
    pub cache: bool,
    /// Whether calls of tools take turns.
    #[serde(default)]
    pub in_turn: bool,
    /// How long it may be of no use before it is stopped until it is, in milliseconds.
    #[serde(default)]
    pub hibernate: Option<u64>,
    /// Whether a server whose files changed on disk is replaced when nobody waits for it.
    #[serde(default = "yes")]
    pub replace: bool,
    /// Which detached services outlive the server: `auto`, `keep` or `end`; `auto` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached: Option<String>,
}

fn yes() -> bool {
    true
}

/// What a daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonHello {
    /// The program's version.
    pub version: String,
    /// Its [`PROTOCOL`].
    pub protocol: u32,
    /// Which daemon of this key it is; random.
    pub generation: String,
    /// Which build it is: the text of a [`Build`].
    #[serde(default)]
    pub build: String,
    /// Whether it computes the key of each client itself, from the hello and what the kernel says of the client. Builds with
    /// the key of version 1 did not: they served everybody who came.
    #[serde(default)]
    pub checks_keys: bool,
    /// The [version](KEY_VERSION) of the keys that it computes; 0 of builds before version 3.
    #[serde(default)]
    pub key_version: u32,
}

/// A line of Kennel's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// The server behind this client is gone; the session begins again on this connection.
    Lost(Lost),
    /// This daemon ends, and took you for nobody: elect anew.
    Going,
    /// This daemon's place is gone: elect anew.
    Moved,
    /// A person stopped the server: start again only when it is needed.
    Stopped,

    /// The server hibernates, and heard nothing that was not answered; it starts again at the next request.
    Resting,
    /// Heard that the server was lost: what follows is for the next one.
    Again,
    /// This session cannot share a server: it is to have one of its own.
    Solo(Solo),
    /// A line of the server's stderr.
    Stderr(String),
    /// Of a daemon, with two descriptors, the first time: here are two pipes, to listen to and to speak into. After that,
    /// of both sides: the last word on the socket, what follows is in the pipe.
    Pipes,
    /// A word of a later version.
    Unknown,
}

/// Why a session is on its own from now on, and what was not heard of it here.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Solo {
    /// For people.
    pub why: String,
    /// As in [`Lost::unsent`].
    #[serde(default, with = "ids", skip_serializing_if = "Vec::is_empty")]
    pub unsent: Vec<Key>,
    /// As in [`Lost::heard`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<u64>,
}

/// How a server was lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// One word, as in `session::SERVER_RESTARTED`.
    pub reason: String,
    /// The server's last words on stderr.
    #[serde(default)]
    pub detail: String,
    /// Whether another server will be started: if not, later requests are refused until one asks again.
    #[serde(default)]
    pub final_word: bool,
    /// If it could not be started at all: the exit code a shell has for that.
    #[serde(default)]
    pub exit: Option<u8>,
    /// The ids of this client's requests that the server is known never to have heard.
    #[serde(default, with = "ids", skip_serializing_if = "Vec::is_empty")]
    pub unsent: Vec<Key>,
    /// How many bytes of MCP lines were taken from this client since its hello, or since it last began
    /// again: what it said beyond that went nowhere. `None`: nobody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<u64>,
    /// It is the daemon that lacks what a start takes, such as descriptors: whoever starts the server itself may well
    /// get one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shortage: bool,
    /// How the server's first process ended, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ending>,
    /// With `final_word`: in how many milliseconds a request may have a server started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
}

impl ClientHello {
    /// The line, without its newline.
    pub fn line(&self) -> Vec<u8> {
        spoken("!hello ", self)
    }

    /// Reads a first line. `None`: it is not Kennel's, but a bare client's first MCP line.
    pub fn parse(line: &[u8]) -> Option<Result<ClientHello, BadHello>> {
        let json = line.strip_prefix(b"!hello ")?;
        Some(serde_json::from_slice(json).map_err(BadHello::of))
    }

    /// Whether a process can be started with what it says, and in a time that the other clients can wait; why not, for people.
    pub fn check(&self) -> Result<(), &'static str> {
        let (names, env_key) = match &self.key {
            Some(key) => (key.names.len(), key.env_key.as_ref().map_or(0, Vec::len)),
            None => (0, 0),
        };
        let command = self.spec.command.len();
        let lists = [self.env.len(), names, env_key, command];
        if lists.iter().any(|length| *length > MOST_VARIABLES) {
            return Err(
                "it has more than 10,000 variables, names of variables that count, or words of a command",
            );
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
        if short.iter().any(|text| text.len() > LONGEST_NAME) {
            return Err("a name in it is longer than 1,024 bytes");
        }
        if [&self.program, &self.spec.cwd]
            .iter()
            .any(|path| path.as_bytes().len() > LONGEST_PATH)
        {
            return Err("a path in it is longer than 4,096 bytes");
        }
        let words = self.spec.command.iter().chain([&self.spec.cwd]);
        let variables = self.env.iter().flat_map(|(name, value)| [name, value]);
        match words
            .chain(variables)
            .any(|text| text.as_bytes().contains(&0))
        {
            true => Err("a word of its command, its directory or a variable holds a NUL"),
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
        spoken("!hello ", self)
    }

    /// Reads a daemon's first line.
    pub fn parse(line: &[u8]) -> Result<DaemonHello, BadHello> {
        let json = line.strip_prefix(b"!hello ").ok_or(BadHello::Missing)?;
        serde_json::from_slice(json).map_err(BadHello::of)
    }
}

impl Control {
    /// The line, without its newline.
    pub fn line(&self) -> Vec<u8> {
        match self {
            Control::Ping => b"!ping".to_vec(),
            Control::Pong => b"!pong".to_vec(),
            Control::Going => b"!going".to_vec(),
            Control::Moved => b"!moved".to_vec(),
            Control::Stopped => b"!stopped".to_vec(),
            Control::Resting => b"!resting".to_vec(),
            Control::Again => b"!again".to_vec(),
            Control::Solo(why) => spoken("!solo ", why),
            Control::Lost(lost) => spoken("!lost ", lost),
            Control::Stderr(text) => spoken("!stderr ", text),
            Control::Pipes => b"!pipes".to_vec(),
            Control::Unknown => b"!".to_vec(),
        }
    }

    /// Reads a line of Kennel's own; `None` if it is MCP.
    pub fn parse(line: &[u8]) -> Option<Control> {
        let words = line.strip_prefix(b"!")?;
        let (word, rest) = match words.iter().position(|&byte| byte == b' ') {
            Some(space) => (&words[..space], &words[space + 1..]),
            None => (words, &[][..]),
        };
        Some(match word {
            b"ping" => Control::Ping,
            b"pong" => Control::Pong,
            b"going" => Control::Going,
            b"moved" => Control::Moved,
            b"stopped" => Control::Stopped,
            b"resting" => Control::Resting,
            b"again" => Control::Again,
            b"pipes" => Control::Pipes,
            b"solo" => serde_json::from_slice(rest).map_or(Control::Unknown, Control::Solo),
            b"lost" => serde_json::from_slice(rest).map_or(Control::Unknown, Control::Lost),
            b"stderr" => serde_json::from_slice(rest).map_or(Control::Unknown, Control::Stderr),
            _ => Control::Unknown,
        })
    }
}

/// A first line that begins like a hello and is none. It says nothing of the line's content: that may
/// hold secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadHello {
    /// There is no hello at all.
    Missing,
    /// It cannot be read from here on.
    At {
        /// The column, counted in bytes behind `!hello `.
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
            BadHello::Missing => f.write_str("no hello"),
            BadHello::At { column } => write!(f, "a hello that cannot be read at byte {column}"),
        }
    }
}

impl std::error::Error for BadHello {}

fn spoken(word: &str, what: &impl Serialize) -> Vec<u8> {
    let mut line = word.as_bytes().to_vec();
    // Strings, numbers and lists of them: there is nothing in it that could fail.
    serde_json::to_writer(&mut line, what).expect("plain values have a text");
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
            assert!(!bad(change, b"A", MOST_VARIABLES), "{at}");
            assert!(bad(change, b"A", MOST_VARIABLES + 1), "{at}");
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
        long.spec.detached = Some("x".repeat(LONGEST_NAME + 1));
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

    #[test]
    fn every_word_of_kennels_reads_back_and_an_unknown_one_is_no_error() {
        let lost = Lost {
            reason: "server_restarted".into(),
            detail: "line\nline".into(),
            final_word: false,
            exit: None,
            unsent: vec![Key::Number(-7), Key::Text("a \"b\"".into())],
            heard: Some(0),
            shortage: true,
            ended: Some(Ending::Signal(9)),
            retry_after: Some(1600),
        };
        for control in [
            Control::Ping,
            Control::Pong,
            Control::Going,
            Control::Moved,
            Control::Stopped,
            Control::Resting,
            Control::Pipes,
            Control::Again,
            Control::Solo(Solo {
                why: "its roots are its own".into(),
                unsent: vec![Key::Number(7), Key::Text("a\nb".into())],
                heard: Some(12),
            }),
            Control::Lost(lost),
            Control::Stderr("oh no\t\u{1F600}".into()),
        ] {
            assert_eq!(Control::parse(&control.line()), Some(control));
        }
        for later in ["!", "!dance {}", "!lost", "!stderr {", "!pingpong"] {
            assert_eq!(
                Control::parse(later.as_bytes()),
                Some(Control::Unknown),
                "{later}"
            );
        }
        assert_eq!(Control::parse(b"{}"), None);
    }

    #[test]
    fn a_loss_is_understood_whatever_an_older_or_later_version_says_of_what_was_not_sent() {
        let unsent = |more: &str| {
            let line = format!(r#"!lost {{"reason":"r"{more}}}"#);
            match Control::parse(line.as_bytes()) {
                Some(Control::Lost(lost)) => lost.unsent,
                other => panic!("{line} is {other:?}"),
            }
        };
        assert_eq!(unsent(""), []);
        let known = [Key::Number(1), Key::Text("1".into())];
        assert_eq!(unsent(r#","unsent":[1,"1",1.5,null,{"id":2}]"#), known);
        for later in ["null", "7", r#"{"all":true}"#] {
            assert_eq!(unsent(&format!(r#","unsent":{later}"#)), [], "{later}");
        }
    }
}
