//! The class of a session: only sessions of the same class may share a server.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::message::{Malformed, Message, Part, Request};

/// Member of `_meta` with the protocol version (modern).
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Member of `_meta` with the client's capabilities (modern).
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Member of `_meta` with the client's name (modern).
const CLIENT: &str = "io.modelcontextprotocol/clientInfo";

/// The generation of the protocol that a client uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Era {
    /// With a handshake (`initialize`): protocol 2025-11-25 and earlier.
    Legacy,
    /// Without a handshake; every request is complete: protocol 2026-07-28 and later.
    Modern,
}

/// The properties that sessions must have in common to share a server: a server offers tools by client capabilities
/// and negotiates one version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Class {
    kind: ClassKind,
    version: String,
    /// Canonical JSON: equal text for equal capabilities.
    capabilities: String,
    /// The names of the capabilities, for display.
    names: Vec<String>,
    /// The other members of `initialize`, canonical. They may contain credentials: all sessions of a server act with
    /// those of the first.
    #[serde(default)]
    told: Secret,
}

/// Members of `initialize` that are compared separately.
const COMPARED: [&str; 3] = ["protocolVersion", "capabilities", "clientInfo"];
const DISPLAY_ONLY: [&str; 6] = [
    "name",
    "title",
    "version",
    "websiteUrl",
    "icons",
    "description",
];

/// Text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
enum ClassKind {
    Legacy,
    Modern,
    Private,
}

impl Class {
    /// The class of all sessions of the modern era.
    pub fn modern() -> Class {
        Class::without_version(ClassKind::Modern)
    }

    /// The class of a session whose first message is unknown. No other session joins its server, and messages of both
    /// eras pass.
    pub fn private() -> Class {
        Class::without_version(ClassKind::Private)
    }

    /// Maximum bytes of the parameters of an `initialize` that may share a server. They are sorted and stored while other
    /// sessions wait; usual ones have a few hundred bytes.
    const MAX_INITIALIZE: usize = 64 * 1024;

    /// The class of this `initialize`. `None`: no version, a duplicate member, or longer than [`Class::MAX_INITIALIZE`].
    fn legacy(params: Part<'_>) -> Option<Class> {
        if params.bytes().len() > Class::MAX_INITIALIZE {
            return None;
        }
        // Readers disagree about duplicate members.
        let member = |name| params.member(name).ok();
        let version = member("protocolVersion")??.string()?.into_owned();
        let capabilities = member("capabilities")?;
        let client = member("clientInfo")?;
        let told = [
            params.canonical_without(&COMPARED),
            client.map_or_else(String::new, |it| it.canonical_without(&DISPLAY_ONLY)),
        ];
        Some(Class {
            kind: ClassKind::Legacy,
            version,
            capabilities: capabilities
                .map_or_else(|| "{}".to_owned(), |it| it.canonical().into_owned()),
            names: capabilities.map_or_else(Vec::new, |it| it.keys()),
            told: Secret(told.join("\n")),
        })
    }

    fn without_version(kind: ClassKind) -> Class {
        Class {
            kind,
            version: String::new(),
            capabilities: String::new(),
            names: Vec::new(),
            told: Secret::default(),
        }
    }

    /// The era of its sessions. A private class may use both, and is `Legacy` here.
    pub fn era(&self) -> Era {
        match self.kind {
            ClassKind::Modern => Era::Modern,
            ClassKind::Legacy | ClassKind::Private => Era::Legacy,
        }
    }

    /// The requested protocol version; empty if it is missing.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether a second session may ever join.
    pub fn is_shared(&self) -> bool {
        self.kind != ClassKind::Private
    }

    /// Whether its clients declared this capability; always true for a private class.
    pub(super) fn has(&self, capability: &str) -> bool {
        !self.is_shared() || self.names.iter().any(|name| name == capability)
    }

    /// Whether the protocol version has batches.
    pub(super) fn has_batches(&self) -> bool {
        !self.is_shared() || self.version == "2025-03-26"
    }
}

/// The class as a column of a listing: `2025-06-18 {roots,sampling}`, `modern`.
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Replaces control characters: a client's name is not trusted on a terminal.
        fn plain(text: &str) -> String {
            const MAX_CHARS: usize = 32;
            let plain = |c: char| match c.is_control() || c.is_whitespace() {
                true => '?',
                false => c,
            };
            text.chars().take(MAX_CHARS).map(plain).collect()
        }
        match self.kind {
            ClassKind::Modern => write!(f, "modern"),
            ClassKind::Private => write!(f, "private"),
            ClassKind::Legacy => {
                let names: Vec<_> = self.names.iter().map(|name| plain(name)).collect();
                write!(f, "{} {{{}}}", plain(&self.version), names.join(","))
            }
        }
    }
}

/// The meaning of a client's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Opening {
    /// `initialize`, with its class.
    Legacy(Class),
    /// A request of the modern era.
    Modern(Class),
    /// `server/discover`: the session is modern if the server knows it. Never sent to a legacy server: some exit on
    /// it.
    Probe,
    /// A ping: answer it and wait for the next line.
    Ping,
    /// Any other message.
    Unclear,
}

/// Classifies the first message of a client.
pub fn opening(message: &Message<'_>) -> Opening {
    let Message::Request(request) = message else {
        return Opening::Unclear;
    };
    match &*request.method.name() {
        "ping" => Opening::Ping,
        "server/discover" => Opening::Probe,
        "initialize" => match request.params.and_then(Class::legacy) {
            Some(class) => Opening::Legacy(class),
            None => Opening::Unclear,
        },
        _ => match Envelope::of(request) {
            Ok(Envelope::Whole) => Opening::Modern(Class::modern()),
            Ok(Envelope::None | Envelope::Broken) | Err(_) => Opening::Unclear,
        },
    }
}

/// Maximum characters of a client's name.
const MAX_NAME: usize = 64;

/// The name of a client from its first message (`clientInfo.name`), in either era.
pub fn client_name(message: &Message<'_>) -> Option<String> {
    let Message::Request(request) = message else {
        return None;
    };
    let params = request.params?;
    let of = |path: &[&str]| params.at(path).ok().flatten()?.string();
    let name = of(&["clientInfo", "name"]).or_else(|| of(&["_meta", CLIENT, "name"]))?;
    let name: String = name.chars().take(MAX_NAME).collect();
    (!name.trim().is_empty()).then_some(name)
}

/// The members of `_meta` that every modern request must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Envelope {
    /// The request has no protocol version, so it is legacy.
    None,
    /// Incomplete.
    Broken,
    /// Complete.
    Whole,
}

impl Envelope {
    /// The members of `_meta` that requests of the modern era have or may have.
    pub(super) const MEMBERS: [&str; 3] = [VERSION, CAPABILITIES, CLIENT];

    pub(super) fn of(request: &Request<'_>) -> Result<Envelope, Malformed> {
        let Some(params) = request.params else {
            return Ok(Envelope::None);
        };
        let Some(version) = params.search_at(&["_meta", VERSION])? else {
            return Ok(Envelope::None);
        };
        let capabilities = params.at(&["_meta", CAPABILITIES])?;
        let whole = version.text().starts_with('"')
            && capabilities.is_some_and(|it| it.text().starts_with('{'));
        Ok(if whole {
            Envelope::Whole
        } else {
            Envelope::Broken
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(line: &str) -> Opening {
        opening(&Message::parse(line.as_bytes()).expect("well-formed"))
    }

    fn class(version: &str, capabilities: &str) -> Class {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{capabilities}}}}}"#
        );
        match opens(&line) {
            Opening::Legacy(class) => class,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_initialize_that_says_very_much_shares_with_nobody() {
        for (bytes, shares) in [(60_000, true), (70_000, false)] {
            let text = "x".repeat(bytes);
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{"x":"{text}"}}}}}}"#
            );
            let opened = opening(&Message::parse(line.as_bytes()).unwrap());
            assert_eq!(matches!(opened, Opening::Legacy(_)), shares, "{bytes}");
        }
    }

    #[test]
    fn a_client_is_called_what_its_first_message_says() {
        let name = |line: &str| client_name(&Message::parse(line.as_bytes()).expect("well-formed"));
        for (params, wanted) in [
            (
                r#"{"clientInfo":{"name":"cursor","version":"1"}}"#,
                Some("cursor"),
            ),
            (
                r#"{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"zed"}}}"#,
                Some("zed"),
            ),
            (r#"{"clientInfo":{"name":" "}}"#, None),
            (r#"{"clientInfo":{"name":7}}"#, None),
            (r#"{"clientInfo":"x"}"#, None),
            ("{}", None),
        ] {
            let line =
                format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
            assert_eq!(name(&line).as_deref(), wanted, "{params}");
        }
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"m","params":{{"clientInfo":{{"name":"{}"}}}}}}"#,
            "x".repeat(99)
        );
        assert_eq!(name(&long).map(|name| name.len()), Some(MAX_NAME));
        assert_eq!(name(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#), None);
    }

    #[test]
    fn one_class_is_one_version_and_the_same_capabilities_however_spelled() {
        let one = class(
            "2025-06-18",
            r#"{"sampling":{},"roots":{"listChanged":true}}"#,
        );
        let same = class(
            "2025-06-18",
            r#"{ "roots" : {"listChanged": true}, "s\u0061mpling":{}}"#,
        );
        assert_eq!(one, same);
        assert_eq!(one.to_string(), "2025-06-18 {roots,sampling}");
        assert_eq!(one.era(), Era::Legacy);

        assert_ne!(
            one,
            class(
                "2025-03-26",
                r#"{"sampling":{},"roots":{"listChanged":true}}"#
            )
        );
        assert_ne!(
            one,
            class(
                "2025-06-18",
                r#"{"sampling":{},"roots":{"listChanged":false}}"#
            )
        );
        assert_ne!(
            one,
            class("2025-06-18", r#"{"roots":{"listChanged":true}}"#)
        );
        assert_eq!(class("2025-06-18", "{}").to_string(), "2025-06-18 {}");
    }

    #[test]
    fn whoever_tells_a_server_something_else_in_initialize_is_of_another_class() {
        let class = |more: &str| {
            opens(&format!(
                r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"1","capabilities":{{}}{more}}}}}"#
            ))
        };
        let plain = class("");
        let named = r#","clientInfo":{"name":"a","title":"b","version":"1","websiteUrl":"c","icons":[],"description":"d"}"#;
        assert_eq!(class(named), plain);
        let others = [
            r#","_meta":{"token":"a"}"#,
            r#","_meta":{"token":"b"}"#,
            r#","token":"a""#,
            r#","clientInfo":{"name":"a","token":"a"}"#,
            r#","clientInfo":{"Name":"a"}"#,
            r#","clientInfo":"a""#,
        ];
        for (nth, other) in others.iter().enumerate() {
            assert_ne!(class(other), plain, "{other}");
            for another in &others[nth + 1..] {
                assert_ne!(class(other), class(another), "{other} {another}");
            }
        }
        let same = r#" , "_m\u0065ta" : { "token" : "a" } "#;
        assert_eq!(class(same), class(others[0]));
        let Opening::Legacy(secret) = class(others[0]) else {
            panic!("it says which version")
        };
        assert!(!format!("{secret} {secret:?}").contains("token"));
        for twice in [
            r#","capabilities":{"roots":{}}"#,
            r#","clientInfo":{},"clientInfo":{}"#,
        ] {
            assert_eq!(class(twice), Opening::Unclear, "{twice}");
        }
    }

    #[test]
    fn a_name_in_a_listing_is_short_and_plain() {
        let odd = class(
            "2025\\n06",
            &format!(r#"{{"{}":{{}},"\u001b[31m":1}}"#, "x".repeat(99)),
        );
        let shown = odd.to_string();
        assert!(
            shown.len() < 80 && !shown.contains(['\n', '\u{1b}']),
            "{shown:?}"
        );
    }

    #[test]
    fn a_session_opens_as_its_first_request_says() {
        let enveloped = |method, meta| {
            opens(&format!(
                r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{{"_meta":{meta}}}}}"#
            ))
        };
        let whole = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let broken = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        assert_eq!(
            enveloped("tools/list", whole),
            Opening::Modern(Class::modern())
        );
        assert_eq!(enveloped("tools/list", broken), Opening::Unclear);
        assert_eq!(enveloped("server/discover", whole), Opening::Probe);
        assert_eq!(
            opens(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#),
            Opening::Ping
        );
        for unclear in [
            r#"{"jsonrpc":"2.0","id":0,"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#,
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
            r#"[{"jsonrpc":"2.0","id":0,"method":"ping"}]"#,
        ] {
            assert_eq!(opens(unclear), Opening::Unclear, "{unclear}");
        }
        assert_eq!(Class::modern().to_string(), "modern");
        assert_eq!(Class::modern().era(), Era::Modern);
        assert!(!Class::private().is_shared());
    }
}
