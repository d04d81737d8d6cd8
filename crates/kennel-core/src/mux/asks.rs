//! What the server asks, and whom.
//!
//! On stdio nothing links a server's request to the call it is about (legacy). So it goes to the one
//! client it can be about, if there is only one; else to nobody. One person's question must not open
//! in another's window.
//!
//! A call that the server has answered is over. If it still counted, two sessions that each made a call once could never
//! be asked anything again. So a server that asks about a call after its answer must not be shared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{
    Key, Notification, Outcome, Part, Request, Response, only_same_number, reply,
};
use crate::time::Moment;

use super::calls::{Call, Kind};
use super::refused::{
    ROOTS_LIST_LIMIT, ambiguous_client, answer_to_foreign_task, client_gone, long_roots_list,
};
use super::said::{From, Kept, Said};
use super::snapshot::{bytes, pairs};
use super::tasks::related_task;
use super::{Lane, Mux, Note, Side};

/// The code of an error that says which elicitations a request needs first.
const URL_ELICITATION_REQUIRED: &str = "-32042";

/// A question that waits for a client's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    client: ClientId,
    pub(super) about: About,
    /// What the server knows it by. `None`: the mux itself asks.
    pub(super) server: Option<ServerId>,
}

impl Ask {
    fn bytes(&self) -> usize {
        let line = match &self.about {
            About::Roots(Some(line)) => line.len(),
            About::RootsTold { line, answer } => line.len() + answer.len(),
            About::Roots(None) | About::Other => 0,
        };
        line + self.server.as_ref().map_or(0, |server| server.raw.len())
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServerId {
    pub(super) key: Key,
    /// As spelled.
    #[serde(with = "bytes")]
    pub(super) raw: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum About {
    /// Any other client could answer it as well: its line is kept for that.
    Roots(Option<Kept>),
    /// The client answered; the server hears it when all for whom it works are known to have the same roots.
    RootsTold {
        line: Kept,
        #[serde(with = "bytes")]
        answer: Vec<u8>,
    },
    /// One client alone.
    Other,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Asks {
    open: BTreeMap<i64, Ask>,
    #[serde(with = "pairs")]
    by_server: BTreeMap<Key, i64>,
    minted: i64,
    /// Of what is kept of the server's requests.
    #[serde(default)]
    bytes: usize,
    /// Tasks that clients began for the server; the latest.
    client_tasks: VecDeque<(String, ClientId)>,
    /// What the server knows the progress of its requests by, and whom it asked; the latest. They outlive the answer:
    /// a task that a client began for the server goes on.
    #[serde(default)]
    tokens: VecDeque<(Key, ClientId)>,
    /// What the server calls its elicitations whose end it may tell, and whom it asked or told of them in an error; the
    /// latest.
    #[serde(default)]
    elicitations: VecDeque<(String, ClientId)>,
}

/// Whom a server's request is for.
enum Whom {
    One(ClientId),
    Gone,
    Ambiguous,
}

impl Asks {
    /// How many tasks of clients are remembered.
    const CLIENT_TASKS: usize = 256;
    /// How many progress tokens of the server are remembered.
    const TOKENS: usize = 256;
    /// How many elicitations of the server are remembered.
    const ELICITATIONS: usize = 256;

    /// The server wants to hear of a client's progress.
    fn wants_progress(&mut self, token: Key, client: ClientId) {
        self.tokens.retain(|(other, _)| *other != token);
        self.tokens.push_back((token, client));
        if self.tokens.len() > Asks::TOKENS {
            self.tokens.pop_front();
        }
    }

    /// The server may tell this client that an elicitation is complete.
    fn elicits(&mut self, id: String, client: ClientId) {
        self.elicitations.push_back((id, client));
        if self.elicitations.len() > Asks::ELICITATIONS {
            self.elicitations.pop_front();
        }
    }

    /// Whom the server asked this.
    pub(super) fn elicited(&self, id: &str) -> Option<ClientId> {
        let mut latest_first = self.elicitations.iter().rev();
        latest_first.find(|(known, _)| known == id).map(|it| it.1)
    }

    /// Whether this client works on such a task for the server.
    pub(super) fn is_work_of(&self, client: ClientId, task: &str) -> bool {
        let mut tasks = self.client_tasks.iter();
        tasks.any(|(id, owner)| id == task && *owner == client)
    }

    /// Whether the server wants to hear of this progress, and from this client.
    pub(super) fn is_progress_of(&self, client: ClientId, token: &Key) -> bool {
        let mut tokens = self.tokens.iter();
        tokens.any(|(known, asked)| known == token && *asked == client)
    }

    /// Whether the server waits for so many answers that it may not ask more.
    fn is_full(&self) -> bool {
        self.by_server.len() >= reply::IN_FLIGHT_LIMIT || self.bytes >= reply::SERVER_REQUESTS_LIMIT
    }

    /// How many bytes are kept of what waits for an answer.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether an answer of this client is waited for.
    pub(super) fn is_asked(&self, client: ClientId) -> bool {
        self.open.values().any(|ask| ask.client == client)
    }

    /// Whether the server waits for the answer to such a request.
    pub(super) fn is_open(&self, server_key: &Key) -> bool {
        self.by_server.contains_key(server_key)
    }

    /// The id to show the client.
    pub(super) fn open(&mut self, client: ClientId, about: About, server: Option<ServerId>) -> i64 {
        self.minted += 1;
        if let Some(server) = &server {
            self.by_server.insert(server.key.clone(), self.minted);
        }
        let ask = Ask {
            client,
            about,
            server,
        };
        self.bytes += ask.bytes();
        self.open.insert(self.minted, ask);
        self.minted
    }

    /// This client answers. `None`: nothing that it was asked, or not any more.
    pub(super) fn answer(&mut self, client: ClientId, minted: i64) -> Option<Ask> {
        let ask = self.open.get(&minted)?;
        if ask.client != client || matches!(ask.about, About::RootsTold { .. }) {
            return None;
        }
        self.close(minted)
    }

    /// The server does not want the answer any more: whom it was asked, and under which id. `Some(None)`: a client has
    /// answered.
    pub(super) fn cancel(&mut self, key: &Key) -> Option<Option<(ClientId, i64)>> {
        let minted = match self.by_server.get(key) {
            Some(minted) => *minted,
            None => self.by_server[only_same_number(&self.by_server, key, |_| true)?],
        };
        let ask = self.close(minted)?;
        let is_answered = matches!(ask.about, About::RootsTold { .. });
        Some((!is_answered).then_some((ask.client, minted)))
    }

    /// Answers of clients that the server has not heard yet, and whose they are.
    pub(super) fn told_roots(&self) -> Vec<(i64, ClientId)> {
        let told = |ask: &Ask| matches!(ask.about, About::RootsTold { .. });
        let told = self.open.iter().filter(|(_, ask)| told(ask));
        told.map(|(minted, ask)| (*minted, ask.client)).collect()
    }

    /// Such an answer, and what it answers.
    pub(super) fn take_told(&mut self, minted: i64) -> Option<(Vec<u8>, ServerId)> {
        let ask = self.close(minted)?;
        match (ask.about, ask.server) {
            (About::RootsTold { answer, .. }, Some(server)) => Some((answer, server)),
            _ => None,
        }
    }

    /// Whether the server waits for roots, be it that a client has told them.
    pub(super) fn has_roots_questions(&self) -> bool {
        let is_one =
            |ask: &Ask| matches!(ask.about, About::Roots(Some(_)) | About::RootsTold { .. });
        self.open.values().any(is_one)
    }

    /// No client answers the server's questions for roots any more: whom it asked, and what. What a client was asked and
    /// has not answered, the mux itself wants to know from now on.
    pub(super) fn withdraw_roots(&mut self) -> Vec<(ClientId, ServerId)> {
        let mut withdrawn = Vec::new();
        for minted in self.open.keys().copied().collect::<Vec<_>>() {
            let is_told = match self.open[&minted].about {
                About::Roots(Some(_)) => false,
                About::RootsTold { .. } => true,
                About::Roots(None) | About::Other => continue,
            };
            let Some(ask) = self.close(minted) else {
                continue;
            };
            if !is_told {
                let own = Ask {
                    client: ask.client,
                    about: About::Roots(None),
                    server: None,
                };
                self.open.insert(minted, own);
            }
            withdrawn.extend(ask.server.map(|server| (ask.client, server)));
        }
        withdrawn
    }

    /// What a client that is gone will not answer.
    pub(super) fn leave(&mut self, client: ClientId) -> Vec<Ask> {
        self.client_tasks.retain(|(_, owner)| *owner != client);
        self.tokens.retain(|(_, asked)| *asked != client);
        self.elicitations.retain(|(_, asked)| *asked != client);
        let its = self.open.iter().filter(|(_, ask)| ask.client == client);
        let its: Vec<_> = its.map(|(minted, _)| *minted).collect();
        let closed = its.into_iter().filter_map(|minted| self.close(minted));
        closed.collect()
    }

    /// Whether nobody was asked anything that is not answered.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether a client's roots will be known, whoever wants to know them.
    pub(super) fn is_asked_for_roots(&self, client: ClientId) -> bool {
        let asks = |ask: &Ask| ask.client == client && matches!(ask.about, About::Roots(_));
        self.open.values().any(asks)
    }

    /// Whether somebody will tell the server its roots.
    pub(super) fn server_waits_for_roots(&self) -> bool {
        let tells = |ask: &Ask| matches!(ask.about, About::Roots(Some(_)));
        self.open.values().any(tells)
    }

    fn close(&mut self, minted: i64) -> Option<Ask> {
        let ask = self.open.remove(&minted)?;
        // What an older build wrote down was not counted.
        self.bytes = self.bytes.saturating_sub(ask.bytes());
        if let Some(server) = &ask.server {
            self.by_server.remove(&server.key);
        }
        Some(ask)
    }
}

/// What could have been meant for any client, for people.
pub(super) fn ambiguous_method(method: &str) -> &'static str {
    match method {
        "sampling/createMessage" => "sampling/createMessage",
        "elicitation/create" => "elicitation/create",
        "initialize" => "initialize",
        _ => "a request of its own",
    }
}

impl Mux {
    pub(super) fn request_from_server(
        &mut self,
        said: &Said<'_>,
        request: &Request<'_>,
        now: Moment,
    ) {
        let id = request.id;
        if let Some(refused) = reply::long_server_id(id.raw()) {
            return self.tell_server(Lane::Own, refused);
        }
        let key = id.key();
        if !key.is_acceptable() {
            self.tell_server(Lane::Own, reply::odd_id(id.raw()));
            self.notes.push(Note::OddId(Side::Server, key));
            return;
        }
        if self.asks.by_server.contains_key(&key) {
            self.tell_server(Lane::Own, reply::duplicate_id(id.raw(), &key));
            self.notes.push(Note::DuplicateId(Side::Server, key));
            return;
        }
        if self.asks.is_full() {
            return self.tell_server(Lane::Own, reply::too_many(id.raw()));
        }
        let server = ServerId {
            key,
            raw: id.raw().to_vec(),
        };
        match &*request.method.name() {
            "ping" => self.tell_server(Lane::Own, reply::pong(id.raw())),
            "roots/list" if said.bytes().len() > ROOTS_LIST_LIMIT => {
                self.tell_server(Lane::Own, long_roots_list(id.raw()));
            }
            "roots/list" => self.roots_from_server(Kept::new(said, &id.part()), server, now),
            method => match self.whom(request, method) {
                Whom::One(client) => {
                    let params = request.params;
                    let token = params.map(|it| it.at_if_any(&["_meta", "progressToken"]));
                    if let Some(Ok(Some(token))) = token
                        && token.bytes().len() <= reply::NAME_LIMIT
                        && let Some(token) = token.key()
                    {
                        self.asks.wants_progress(token, client);
                    }
                    let elicitation = params.map(|it| it.at_if_any(&["elicitationId"]));
                    if let Some(Ok(Some(id))) = elicitation
                        && let Some(id) = id.string()
                        && id.len() <= reply::NAME_LIMIT
                    {
                        self.asks.elicits(id.into_owned(), client);
                    }
                    let shown = self.asks.open(client, About::Other, Some(server));
                    let line = said.with(&[(id.part(), shown.to_string().as_bytes())]);
                    self.say(client, line);
                }
                Whom::Gone => {
                    self.tell_server(Lane::Own, client_gone(id.raw()));
                    self.notes.push(Note::ClientGone);
                }
                Whom::Ambiguous => {
                    self.tell_server(Lane::Own, ambiguous_client(id.raw()));
                    self.notes.push(Note::Ambiguous);
                    self.ambiguous = Some(ambiguous_method(method));
                }
            },
        }
    }

    fn whom(&self, request: &Request<'_>, method: &str) -> Whom {
        if let Some(whom) = self.whom_by_task(request, method) {
            return whom;
        }
        let candidates = self.candidates();
        match (candidates.len(), candidates.first()) {
            (0, _) if self.handshake.is_under_way() => self.one_or_gone(self.handshake.by),
            (0, _) => match self.sessions.only() {
                Some(session) => self.one_or_gone(self.client_of(&session)),
                None => Whom::Ambiguous,
            },
            (1, Some(only)) => self.one_or_gone(*only),
            _ => Whom::Ambiguous,
        }
    }

    fn one_or_gone(&self, client: Option<ClientId>) -> Whom {
        let answers = |client: &ClientId| self.clients.get(client).is_some_and(|it| !it.silent);
        match client.filter(answers) {
            Some(client) => Whom::One(client),
            None => Whom::Gone,
        }
    }

    /// It may name a task of one client, or one that a client works on for the server.
    fn whom_by_task(&self, request: &Request<'_>, method: &str) -> Option<Whom> {
        let params = request.params?;
        if let Ok(Some(task)) = related_task(request.params)
            && let Some(owner) = self.tasks.owner(&task.string()?)
        {
            return Some(self.one_or_gone(self.client_of(owner)));
        }
        if matches!(method, "tasks/get" | "tasks/result" | "tasks/cancel") {
            let task = params.member("taskId").ok()??.string()?;
            let owners: BTreeSet<_> = self
                .asks
                .client_tasks
                .iter()
                .filter(|(id, _)| *id == task)
                .map(|(_, owner)| *owner)
                .collect();
            // Clients name these: two may have chosen the same name.
            if let (1, Some(owner)) = (owners.len(), owners.first()) {
                return Some(self.one_or_gone(Some(*owner)));
            }
        }
        None
    }

    /// An error may tell who gets it of elicitations: their end is told to it alone.
    pub(super) fn elicitations_in_error(&mut self, call: &Call, error: &Part<'_>) {
        let code = error.member("code").ok().flatten();
        if code.is_none_or(|code| code.text() != URL_ELICITATION_REQUIRED) {
            return;
        }
        let (Some(waiter), Ok(Some(elicitations))) =
            (call.waiters.first(), error.at(&["data", "elicitations"]))
        else {
            return;
        };
        elicitations.for_each_element(|it| {
            let id = it.member("elicitationId").ok().flatten();
            if let Some(id) = id.and_then(|id| id.string())
                && id.len() <= reply::NAME_LIMIT
            {
                self.asks.elicits(id.into_owned(), waiter.client);
            }
        });
    }

    /// Whether a client tells of a task that it does not work on for the server, as far as that is known.
    pub(super) fn is_anothers_work(
        &self,
        from: &From<'_>,
        notification: &Notification<'_>,
    ) -> bool {
        let task = notification.params.map(|it| it.member("taskId"));
        let Some(Ok(Some(task))) = task else {
            return false;
        };
        let Some(id) = task.string() else {
            return self.class.is_shared();
        };
        self.sessions.several && !self.asks.is_work_of(from.client, &id)
    }

    /// Whom the server may be working for: who waits for an answer, who did until it was cancelled,
    /// who owns a task that may go on. `None` stands for all who are gone.
    pub(super) fn candidates(&self) -> BTreeSet<Option<ClientId>> {
        let mut candidates = BTreeSet::new();
        for call in self.calls.asked() {
            match (&call.kind, &call.session) {
                (Kind::Initialize | Kind::LateInitialize, _) => {}
                (_, Some(session)) if call.waiters.is_empty() => {
                    candidates.insert(self.client_of(session));
                }
                _ => candidates.extend(call.waiters.iter().map(|it| Some(it.client))),
            }
        }
        // There are many calls and tasks, of few sessions.
        let sessions = self.calls.haunting().chain(self.tasks.unfinished());
        let sessions: BTreeSet<Option<&Arc<str>>> = sessions.collect();
        let owner = |session: Option<&Arc<str>>| session.and_then(|it| self.client_of(it));
        candidates.extend(sessions.into_iter().map(owner));
        candidates
    }

    /// A client answered what it was asked.
    pub(super) fn ask_answered(
        &mut self,
        from: &From<'_>,
        ask: Ask,
        id: &Part<'_>,
        response: &Response<'_>,
    ) {
        if self.answer_names_foreign_task(from, response) {
            self.notes.push(Note::ForeignTask(from.client));
            if let Some(server) = ask.server {
                self.tell_server(Lane::Own, answer_to_foreign_task(&server.raw));
            }
            return;
        }
        if let About::Roots(line) = ask.about {
            return self.roots_answered(from, line, ask.server, (id, response));
        }
        let Some(server) = ask.server else {
            return;
        };
        if let Outcome::Result(result) = response.outcome
            && let Ok(Some(task)) = result.at_if_any(&["task", "taskId"])
            && let Some(task) = task.string()
            && task.len() <= reply::NAME_LIMIT
        {
            let tasks = &mut self.asks.client_tasks;
            tasks.push_back((task.into_owned(), from.client));
            if tasks.len() > Asks::CLIENT_TASKS {
                tasks.pop_front();
            }
        }
        self.tell_server_with(Lane::Of(from.client), &from.said, &[(*id, &server.raw)]);
    }

    /// Whether an answer says that it belongs to a task that may be another session's.
    fn answer_names_foreign_task(&self, from: &From<'_>, response: &Response<'_>) -> bool {
        let Outcome::Result(result) = response.outcome else {
            return false;
        };
        self.is_related_to_foreign_task(from.client, Some(result)) != Ok(false)
    }

    /// A client will not answer: what it was asked is asked another, or answered for it.
    pub(super) fn asks_left(&mut self, client: ClientId) {
        for ask in self.asks.leave(client) {
            match (ask.about, ask.server) {
                (_, None) => {}
                (About::Roots(Some(line)) | About::RootsTold { line, .. }, Some(server)) => {
                    self.ask_for_roots(line, server)
                }
                (About::Roots(None) | About::Other, Some(server)) => {
                    self.tell_server(Lane::Own, client_gone(&server.raw));
                }
            }
        }
        self.tell_roots();
    }
}
