//! A session on a stage: lines in, and what each side hears.

use kennel_core::session::{Note, Replay, SERVER_RESTARTED, Session, Unsent, Verdict};

pub(crate) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"x":1.0}}"#;
pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
pub(crate) const WELCOME: &str = r#"{"jsonrpc":"2.0","id":0,"result":{"capabilities":{}}}"#;

/// A session whose sides read all they are sent, at once.
#[derive(Default)]
pub(crate) struct Play {
    pub(crate) session: Session,
    app: Vec<String>,
    upstream: Vec<String>,
}

impl Play {
    /// With no upstream yet.
    pub(crate) fn detached() -> Play {
        Play::default()
    }

    /// With a first upstream and no handshake, as in protocol 2026-07-28.
    pub(crate) fn modern() -> Play {
        Play::replaying(Replay::Safe)
    }

    /// The same, and what is sent again.
    pub(crate) fn replaying(replay: Replay) -> Play {
        let mut play = Play {
            session: Session::replaying(replay),
            ..Play::default()
        };
        play.attach();
        play
    }

    /// With a first upstream and a handshake that is done.
    pub(crate) fn legacy() -> Play {
        let mut play = Play::modern();
        play.app(INITIALIZE);
        play.upstream(WELCOME);
        play.app(INITIALIZED);
        assert_eq!(play.upstream_heard(), [INITIALIZE, INITIALIZED]);
        assert_eq!(play.app_heard(), [WELCOME]);
        play
    }

    pub(crate) fn app(&mut self, line: &str) {
        match self.session.handle_app_line(line.as_bytes()) {
            Verdict::Forward => self.upstream.push(line.to_owned()),
            Verdict::Replace(other) => self.upstream.push(text(other)),
            Verdict::Drop => {}
            Verdict::Abandon => panic!("the app cannot make an upstream refuse"),
        }
        self.poll();
    }

    /// `true`: the upstream is to be ended.
    pub(crate) fn upstream(&mut self, line: &str) -> bool {
        let verdict = self.session.handle_upstream_line(line.as_bytes());
        let abandon = verdict == Verdict::Abandon;
        match verdict {
            Verdict::Forward => self.app.push(line.to_owned()),
            Verdict::Replace(other) => self.app.push(text(other)),
            Verdict::Drop | Verdict::Abandon => {}
        }
        self.poll();
        abandon
    }

    pub(crate) fn attach(&mut self) {
        self.session.handle_upstream_attached();
        self.poll();
    }

    pub(crate) fn lose(&mut self) {
        self.lose_knowing(Unsent::Nothing);
    }

    pub(crate) fn lose_knowing(&mut self, unsent: Unsent<'_>) {
        self.session.handle_upstream_lost(SERVER_RESTARTED, unsent);
        self.poll();
    }

    /// The upstream is lost, and the next one is as willing; gives what it hears after the handshake.
    pub(crate) fn next_server(&mut self) -> Vec<String> {
        self.lose();
        self.upstream_heard();
        self.attach();
        if self.upstream_heard() != [INITIALIZE] {
            panic!("the handshake comes first, and alone");
        }
        self.upstream(WELCOME);
        let mut heard = self.upstream_heard();
        assert_eq!(heard.remove(0), INITIALIZED);
        heard
    }

    pub(crate) fn give_up(&mut self) {
        self.session
            .give_up("it ended 5 times in 60 s", "boom\nbang");
        self.poll();
    }

    /// What the app heard since it was asked last.
    pub(crate) fn app_heard(&mut self) -> Vec<String> {
        std::mem::take(&mut self.app)
    }

    /// What upstreams heard since they were asked last.
    pub(crate) fn upstream_heard(&mut self) -> Vec<String> {
        std::mem::take(&mut self.upstream)
    }

    pub(crate) fn notes(&mut self) -> Vec<Note> {
        std::iter::from_fn(|| self.session.poll_note()).collect()
    }

    fn poll(&mut self) {
        self.app
            .extend(std::iter::from_fn(|| self.session.poll_to_app()).map(text));
        self.upstream
            .extend(std::iter::from_fn(|| self.session.poll_to_upstream()).map(text));
    }
}

pub(crate) fn request(id: &str, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","x":1.0}}"#)
}

pub(crate) fn notice(method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"n":1e2}}}}"#)
}

pub(crate) fn result(id: &str) -> String {
    format!(r#"{{"result":{{"ok": true}},"id":{id},"jsonrpc":"2.0"}}"#)
}

pub(crate) fn cancel(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    )
}

/// What the session answers for a lost upstream.
pub(crate) fn lost(id: &str, method: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"server exited during {method}; outcome unknown; not retried","data":{{"reason":"server_restarted","outcome":"unknown","replayed":false}}}}}}"#
    )
}

/// What the session answers after it gave up.
pub(crate) fn unavailable(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"the server is not available: it ended 5 times in 60 s","data":{{"reason":"server_unavailable","detail":"boom\nbang","outcome":"unsent","replayed":false}}}}}}"#
    )
}

/// What the session tells the app of a lost server's request.
pub(crate) fn withdrawn(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"server_restarted"}}}}"#
    )
}

pub(crate) fn pong(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

/// `(id, code)` of an error line.
pub(crate) fn error(line: &str) -> (String, i64) {
    let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let code = value["error"]["code"].as_i64().expect("a code");
    (value["id"].to_string(), code)
}

fn text(line: Vec<u8>) -> String {
    String::from_utf8(line).expect("text")
}
