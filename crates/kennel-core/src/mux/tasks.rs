//! Tasks (protocol 2025-11-25, and an extension of 2026-07-28): which session each belongs to.
//!
//! The server assigns task ids. A session that reconnects keeps its tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Malformed, Notification, Outcome, Part, Request, Response, reply};

use super::calls::{AssignedId, Call, Kind};
use super::class::Era;
use super::raw_message::{ClientMessage, PartEdit, RawMessage};
use super::refused::{Refused, no_such_task};
use super::{Mux, Note, Unaddressed};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tasks {
    by_id: BTreeMap<String, Task>,
    next: u64,
    /// Whether a task was removed that had not ended.
    forgot: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    session: Arc<str>,
    ended: bool,
    /// Age: older tasks have lower numbers.
    order: u64,
    /// The progress token of the request that created the task; it stays valid.
    token: Option<(AssignedId, Vec<u8>)>,
}

impl Tasks {
    /// Maximum number of tasks. Past it, the session with the most tasks loses one, ended tasks first.
    const LIMIT: usize = 4096;

    fn begun(&mut self, id: String, session: Arc<str>, token: Option<(AssignedId, Vec<u8>)>) {
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
            let id = oldest.expect("there is more than one task").0.clone();
            let oldest = self.by_id.remove(&id).expect("the task exists");
            self.forget(&oldest);
        }
    }

    /// Records that the owner of a task is no longer known.
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

    /// The sessions of tasks that have not ended. `None` stands for a removed task.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = Option<&Arc<str>>> {
        let open = self.by_id.values().filter(|task| !task.ended);
        let forgot = self.forgot.then_some(None);
        open.map(|task| Some(&task.session)).chain(forgot)
    }

    /// The session and the client's token for a progress token of the server.
    pub(super) fn token(&self, assigned: AssignedId) -> Option<(&Arc<str>, &[u8])> {
        self.by_id.values().find_map(|task| match &task.token {
            Some((number, raw)) if *number == assigned => Some((&task.session, &raw[..])),
            _ => None,
        })
    }
}

impl Mux {
    /// Whether a task may belong to another session. A task without a known owner may: the response that creates it
    /// may still be on its way.
    fn may_be_foreign(&self, task: &str, session: Option<&Arc<str>>) -> bool {
        self.sessions.several && self.tasks.owner(task) != session
    }

    /// Whether a message of a client is related to a task that may belong to another session.
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
                self.may_be_foreign(&task, session)
                    && !self.server_requests.is_client_task(client, &task)
            }
            None => true,
        })
    }

    /// Whether a client may get a notification: it names no task, or a task of the client's session.
    pub(super) fn may_get_task_message(
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
                !self.may_be_foreign(&task, session)
                    || self.server_requests.is_client_task(client, &task)
            })
        };
        match related_task(notification.params) {
            Ok(task) => task.is_none_or(is_own),
            Err(_) => false,
        }
    }

    /// Filters the clients that may get a notification about a task.
    pub(super) fn without_foreign_tasks(
        &mut self,
        mut clients: Vec<ClientId>,
        notification: &Notification<'_>,
    ) -> Vec<ClientId> {
        let before = clients.len();
        clients.retain(|client| self.may_get_task_message(*client, notification));
        if clients.is_empty() && before > 0 {
            self.notes.push(Note::Unaddressed(Unaddressed::Task));
        }
        clients
    }

    /// The kind of a task request, if this session may access the task.
    pub(super) fn task_request_kind(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
        method: &str,
    ) -> Result<Kind, Refused> {
        let task = match request.params {
            Some(params) => params.member("taskId")?,
            None => None,
        };
        let Some(task) = task else {
            // Some servers look for it elsewhere, for example in positional parameters.
            return match self.class.is_shared() && TASK_METHODS.contains(&method) {
                true => Err(Refused::invalid_params(&request.id, "taskId is missing")),
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

    /// Records the task that a response created; it belongs to the session of the request.
    pub(super) fn record_new_task(
        &mut self,
        result: &Part<'_>,
        session: &Arc<str>,
        token: Option<(AssignedId, Vec<u8>)>,
    ) {
        let nested = result.search_at(&["task", "taskId"]).ok().flatten();
        let (task, id) = match (nested, self.class.era()) {
            (Some(id), _) => (result.member("task").ok().flatten(), id),
            (None, Era::Modern) if let Some(id) = id_of_task_result(result) => (Some(*result), id),
            _ => return,
        };
        if let Some(id) = id.string()
            && self.tasks.owner(&id).is_none()
        {
            self.tasks.begun(id.into_owned(), session.clone(), token);
            if let Some(task) = task {
                self.record_task_status(&task);
            }
        }
    }

    /// Records that a task ended, if this status says so.
    pub(super) fn record_task_status(&mut self, task: &Part<'_>) {
        let member = |name| task.member(name).ok().flatten()?.string();
        if let (Some(id), Some(status)) = (member("taskId"), member("status"))
            && matches!(&*status, "completed" | "failed" | "cancelled")
        {
            self.tasks.ended(&id);
        }
    }

    /// Delivers a response about a task, unless the task turns out to belong to another session.
    pub(super) fn task_answered(
        &mut self,
        call: &Call,
        (task, ends): (&str, bool),
        raw: &RawMessage<'_>,
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
            self.record_task_status(&result);
            if ends {
                self.tasks.ended(task);
            }
        }
        self.deliver(call, raw, id);
    }

    /// Delivers a task list with only the tasks of the session.
    pub(super) fn task_list_answered(
        &mut self,
        call: &Call,
        raw: &RawMessage<'_>,
        (id, response): (&Part<'_>, &Response<'_>),
    ) {
        let Some(waiter) = call.waiters.first() else {
            return;
        };
        let mut edits: Vec<PartEdit<'_>> = vec![(*id, &waiter.id)];
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
        let line = raw.with(&edits);
        self.answer(waiter.client, waiter.batch, line);
    }

    /// Sends a task status to the owner. A status without a known owner is dropped: the specification lets no client
    /// rely on it.
    pub(super) fn task_status(&mut self, raw: &RawMessage<'_>, notification: &Notification<'_>) {
        let owner = self.task_owner(notification).cloned();
        let owner = owner.or_else(|| self.sessions.only_session());
        match owner.and_then(|session| self.client_of(&session)) {
            Some(client) => self.send_to_client(client, raw.bytes().to_vec()),
            None => self.notes.push(Note::Unaddressed(Unaddressed::Task)),
        }
    }

    /// Whether a notification is about a task of another session: a subscription may name any task.
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

/// Methods of requests about one task.
const TASK_METHODS: [&str; 4] = ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"];

/// The member of `_meta` that contains the related task.
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// The id of the related task; the whole member, if it has no id.
pub(super) fn related_task(params: Option<Part<'_>>) -> Result<Option<Part<'_>>, Malformed> {
    let Some(params) = params else {
        return Ok(None);
    };
    let Some(related) = params.search_at(&["_meta", RELATED_TASK])? else {
        return Ok(None);
    };
    Ok(Some(related.member("taskId")?.unwrap_or(related)))
}

/// Whether this notification method reports the status of a task.
pub(super) fn is_task_status(method: &str) -> bool {
    matches!(method, "notifications/tasks/status" | "notifications/tasks")
}

/// The task id, if a result of the modern era is a task.
fn id_of_task_result<'a>(result: &Part<'a>) -> Option<Part<'a>> {
    let id = result.search_at(&["taskId"]).ok()??;
    let kind = result.member("resultType").ok()?;
    let is_task = kind.is_none_or(|kind| kind.string().as_deref() == Some("task"));
    is_task.then_some(id)
}
