//! Tasks (protocol 2025-11-25, and an extension of 2026-07-28): which session each belongs to.
//!
//! The server names them, and a session that comes back on another connection has its own still.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Malformed, Notification, Outcome, Part, Request, Response, reply};

use super::calls::{Call, Kind, Minted};
use super::class::Era;
use super::refused::{Refused, no_such_task};
use super::said::{Edit, From, Said};
use super::{Mux, Note, Unaddressed};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tasks {
    by_id: BTreeMap<String, Task>,
    next: u64,
    /// A task was forgotten that was not known to have ended.
    forgot: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    session: Arc<str>,
    ended: bool,
    /// Older ones have less.
    order: u64,
    /// Its progress goes on under the token of the request that began it.
    token: Option<(Minted, Vec<u8>)>,
}

impl Tasks {
    /// How many are remembered. Of the session that has the most, those that ended are forgotten first.
    const LIMIT: usize = 4096;

    fn begun(&mut self, id: String, session: Arc<str>, token: Option<(Minted, Vec<u8>)>) {
        let task = Task {
            session,
            ended: false,
            order: self.next,
            token,
        };
        self.next += 1;
        if id.len() > reply::NAME_LIMIT {
            self.forget(&task);
            return;
        }
        self.by_id.insert(id, task);
        if self.by_id.len() > Tasks::LIMIT {
            let mut counts: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
            for task in self.by_id.values() {
                *counts.entry(&task.session).or_default() += 1;
            }
            let oldest = self
                .by_id
                .iter()
                .max_by_key(|(_, it)| (counts[&it.session], it.ended, Reverse(it.order)));
            let id = oldest.expect("there are many").0.clone();
            let oldest = self.by_id.remove(&id).expect("it is there");
            self.forget(&oldest);
        }
    }

    /// From now on nobody knows whose it is, and nobody may name it where there are several sessions.
    fn forget(&mut self, task: &Task) {
        self.forgot |= !task.ended;
    }

    fn ended(&mut self, id: &str) {
        if let Some(task) = self.by_id.get_mut(id) {
            task.ended = true;
            task.token = None;
        }
    }

    pub(super) fn owner(&self, id: &str) -> Option<&Arc<str>> {
        self.by_id.get(id).map(|task| &task.session)
    }

    /// Who owns a task that may still be worked on. `None` stands for one that was forgotten.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = Option<&Arc<str>>> {
        let open = self.by_id.values().filter(|task| !task.ended);
        let forgot = self.forgot.then_some(None);
        open.map(|task| Some(&task.session)).chain(forgot)
    }

    /// Whose progress this is, and what it is known by there.
    pub(super) fn token(&self, minted: Minted) -> Option<(&Arc<str>, &[u8])> {
        self.by_id.values().find_map(|task| match &task.token {
            Some((number, raw)) if *number == minted => Some((&task.session, &raw[..])),
            _ => None,
        })
    }
}

impl Mux {
    /// Whether a task may be another session's. Of one that nobody owns it is not known: the answer that begins it may be on
    /// its way to another, or it was forgotten.
    fn may_be_foreign(&self, task: &str, session: Option<&Arc<str>>) -> bool {
        self.sessions.several && self.tasks.owner(task) != session
    }

    /// Whether what a client says names, as what it is related to, a task that may be another session's.
    pub(super) fn is_related_to_foreign_task(
        &self,
        client: ClientId,
        params: Option<Part<'_>>,
    ) -> Result<bool, Malformed> {
        if !self.sessions.several {
            return Ok(false);
        }
        let Some(task) = related_task(params)? else {
            return Ok(false);
        };
        let session = self.clients.get(&client).map(|it| &it.session);
        Ok(match task.string() {
            Some(task) => {
                self.may_be_foreign(&task, session) && !self.asks.is_work_of(client, &task)
            }
            None => true,
        })
    }

    /// Whether a client may hear what the server says about a task: it names none, or one of this client's session.
    pub(super) fn may_hear_of_task(
        &self,
        client: ClientId,
        notification: &Notification<'_>,
    ) -> bool {
        if !self.sessions.several {
            return true;
        }
        let session = self.clients.get(&client).map(|it| &it.session);
        let is_own = |task: Part<'_>| {
            let task = task.string();
            task.is_some_and(|task| {
                !self.may_be_foreign(&task, session) || self.asks.is_work_of(client, &task)
            })
        };
        match related_task(notification.params) {
            Ok(task) => task.is_none_or(is_own),
            Err(_) => false,
        }
    }

    /// Those who may hear what the server says about a task, of those who would hear it otherwise.
    pub(super) fn without_foreign_tasks(
        &mut self,
        mut clients: Vec<ClientId>,
        notification: &Notification<'_>,
    ) -> Vec<ClientId> {
        let before = clients.len();
        clients.retain(|client| self.may_hear_of_task(*client, notification));
        if clients.is_empty() && before > 0 {
            self.notes.push(Note::Unaddressed(Unaddressed::Task));
        }
        clients
    }

    /// What a request about one task is, if this session may know of it.
    pub(super) fn about_a_task(
        &mut self,
        from: &From<'_>,
        request: &Request<'_>,
        method: &str,
    ) -> Result<Kind, Refused> {
        let task = match request.params {
            Some(params) => params.member("taskId")?,
            None => None,
        };
        let Some(task) = task else {
            // Some servers look for it elsewhere, as in a list of parameters.
            return match self.class.is_shared() && ABOUT_ONE_TASK.contains(&method) {
                true => Err(Refused::no_task_id(&request.id)),
                false => Ok(Kind::Plain),
            };
        };
        let session = self.client(from.client).session.clone();
        // Some servers take `["a"]` for `"a"`.
        let id = task.string();
        let may_be_foreign = match &id {
            Some(id) => self.may_be_foreign(id, Some(&session)),
            None => self.class.is_shared(),
        };
        if may_be_foreign {
            self.notes.push(Note::ForeignTask(from.client));
            return Err(Refused::foreign_task(&request.id));
        }
        let Some(task) = id.filter(|id| id.len() <= reply::NAME_LIMIT) else {
            return Ok(Kind::Plain);
        };
        Ok(Kind::Task {
            task: task.into_owned(),
            ends: method == "tasks/result",
        })
    }

    /// An answer may have begun a task, which then is its asker's.
    pub(super) fn task_begun(
        &mut self,
        result: &Part<'_>,
        session: &Arc<str>,
        token: Option<(Minted, Vec<u8>)>,
    ) {
        let nested = result.at_if_any(&["task", "taskId"]).ok().flatten();
        let (task, id) = match (nested, self.class.era()) {
            (Some(id), _) => (result.member("task").ok().flatten(), id),
            (None, Era::Modern) if let Some(id) = task_itself(result) => (Some(*result), id),
            _ => return,
        };
        if let Some(id) = id.string()
            && self.tasks.owner(&id).is_none()
        {
            self.tasks.begun(id.into_owned(), session.clone(), token);
            if let Some(task) = task {
                self.task_seen(&task);
            }
        }
    }

    /// What is said of a task may be that it ended.
    pub(super) fn task_seen(&mut self, task: &Part<'_>) {
        let member = |name| task.member(name).ok().flatten()?.string();
        if let (Some(id), Some(status)) = (member("taskId"), member("status"))
            && matches!(&*status, "completed" | "failed" | "cancelled")
        {
            self.tasks.ended(&id);
        }
    }

    /// An answer about a task, unless the task is known by now to be another session's.
    pub(super) fn task_answered(
        &mut self,
        call: &Call,
        (task, ends): (&str, bool),
        said: &Said<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        if self.may_be_foreign(task, call.session.as_ref()) {
            for waiter in &call.waiters {
                self.notes.push(Note::ForeignTask(waiter.client));
                let line = no_such_task(&waiter.id);
                self.answer(waiter.client, waiter.batch, line);
            }
            return;
        }
        if let Outcome::Result(result) = response.outcome {
            self.task_seen(&result);
            if ends {
                self.tasks.ended(task);
            }
        }
        self.deliver(call, said, id);
    }

    /// A list of tasks, of which each session sees its own.
    pub(super) fn task_list_answered(
        &mut self,
        call: &Call,
        said: &Said<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        let Some(waiter) = call.waiters.first() else {
            return;
        };
        let mut edits: Vec<Edit<'_>> = vec![(*id, &waiter.id)];
        let kept;
        if let Outcome::Result(result) = response.outcome
            && let Ok(Some(tasks)) = result.member("tasks")
            && self.sessions.several
        {
            let is_own = |task: &Part<'_>| {
                let id = task.member("taskId").ok().flatten();
                let id = id.and_then(|id| id.string());
                id.is_some_and(|id| self.tasks.owner(&id) == call.session.as_ref())
            };
            let (mut own, mut all_are) = (String::from("["), true);
            tasks.for_each_element(|task| match is_own(&task) {
                true => {
                    own.push_str(if own.len() > 1 { "," } else { "" });
                    own.push_str(task.text());
                }
                false => all_are = false,
            });
            if !all_are {
                own.push(']');
                kept = own;
                edits.push((tasks, kept.as_bytes()));
            }
        }
        let line = said.with(&edits);
        self.answer(waiter.client, waiter.batch, line);
    }

    /// To its owner. One that nobody owns is dropped: its request may not be answered yet, and the
    /// specification lets nobody rely on these.
    pub(super) fn task_status(&mut self, said: &Said<'_>, notification: &Notification<'_>) {
        let owner = self.task_owner(notification).cloned();
        let owner = owner.or_else(|| self.sessions.only());
        match owner.and_then(|session| self.client_of(&session)) {
            Some(client) => self.say(client, said.bytes().to_vec()),
            None => self.notes.push(Note::Unaddressed(Unaddressed::Task)),
        }
    }

    /// Whether a notification is about a task of another session than this client's: its subscription may name any task.
    pub(super) fn is_of_foreign_task(
        &self,
        client: ClientId,
        notification: &Notification<'_>,
    ) -> bool {
        let session = self.clients.get(&client).map(|it| &it.session);
        let is_status = is_task_status(&notification.method.name());
        let is_foreign = match self.sessions.several {
            true => self.task_owner(notification) != session,
            false => false,
        };
        is_status && is_foreign
    }

    fn task_owner(&self, notification: &Notification<'_>) -> Option<&Arc<str>> {
        let task = notification.params?.member("taskId").ok()??;
        self.tasks.owner(&task.string()?)
    }
}

/// Requests that name a task.
const ABOUT_ONE_TASK: [&str; 4] = ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"];

/// Where a message says which task it is related to.
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// The id of the task that a message is related to: what stands in its place, if it is no id.
pub(super) fn related_task(params: Option<Part<'_>>) -> Result<Option<Part<'_>>, Malformed> {
    let Some(params) = params else {
        return Ok(None);
    };
    let Some(related) = params.at_if_any(&["_meta", RELATED_TASK])? else {
        return Ok(None);
    };
    Ok(Some(related.member("taskId")?.unwrap_or(related)))
}

/// Whether a notification of this name tells how a task goes.
pub(super) fn is_task_status(method: &str) -> bool {
    matches!(method, "notifications/tasks/status" | "notifications/tasks")
}

/// The id of the task that a result of the modern era is, if it is one.
fn task_itself<'a>(result: &Part<'a>) -> Option<Part<'a>> {
    let id = result.at_if_any(&["taskId"]).ok()??;
    let kind = result.member("resultType").ok()?;
    let is_task = kind.is_none_or(|kind| kind.string().as_deref() == Some("task"));
    is_task.then_some(id)
}
