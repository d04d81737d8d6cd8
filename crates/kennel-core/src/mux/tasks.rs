//! Tasks (protocol 2025-11-25, and an extension of 2026-07-28): which session each belongs to.
//!
//! The server names them, and a session that comes back on another connection has its own still.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Notification, Outcome, Part, Request, Response, reply};

use super::calls::{Call, Kind, Minted};
use super::class::Era;
use super::refused::Refused;
use super::said::{Edit, From, Said};
use super::{Mux, Note, Unaddressed};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Tasks {
    by_id: BTreeMap<String, Task>,
    next: u64,
    /// A task was forgotten that was not known to have ended.
    forgot: bool,
    /// Sessions of which a task was forgotten, ended or not; `None` for those beyond counting.
    #[serde(default)]
    forgotten: BTreeSet<Option<Arc<str>>>,
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
    /// How many sessions are remembered of which one was forgotten.
    const FORGOTTEN: usize = 64;

    fn begun(&mut self, id: String, session: Arc<str>, token: Option<(Minted, Vec<u8>)>) {
        let task = Task {
            session,
            ended: false,
            order: self.next,
            token,
        };
        self.next += 1;
        if id.len() > reply::NAME_LIMIT {
            self.forget(task);
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
            self.forget(oldest);
        }
    }

    /// From now on nobody knows whose it is.
    fn forget(&mut self, task: Task) {
        self.forgot |= !task.ended;
        self.forgotten.insert(Some(task.session));
        if self.forgotten.len() > Tasks::FORGOTTEN {
            self.forgotten = BTreeSet::from([None]);
        }
    }

    /// Whether this task may be another session's.
    fn may_be_foreign(&self, id: &str, session: &Arc<str>) -> bool {
        match self.owner(id) {
            Some(owner) => owner != session,
            None => self.forgotten.iter().any(|it| it.as_ref() != Some(session)),
        }
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
            return Ok(Kind::Plain);
        };
        let session = self.client(from.client).session.clone();
        // Some servers take `["a"]` for `"a"`.
        let id = task.string();
        let may_be_foreign = match &id {
            Some(id) => self.tasks.may_be_foreign(id, &session),
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

    pub(super) fn task_answered(&mut self, task: &str, ends: bool, response: &Response<'_>) {
        if let Outcome::Result(result) = response.outcome {
            self.task_seen(&result);
            if ends {
                self.tasks.ended(task);
            }
        }
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
        is_task_status(&notification.method.name())
            && self
                .task_owner(notification)
                .is_some_and(|owner| Some(owner) != session)
    }

    fn task_owner(&self, notification: &Notification<'_>) -> Option<&Arc<str>> {
        let task = notification.params?.member("taskId").ok()??;
        self.tasks.owner(&task.string()?)
    }
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
