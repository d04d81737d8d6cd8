//! Records requests, what servers did, and responses, and checks rules 4 and 5.

use std::collections::BTreeMap;

use crate::kernel::Pid;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// The list of tools.
    List,
    /// May run twice.
    Read,
    /// Must not run twice.
    Pay,
    /// Must not run twice, and its line is long.
    Long,
    /// The server sends a request before it answers.
    Ask,
    /// Ends the server.
    Crash,
}

/// One request of an app, with a unique number.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: Pid,
    pub(crate) id: i64,
    pub(crate) tool: Tool,
    /// How often a server began it.
    done: u32,
    /// The app cancelled it.
    pub(crate) cancelled: bool,
    /// Its shim has read the cancellation.
    cancel_received: bool,
    /// The shim read it while no upstream was attached: no process that starts after this one may get the request.
    last_possible_receiver: Option<Pid>,
    answered: bool,
    /// The app was told that no server received it.
    reported_unsent: bool,
    /// A daemon has written all of it to a server.
    reached_server: bool,
    progress: u64,
}

#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    calls: BTreeMap<u64, Call>,
    by_id: BTreeMap<(Pid, i64), u64>,
    /// The last call of each app that each server began.
    last_begun: BTreeMap<(Pid, Pid), u64>,
}

type Broken = Result<(), String>;

fn check(holds: bool, rule: impl FnOnce() -> String) -> Broken {
    match holds {
        true => Ok(()),
        false => Err(rule()),
    }
}

impl RequestLog {
    pub(crate) fn asked(&mut self, app: Pid, id: i64, tool: Tool) -> u64 {
        let number = self.calls.len() as u64 + 1;
        let call = Call {
            app,
            id,
            tool,
            done: 0,
            cancelled: false,
            cancel_received: false,
            last_possible_receiver: None,
            answered: false,
            reported_unsent: false,
            reached_server: false,
            progress: 0,
        };
        self.calls.insert(number, call);
        self.by_id.insert((app, id), number);
        number
    }

    pub(crate) fn cancelled(&mut self, app: Pid, id: i64) {
        if let Some(call) = self.call(app, id) {
            call.cancelled = true;
        }
    }

    pub(crate) fn cancel_received(
        &mut self,
        app: Pid,
        id: i64,
        last_possible_receiver: Option<Pid>,
    ) {
        if let Some(call) = self.call(app, id) {
            call.cancel_received = true;
            call.last_possible_receiver = last_possible_receiver;
        }
    }

    /// The app's requests that are neither cancelled nor answered.
    pub(crate) fn open(&self, app: Pid) -> Vec<i64> {
        let open = |call: &&Call| call.app == app && !call.cancelled && !call.answered;
        self.calls
            .values()
            .filter(open)
            .map(|call| call.id)
            .collect()
    }

    /// Records that a server begins a request.
    pub(crate) fn begun(&mut self, number: u64, server: Pid) -> Broken {
        let Some(call) = self.calls.get_mut(&number) else {
            return Err(format!(
                "a server was asked for {number}, which nobody asked for"
            ));
        };
        call.done += 1;
        let (done, id) = (call.done, call.id);
        let most = match call.tool {
            Tool::Pay | Tool::Long | Tool::Ask | Tool::Crash => 1,
            Tool::Read | Tool::List => 3,
        };
        check(done <= most, || {
            format!("rule 5: {:?} {number} is done {done} times", call.tool)
        })?;
        check(
            call.last_possible_receiver
                .is_none_or(|last| server <= last),
            || format!("rule 5: {number} (id {id}) was cancelled, and is asked again"),
        )?;
        check(!call.reported_unsent, || {
            format!("rule 5: {number} (id {id}) was said not to be sent, and is done")
        })?;
        let last = self.last_begun.insert((call.app, server), number);
        check(last.is_none_or(|last| last < number), || {
            format!("{number} is begun after {last:?} of the same app")
        })
    }

    /// Records that a daemon has written a line to a server, except perhaps its newline.
    pub(crate) fn reached_server(&mut self, line: &[u8]) {
        const NUMBER: &[u8] = b"\"n\":";
        let at = line.windows(NUMBER.len()).position(|it| it == NUMBER);
        let Some(digits) = at.map(|at| &line[at + NUMBER.len()..]) else {
            return;
        };
        let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        if let Some(call) = self.calls.get_mut(&number) {
            call.reached_server = true;
        }
    }

    /// Checks a refused call whose daemon, which lives, reported the loss of the server: the daemon knows what no
    /// server received, and the session check replay that.
    pub(crate) fn check_refusal_after_reported_loss(
        &self,
        app: Pid,
        id: i64,
        unknown: bool,
    ) -> Broken {
        let number = self.by_id.get(&(app, id));
        let call = number.and_then(|number| self.calls.get(number));
        let never_sent = call.is_some_and(|call| call.tool != Tool::List && !call.reached_server);
        check(!(unknown && never_sent), || {
            format!("id {id} never connected_to a server, and is not sent again")
        })
    }

    /// Records progress at the app.
    pub(crate) fn progress(&mut self, app: Pid, number: u64, progress: u64) -> Broken {
        let Some(call) = self.calls.get_mut(&number) else {
            return Err(format!("progress of {number}, which nobody asked for"));
        };
        check(call.app == app, || {
            format!("rule 4: progress of {number} goes to another app")
        })?;
        check(!call.answered, || {
            format!("progress of {number} after its answer")
        })?;
        let before = std::mem::replace(&mut call.progress, progress);
        check(progress > before, || {
            format!("progress of {number} goes from {before} to {progress}")
        })
    }

    /// Records a server request at the app, which is about one of its calls.
    pub(crate) fn question(&mut self, app: Pid, number: u64) -> Broken {
        match self.calls.get(&number) {
            Some(call) if call.app == app => Ok(()),
            _ => Err(format!(
                "a question about {number} opens in another's window"
            )),
        }
    }

    /// Checks an error of the shim itself: a cancelled request must not get one.
    pub(crate) fn refused(&self, app: Pid, id: i64) -> Broken {
        let number = self.by_id.get(&(app, id));
        let call = number.and_then(|number| self.calls.get(number));
        check(call.is_none_or(|call| !call.cancel_received), || {
            format!("id {id} was cancelled, and is told that it failed")
        })
    }

    /// Records a response at the app.
    pub(crate) fn answered(&mut self, app: Pid, id: i64, answer: &Answer) -> Broken {
        let Some(&number) = self.by_id.get(&(app, id)) else {
            return Err(format!(
                "rule 4: an answer to id {id}, which was never asked"
            ));
        };
        let call = self
            .calls
            .get_mut(&number)
            .expect("it is in the request_log");
        check(!std::mem::replace(&mut call.answered, true), || {
            format!("rule 4: {number} (id {id}) is answered twice")
        })?;
        match answer {
            Answer::Done(whose) => {
                check(whose.is_none_or(|it| it == number), || {
                    format!("rule 4: {number} (id {id}) gets the answer to {whose:?}")
                })?;
                let from_memory = call.tool == Tool::List;
                check(call.done > 0 || from_memory, || {
                    format!("{number} is answered, and was never done")
                })
            }
            Answer::Refused { outcome } => {
                call.reported_unsent = outcome == "unsent";
                match outcome.as_str() {
                    "unsent" => check(call.done == 0, || {
                        format!("rule 5: {number} (id {id}) is said not to be sent, and was done")
                    }),
                    "unknown" => Ok(()),
                    other => Err(format!("{number} (id {id}) ends with {other:?}")),
                }
            }
        }
    }

    fn call(&mut self, app: Pid, id: i64) -> Option<&mut Call> {
        let number = self.by_id.get(&(app, id))?;
        self.calls.get_mut(number)
    }
}

/// The content of a response.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A result; the call that it belongs to, if it says so.
    Done(Option<u64>),
    /// An error.
    Refused { outcome: String },
}
