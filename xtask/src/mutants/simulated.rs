//! Mistakes in the engines that the simulator must find.

use std::process::{Command, Stdio};

use super::copy::Copy;
use super::last_words;
use crate::Outcome;
use crate::workspace::Workspace;

/// The seed of the schedules.
const SEED: &str = "1";
/// How many schedules are played before a mistake counts as missed.
pub(super) const MOST: u64 = 100_000;
const AREA: &str = "simulator";

/// A mistake in an engine, and how the simulator finds it.
#[derive(Debug)]
pub(super) struct Simulated {
    /// It is in something that was not simulated before the simulator drove the shipped engines with bytes and pipes.
    pub(super) is_new: bool,
    /// What is true of the program when it is made.
    mistake: &'static str,
    pub(super) file: &'static str,
    /// What is there once, and what is there instead.
    pub(super) text: &'static str,
    pub(super) instead: &'static str,
    /// The schedule that broke a rule, and the rule, when the table was written. Another simulator plays other schedules.
    pub(super) found_at: u64,
    rule: &'static str,
}

impl Simulated {
    pub(super) fn is_named(&self, names: &[String]) -> bool {
        let is = |name: &String| name == AREA || self.mistake.contains(name);
        names.is_empty() || names.iter().any(is)
    }

    /// The schedule that broke a rule, and the rule; or why there is none.
    pub(super) fn fate(
        &self,
        copy: &mut Copy,
        there: &Workspace,
    ) -> Outcome<Result<String, String>> {
        let _made = copy.change(self.file, self.text, self.instead)?;
        let mut build = there.cargo();
        build.args(["build", "--quiet", "--bins", "--package", "kennel-sim"]);
        let built = build.stdin(Stdio::null()).output()?;
        if !built.status.success() {
            return Ok(Err(last_words(&built.stderr)));
        }
        let played = Command::new(there.target.join("debug/kennel-sim"))
            .args(["--seed", SEED, "--schedules", &MOST.to_string()])
            .stdin(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&played.stdout);
        let found = said.lines().find(|line| line.starts_with("schedule "));
        Ok(match found {
            Some(found) if !played.status.success() => Ok(found.to_owned()),
            _ => Err(format!("no rule was broken in {MOST} schedules")),
        })
    }

    pub(super) fn tell(&self, fate: &Result<String, String>) {
        let (verdict, words) = match fate {
            Ok(found) => ("found", found),
            Err(why) => ("MISSED", why),
        };
        println!("{verdict}  {AREA}  {}\n        {words}", self.mistake);
    }
}

/// The table, for people.
pub(super) fn document() -> String {
    let mut text = String::from(INTRODUCTION);
    for it in SIMULATED {
        let file = it.file.trim_start_matches("crates/");
        let file = file.replacen("/src/", "/", 1);
        let area = match it.is_new {
            true => "new",
            false => "",
        };
        let (mistake, rule, at) = (it.mistake, it.rule, it.found_at);
        text += &format!("| {mistake} | `{file}` | {area} | {rule} | {at} |\n");
    }
    text
}

const INTRODUCTION: &str = "
## Mistakes that the simulator finds

`cargo xtask mutants simulator` makes each of these mistakes in a copy of the engines, and plays 100,000 schedules of seed 1:
one of them must break a rule. \"New\" marks mistakes in what was not simulated before: pipes beside the socket, send-ahead,
partial writes, shortage of descriptors, the return to sharing, hand-over to a newer build with half lines and unwritten
bytes, requests that cross a hibernation. The schedule and the rule are those of the simulator that the table was written
with.

| mistake | in | | rule that was broken | schedule |
|---|---|---|---|---|
";

pub(super) const SIMULATED: &[Simulated] = &[
    Simulated {
        is_new: true,
        mistake: "a first line that went out with the hello is sent again",
        file: "crates/kennel-core/src/engine/shim/daemon.rs",
        text: "&& self.session.poll_to_upstream() != Some(handshake)",
        instead: "&& self.session.handshake_request() != Some(&handshake)",
        found_at: 4,
        rule: "a call ends with an error of another kind",
    },
    Simulated {
        is_new: true,
        mistake: "a line that was recalled is taken for a message",
        file: "crates/kennel-core/src/engine/daemon/client.rs",
        text: "if line.bytes().ends_with(&[ABORT_BYTE]) {",
        instead: "if line.bytes() == [ABORT_BYTE] {",
        found_at: 2368,
        rule: "id … never reached a server, and is not sent again",
    },
    Simulated {
        is_new: true,
        mistake: "a line that was recalled counts as heard",
        file: "crates/kennel-core/src/engine/daemon/client.rs",
        text: "        if line.bytes().ends_with(&[ABORT_BYTE]) {\n            return;\n        }\n        let Some(client) = self.clients.get_mut(&id) else {\n            return;\n        };",
        instead: "        let Some(client) = self.clients.get_mut(&id) else {\n            return;\n        };\n        if line.bytes().ends_with(&[ABORT_BYTE]) {\n            client.heard = client.heard.map(|heard| heard + line.bytes().len() as u64 + 1);\n            return;\n        }",
        found_at: 12506,
        rule: "id … never reached a server, and is not sent again",
    },
    Simulated {
        is_new: true,
        mistake: "a client that turns to its pipe is read at its socket",
        file: "crates/kennel-core/src/engine/daemon/client.rs",
        text: "Control::Pipes => self.actions.push_back(Action::UsePipes { client: id }),",
        instead: "Control::Pipes if self.half_closed.is_empty() => {\n                self.actions.push_back(Action::UsePipes { client: id });\n            }",
        found_at: 258,
        rule: "app … gets no responses any more",
    },
    Simulated {
        is_new: true,
        mistake: "a daemon that turns to its pipe is not followed while an answer is pending",
        file: "crates/kennel-core/src/engine/shim/daemon.rs",
        text: "Control::Pipes => self.actions.push_back(Action::TakePipes),",
        instead: "Control::Pipes if !self.session.has_pending_requests() => self.actions.push_back(Action::TakePipes),\n            Control::Pipes => {}",
        found_at: 73,
        rule: "app … gets no responses any more",
    },
    Simulated {
        is_new: true,
        mistake: "a control message counts as heard",
        file: "crates/kennel-core/src/engine/daemon/client.rs",
        text: "            return self.control(id, &control);",
        instead: "            let length = line.bytes().len() as u64 + 1;\n            client.received = client.received.map(|received| received + length);\n            return self.control(id, &control);",
        found_at: 6826,
        rule: "id … never reached a server, and is not sent again",
    },
    Simulated {
        is_new: true,
        mistake: "a newer build does not know that a line is half written",
        file: "crates/kennel-core/src/engine/daemon/slot/snapshot.rs",
        text: "            writing: snapshot.writing,\n",
        instead: "",
        found_at: 24187,
        rule: "a server reads a line that is not JSON: expected `:` at line 1 column 75",
    },
    Simulated {
        is_new: true,
        mistake: "a newer build counts what a client sent from zero",
        file: "crates/kennel-core/src/engine/daemon/client.rs",
        text: "received: snapshot.received,",
        instead: "received: snapshot.received.map(|_| 0),",
        found_at: 172,
        rule: "rule 5: Crash … is begun 2 times",
    },
    Simulated {
        is_new: true,
        mistake: "a newer build numbers its clients from one",
        file: "crates/kennel-core/src/engine/daemon/mod.rs",
        text: "        self.next_client = next_client;\n",
        instead: "        self.next_client = self.next_client.min(next_client);\n",
        found_at: 34,
        rule: "app … gets no responses any more",
    },
    Simulated {
        is_new: true,
        mistake: "a newer build waits until no request is pending, however long",
        file: "crates/kennel-core/src/engine/daemon/upgrade.rs",
        text: "now >= self.since + MAX_QUIET_WAIT || daemon.is_quiet()",
        instead: "now >= self.since + MAX_QUIET_WAIT && daemon.is_quiet()",
        found_at: 934,
        rule: "a newer build waits for daemon …",
    },
    Simulated {
        is_new: true,
        mistake: "a session without descriptors for a server leaves its requests waiting",
        file: "crates/kennel-core/src/engine/shim/server.rs",
        text: "        let why = format!(\"the server cannot be started: {why}\");\n        self.give_up(&why, \"\");",
        instead: "        let _ = why;\n        self.upstream = Upstream::GaveUp;",
        found_at: 14,
        rule: "app … gets no responses any more",
    },
    Simulated {
        is_new: true,
        mistake: "a line passes one that is half written",
        file: "crates/kennel-core/src/engine/daemon/slot.rs",
        text: "if self.phase != Phase::Running || self.writing || !self.lanes.is_empty() {",
        instead: "if self.phase != Phase::Running || !self.lanes.is_empty() {",
        found_at: 54,
        rule: "id … never reached a server, and is not sent again",
    },
    Simulated {
        is_new: true,
        mistake: "a line that was cut off when the server ended counts as sent",
        file: "crates/kennel-core/src/engine/daemon/server.rs",
        text: "let mut unsent = slot.unsent(cut_off);",
        instead: "let mut unsent = slot.unsent(cut_off.filter(|line| line.is_empty()));",
        found_at: 54,
        rule: "id … never reached a server, and is not sent again",
    },
    Simulated {
        is_new: true,
        mistake: "a session returns to sharing while a request is pending",
        file: "crates/kennel-core/src/engine/shim/daemon.rs",
        text: "if !self.session.is_quiet() || self.session.app_is_done() {\n            attempts.failed(now);",
        instead: "if self.session.app_is_done() {\n            attempts.failed(now);",
        found_at: 367,
        rule: "rule 3: a server is stopped while a request is pending",
    },
    Simulated {
        is_new: true,
        mistake: "a session returns to sharing before its own server is gone",
        file: "crates/kennel-core/src/engine/shim/daemon.rs",
        text: "Upstream::Draining(next) => *next = Next::Attach,",
        instead: "Upstream::Draining(next) if self.settings.hibernate.is_some() => *next = Next::Attach,",
        found_at: 17,
        rule: "a shim shares while its dedicated server is left",
    },
    Simulated {
        is_new: true,
        mistake: "a request that crossed the hibernation of its server is refused",
        file: "crates/kennel-core/src/engine/shim/daemon.rs",
        text: "self.shared_server_stopped(Unsent::LastBytes(usize::MAX), now)",
        instead: "self.shared_server_stopped(Unsent::Nothing, now)",
        found_at: 1757,
        rule: "id … never reached a server, and is not sent again",
    },
    Simulated {
        is_new: true,
        mistake: "requests that a daemon without descriptors never sent are refused",
        file: "crates/kennel-core/src/engine/shim/daemon.rs",
        text: "        self.session.handle_upstream_lost(&lost.reason, unsent);\n        self.leave_daemon();",
        instead: "        let _ = unsent;\n        self.session.handle_upstream_lost(&lost.reason, Unsent::Nothing);\n        self.leave_daemon();",
        found_at: 385,
        rule: "id … never reached a server, and is not sent again",
    },
    Simulated {
        is_new: true,
        mistake: "a request wakes a hibernating server before the former one is gone",
        file: "crates/kennel-core/src/engine/shim/from_app.rs",
        text: "Upstream::Draining(Next::Hibernate) => Upstream::Draining(Next::Start { at: now }),",
        instead: "Upstream::Draining(Next::Hibernate) => Upstream::Waiting { until: now },",
        found_at: 26,
        rule: "a shim starts a server while another one is left",
    },
    Simulated {
        is_new: false,
        mistake: "a shared server hibernates under a request",
        file: "crates/kennel-core/src/engine/daemon/slot.rs",
        text: "self.is_idle().then(|| self.last_used + after)",
        instead: "(self.phase == Phase::Running).then(|| self.last_used + after)",
        found_at: 58,
        rule: "a server hibernates while a request is pending",
    },
    Simulated {
        is_new: false,
        mistake: "a server starts while the former one of its class is left",
        file: "crates/kennel-core/src/engine/daemon/pool.rs",
        text: "first.is_none_or(|first| first.id() == slot.id())",
        instead: "first.is_none_or(|first| first.id() <= slot.id())",
        found_at: 154,
        rule: "two servers of one class at once",
    },
    Simulated {
        is_new: false,
        mistake: "lines of a client pass each other on the way to its server",
        file: "crates/kennel-core/src/engine/daemon/lanes.rs",
        text: "lines.pop_front()",
        instead: "lines.pop_back()",
        found_at: 28,
        rule: "a call is begun after a later one of the same app",
    },
    Simulated {
        is_new: false,
        mistake: "of those who wait for one answer only the first gets it",
        file: "crates/kennel-core/src/mux/from_server.rs",
        text: "for (nth, waiter) in waiters.iter().enumerate() {",
        instead: "for (nth, waiter) in waiters.iter().enumerate().take(1) {",
        found_at: 34,
        rule: "app … gets no responses any more",
    },
    Simulated {
        is_new: false,
        mistake: "bytes of the former upstream count as sent to the next",
        file: "crates/kennel-core/src/session/loss.rs",
        text: "        self.sent_bytes = 0;\n",
        instead: "",
        found_at: 36,
        rule: "rule 5: Crash … is begun 2 times",
    },
    Simulated {
        is_new: false,
        mistake: "a client that left is still worked for",
        file: "crates/kennel-core/src/engine/daemon/slot.rs",
        text: "        if was_here {\n            self.mux.leave(client, now);\n        }",
        instead: "        if was_here && self.clients.is_empty() {\n            self.mux.leave(client, now);\n        }",
        found_at: 281,
        rule: "client … disconnected; a server has its requests in flight",
    },
];
