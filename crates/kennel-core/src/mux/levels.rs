//! Log levels (legacy): each client has one, and the server gets the most verbose of them.

use serde::{Deserialize, Serialize};

use crate::lifetime::ClientId;
use crate::message::{Notification, Outcome, Request, Response, reply};

use super::calls::{AssignedId, Call, Kind};
use super::handshake::waiter;
use super::raw_message::ClientMessage;
use super::refused::{Refused, refuse_other_members};
use super::{Lane, Mux};

/// Log levels, most verbose first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

/// The level of a client that never set one, once another client did: the server's default is lost then.
const DEFAULT_LEVEL: Level = Level::Info;

/// The levels before a change, to restore them if it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct PreviousLevels {
    at_server: Option<Level>,
    /// The client that requested the change and its former level; `None` if the mux requested it.
    of_client: Option<(ClientId, Option<Level>)>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Levels {
    /// The level last sent to the server. `None`: none was sent, or it was refused.
    at_server: Option<Level>,
    /// The call in flight that sets it.
    call: Option<AssignedId>,
}

impl Level {
    const ALL: [(Level, &str); 8] = [
        (Level::Debug, "debug"),
        (Level::Info, "info"),
        (Level::Notice, "notice"),
        (Level::Warning, "warning"),
        (Level::Error, "error"),
        (Level::Critical, "critical"),
        (Level::Alert, "alert"),
        (Level::Emergency, "emergency"),
    ];

    fn from_name(name: &str) -> Option<Level> {
        let found = Level::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(level, _)| *level)
    }

    fn name(self) -> &'static str {
        let found = Level::ALL.iter().find(|(level, _)| *level == self);
        found.expect("all are listed").1
    }
}

impl Mux {
    pub(super) fn set_level(
        &mut self,
        from: &ClientMessage<'_>,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let place = match request.params {
            Some(params) => params.member("level")?,
            None => None,
        };
        let named = place.and_then(|it| Level::from_name(&it.string()?));
        let (Some(place), Some(level)) = (place, named) else {
            if self.class.is_shared() {
                // Some servers accept `"DEBUG"` or `["debug"]` as `"debug"`, for all clients.
                let message = "level is not one of the protocol's levels, such as \"debug\"";
                return Err(Refused::invalid_params(&request.id, message));
            }
            // The server reports what is wrong with it.
            let lane = Lane::Of(from.client);
            self.forward(from, request, Kind::Plain, lane, None)?;
            return Ok(());
        };
        refuse_other_members(request, "level", self.class.is_shared())?;
        let before = self.client(from.client).level.replace(level);
        let wanted = self.most_verbose_level().expect("somebody set one");
        if self.levels.at_server == Some(wanted) {
            match self.levels.call {
                Some(assigned) => self.calls.join(assigned, waiter(from, request)),
                None => self.answer(from.client, from.batch, reply::pong(request.id.raw())),
            }
            return Ok(());
        }
        let named = format!("\"{}\"", wanted.name());
        let edit = (wanted != level).then_some((place, named.as_bytes()));
        let kind = Kind::Level(PreviousLevels {
            at_server: self.levels.at_server,
            of_client: Some((from.client, before)),
        });
        match self.forward(from, request, kind, Lane::Front, edit) {
            Ok(assigned) => {
                self.levels.call = Some(assigned);
                self.levels.at_server = Some(wanted);
                Ok(())
            }
            Err(refused) => {
                self.client(from.client).level = before;
                Err(refused)
            }
        }
    }

    pub(super) fn level_answered(
        &mut self,
        assigned: AssignedId,
        call: &Call,
        before: PreviousLevels,
        response: &Response<'_>,
    ) {
        let is_latest = self.levels.call == Some(assigned);
        if is_latest {
            self.levels.call = None;
        }
        if let Outcome::Error(_) = response.outcome {
            for waiter in &call.waiters {
                if let Some(client) = self.clients.get_mut(&waiter.client) {
                    client.level = None;
                }
            }
            if let Some((client, level)) = before.of_client
                && let Some(client) = self.clients.get_mut(&client)
            {
                client.level = level;
            }
            if is_latest {
                self.levels.at_server = before.at_server;
            }
        }
    }

    /// Sets the server's level if a client that joined or left changes it.
    pub(super) fn update_server_level(&mut self) {
        let (Some(there), Some(wanted)) = (self.levels.at_server, self.most_verbose_level()) else {
            return;
        };
        if there != wanted {
            let params = format!(r#"{{"level":"{}"}}"#, wanted.name());
            let kind = Kind::Level(PreviousLevels {
                at_server: Some(there),
                of_client: None,
            });
            let assigned = self.request_as_mux("logging/setLevel", &params, kind);
            self.levels.call = Some(assigned);
            self.levels.at_server = Some(wanted);
        }
    }

    fn most_verbose_level(&self) -> Option<Level> {
        let counts = self
            .clients
            .values()
            .filter(|client| client.initialized || client.level.is_some());
        counts
            .map(|client| client.level.unwrap_or(DEFAULT_LEVEL))
            .min()
    }

    /// The clients that get this log message.
    pub(super) fn log_audience(&self, notification: &Notification<'_>) -> Vec<ClientId> {
        let params = notification.params;
        let level = params.and_then(|it| it.member("level").ok().flatten());
        let level = level.and_then(|it| Level::from_name(&it.string()?));
        let wants = |client: &ClientId| match (level, self.levels.at_server) {
            (Some(level), Some(_)) => self
                .clients
                .get(client)
                .is_some_and(|it| level >= it.level.unwrap_or(DEFAULT_LEVEL)),
            // No client set a level, or the message has no known level.
            (_, None) | (None, _) => true,
        };
        self.recipients().into_iter().filter(wants).collect()
    }
}
