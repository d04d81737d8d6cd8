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
    /// Number of times that a server began it.
    begun: u32,
    /// The app cancelled it.
    pub(crate) cancelled: bool,
    /// Its shim has read the cancellation.
    cancel_received: bool,
    /// The shim read it while no upstream was attached: no process that starts after this one may get the request.
    last_possible_receiver: Option<Pid>,
    answered: bool,
    /// The app got an error which says that no server received it.
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

/// `Err` names the broken rule.
type Checked = Result<(), String>;

fn check(holds: bool, rule: impl FnOnce() -> String) -> Checked {
    match holds {
        true => Ok(()),
        false => Err(rule()),
    }
}

impl RequestLog {
    /// Records a request of an app, and returns its number.
    pub(crate) fn sent(&mut self, app: Pid, id: i64, tool: Tool) -> u64 {
        let number = self.calls.len() as u64 + 1;
        let call = Call {
            app,
            id,
            tool,
            begun: 0,
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

    /// Ids of the app's requests that are neither cancelled nor answered.
    pub(crate) fn open(&self, app: Pid) -> Vec<i64> {
        let open = |call: &&Call| call.app == app && !call.cancelled && !call.answered;
        self.calls
            .values()
            .filter(open)
            .map(|call| call.id)
            .collect()
    }

    /// Records that a server begins a request.
    pub(crate) fn begun(&mut self, number: u64, server: Pid) -> Checked {
        let Some(call) = self.calls.get_mut(&number) else {
            return Err(format!(
                "a server received call {number}, which no app sent"
            ));
        };
        call.begun += 1;
        let (begun, id) = (call.begun, call.id);
        let most = match call.tool {
            Tool::Pay | Tool::Long | Tool::Ask | Tool::Crash => 1,
            Tool::Read | Tool::List => 3,
        };
        check(begun <= most, || {
            format!("rule 5: {:?} {number} is begun {begun} times", call.tool)
        })?;
        check(
            call.last_possible_receiver
                .is_none_or(|last| server <= last),
            || format!("rule 5: {number} (id {id}) was cancelled, and is sent again"),
        )?;
        check(!call.reported_unsent, || {
            format!("rule 5: {number} (id {id}) was reported as unsent, and is begun")
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

    /// Checks a refused call whose daemon, which lives, reported the loss of the server: the daemon knows which calls no
    /// server received, and the session must replay them.
    pub(crate) fn check_refusal_after_reported_loss(
        &self,
        app: Pid,
        id: i64,
        unknown: bool,
    ) -> Checked {
        let number = self.by_id.get(&(app, id));
        let call = number.and_then(|number| self.calls.get(number));
        let never_sent = call.is_some_and(|call| call.tool != Tool::List && !call.reached_server);
        check(!(unknown && never_sent), || {
            format!("id {id} never reached a server, and is not sent again")
        })
    }

    /// Records progress at the app.
    pub(crate) fn progress(&mut self, app: Pid, number: u64, progress: u64) -> Checked {
        let Some(call) = self.calls.get_mut(&number) else {
            return Err(format!("progress of {number}, which no app sent"));
        };
        check(call.app == app, || {
            format!("rule 4: progress of {number} reaches another app")
        })?;
        check(!call.answered, || {
            format!("progress of {number} after its answer")
        })?;
        let before = std::mem::replace(&mut call.progress, progress);
        check(progress > before, || {
            format!("progress of {number} changes from {before} to {progress}")
        })
    }

    /// Records a server request at the app, which is about one of its calls.
    pub(crate) fn server_request(&mut self, app: Pid, number: u64) -> Checked {
        match self.calls.get(&number) {
            Some(call) if call.app == app => Ok(()),
            _ => Err(format!(
                "a server request about {number} reaches another app"
            )),
        }
    }

    /// Checks an error that the shim itself sends: a cancelled request must not get one.
    pub(crate) fn refused(&self, app: Pid, id: i64) -> Checked {
        let number = self.by_id.get(&(app, id));
        let call = number.and_then(|number| self.calls.get(number));
        check(call.is_none_or(|call| !call.cancel_received), || {
            format!("id {id} was cancelled, and gets an error")
        })
    }

    /// Records a response at the app.
    pub(crate) fn answered(&mut self, app: Pid, id: i64, answer: &Answer) -> Checked {
        let Some(&number) = self.by_id.get(&(app, id)) else {
            return Err(format!(
                "rule 4: a response to id {id}, which was never sent"
            ));
        };
        let call = self
            .calls
            .get_mut(&number)
            .expect("it is in the request log");
        check(!std::mem::replace(&mut call.answered, true), || {
            format!("rule 4: {number} (id {id}) is answered twice")
        })?;
        match answer {
            Answer::Done(call_of_result) => {
                check(call_of_result.is_none_or(|it| it == number), || {
                    format!("rule 4: {number} (id {id}) gets the response to {call_of_result:?}")
                })?;
                let from_cache = call.tool == Tool::List;
                check(call.begun > 0 || from_cache, || {
                    format!("{number} is answered, and was never begun")
                })
            }
            Answer::Refused { outcome } => {
                call.reported_unsent = outcome == "unsent";
                match outcome.as_str() {
                    "unsent" => check(call.begun == 0, || {
                        format!("rule 5: {number} (id {id}) is reported as unsent, and was begun")
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
    /// A result, with the number of its call if it contains one.
    Done(Option<u64>),
    /// An error.
    Refused { outcome: String },
}
