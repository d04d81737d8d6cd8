//! Who asked what, what was done of it, and what came back: rules 4 and 5.

use std::collections::BTreeMap;

use crate::kernel::Pid;

/// What an app asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// The list of tools.
    List,
    /// May be done twice.
    Read,
    /// May not.
    Pay,
    /// The server asks back before it answers.
    Ask,
    /// It ends the server.
    Crash,
}

/// One request of an app's, by a number that no other has.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: Pid,
    pub(crate) id: i64,
    pub(crate) tool: Tool,
    /// How often a server began it.
    done: u32,
    /// The app said that it wants no answer.
    pub(crate) cancelled: bool,
    /// Its shim has heard that.
    cancel_heard: bool,
    /// It did so between two upstreams: no process that begins after this one is to hear of it.
    last_to_hear: Option<Pid>,
    answered: bool,
    /// The app was told that no server ever heard it.
    said_unsent: bool,
    progress: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    calls: BTreeMap<u64, Call>,
    by_id: BTreeMap<(Pid, i64), u64>,
}

type Broken = Result<(), String>;

fn must(holds: bool, rule: impl FnOnce() -> String) -> Broken {
    match holds {
        true => Ok(()),
        false => Err(rule()),
    }
}

impl Books {
    pub(crate) fn asked(&mut self, app: Pid, id: i64, tool: Tool) -> u64 {
        let number = self.calls.len() as u64 + 1;
        let call = Call {
            app,
            id,
            tool,
            done: 0,
            cancelled: false,
            cancel_heard: false,
            last_to_hear: None,
            answered: false,
            said_unsent: false,
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

    pub(crate) fn cancel_heard(&mut self, app: Pid, id: i64, last_to_hear: Option<Pid>) {
        if let Some(call) = self.call(app, id) {
            call.cancel_heard = true;
            call.last_to_hear = last_to_hear;
        }
    }

    /// What of an app's is open: asked, not cancelled, not answered.
    pub(crate) fn open(&self, app: Pid) -> Vec<i64> {
        let open = |call: &&Call| call.app == app && !call.cancelled && !call.answered;
        self.calls
            .values()
            .filter(open)
            .map(|call| call.id)
            .collect()
    }

    /// A server begins it.
    pub(crate) fn begun(&mut self, number: u64, server: Pid) -> Broken {
        let Some(call) = self.calls.get_mut(&number) else {
            return Err(format!(
                "a server was asked for {number}, which nobody asked for"
            ));
        };
        call.done += 1;
        let (done, id) = (call.done, call.id);
        let most = match call.tool {
            Tool::Pay | Tool::Ask | Tool::Crash => 1,
            Tool::Read | Tool::List => 3,
        };
        must(done <= most, || {
            format!("rule 5: {:?} {number} is done {done} times", call.tool)
        })?;
        must(call.last_to_hear.is_none_or(|last| server <= last), || {
            format!("rule 5: {number} (id {id}) was cancelled, and is asked again")
        })?;
        must(!call.said_unsent, || {
            format!("rule 5: {number} (id {id}) was said not to be sent, and is done")
        })
    }

    /// The app hears how far it is.
    pub(crate) fn progress(&mut self, app: Pid, number: u64, progress: u64) -> Broken {
        let Some(call) = self.calls.get_mut(&number) else {
            return Err(format!("progress of {number}, which nobody asked for"));
        };
        must(call.app == app, || {
            format!("rule 4: progress of {number} goes to another app")
        })?;
        must(!call.answered, || {
            format!("progress of {number} after its answer")
        })?;
        let before = std::mem::replace(&mut call.progress, progress);
        must(progress > before, || {
            format!("progress of {number} goes from {before} to {progress}")
        })
    }

    /// The app is asked something by the server, about one of its calls.
    pub(crate) fn question(&mut self, app: Pid, number: u64) -> Broken {
        match self.calls.get(&number) {
            Some(call) if call.app == app => Ok(()),
            _ => Err(format!(
                "a question about {number} opens in another's window"
            )),
        }
    }

    /// The shim itself answers: not what it knows to be of no more interest.
    pub(crate) fn refused(&self, app: Pid, id: i64) -> Broken {
        let number = self.by_id.get(&(app, id));
        let call = number.and_then(|number| self.calls.get(number));
        must(call.is_none_or(|call| !call.cancel_heard), || {
            format!("id {id} was cancelled, and is told that it failed")
        })
    }

    /// The app hears an answer.
    pub(crate) fn answered(&mut self, app: Pid, id: i64, answer: &Answer) -> Broken {
        let Some(&number) = self.by_id.get(&(app, id)) else {
            return Err(format!(
                "rule 4: an answer to id {id}, which was never asked"
            ));
        };
        let call = self.calls.get_mut(&number).expect("it is in the books");
        must(!std::mem::replace(&mut call.answered, true), || {
            format!("rule 4: {number} (id {id}) is answered twice")
        })?;
        match answer {
            Answer::Done(whose) => {
                must(whose.is_none_or(|it| it == number), || {
                    format!("rule 4: {number} (id {id}) gets the answer to {whose:?}")
                })?;
                let from_memory = call.tool == Tool::List;
                must(call.done > 0 || from_memory, || {
                    format!("{number} is answered, and was never done")
                })
            }
            Answer::Refused { outcome } => {
                call.said_unsent = outcome == "unsent";
                match outcome.as_str() {
                    "unsent" => must(call.done == 0, || {
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

/// What an answer says.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is done; of which call, if it says so.
    Done(Option<u64>),
    /// It is not, or nobody knows.
    Refused { outcome: String },
}
