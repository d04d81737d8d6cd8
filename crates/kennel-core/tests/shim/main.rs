//! The engine of `kennel run`: which upstream a session has, and when it gets another one.

mod dedicated;
mod endings;
mod shared;

use std::time::Duration;

use kennel_core::engine::shim::{Action, Elected, End, Event, Settings, SharingSettings, Shim};
use kennel_core::hello::Control;
use kennel_core::session::{Replay, Verdict};
use kennel_core::time::Moment;

const SECOND: Duration = Duration::from_secs(1);

/// An engine, its clock, and what it said is to be done.
struct Stage {
    shim: Shim,
    now: Moment,
}

impl Stage {
    fn new(settings: Settings) -> Stage {
        Stage {
            shim: Shim::new(settings, Moment::START),
            now: Moment::START,
        }
    }

    fn dedicated() -> Stage {
        Stage::new(settings())
    }

    fn shared() -> Stage {
        Stage::new(sharing())
    }

    /// A shared session whose first election found a daemon.
    fn attached() -> Stage {
        let mut stage = Stage::shared();
        stage.advance();
        stage.connected();
        stage
    }

    /// What follows, by now.
    fn advance(&mut self) -> Vec<Action> {
        self.shim.advance(self.now);
        self.actions()
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.shim.poll_action()).collect()
    }

    fn pass(&mut self, length: Duration) -> Vec<Action> {
        self.now = self.now + length;
        self.advance()
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.shim.handle(event, self.now);
        self.advance()
    }

    fn connected(&mut self) -> Vec<Action> {
        self.handle(Event::Elected(Elected::Connected { handshake: None }))
    }

    fn control(&mut self, control: &Control) -> Vec<Action> {
        let line = control.line();
        assert_eq!(
            self.shim.handle_upstream_line(&line[..], self.now),
            Verdict::Drop
        );
        self.advance()
    }

    /// A request of the app.
    fn ask(&mut self, id: u32) -> Verdict {
        self.shim.handle_app_line(&call(id)[..], self.now)
    }

    /// The upstream answers it, and the app gets the answer.
    fn answer(&mut self, id: u32) {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        self.shim.handle_upstream_bytes();
        let verdict = self.shim.handle_upstream_line(answer.as_bytes(), self.now);
        assert_eq!(verdict, Verdict::Forward);
    }

    fn lose_server(&mut self) -> Vec<Action> {
        self.handle(Event::ServerLost {
            unread: 0,
            ending: None,
            stderr: "last words".to_owned(),
        })
    }

    /// All that the app is told now.
    fn lines_for_app(&mut self) -> Vec<String> {
        let lines = std::iter::from_fn(|| self.shim.poll_to_app());
        lines
            .map(|line| String::from_utf8(line).expect("text"))
            .collect()
    }

    /// All that the upstream is sent now.
    fn lines_for_upstream(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.shim.poll_to_upstream()).collect()
    }

    fn end(&mut self) -> Option<End> {
        self.shim.handle_output_written(0, false, false, self.now);
        self.shim.end(|| false, self.now)
    }
}

fn settings() -> Settings {
    Settings {
        replay: Replay::default(),
        sharing: None,
        why_dedicated: None,
        hibernate: None,
        after_eof: 2 * SECOND,
        app_is_watched: true,
    }
}

fn sharing() -> Settings {
    Settings {
        sharing: Some(SharingSettings {
            modern_only: false,
            start_timeout: 5 * SECOND,
            why: "only the modern era shares".to_owned(),
        }),
        ..settings()
    }
}

fn call(id: u32) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"pay"}}}}"#)
        .into_bytes()
}
