//! What the app does.

use proptest::test_runner::TestCaseResult;

use super::app::{Asked, Greeting, Kind};
use super::{World, answer_to_server, nth};

const GREETING: &str =
    r#"{"jsonrpc":"2.0", "id":"greeting","method":"initialize","params":{"x":1.0}}"#;
const CONFIRMATION: &str = r#"{"method":"notifications/initialized" ,"jsonrpc":"2.0"}"#;

impl World {
    pub(super) fn greet(&mut self) -> TestCaseResult {
        if !self.setting.modern && self.app.greeting == Greeting::None {
            self.app.greeting = Greeting::Waiting;
            self.app.greetings_sent += 1;
            self.app_says(GREETING)?;
        }
        Ok(())
    }

    pub(super) fn confirm(&mut self) -> TestCaseResult {
        // Whether its greeting failed, it has to know before.
        self.poll_app(usize::MAX)?;
        if self.app.greeting != Greeting::None && !self.app.confirmed {
            self.app.confirmed = true;
            self.app_says(CONFIRMATION)?;
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, kind: Kind) -> TestCaseResult {
        let line = self.new_request(kind);
        self.app_says(&line)
    }

    pub(super) fn ask_in_batch(&mut self, count: usize) -> TestCaseResult {
        let kinds = [Kind::Other, Kind::Read];
        let lines: Vec<_> = (0..count)
            .map(|nth| self.new_request(kinds[nth % 2]))
            .collect();
        self.app_says(&format!("[{}]", lines.join(" ,")))
    }

    pub(super) fn ask_twice(&mut self, which: usize) -> TestCaseResult {
        let pending = self.server.as_ref().map(|server| &server.pending);
        let serials = pending.into_iter().flatten().copied();
        if let Some(serial) = nth(serials, which) {
            let asked = &self.app.requests[&serial];
            let line = asked.line.clone();
            self.app.refusals_due.extend(asked.id.clone());
            self.app_says(&line)?;
        }
        Ok(())
    }

    pub(super) fn tell(&mut self) -> TestCaseResult {
        let serial = self.next_serial();
        let line =
            format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"serial":{serial},"x":1e2}}}}"#);
        let asked = Asked::new(&line, None, Kind::Other);
        self.app.requests.insert(serial, asked);
        self.app_says(&line)
    }

    pub(super) fn cancel(&mut self, which: usize) -> TestCaseResult {
        let open = |(_, it): &(&u64, &Asked)| it.id.is_some() && it.answers == 0 && !it.cancelled;
        let open = self.app.requests.iter().filter(open);
        let open = open.map(|(serial, _)| *serial);
        if let Some(serial) = nth(open, which) {
            let asked = self.app.requests.get_mut(&serial).expect("it is there");
            asked.cancelled = true;
            // Whether the server does it is not the app's business any more.
            self.app.murky |= asked.kind.is_state();
            let id = asked.id.as_ref().expect("a request").to_string();
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"of":{serial}}}}}"#
            );
            self.app_says(&line)?;
        }
        Ok(())
    }

    pub(super) fn answer_server(&mut self, which: usize) -> TestCaseResult {
        let open = self.app.shown.iter().filter(|(_, shown)| !shown.answered);
        if let Some(of) = nth(open.map(|(of, _)| *of), which) {
            self.answer_question(of)?;
        }
        Ok(())
    }

    pub(super) fn answer_question(&mut self, of: u64) -> TestCaseResult {
        let shown = self.app.shown.get_mut(&of).expect("it was shown");
        shown.answered = true;
        let line = answer_to_server(&shown.id, of);
        let again = shown.server > 1;
        self.app_says(&line)?;
        // The first server's ids may be in use again by now.
        if again {
            self.app_says(&line)?;
        }
        Ok(())
    }

    /// A request with an id of its own, in one of several spellings.
    fn new_request(&mut self, kind: Kind) -> String {
        let serial = self.next_serial();
        let id = match serial % 3 {
            0 => format!("{serial}"),
            1 => format!("\"s{serial}\""),
            _ => format!("\"\\u0073{serial}\\/\""),
        };
        let (method, more) = kind.method();
        let token = match serial % 2 {
            0 => format!(r#","_meta":{{"progressToken":{serial}}}"#),
            _ => String::new(),
        };
        let line = format!(
            r#"{{"id" :{id},"jsonrpc":"2.0","method":"{method}","params":{{"serial":{serial},"x":1.0{more}{token}}}}}"#
        );
        let id = serde_json::from_str(&id).expect("JSON");
        let asked = Asked::new(&line, Some(id), kind);
        self.app.requests.insert(serial, asked);
        line
    }
}
